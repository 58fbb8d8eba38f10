"""Long outputs: does a step get dearer with drafting than without, and does acceptance decay?

    python bench/long_output.py --prompts dev.jsonl --drafter FOLDER --tokens 2000

Steps are timed in windows of the output, drafting on and off in turns. Acceptance late in a text is compared with that of a fresh
request that starts there: the prompt and the output so far as its prompt, nothing cached.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from draftproof import LLM, EngineOptions, SamplingParams
from draftproof.engine import StreamEvent
from prompts import read_prompts


@dataclass
class Window:
    """Steps whose first token falls into a stretch of the output."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds)

    @property
    def acceptance(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0


class Run:
    """One request, stepped by hand so that every step can be timed."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams) -> None:
        self.inbox: deque[StreamEvent] = deque()
        self.llm, self.tokens = llm, list[int]()
        request = llm.prepare(prompt, params, self.inbox.append)
        llm.loop.add(request)

    def advance(self, until: int, window: Window) -> None:
        """Steps until the output has so many tokens."""
        while len(self.tokens) < until:
            before = self.llm.metrics
            self.llm.loop.step()
            now = self.llm.metrics
            while self.inbox:
                event = self.inbox.popleft()
                if self.tokens:
                    window.steps += 1
                    window.tokens += len(event.token_ids)
                    window.seconds.append(
                        sum(
                            getattr(now, f"{phase}_seconds") - getattr(before, f"{phase}_seconds")
                            for phase in ("draft", "target", "verify", "commit")
                        )
                    )
                self.tokens += event.token_ids
                if event.finished:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--draft-mode", default="auto")
    parser.add_argument("--count", type=int, default=3, help="texts")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--window", type=int, default=250)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    sizes = EngineOptions(prefix_caching=False)
    off = LLM(options.model, max_model_len=options.tokens + 1024, prefix_caching=False)
    on = off.with_drafter(options.drafter, draft_mode=options.draft_mode, options=sizes)
    whole = off.with_drafter(options.drafter, draft_mode="fixed=99", options=sizes)
    ends = list(range(options.window, options.tokens + 1, options.window))
    windows = {name: [Window() for _ in ends] for name in ("off", "on", "whole", "fresh")}
    same = True
    for prompt in read_prompts(options.prompts, 1)[: options.count]:
        tokens = off.tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True)["input_ids"]
        params = SamplingParams(
            temperature=options.temperature, seed=3, max_tokens=options.tokens, ignore_eos=True
        )
        runs = {name: Run(llm, tokens, params) for name, llm in (("off", off), ("on", on), ("whole", whole))}
        for place, end in enumerate(ends):
            for name in ("off", "on", "whole"):
                runs[name].advance(end, windows[name][place])
        same &= runs["off"].tokens == runs["on"].tokens == runs["whole"].tokens
        for place, end in enumerate(ends):
            start = end - options.window
            if start == 0 or place % 2 == 0:
                continue
            # Noise goes by output position, so this is another continuation of the same text, not the same one.
            fresh = SamplingParams(
                temperature=options.temperature, seed=3, max_tokens=options.window, ignore_eos=True
            )
            Run(whole, [*tokens, *runs["off"].tokens[:start]], fresh).advance(
                options.window, windows["fresh"][place]
            )
    show(windows, ends)
    print("tokens the same with and without drafting:", same)
    if options.json:
        figures = {
            name: [{"ms": w.step_ms if w.seconds else None, "tau": w.acceptance} for w in each]
            for name, each in windows.items()
        }
        options.json.write_text(json.dumps({"ends": ends, "same": same, "windows": figures}, indent=1))
    raise SystemExit(0 if same else 1)


def show(windows: dict[str, list[Window]], ends: list[int]) -> None:
    table = Table(
        "output up to",
        "step ms off",
        "step ms auto",
        "step ms whole block",
        "tau auto",
        "tau whole",
        "tau fresh",
    )
    for place, end in enumerate(ends):
        off, on, whole, fresh = (windows[name][place] for name in ("off", "on", "whole", "fresh"))
        table.add_row(
            str(end),
            f"{off.step_ms:.1f}",
            f"{on.step_ms:.1f}",
            f"{whole.step_ms:.1f}",
            f"{on.acceptance:.2f}",
            f"{whole.acceptance:.2f}",
            f"{fresh.acceptance:.2f}" if fresh.steps else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
