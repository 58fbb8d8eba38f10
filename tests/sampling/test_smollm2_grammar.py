"""Grammars with the tokenizer and the vocabulary of the default model."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from draftproof.models.registry import resolve_model
from draftproof.sampling import GrammarCompiler, RowRules, SamplingDefaults, SamplingParams, StructuredOutputs

pytestmark = pytest.mark.smollm2

VOCAB = 49_152
ENDS = frozenset({2})
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["a", "b c"]}}},
    "required": ["name", "tags"],
}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(resolve_model("smollm2-135m").path)


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), VOCAB, ENDS)


def rules() -> RowRules:
    form = StructuredOutputs(json=SCHEMA)
    sampling = SamplingParams(structured_outputs=form, max_tokens=100).resolve(
        SamplingDefaults(), vocab_size=VOCAB
    )
    found = RowRules.of(sampling, [1], ENDS, compiler().compile(form), VOCAB)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_random_logits_make_valid_json_and_drafts_leave_no_trace(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    step, block = rules(), rules()
    closers = torch.tensor(tokenizer().convert_tokens_to_ids(['"', '"}', '"]', "]", "]}", '"]}']))
    raws, path = [], []
    while not path or path[-1] not in ENDS:
        raw = torch.randn(1, VOCAB, generator=generator).bfloat16()
        raw[:, closers] += len(path) / 4  # sooner or later strings and lists are closed
        adjusted = step.apply(raw, [])
        raws.append(raw)
        path.append(int(adjusted.logits.argmax()))
        step.advance(path[-1:])
        assert len(path) < 100
    value = json.loads(tokenizer().decode(path[:-1]))
    assert set(value["tags"]) <= {"a", "b c"}
    together = block.apply(torch.cat(raws), path[:-1])
    assert together.drafts == len(path) - 1
    assert together.logits.argmax(dim=1).tolist() == path


def test_text_of_the_models_own_kind_passes() -> None:
    tokens = tokenizer().encode('{"name": "Łódź 天 \\n 😀", "tags": ["a", "b c"]}')
    assert rules().apply(torch.zeros(1 + len(tokens), VOCAB), tokens).drafts == len(tokens)
