"""How a request wants its tokens chosen. Knows nothing of models."""

from draftproof.sampling.defaults import SamplingDefaults
from draftproof.sampling.grammar import Grammar, GrammarCompiler
from draftproof.sampling.logprobs import TokenLogprobs, token_logprobs
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.resolved import ResolvedSampling, draw_seed
from draftproof.sampling.rules import Adjusted, RowRules
from draftproof.sampling.seeds import choice_seed
from draftproof.sampling.structured import StructuredOutputs

__all__ = [
    "Adjusted",
    "Grammar",
    "GrammarCompiler",
    "ResolvedSampling",
    "RowRules",
    "SamplingDefaults",
    "SamplingParams",
    "StructuredOutputs",
    "TokenLogprobs",
    "choice_seed",
    "draw_seed",
    "token_logprobs",
]
