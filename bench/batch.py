"""Does acceptance survive company? The same prompts one by one and as one batch, with whole blocks drafted.

    python bench/batch.py --prompts dev.jsonl --drafter FOLDER --batch 32

Tokens must be the same; the drafter's proposals may differ in rounding, so acceptance lengths agree within sampling error.
Also the second turn of a chat: what the prefix cache saves, and acceptance on a hit beside acceptance on a miss.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from draftproof import LLM, EngineOptions, RequestResult, SamplingParams
from draftproof.audit.differences import first_unequal
from prompts import read_prompts


@dataclass(frozen=True)
class Acceptance:
    """Acceptance length over several requests, and how uncertain it is (standard error over the requests)."""

    mean: float
    error: float

    @staticmethod
    def of(results: list[RequestResult]) -> Acceptance:
        steps = sum(result.stats.target_steps for result in results)
        mean = sum(result.stats.decode_tokens for result in results) / steps
        spread = sum(
            (result.stats.decode_tokens - mean * result.stats.target_steps) ** 2 for result in results
        )
        return Acceptance(mean, spread**0.5 / steps)


@dataclass(frozen=True)
class TurnTwo:
    """The second turns of several chats with the first turns cached or not.

    Attributes:
        prompt_tokens: of the second turns' prompts.
        computed_tokens: those not found in the cache.
        new_tokens: those that were not in the first turn's prompt or answer.
        same: whether tokens were the same on hit and miss.
        hit, miss: acceptance lengths.
    """

    prompt_tokens: int
    computed_tokens: int
    new_tokens: int
    same: bool
    hit: float
    miss: float


def company(llm: LLM, options: argparse.Namespace) -> tuple[Acceptance, Acceptance, bool]:
    """Acceptance alone and in company, and whether the tokens were the same."""
    prompts = read_prompts(options.prompts, -(-options.batch // 5))[: options.batch]
    params = SamplingParams(temperature=options.temperature, seed=5, max_tokens=options.max_tokens)
    messages = [prompt.messages for prompt in prompts]
    alone = [llm.chat(one, params)[0] for one in messages]
    together = llm.chat(messages, params)
    same = all(a.token_ids == b.token_ids for a, b in zip(alone, together, strict=True))
    return Acceptance.of(alone), Acceptance.of(together), same


def second_turns(llm: LLM, options: argparse.Namespace) -> TurnTwo:
    """Chats of two turns, the second once with the first cached and once without any cache."""
    sizes = EngineOptions(prefix_caching=False)
    cold = llm.with_drafter(llm.drafter, options=sizes)
    greedy = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    computed = prompted = new = 0
    hits, misses = [], []
    for prompt in read_prompts(options.prompts, 2):
        first = llm.chat(prompt.messages, greedy)[0]
        turns = [
            *prompt.messages,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Say that again in one short sentence."},
        ]
        hits += llm.chat(turns, greedy)
        misses += cold.chat(turns, greedy)
        result = hits[-1]
        prompted += len(result.prompt_token_ids)
        computed += len(result.prompt_token_ids) - result.cached_tokens
        prompt_ids = result.prompt_token_ids
        known = first_unequal(prompt_ids, first.prompt_token_ids + first.token_ids)
        new += 0 if known is None else len(prompt_ids) - known
    same = all(a.token_ids == b.token_ids for a, b in zip(hits, misses, strict=True))
    return TurnTwo(prompted, computed, new, same, Acceptance.of(hits).mean, Acceptance.of(misses).mean)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    llm = LLM(options.model, options.drafter, draft_mode="fixed=99", max_model_len=2048)
    alone, together, same = company(llm, options)
    turns = second_turns(llm, options)
    table = Table("what", "figure")
    table.add_row("acceptance length at batch 1", f"{alone.mean:.3f} ± {alone.error:.3f}")
    table.add_row(f"at batch {options.batch}", f"{together.mean:.3f} ± {together.error:.3f}")
    table.add_row("tokens the same", str(same))
    table.add_row(
        "second turn: prompt / computed / really new tokens",
        f"{turns.prompt_tokens} / {turns.computed_tokens} / {turns.new_tokens}",
    )
    table.add_row("acceptance length on a hit / on a miss", f"{turns.hit:.3f} / {turns.miss:.3f}")
    table.add_row("tokens the same", str(turns.same))
    Console(width=110).print(table)
    if options.json:
        figures = {"alone": vars(alone), "together": vars(together), "same": same, "turns": vars(turns)}
        options.json.write_text(json.dumps(figures, indent=1))
    raise SystemExit(0 if same and turns.same else 1)


if __name__ == "__main__":
    main()
