"""The default model, for real: fetched once, cached outside the tree."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftproof import LLM, SamplingParams
from draftproof.models.drafters import write_random_checkpoint
from draftproof.models.registry import resolve_model

pytestmark = pytest.mark.smollm2

PROTOTYPE = Path(__file__).parents[3] / "shared" / "drafters" / "smollm2-135m-prototype"
QUESTIONS = [
    "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?",
    "Write a Python function that adds two numbers.",
]
SAMPLINGS = {"greedy": {"temperature": 0.0}, "top-p": {"temperature": 0.8, "top_p": 0.95}}


@cache
def smollm2(dtype: str) -> LLM:
    return LLM("smollm2-135m", dtype=dtype)


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.mark.parametrize("question", QUESTIONS)
def test_greedy_float32_equals_transformers(question: str) -> None:
    llm = smollm2("float32")
    ours = llm.chat(chat(question), SamplingParams(max_tokens=48, temperature=0.0))[0]
    reference = AutoModelForCausalLM.from_pretrained(resolve_model("smollm2-135m").path, dtype=torch.float32)
    prompt = torch.tensor([ours.prompt_token_ids])
    theirs = reference.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=48,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = theirs.sequences[0, prompt.shape[1] :].tolist()
    for index, row in enumerate(theirs.logits):
        first, second = row[0].topk(2).values.tolist()
        if first - second <= 1e-4:
            tokens = tokens[:index]
            break
    assert ours.token_ids[: len(tokens)] == tokens
    assert len(tokens) > 10


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_are_invariant_on_this_machine(dtype: str) -> None:
    assert smollm2(dtype).row_invariant


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("drafter", "mode"),
    [
        ("ngram", "auto"),
        ("random", "fixed=4"),
        ("prototype", "fixed=4"),
        ("default", "fixed=4"),
        ("default", "auto"),
    ],
)
def test_drafting_changes_nothing(drafter: str, mode: str, sampling: str, tmp_path: Path) -> None:
    if drafter == "prototype" and not PROTOTYPE.is_dir():
        pytest.skip(f"no prototype drafter at {PROTOTYPE.name}")
    off = smollm2("bfloat16")
    source = {"prototype": str(PROTOTYPE), "random": str(tmp_path)}.get(drafter, drafter)
    if drafter == "random":
        info = off.target.info
        write_random_checkpoint(
            tmp_path,
            hidden_size=info.hidden_size,
            vocab_size=info.vocab_size,
            num_target_layers=info.num_layers,
            num_layers=1,
        )
    on = off.with_drafter(source, draft_mode=mode)
    params = SamplingParams(**SAMPLINGS[sampling], seed=5, max_tokens=40, ignore_eos=True)
    for question in QUESTIONS:
        drafted, plain = on.chat(chat(question), params)[0], off.chat(chat(question), params)[0]
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        assert drafted.stats.drafted_tokens > 0 or mode == "auto"  # which drafts only where it pays


@pytest.mark.skipif(not PROTOTYPE.is_dir(), reason="no prototype drafter beside the checkout")
def test_a_trained_drafter_is_accepted() -> None:
    result = (
        smollm2("bfloat16")
        .with_drafter(str(PROTOTYPE), draft_mode="fixed=7")
        .chat(chat(QUESTIONS[0]), SamplingParams(max_tokens=64))[0]
    )
    assert result.stats.acceptance_length > 1.4


def test_the_drafter_that_comes_with_the_package_accepts() -> None:
    """Its card says about 2 for such questions; far below that, something about the pair does not match."""
    llm = LLM("smollm2-135m", drafter="default", draft_mode="fixed=7")
    sums = [
        f"Anna has {a} apples and buys {b} bags of {a} apples. How many apples has she now?"
        for a, b in ((3, 4), (12, 2))
    ]
    results = llm.chat([chat(question) for question in sums], SamplingParams(temperature=0.0, max_tokens=96))
    steps = sum(result.stats.target_steps for result in results)
    assert sum(result.stats.decode_tokens for result in results) > 1.5 * steps
