"""The figures of a cell, from its rounds: flat dataclasses that go into the table, the plot and the JSON as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.bench.cell import CellKey, CellRun, Round
from draftproof.bench.options import OFF
from draftproof.bench.spread import Percentiles, Spread
from draftproof.bench.work import Work, total


@dataclass(frozen=True)
class PhaseShares:
    """Where the time of decoding went, in shares of the wall clock that sum to 1.

    `verify` is verification and sampling together: penalties, masks and the acceptance rule. `other` is what no phase
    covers, such as planning the steps.
    """

    draft: float
    target: float
    verify: float
    commit: float
    other: float


@dataclass(frozen=True)
class ModeFigures:
    """One mode in a cell. Figures that do not exist are None.

    Attributes:
        mode: draft mode.
        tokens_per_second: decoding, all requests together, a value a round.
        tokens_per_second_by_round: those values, in order; None where a round decoded nothing.
        speed_over_off: the ratio to mode ``off`` in the same round.
        prompt_tokens_per_second: prompts of a batch, processed together.
        first_token_ms: time to first token, nothing cached, over all requests.
        inter_token_ms: from one arrival at the reader to the next; tokens of a block arrive together.
        per_token_ms: mean time of a token after the first, over requests.
        output_tokens: over all rounds.
        acceptance_length: tokens committed per step of a sequence, bonus included.
        drafted_by_position, accepted_by_position: draft tokens verified and kept at each place of their block.
        draft_lengths: entry k counts steps of a sequence with k draft tokens.
        shares: of the decoding time.
        peak_mib: most memory resident in this process during its rounds (the other modes' engines included).
        same_tokens: whether every output was that of mode ``off``.
    """

    mode: str
    tokens_per_second: Spread | None
    tokens_per_second_by_round: list[float | None]
    speed_over_off: Spread | None
    prompt_tokens_per_second: Spread | None
    first_token_ms: Percentiles | None
    inter_token_ms: Percentiles | None
    per_token_ms: Percentiles | None
    output_tokens: int
    acceptance_length: float | None
    drafted_by_position: list[int]
    accepted_by_position: list[int]
    draft_lengths: list[int]
    shares: PhaseShares | None
    peak_mib: float | None
    same_tokens: bool | None

    @property
    def kept_by_position(self) -> list[float]:
        """Share of the draft tokens verified at each place that were kept."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return [kept / drafted for kept, drafted in pairs if drafted]

    @property
    def mean_draft_length(self) -> float:
        steps = sum(self.draft_lengths)
        return (
            sum(length * count for length, count in enumerate(self.draft_lengths)) / steps if steps else 0.0
        )


@dataclass(frozen=True)
class Cell:
    """A group at one batch size and temperature.

    Attributes:
        rounds: that every mode finished.
        complete: whether those were all that were asked for; a cell that is not is measured again on the next run.
        modes: in the order they were named.
    """

    group: str
    batch: int
    temperature: float
    rounds: int
    complete: bool
    modes: list[ModeFigures]

    @property
    def key(self) -> CellKey:
        return CellKey(self.group, self.batch, self.temperature)


def summarised(run: CellRun) -> Cell:
    """The figures of what was measured."""
    paired = run.paired
    plain = paired.get(OFF)
    return Cell(
        group=run.key.group,
        batch=run.key.batch,
        temperature=run.key.temperature,
        rounds=min((len(rounds) for rounds in paired.values()), default=0),
        complete=run.complete,
        modes=[_figures(mode, rounds, plain) for mode, rounds in paired.items()],
    )


def _figures(mode: str, rounds: Sequence[Round], plain: Sequence[Round] | None) -> ModeFigures:
    speeds = [one.decoding.tokens_per_second for one in rounds]
    prompt_speeds = [one.prompts.prompt_tokens_per_second for one in rounds]
    done = total([one.decoding.work for one in rounds])
    peaks = [one.peak_mib for one in rounds if one.peak_mib is not None]
    against = None if mode == OFF else plain
    return ModeFigures(
        mode=mode,
        tokens_per_second=Spread.of([speed for speed in speeds if speed is not None]),
        tokens_per_second_by_round=speeds,
        speed_over_off=None if against is None else Spread.of(_ratios(rounds, against)),
        prompt_tokens_per_second=Spread.of([speed for speed in prompt_speeds if speed is not None]),
        first_token_ms=_milliseconds([s for one in rounds for s in one.prompts.first_token_seconds]),
        inter_token_ms=_milliseconds([s for one in rounds for s in one.decoding.gaps]),
        per_token_ms=_milliseconds([s for one in rounds for s in one.decoding.seconds_per_token]),
        output_tokens=sum(len(output) for one in rounds for output in one.decoding.outputs),
        acceptance_length=done.acceptance_length,
        drafted_by_position=done.drafted_by_position,
        accepted_by_position=done.accepted_by_position,
        draft_lengths=done.draft_lengths,
        shares=_shares(done, sum(one.decoding.seconds for one in rounds)),
        peak_mib=max(peaks, default=None),
        same_tokens=None if against is None else _same(rounds, against),
    )


def _ratios(rounds: Sequence[Round], plain: Sequence[Round]) -> list[float]:
    pairs = [
        (one.decoding.tokens_per_second, other.decoding.tokens_per_second)
        for one, other in zip(rounds, plain, strict=True)
    ]
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def _same(rounds: Sequence[Round], plain: Sequence[Round]) -> bool:
    return all(
        one.decoding.outputs == other.decoding.outputs for one, other in zip(rounds, plain, strict=True)
    )


def _milliseconds(seconds: Sequence[float]) -> Percentiles | None:
    return Percentiles.of([1e3 * value for value in seconds])


def _shares(done: Work, wall: float) -> PhaseShares | None:
    if wall <= 0:
        return None
    draft, target, verify, commit = (
        seconds / wall
        for seconds in (done.draft_seconds, done.target_seconds, done.verify_seconds, done.commit_seconds)
    )
    return PhaseShares(draft, target, verify, commit, max(0.0, 1.0 - draft - target - verify - commit))
