"""What a request's `prediction` brings: the speed with it over the speed without, by how much of it comes true.

    python bench/prediction.py --prompts dev.jsonl --rounds 15

Of each prompt the model's own greedy answer is known first. Then, interleaved: no prediction; the answer itself; the answer with
one token in `--every` changed; another prompt's answer. What counts is the ratio of times within a round.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from draftproof import LLM, SamplingParams
from prompts import read_prompts
from speed import by_signed_ranks


def changed(tokens: list[int], every: int) -> list[int]:
    """The tokens with one in `every` replaced by another of them."""
    return [tokens[place // 2] if place % every == every - 1 else token for place, token in enumerate(tokens)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="default", help="folder, hub id, ngram, default or none")
    parser.add_argument("--groups", type=lambda text: text.split(","), default=["math", "code", "chat"])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    llm = LLM(options.model, None if options.drafter == "none" else options.drafter, max_model_len=2048)
    prompts = [prompt for prompt in read_prompts(options.prompts, 2) if prompt.group in options.groups]
    plain = SamplingParams(temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True)
    answers = [llm.chat(prompt.messages, plain, progress=False)[0].token_ids for prompt in prompts]
    kinds = {
        "none": [None for _ in answers],
        "right": answers,
        f"1 in {options.every} wrong": [changed(tokens, options.every) for tokens in answers],
        "another's": [answers[number - 1] for number in range(len(answers))],
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    lengths: dict[str, list[float]] = {kind: [] for kind in kinds}
    order = list(kinds)
    for number in track(range(options.rounds + 1), description="rounds", console=Console(stderr=True)):
        turn = number % len(order)
        for kind in order[turn:] + order[:turn]:
            spent, tokens, steps = 0.0, 0, 0
            for prompt, answer, prediction in zip(prompts, answers, kinds[kind], strict=True):
                params = SamplingParams(
                    temperature=0.0, max_tokens=options.max_tokens, ignore_eos=True, prediction=prediction
                )
                began = time.perf_counter()
                result = llm.chat(prompt.messages, params, progress=False)[0]
                spent += time.perf_counter() - began
                if result.token_ids != answer:
                    raise SystemExit(f"a prediction changed the output of {prompt.messages!r}")
                tokens, steps = tokens + result.stats.decode_tokens, steps + result.stats.target_steps
            if number:
                seconds[kind].append(spent)
                lengths[kind].append(tokens / steps)
    table = Table(
        "prediction", "speed over none (ranks)", "tokens a step", title=f"drafter: {options.drafter}"
    )
    for kind in order[1:]:
        logs = [math.log(off / on) for on, off in zip(seconds[kind], seconds["none"], strict=True)]
        table.add_row(kind, str(by_signed_ranks(logs)), f"{sum(lengths[kind]) / len(lengths[kind]):.2f}")
    table.add_row("none", "1", f"{sum(lengths['none']) / len(lengths['none']):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
