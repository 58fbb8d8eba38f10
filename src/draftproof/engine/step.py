"""One step: draft, run the target once, verify, commit. For all sequences of a plan together."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from draftproof.cache import OutOfBlocks
from draftproof.engine.candidates import Work, lay_out
from draftproof.engine.commit import CommittedBlock, commit_tokens
from draftproof.engine.drafting import Draft, DraftRound, propose
from draftproof.engine.economics import DraftOutcome, DraftWish, Economist, StepCost
from draftproof.engine.faults import as_coded
from draftproof.engine.memory import KVMemory
from draftproof.engine.metrics import Metrics
from draftproof.engine.scheduler import Chunk, StepPlan
from draftproof.engine.sequence import Sequence
from draftproof.engine.verification import Verdict, verify
from draftproof.errors import DraftproofError
from draftproof.models.drafters.base import Drafter
from draftproof.models.rows import TargetOutput
from draftproof.models.target import Target
from draftproof.sampling import token_logprobs


@dataclass(frozen=True)
class Progress:
    """What a step brought to one sequence: tokens, or the error that ends its request."""

    sequence: Sequence
    block: CommittedBlock | None = None
    error: DraftproofError | None = None


@dataclass(frozen=True)
class _Verified:
    work: Work
    verdict: Verdict


class StepRunner:
    """Carries out plans.

    Args:
        target, drafter: the models; `drafter` None for none.
        memory: the pool both models' keys and values live in.
        economist: how far to draft.
        metrics: counts what happens.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        memory: KVMemory,
        economist: Economist,
        metrics: Metrics,
    ) -> None:
        self.target, self.drafter, self.memory = target, drafter, memory
        self.economist, self.metrics = economist, metrics

    def run(self, plan: StepPlan) -> list[Progress]:
        """Carry out a plan; every chunk's sequence is in the answer if tokens or an error came of it.

        Anything raised, other than by a single sequence's own rows, is the whole step's failure: the caller decides about the
        sequences of the plan.
        """
        clock = _Clock(self.metrics, plan)
        before = replace(self.memory.upkeep)
        drafted = self._draft(plan)
        clock.mark("draft")
        while_drafting = self.memory.upkeep.seconds - before.seconds
        works = lay_out(*_arranged(plan.chunks, drafted.drafts))
        size = _StepSize.of(works)
        taps = self.drafter.tap_layer_ids if self.drafter is not None else ()
        output = self.target.forward([work.segment(self.target.device) for work in works], taps)
        clock.mark("target")
        verified = self._verify(works, output)
        clock.mark("verify")
        progress = self._commit(works, verified, output)
        self._settle(works)
        clock.mark("commit")
        self.metrics.steps += 1
        self.metrics.rows += size.rows
        cost = StepCost(
            rows=size.rows,
            sequences=len(works),
            drafting_sequences=drafted.sequences,
            draft_slots=drafted.slots,
            draft_s=clock.seconds["draft"] - while_drafting,
            target_s=clock.seconds["target"] + clock.seconds["verify"],
            extend_tokens=self.memory.upkeep.tokens - before.tokens,
            extend_s=self.memory.upkeep.seconds - before.seconds,
            other_rows=size.other_rows,
            context=size.context,
        )
        self._observe(verified, cost)
        return progress

    # Draft

    def _draft(self, plan: StepPlan) -> DraftRound:
        """Drafts for the chunks that decode, as far as economics wants, the token budget allows and blocks are at hand."""
        by_chunk = DraftRound.none(len(plan.chunks))
        places = [place for place, chunk in enumerate(plan.chunks) if chunk.decodes]
        if self.drafter is None or not places:
            return by_chunk
        sequences = [plan.chunks[place].sequence for place in places]
        wishes = [_wish(sequence, self.drafter.max_draft_tokens) for sequence in sequences]
        others = sum(chunk.count for chunk in plan.chunks) - len(places)
        wanted = _within(self.economist.plan(wishes, others), plan.room)
        granted = [self._with_blocks(s, length) for s, length in zip(sequences, wanted, strict=True)]
        drafting = [s for s, length in zip(sequences, granted, strict=True) if length > 0]
        if not drafting:
            return by_chunk
        self.memory.take_in(drafting)
        answers = iter(propose(self.drafter, self.target, drafting, [k for k in granted if k > 0]))
        drafts = [next(answers) if length > 0 else Draft() for length in granted]
        kept = self.economist.trim(
            wishes, [len(draft.tokens) for draft in drafts], [draft.confidence for draft in drafts], others
        )
        for place, draft, count in zip(places, drafts, kept, strict=True):
            by_chunk.drafts[place] = draft.cut(count)
        return DraftRound(by_chunk.drafts, len(drafting), sum(granted))

    def _with_blocks(self, sequence: Sequence, length: int) -> int:
        """As much of a draft length as finds blocks without anybody giving way."""
        if length <= 0:
            return 0
        try:
            self.memory.reserve(sequence, 1 + length)
        except OutOfBlocks:
            length = min(length, self.memory.writable_room(sequence) - 1)
        return length

    # Verify

    def _verify(self, works: Items[Work], output: TargetOutput) -> list[_Verified]:
        """Verdicts for everyone whose pending tokens are all processed, and for choices that fork here."""
        choosing: list[Work] = []
        for work in works:
            if work.chunk.last:
                choosing.append(work)
                choosing += [work.for_choice(other) for other in _forks(work.sequence)]
        return [
            _Verified(work, verdict) for work, verdict in zip(choosing, verify(choosing, output), strict=True)
        ]

    # Commit

    def _commit(self, works: Items[Work], verified: Items[_Verified], output: TargetOutput) -> list[Progress]:
        accepted = {id(one.work): one.verdict.accepted for one in verified}
        for work in works:
            _score_prompt(work, output)
            self.memory.commit(
                work.sequence, work.chunk.count + accepted.get(id(work), 0), work.features_of(output)
            )
            if not work.chunk.decodes:
                self.metrics.computed_prompt_tokens += work.chunk.count
        self._fork(works)
        return [self._accept(one, output) for one in verified]

    def _fork(self, works: Items[Work]) -> None:
        for work in works:
            if work.chunk.last:
                for other in _forks(work.sequence):
                    self.memory.fork(work.sequence, other)

    def _accept(self, one: _Verified, output: TargetOutput) -> Progress:
        work, verdict = one.work, one.verdict
        sequence = work.sequence
        if verdict.error is not None:
            return Progress(sequence, error=verdict.error)
        kept = [*work.drafts[: verdict.accepted], verdict.bonus]
        try:
            block = commit_tokens(sequence, kept, verdict.accepted, work.logits_of(output))
        except Exception as error:  # a tokenizer or a grammar may raise what it likes; the others go on
            return Progress(sequence, error=as_coded(error))
        self.metrics.output_tokens += len(block.token_ids)
        if work.chunk.decodes:
            self._count(sequence, len(work.drafts), min(verdict.accepted, len(block.token_ids)), block)
        return Progress(sequence, block)

    def _count(self, sequence: Sequence, drafted: int, accepted: int, block: CommittedBlock) -> None:
        stats = sequence.stats
        stats.target_steps += 1
        stats.drafted_tokens += drafted
        stats.accepted_tokens += accepted
        stats.accepted_lengths.append(accepted)
        stats.decode_tokens += len(block.token_ids)
        self.metrics.count_draft(drafted, accepted)

    def _settle(self, works: Items[Work]) -> None:
        going_on = [work for work in works if work.sequence.finish_reason is None]
        self.memory.settle(
            [work.sequence for work in going_on],
            prompts=[work.sequence for work in going_on if not work.chunk.decodes],
            ended=[work.sequence for work in works if work.sequence.finish_reason is not None],
        )

    # Learn

    def _observe(self, verified: Items[_Verified], cost: StepCost) -> None:
        if self.drafter is None:
            return
        drafted = [one for one in verified if one.verdict.error is None and _was_drafted(one.work)]
        if drafted:
            self.economist.observe([_outcome(one) for one in drafted])
        self.economist.observe_step(cost)


