"""How fast verification is: against the plain way (softmax, sort, gather over all rows) and against merely reading.

    python bench/verify.py                 # the table of docs/verification.md
    python bench/verify.py --json          # the same as JSON
    python bench/verify.py --vocab 49152   # another vocabulary
    python bench/verify.py --cpu-time      # one thread, its CPU time: for a machine that is busy with other work

Every timing meets its logits out of the CPU's caches, as a fresh LM-head output of this size is: calls take turns over
windows of one big pool of rows, shifted so that the rows they touch do not overlap, and the pool is larger than the
last-level cache. Ways are interleaved; medians are reported. "read" is the faster of `sum` and `amax` in torch over
exactly the rows that the rule has to look at, with the same threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from draftproof.verify import (
    SamplingInfo,
    compute_dflash_sampling_correct_drafts_and_bonus,
    gumbel_choice,
    target_probs,
    verify_drafter_invariant,
)


@dataclass(frozen=True)
class Setting:
    """What is measured: sizes, sampling, repeats."""

    vocab: int
    batch: int
    candidates: int
    temperature: float
    top_p: float
    repeats: int
    plain_repeats: int
    dtype: str
    cpu_time: bool

    def clock(self) -> float:
        """Seconds."""
        return time.thread_time() if self.cpu_time else time.perf_counter()


@dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds, medians."""

    logits: str
    rule: str
    accepted: int
    nucleus: int
    ours_us: float
    plain_us: float
    read_us: float

    @property
    def times_faster(self) -> float:
        return self.plain_us / self.ours_us

    @property
    def times_read(self) -> float:
        return self.ours_us / self.read_us


