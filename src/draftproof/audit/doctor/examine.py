"""The examination: score the pair as it stands, try what is plausible, and keep what is clearly better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftproof.audit.doctor.corrections import KINDS, Correction, TargetFacts, corrections, shorter_block
from draftproof.audit.doctor.facts import facts_of
from draftproof.audit.doctor.findings import DoctorReport, Finding, Trial
from draftproof.audit.doctor.gains import Compared, Gain, gain
from draftproof.audit.doctor.pair import Pair
from draftproof.audit.doctor.scoring import Score, score, undrafted
from draftproof.audit.doctor.setup import Setup, load_setup, read_setup
from draftproof.audit.doctor.slots import first_untrained
from draftproof.audit.doctor.texts import CHAT, RAW, TextSet, encoded_as, styles_of
from draftproof.audit.prompts import AuditPrompt
from draftproof.audit.watch import Watcher, nobody
from draftproof.engine import LLM
from draftproof.errors import DrafterError, RequestError
from draftproof.models.drafters import Drafter
from draftproof.models.drafters.ngram import NgramDrafter
from draftproof.models.executor import precision_of

MENDABLE = ("DP309", "DP313", "DP314")
"""Refusals that a correction may lift: taps outside the target, no usable mask token, no RoPE base."""
_MOST_ROUNDS = 3
_AS_GOOD = 0.98
_LEAST_PROMPTS, _LEAST_TOKENS = 4, 4


@dataclass(frozen=True)
class DoctorOptions:
    """How to examine.

    Attributes:
        max_tokens: most tokens of each answer.
        raw: prompts go to the model as they are, as in ``generate --raw``; else through its chat template.
        only: kinds of correction to try, of `KINDS`; all when empty.
    """

    max_tokens: int = 64
    raw: bool = False
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError("DP542", f"max_tokens must be a whole number >= 1, got {self.max_tokens}")
        for kind in self.only:
            if kind not in KINDS:
                raise RequestError("DP542", f"only must be one of {', '.join(KINDS)}, got {kind!r}")

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if not self.only or kind in self.only)


def diagnose(
    pair: Pair,
    prompts: Sequence[AuditPrompt],
    options: DoctorOptions | None = None,
    watcher: Watcher = nobody,
) -> DoctorReport:
    """Examine a pair.

    The target answers the prompts greedily, once; then the drafter, put together in every plausible way, proposes along these
    answers. What is clearly better (`gains.Gain.clear`) is kept, and everything else tried again on top, up to three rounds.

    Args:
        pair: target and drafter; the drafter's folder is only read.
        prompts: what to ask, at least 4.
        options: how much.
        watcher: is told how far it is.

    Raises:
        RequestError: DP541, too little text to tell; DP401 to DP406, a prompt is not acceptable.
        DrafterError: the drafter cannot be read or does not fit (DP3xx), and none of the corrections could change that.
    """
    options = options or DoctorOptions()
    watcher("the target answers", 0, 1)
    style = RAW if options.raw or CHAT not in styles_of(pair.llm) else CHAT
    room = _Room(pair, prompts, options.max_tokens)
    setup = read_setup(pair.folder, style, precision_of(pair.llm.target))
    texts = room.texts(setup)
    _insist_on_text(texts)
    course = _Course(room, facts_of(pair), setup, watcher)
    course.run(options.kinds)
    drafter = course.drafter
    return DoctorReport(
        model=pair.llm.target.name,
        drafter=pair.drafter,
        precision=setup.precision,
        style=style,
        prompts=len(prompts),
        tokens=sum(text.output_count for text in texts.texts),
        block_size=0 if drafter is None else drafter.max_draft_tokens + 1,
        as_is=course.as_is,
        refusal=course.refusal,
        yardstick=room.yardstick(setup).acceptance_length,
        trials=course.trials,
        findings=course.findings,
        settled=course.settled,
    )


def _insist_on_text(texts: TextSet) -> None:
    usable = sum(text.output_count >= _LEAST_TOKENS for text in texts.texts)
    if usable < _LEAST_PROMPTS:
        raise RequestError(
            "DP541",
            f"{usable} of {len(texts.texts)} prompts have answers of {_LEAST_TOKENS} tokens or more; "
            f"at least {_LEAST_PROMPTS} are needed to tell one correction from another",
        )


class _Room:
    """Targets, their texts, and scores on them, each made once."""

    def __init__(self, pair: Pair, prompts: Sequence[AuditPrompt], max_tokens: int) -> None:
        self._pair, self._prompts, self._max_tokens = pair, prompts, max_tokens
        self._llms: dict[str, LLM] = {precision_of(pair.llm.target): pair.llm}
        self._texts: dict[tuple[str, str], TextSet] = {}
        self._yardsticks: dict[tuple[str, str], Score] = {}

    def texts(self, setup: Setup) -> TextSet:
        """The answers of the setup's target to prompts in its style."""
        key = (setup.style, setup.precision)
        if key not in self._texts:
            llm = self._llm(setup.precision)
            self._texts[key] = TextSet(llm, encoded_as(llm, self._prompts, setup.style), self._max_tokens)
        return self._texts[key]

    def yardstick(self, setup: Setup) -> Score:
        """What prompt lookup scores on these texts: how much they repeat themselves."""
        key = (setup.style, setup.precision)
        if key not in self._yardsticks:
            texts = self.texts(setup)
            self._yardsticks[key] = score(NgramDrafter(texts.llm.target.device), texts)
        return self._yardsticks[key]

    def load(self, setup: Setup) -> Drafter:
        """The setup's drafter. Raises `DrafterError`."""
        return load_setup(self._pair.folder, setup, self._llm(setup.precision).target.info)

    def _llm(self, precision: str) -> LLM:
        if precision not in self._llms:
            assert self._pair.reload is not None
            self._llms[precision] = self._pair.reload(precision)
        return self._llms[precision]