def _was_drafted(work: Work) -> bool:
    return bool(work.drafts) or bool(work.draft.confidence)


def _outcome(one: _Verified) -> DraftOutcome:
    """What became of a draft. An output that ended inside its block says nothing of the drafts behind the end."""
    draft, sequence = one.work.draft, one.work.sequence
    checked = len(draft.tokens) if sequence.finish_reason is None else one.verdict.accepted
    return DraftOutcome(sequence.acceptance, draft.confidence, checked, one.verdict.accepted)


@dataclass(frozen=True)
class _StepSize:
    """Of a pass, before anything of it is committed: rows, those that belong to prompts, tokens attended to by all rows."""

    rows: int
    other_rows: int
    context: int

    @staticmethod
    def of(works: Items[Work]) -> _StepSize:
        return _StepSize(
            rows=sum(work.rows for work in works),
            other_rows=sum(work.chunk.count for work in works if not work.chunk.decodes),
            context=sum(work.rows * len(work.sequence.tokens) for work in works),
        )


class _Clock:
    """Adds the time since the last mark to a phase of the step, of the engine, and of every sequence in it."""

    def __init__(self, metrics: Metrics, plan: StepPlan) -> None:
        self._metrics = metrics
        self._decoding = [c.sequence.stats.seconds for c in plan.chunks if c.decodes]
        self._filling = [c.sequence.stats.seconds for c in plan.chunks if not c.decodes]
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        spent = self.seconds[phase] = now - self._last
        self._last = now
        name = f"{phase}_seconds"
        setattr(self._metrics, name, getattr(self._metrics, name) + spent)
        for seconds in self._decoding:
            setattr(seconds, phase, getattr(seconds, phase) + spent)
        for seconds in self._filling:
            seconds.prefill += spent


