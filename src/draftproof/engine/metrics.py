"""What the engine has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Metrics:
    """Counters since the engine started (`EngineCore.metrics` gives a consistent copy).

    Attributes:
        steps: passes of the target.
        rows: rows in them, all told.
        requests: requests taken in.
        finished: outputs by reason (``"stop"``, ``"length"``, ``"abort"``, ``"error"``).
        prompt_tokens: prompt tokens of the requests taken in.
        cached_prompt_tokens: those among them restored from the prefix cache.
        computed_prompt_tokens: prompt (and, after preemption, output) tokens processed in chunks.
        output_tokens: tokens committed.
        decode_steps: verifications of one sequence, drafted or not.
        drafted_steps: those among them with at least one draft token.
        drafted_tokens: draft tokens verified.
        accepted_tokens: draft tokens kept.
        drafted_by_position: draft tokens verified at position 1, 2, ... of their block.
        accepted_by_position: draft tokens kept at each position.
        draft_lengths: how often each draft length was chosen, by length from 0.
        preemptions: sequences that lost their memory to others.
        draft_seconds, target_seconds, verify_seconds, commit_seconds: by phase of the steps.
        queue_seconds: waits for admission, all told.
        running, waiting: sequences now.
        blocks, free_blocks: of the pool; free ones may hold cached prefixes.
        prefix_lookups, prefix_asked_tokens, prefix_hit_tokens, evictions, block_copies: of the prefix cache.
    """

    steps: int = 0
    rows: int = 0
    requests: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    output_tokens: int = 0
    decode_steps: int = 0
    drafted_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    draft_lengths: list[int] = field(default_factory=list)
    preemptions: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    queue_seconds: float = 0.0
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free_blocks: int = 0
    prefix_lookups: int = 0
    prefix_asked_tokens: int = 0
    prefix_hit_tokens: int = 0
    evictions: int = 0
    block_copies: int = 0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens committed per sequence and decode step (tau); 0.0 before any."""
        return (self.decode_steps + self.accepted_tokens) / self.decode_steps if self.decode_steps else 0.0

    def copied(self) -> Metrics:
        """The counters as they are now."""
        copy = Metrics.__new__(Metrics)
        copy.__dict__.update(self.__dict__)  # `dataclasses.replace` takes several times as long
        copy.finished = dict(self.finished)
        copy.drafted_by_position = list(self.drafted_by_position)
        copy.accepted_by_position = list(self.accepted_by_position)
        copy.draft_lengths = list(self.draft_lengths)
        return copy

    def count_draft(self, drafted: int, accepted: int) -> None:
        """Note one verification: `drafted` tokens checked, the first `accepted` kept."""
        self.decode_steps += 1
        if not drafted and self.draft_lengths:
            self.draft_lengths[0] += 1
            return
        self.drafted_steps += drafted > 0
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        _grow(self.draft_lengths, drafted + 1)
        self.draft_lengths[drafted] += 1
        _grow(self.drafted_by_position, drafted)
        _grow(self.accepted_by_position, drafted)
        for position in range(drafted):
            self.drafted_by_position[position] += 1
        for position in range(accepted):
            self.accepted_by_position[position] += 1

    def count_finished(self, reason: str) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1


def _grow(counts: list[int], size: int) -> None:
    counts.extend([0] * (size - len(counts)))