@dataclass(frozen=True)
class _Attempt:
    """A trial, what it tried, and what to compare the next ones with."""

    trial: Trial
    correction: Correction
    compared: Compared | None
    gain: Gain | None


class _Course:
    """How an examination goes: where it stands, and what it has seen."""

    def __init__(self, room: _Room, facts: TargetFacts, setup: Setup, watcher: Watcher) -> None:
        self._room, self._facts, self._setup, self._watcher = room, facts, setup, watcher
        self.trials: list[Trial] = []
        self.findings: list[Finding] = []
        self.refusal = ""
        self.drafter: Drafter | None = None
        self.as_is: Score | None = None
        try:
            self.drafter = room.load(setup)
            self.as_is = score(self.drafter, room.texts(setup))
        except DrafterError as error:
            if error.code not in MENDABLE:
                raise
            self.refusal = f"{error.code} {error.message}"
        self.settled = self.as_is

    def run(self, kinds: Sequence[str]) -> None:
        """Round after round, until nothing is clearly better."""
        left = tuple(kinds)
        for number in range(1, _MOST_ROUNDS + 1):
            attempts = self._round(number, left)
            better = [one for one in attempts if one.gain is not None and one.gain.clear]
            if not better:
                break
            best = _best(better)
            self._adopt(best, better)
            left = tuple(kind for kind in left if kind != best.correction.kind)
        if "block" in left:
            self._look_at_slots()

    def _round(self, number: int, kinds: tuple[str, ...]) -> list[_Attempt]:
        tries = corrections(self._setup, self._facts, kinds)
        attempts = []
        for index, correction in enumerate(tries):
            self._watcher(f"round {number}: {correction.name}", index, len(tries))
            attempts.append(self._attempt(number, correction))
        self.trials += [one.trial for one in attempts]
        return attempts

    def _attempt(self, number: int, correction: Correction) -> _Attempt:
        setup = correction.setup
        try:
            compared = self._compared(setup, score(self._room.load(setup), self._room.texts(setup)))
        except DrafterError as error:
            refusal = f"{error.code} {error.message}"
            trial = Trial(number, correction.kind, correction.name, None, 0.0, 0.0, 0.0, "refused", refusal)
            return _Attempt(trial, correction, None, None)
        found = gain(compared, self._stands(compared))
        verdict = "clearly better" if found.clear else "worse" if found.loss else "no clear difference"
        trial = Trial(
            round=number,
            kind=correction.kind,
            name=correction.name,
            score=compared.score,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            verdict=verdict,  # type: ignore[arg-type]
        )
        return _Attempt(trial, correction, compared, found)

    def _compared(self, setup: Setup, own: Score) -> Compared:
        """A score, with the yardstick's where the texts are not those on which the pair stands now."""
        same = (setup.style, setup.precision) == (self._setup.style, self._setup.precision)
        return Compared(own, None if same else self._room.yardstick(setup))

    def _stands(self, other: Compared) -> Compared:
        """What an attempt is compared with; a pair that is refused drafts nothing."""
        own = self.settled or undrafted(self._room.texts(self._setup))
        return Compared(own, None if other.yardstick is None else self._room.yardstick(self._setup))

    def _adopt(self, best: _Attempt, better: Sequence[_Attempt]) -> None:
        assert best.compared is not None
        before = self._stands(best.compared).score.acceptance_length
        as_good = tuple(
            one.correction.name
            for one in better
            if one is not best
            and one.correction.kind == best.correction.kind
            and one.trial.ratio >= _AS_GOOD * best.trial.ratio
        )
        self.findings.append(_finding(best, before, as_good))
        self._setup, self.settled = best.correction.setup, best.compared.score

    def _look_at_slots(self) -> None:
        """Slots that draft next to nothing are a finding by themselves: they cost time, cut off or not."""
        slot = first_untrained(self.settled) if self.settled is not None else None
        if slot is None or self.settled is None:
            return
        cause = f"its slots from {slot} on agree with next to nothing, as if never trained"
        shorter = replace(shorter_block(self._setup, slot), cause=cause)
        attempt = self._attempt(1 + len(self.findings), shorter)
        self.trials.append(attempt.trial)
        if attempt.compared is None or attempt.gain is None:
            return
        before, after = self.settled.acceptance_length, attempt.compared.score
        if attempt.gain.loss:
            remedy = (
                f"train slots {slot} and up; cutting them off does not help, as those before are used to them"
            )
            attempt = replace(attempt, correction=replace(shorter, remedy=remedy))
        else:
            self._setup, self.settled = shorter.setup, after
        self.findings.append(_finding(attempt, before, ()))


def _best(better: Sequence[_Attempt]) -> _Attempt:
    """The one that gains most, or one of its kind that does as well and was thought of earlier, as the likelier one."""
    most = max(better, key=lambda one: one.trial.ratio)
    alike = (one for one in better if one.correction.kind == most.correction.kind)
    return next(one for one in alike if one.trial.ratio >= _AS_GOOD * most.trial.ratio)


def _finding(attempt: _Attempt, before: float, as_good: tuple[str, ...]) -> Finding:
    correction, trial = attempt.correction, attempt.trial
    assert trial.score is not None
    return Finding(
        kind=correction.kind,
        name=correction.name,
        cause=correction.cause,
        remedy=correction.remedy,
        before=before,
        after=trial.score.acceptance_length,
        low=trial.low,
        high=trial.high,
        as_good=as_good,
    )