def _wish(sequence: Sequence, most: int) -> DraftWish:
    memory = sequence.running_memory
    return DraftWish(
        sequence.acceptance, sequence.draft_room(most), memory.kv.length, backlog=memory.waiting_length
    )


def _within(lengths: Items[int], room: int) -> list[int]:
    """Draft lengths cut to `room` rows in all, the longest first."""
    lengths = list(lengths)
    while sum(lengths) > room:
        lengths[lengths.index(max(lengths))] -= 1
    return lengths


def _forks(sequence: Sequence) -> list[Sequence]:
    """Choices that wait for this one, the first, to process the prompt."""
    if sequence.index != 0 or sequence.output_length != 0:
        return []
    return sequence.request.sequences[1:]


def _arranged(chunks: Items[Chunk], drafts: Items[Draft]) -> tuple[list[Chunk], list[Draft]]:
    """Chunks and drafts in an order in which those verified together are neighbours."""

    def key(place: int) -> tuple[bool, bool, int]:
        sequence = chunks[place].sequence
        return (sequence.rules is not None, not sequence.sampling.is_greedy, len(drafts[place].tokens))

    order = sorted(range(len(chunks)), key=key)
    return [chunks[place] for place in order], [drafts[place] for place in order]


def _score_prompt(work: Work, output: TargetOutput) -> None:
    """Log-probabilities of the prompt tokens that follow the chunk's, where the request wants them."""
    request = work.sequence.request
    if not request.lacks_prompt_logprobs:
        return
    start, known = work.sequence.running_memory.kv.length, len(request.prompt_logprobs)
    end = min(start + work.chunk.count, len(request.prompt_token_ids) - 1)
    if end <= known:
        return
    rows = work.prompt_logits_of(output)[known - start : end - start]
    following = request.prompt_token_ids[known + 1 : end + 1]
    assert request.sampling.prompt_logprobs is not None
    request.prompt_logprobs += token_logprobs(rows, following, request.sampling.prompt_logprobs)
