"""What an examination found, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftproof.audit.doctor.scoring import Score

LOW = 1.15
"""Below this acceptance length a drafter accepts next to nothing: at best every seventh step keeps a draft token."""

Verdict = Literal["clearly better", "no clear difference", "worse", "refused"]


@dataclass(frozen=True)
class Trial:
    """One correction that was tried.

    Attributes:
        round: from 1; each round tries everything on top of what the rounds before found.
        kind, name: of the correction.
        score: on the prompts; None where the loader refuses the pair this way.
        ratio, low, high: acceptance length over that before, and its 99% interval; 0.0 where refused.
        verdict: in words.
        refusal: why it was refused.
    """

    round: int
    kind: str
    name: str
    score: Score | None
    ratio: float
    low: float
    high: float
    verdict: Verdict
    refusal: str = ""


@dataclass(frozen=True)
class Finding:
    """A reason for low acceptance.

    Attributes:
        kind, name: of the correction that showed it.
        cause: what is wrong, as a clause about the drafter or the target.
        remedy: how to mend it.
        before, after: acceptance lengths without and with the correction.
        low, high: 99% interval of their ratio.
        as_good: other corrections of the kind that do as well, so that this one may not be the only right one.
    """

    kind: str
    name: str
    cause: str
    remedy: str
    before: float
    after: float
    low: float
    high: float
    as_good: tuple[str, ...] = ()


@dataclass(frozen=True)
class DoctorReport:
    """What was found.

    Attributes:
        model, drafter: by name.
        precision: of the target, as examined.
        style: how prompts were put.
        prompts, tokens: how many prompts, and output tokens of the target's answers.
        block_size: anchor and draft tokens of the drafter as it stands; 0 where it is refused.
        as_is: its score as it stands; None where the loader refuses it.
        refusal: why, with the code.
        yardstick: acceptance length of the n-gram drafter on the same texts.
        trials: every correction that was tried.
        findings: reasons, the gravest first.
        settled: the score with all findings mended.
    """

    model: str
    drafter: str
    precision: str
    style: str
    prompts: int
    tokens: int
    block_size: int
    as_is: Score | None
    refusal: str
    yardstick: float
    trials: list[Trial]
    findings: list[Finding]
    settled: Score | None

    @property
    def healthy(self) -> bool:
        """Whether it drafts, and nothing that was tried is clearly better."""
        return not self.findings and self.settled is not None and not self.low

    @property
    def low(self) -> bool:
        """Whether it accepts next to nothing, all findings mended."""
        return self.settled is not None and self.settled.acceptance_length < LOW

    @property
    def verdict(self) -> str:
        """One line."""
        if self.findings:
            return f"doctor: FOUND: {self._found()}{'; and still low' if self.low else ''}"
        if self.settled is None:
            return f"doctor: REFUSED: {self.refusal}; no correction of {len(self.trials)} mends that"
        length = self.settled.acceptance_length
        if self.low:
            return (
                f"doctor: LOW: {length:.2f} tokens a step, and no correction of {len(self.trials)} helps: "
                "it was hardly trained, or for other weights than this target's"
            )
        return f"doctor: healthy: {length:.2f} tokens a step, and no correction of {len(self.trials)} is clearly better"

    def _found(self) -> str:
        return "; then ".join(
            f"{one.cause} ({one.name}: {one.before:.2f} to {one.after:.2f} tokens a step)"
            for one in self.findings
        )