def peaked_logits(rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """Rows shaped like a language model's: a broad body and a tail of strong tokens, some 20 to 400 in the nucleus."""
    body = torch.randn(rows, vocab, generator=generator) * 2.2
    strong = 400
    places = torch.randint(0, vocab, (rows, strong), generator=generator)
    rank = torch.arange(1, strong + 1, dtype=torch.float32)
    slope = 0.8 + 0.7 * torch.rand(rows, 1, generator=generator)  # Zipf-like: logit falls with log rank
    heights = 17.0 - slope * torch.log(rank) + 0.3 * torch.randn(rows, strong, generator=generator)
    return body.scatter_(1, places, heights)


def flat_logits(rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """The worst case: standard normal logits, most of the vocabulary in the nucleus."""
    return torch.randn(rows, vocab, generator=generator)


@dataclass(frozen=True)
class Case:
    """One call's arguments, arranged so that exactly `accepted` drafts are kept."""

    candidates: torch.Tensor
    logits: torch.Tensor
    info: SamplingInfo
    seeds: torch.Tensor
    positions: torch.Tensor
    coins: torch.Tensor
    finals: torch.Tensor
    accepted: int

    def target_only(self) -> tuple[torch.Tensor, torch.Tensor]:
        return compute_dflash_sampling_correct_drafts_and_bonus(
            candidates=self.candidates,
            next_token_logits=self.logits,
            sampling_info=self.info,
            uniform_samples=self.coins,
            uniform_samples_for_final_sampling=self.finals,
        )

    def drafter_invariant(self) -> tuple[torch.Tensor, torch.Tensor]:
        return verify_drafter_invariant(
            candidates=self.candidates,
            next_token_logits=self.logits,
            sampling_info=self.info,
            seeds=self.seeds,
            positions=self.positions,
        )

    def read(self, how: str) -> torch.Tensor:
        """Only read the rows that decide."""
        bs, n = self.candidates.shape
        rows = self.logits.view(bs, n, -1)[:, : self.accepted + 1]
        return rows.amax(-1) if how == "amax" else rows.sum(-1)


def build(setting: Setting, logits: torch.Tensor, rule: str, accepted: int) -> Case:
    """Drafts that the rule keeps up to `accepted`, and then one that it cannot keep."""
    bs, n = setting.batch, setting.candidates
    info = SamplingInfo.of(temperature=setting.temperature, top_p=setting.top_p, batch_size=bs)
    seeds, positions = torch.arange(bs) + 12345, torch.full((bs,), 7)
    candidates = torch.zeros((bs, n), dtype=torch.int64)
    for t in range(n - 1):
        rows = logits[t::n]
        if rule == "target-only":
            wanted = rows.argmax(-1)  # has mass, and the coins are 0
        else:
            wanted = gumbel_choice(logits=rows, sampling_info=info, seeds=seeds, positions=positions + t)
        candidates[:, t + 1] = rows.argmin(-1) if t == accepted else wanted
    finals = torch.rand(bs, generator=torch.Generator().manual_seed(1))
    return Case(candidates, logits, info, seeds, positions, torch.zeros(bs, n), finals, accepted)


def plain(case: Case, rule: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The way one would write it: softmax, sort, cumulative sum, scatter, gather, over all rows."""
    bs, n = case.candidates.shape
    temperatures = case.info.temperatures.to(torch.float32).repeat_interleave(n, 0)
    top_ps = case.info.top_ps.to(torch.float32).repeat_interleave(n, 0)
    probs = torch.softmax(case.logits.float() / temperatures, -1)
    ranked, order = probs.sort(-1, descending=True)
    ranked[ranked.cumsum(-1) - ranked >= top_ps[:, None]] = 0.0
    probs = torch.zeros_like(probs).scatter_(-1, order, ranked)
    probs /= probs.sum(-1, keepdim=True)
    probs = probs.view(bs, n, -1)
    drafts = case.candidates[:, 1:]
    if rule == "target-only":
        p = probs[:, :-1].gather(-1, drafts[..., None])[..., 0]
        agrees = (p > 0) & (case.coins[:, :-1] <= p)
    else:
        noise = -torch.log(-torch.log(torch.rand_like(probs)))
        choice = (torch.log(probs) + noise).argmax(-1)
        agrees = drafts == choice[:, :-1]
    accepted = agrees.int().cumprod(-1).sum(-1)
    if rule != "target-only":
        return accepted, choice.gather(1, accepted[:, None])[:, 0]
    last = probs[torch.arange(bs), accepted]
    rejected = accepted < n - 1
    at = drafts.gather(1, accepted.clamp(max=n - 2)[:, None])
    last = last.scatter(1, at, torch.where(rejected[:, None], 0.0, last.gather(1, at)))
    running = last.cumsum(-1)
    return accepted, torch.searchsorted(running, case.finals[:, None] * running[:, -1:], right=True)[:, 0]


def measure(setting: Setting, shape: str) -> list[Row]:
    """All rules and accepted lengths on one kind of logits."""
    generator = torch.Generator().manual_seed(0)
    make = peaked_logits if shape == "peaked" else flat_logits
    bs, n = setting.batch, setting.candidates
    pool = make(3 * bs * n + n - 1, setting.vocab, generator).to(getattr(torch, setting.dtype))
    sample = SamplingInfo.of(temperature=setting.temperature, top_p=setting.top_p, batch_size=64)
    nucleus = int((target_probs(pool[:64], sample) > 0).sum(-1).to(torch.float64).median())
    rows = []
    for rule in ("target-only", "drafter-invariant"):
        for accepted in sorted({0, (n - 1) // 2, n - 1}):
            starts = [
                part * bs * n + shift for shift in range(0, n - accepted, accepted + 1) for part in range(3)
            ]
            cases = [build(setting, pool[start : start + bs * n], rule, accepted) for start in starts]
            for case in cases:
                assert verify(case, rule)[0].tolist() == [accepted] * bs
            ways: dict[str, Callable[[Case], object]] = {
                "ours": lambda case, rule=rule: verify(case, rule),
                "sum": lambda case: case.read("sum"),
                "amax": lambda case: case.read("amax"),
            }
            times = interleaved(ways, cases, setting.repeats, setting.clock)
            plain_way = {"plain": lambda case, rule=rule: plain(case, rule)}
            slow = interleaved(plain_way, cases, setting.plain_repeats, setting.clock)
            read = min(times["sum"], times["amax"])
            rows.append(Row(shape, rule, accepted, nucleus, times["ours"], slow["plain"], read))
    return rows


def verify(case: Case, rule: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What is measured."""
    return case.target_only() if rule == "target-only" else case.drafter_invariant()


def interleaved(
    ways: dict[str, Callable[[Case], object]], cases: Sequence[Case], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median microseconds of each way, taken in turns, each time on the next case."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    following = itertools.cycle(cases)
    for turn in range(-(repeats // 4), repeats):
        for name, way in ways.items():
            case = next(following)
            start = clock()
            way(case)
            took = clock() - start
            if turn >= 0:  # the turns before that only warm up
                times[name].append(took * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def show(rows: list[Row], setting: Setting) -> None:
    """The table."""
    clock = "CPU" if setting.cpu_time else "wall"
    table = Table(
        title=f"vocabulary {setting.vocab:,}, batch {setting.batch}, {setting.candidates} candidates, {setting.dtype}, "
        f"temperature {setting.temperature}, top-p {setting.top_p}, {torch.get_num_threads()} thread(s), {clock} time"
    )
    for name in ("logits", "nucleus", "rule", "accepted"):
        table.add_column(name)
    for name in ("ours ms", "plain ms", "read ms", "plain / ours", "ours / read"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = (f"{us / 1000:.2f}" for us in (row.ours_us, row.plain_us, row.read_us))
        table.add_row(
            row.logits, f"{row.nucleus:,}", row.rule, str(row.accepted), *numbers,
            f"{row.times_faster:.0f}x", f"{row.times_read:.2f}x",
        )  # fmt: skip
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--plain-repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--shape", default="both", choices=("peaked", "flat", "both"))
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread, and its CPU time instead of wall time"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    args = parser.parse_args()
    if args.threads or args.cpu_time:
        torch.set_num_threads(1 if args.cpu_time else args.threads)
    setting = Setting(
        args.vocab, args.batch, args.candidates, args.temperature, args.top_p, args.repeats, args.plain_repeats,
        args.dtype, args.cpu_time,
    )  # fmt: skip
    shapes = ("peaked", "flat") if args.shape == "both" else (args.shape,)
    rows = [row for shape in shapes for row in measure(setting, shape)]
    if args.json:
        lines = [asdict(r) | {"times_faster": r.times_faster, "times_read": r.times_read} for r in rows]
        print(
            json.dumps(
                {"setting": asdict(setting), "threads": torch.get_num_threads(), "rows": lines}, indent=2
            )
        )
    else:
        show(rows, setting)


if __name__ == "__main__":
    main()
