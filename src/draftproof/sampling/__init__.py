"""How a request wants its tokens chosen. Knows nothing of models."""

from draftproof.sampling.defaults import SamplingDefaults
from draftproof.sampling.params import SamplingParams
from draftproof.sampling.resolved import ResolvedSampling, draw_seed

__all__ = ["ResolvedSampling", "SamplingDefaults", "SamplingParams", "draw_seed"]
