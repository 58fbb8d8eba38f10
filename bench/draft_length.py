"""Short drafts two ways: anchor + k masks, or the whole block denoised and cut to k. Which is accepted more?

    python bench/draft_length.py --prompts dev.jsonl --drafter FOLDER

Attention in a block is bidirectional, so the two differ. Every position of the target's own greedy outputs serves as an
anchor once; "accepted" is the mean number of leading draft tokens that agree with what the target went on to say.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftproof import LLM, SamplingParams
from draftproof.models.drafters.base import Drafter, DraftRequest, DraftSampling
from draftproof.models.rows import Segment
from prompts import BenchPrompt, read_prompts


def agreeing(draft: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (mine, theirs) in enumerate(zip(draft, truth, strict=False)):
        if mine != theirs:
            return index
    return min(len(draft), len(truth))


@torch.inference_mode()
def measure(llm: LLM, prompt: BenchPrompt, max_tokens: int) -> dict[int, list[tuple[int, int]]]:
    """For every draft length k, per anchor: (accepted with k masks, accepted of the cut block)."""
    drafter = llm.drafter
    assert drafter is not None
    result = llm.with_drafter(None).chat(
        prompt.messages, SamplingParams(temperature=0.0, max_tokens=max_tokens)
    )[0]
    tokens = result.prompt_token_ids + result.token_ids
    kv = llm.target.new_sequence()
    ids = torch.tensor(tokens, device=llm.target.device)
    features = llm.target.forward([Segment(kv, ids, len(tokens))], drafter.tap_layer_ids).features
    assert features is not None
    state, first, most = drafter.new_state(), len(result.prompt_token_ids), drafter.max_draft_tokens
    drafter.extend(state, features[:first], 0)
    found: dict[int, list[tuple[int, int]]] = {k: [] for k in range(1, most + 1)}
    for anchor in range(first, len(tokens) - most):
        truth = tokens[anchor + 1 :]
        whole = propose(drafter, state, tokens[: anchor + 1], most)
        for k in found:
            short = whole if k == most else propose(drafter, state, tokens[: anchor + 1], k)
            found[k].append((agreeing(short, truth), agreeing(whole[:k], truth)))
        drafter.extend(state, features[anchor : anchor + 1], anchor)
    return found


def propose(drafter: Drafter, state: object, tokens: list[int], count: int) -> list[int]:
    request = DraftRequest(state, tokens, count, 0, DraftSampling())
    return drafter.propose([request])[0].tokens.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--per-group", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    options = parser.parse_args()
    llm = LLM(options.model, options.drafter)
    sums: dict[int, list[tuple[int, int]]] = {}
    for prompt in track(
        read_prompts(options.prompts, options.per_group), "prompts", console=Console(stderr=True)
    ):
        for k, pairs in measure(llm, prompt, options.max_tokens).items():
            sums.setdefault(k, []).extend(pairs)
    table = Table("draft length", "anchors", "accepted: k masks", "accepted: whole block, cut", "ratio")
    for k, pairs in sums.items():
        masks, cut = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
        table.add_row(str(k), str(len(pairs)), f"{masks:.3f}", f"{cut:.3f}", f"{masks / cut:.3f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
