"""One step: draft, run the target once, verify, commit. For all sequences of a plan together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from draftproof.cache import OutOfBlocks
from draftproof.engine.candidates import Work, lay_out, segments_of
from draftproof.engine.commit import CommittedBlock, commit_tokens
from draftproof.engine.drafting import Draft, DraftRound, propose
from draftproof.engine.economics import DraftOutcome, DraftWish, Economist, StepCost
from draftproof.engine.faults import as_coded
from draftproof.engine.memory import KVMemory
from draftproof.engine.metrics import Metrics
from draftproof.engine.prediction import LONGEST
from draftproof.engine.scheduler import Chunk, StepPlan
from draftproof.engine.sequence import Sequence
from draftproof.engine.verification import Verdict, verify
from draftproof.errors import DraftproofError
from draftproof.models.drafters.base import Drafter
from draftproof.models.executor import TargetModel
from draftproof.models.rows import TargetOutput
from draftproof.sampling import token_logprobs


@dataclass(eq=False, slots=True)
class Progress:
    """What a step brought to one sequence: tokens, or the error that ends its request."""

    sequence: Sequence
    block: CommittedBlock | None = None
    error: DraftproofError | None = None


@dataclass(eq=False, slots=True)
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
        target: TargetModel,
        drafter: Drafter | None,
        memory: KVMemory,
        economist: Economist,
        metrics: Metrics,
    ) -> None:
        self.target, self.drafter, self.memory = target, drafter, memory
        self.economist, self.metrics = economist, metrics
        memory.fills = economist.fills

    def run(self, plan: StepPlan) -> list[Progress]:
        """Carry out a plan; every chunk's sequence is in the answer if tokens or an error came of it.

        Anything raised, other than by a single sequence's own rows, is the whole step's failure: the caller decides about the
        sequences of the plan.
        """
        clock, upkeep = _Clock(), self.memory.upkeep
        tokens_before, seconds_before = upkeep.tokens, upkeep.seconds
        try:
            drafted = self._draft(plan)
            clock.mark("draft")
            while_drafting = upkeep.seconds - seconds_before
            works = lay_out(*_arranged(plan.chunks, drafted.drafts))
            rows = works[-1].first_row + works[-1].rows
            # Before anything is committed; summing up what nobody will look at would cost time too.
            size = _StepSize.of(works) if self._is_watched(drafted) else None
            taps = self.drafter.tap_layer_ids if self.drafter is not None else ()
            output = self.target.forward(segments_of(works, self.target.device), taps)
            clock.mark("target")
            verified = self._verify(works, output)
            clock.mark("verify")
            progress = self._commit(works, verified, output)
            self._settle(works)
            clock.mark("commit")
        finally:
            clock.book(self.metrics, plan)
        self.metrics.steps += 1
        self.metrics.rows += rows
        if drafted.sequences:
            self._learn(verified)
        if size is not None:
            cost = StepCost(
                rows=rows,
                sequences=len(works),
                drafting_sequences=drafted.sequences,
                draft_slots=drafted.slots,
                draft_s=clock.draft - while_drafting,
                target_s=clock.target + clock.verify,
                extend_tokens=upkeep.tokens - tokens_before,
                extend_s=upkeep.seconds - seconds_before,
                other_rows=size.other_rows,
                context=size.context,
            )
            self.economist.observe_step(cost)
        return progress

    def _is_watched(self, drafted: DraftRound) -> bool:
        """Whether economics learns from this step."""
        return self.drafter is not None and not drafted.as_asked and self.economist.watches(drafted.slots)

    # Draft

    def _draft(self, plan: StepPlan) -> DraftRound:
        """Drafts for the chunks that decode, as far as economics wants, the token budget allows and blocks are at hand."""
        own = [
            place
            for place, chunk in enumerate(plan.chunks)
            if chunk.sequence.has_own_drafts and chunk.decodes
        ]
        if not own or self.economist.mode.kind == "off":
            return self._draft_by_economist(plan, {}, plan.room)
        drafts = self._draft_as_asked(plan, own)
        rows = sum(len(draft.tokens) for draft in drafts.values())
        usual = self._draft_by_economist(plan, drafts, plan.room - rows)
        for place, draft in drafts.items():
            usual.drafts[place] = draft
        return DraftRound(usual.drafts, usual.sequences, usual.slots, as_asked=True)

    def _draft_as_asked(self, plan: StepPlan, own: list[int]) -> dict[int, Draft]:
        """Drafts, by place, of the requests that say how: by a prediction that holds here, or by a fixed length."""
        drafts: dict[int, Draft] = {}
        lengths: dict[int, int] = {}
        room = plan.room
        for place in own:
            sequence = plan.chunks[place].sequence
            fixed = sequence.sampling.draft_length
            tokens = self._predicted(sequence, min(room, LONGEST if fixed is None else fixed))
            if tokens:
                drafts[place] = Draft(tokens, origin="prediction")
                room -= len(tokens)
            elif fixed is not None:
                drafts[place] = Draft(origin="request")
                if self.drafter is not None and sequence.running_memory.drafted:
                    wanted = min(room, sequence.draft_room(min(fixed, self.drafter.max_draft_tokens)))
                    lengths[place] = max(0, self._with_blocks(sequence, wanted))
                    room -= lengths[place]
        lengths = {place: length for place, length in lengths.items() if length > 0}
        if self.drafter is not None and lengths:
            sequences = [plan.chunks[place].sequence for place in lengths]
            self.memory.take_in(sequences)
            proposed = propose(self.drafter, self.target, sequences, list(lengths.values()))
            drafts |= {
                place: replace(draft, confidence=None, origin="request")
                for place, draft in zip(lengths, proposed, strict=True)
            }
        return drafts

    def _predicted(self, sequence: Sequence, most: int) -> list[int]:
        """What the request's prediction has next, as far as it is of use and blocks are at hand."""
        if sequence.prediction is None:
            return []
        tokens = sequence.prediction.propose(
            sequence.tokens, sequence.prompt_length, sequence.draft_room(max(0, most))
        )
        return tokens[: max(0, self._with_blocks(sequence, len(tokens)))]

    def _draft_by_economist(self, plan: StepPlan, but: Mapping[int, Draft], room: int) -> DraftRound:
        """Drafts for all chunks that decode but some, which have their drafts already."""
        by_chunk = DraftRound.none(len(plan.chunks))
        if self.drafter is None:
            return by_chunk
        places = [
            place
            for place, chunk in enumerate(plan.chunks)
            if chunk.decodes and chunk.sequence.running_memory.drafted and place not in but
        ]
        if not places:
            decoding = sum(chunk.decodes for chunk in plan.chunks) - len(but)
            if decoding > 0:
                self.economist.unattended(decoding)
            return by_chunk
        sequences = [plan.chunks[place].sequence for place in places]
        others = sum(chunk.count for chunk in plan.chunks) - len(places)
        for draft in but.values():
            others += len(draft.tokens)
        rests = self.economist.rests([sequence.acceptance for sequence in sequences], others, plan.refilled)
        self.memory.idle = self.economist.idle
        if rests:
            return by_chunk
        wishes = [_wish(sequence, self.drafter.max_draft_tokens) for sequence in sequences]
        wanted = _within(self.economist.plan(wishes, others, plan.refilled), room)
        granted = [self._with_blocks(s, length) for s, length in zip(sequences, wanted, strict=True)]
        drafting = [s for s, length in zip(sequences, granted, strict=True) if length > 0]
        if not drafting:
            return by_chunk
        self.memory.take_in(drafting)
        answers = iter(propose(self.drafter, self.target, drafting, [k for k in granted if k > 0]))
        drafts = [next(answers) if length > 0 else Draft() for length in granted]
        kept = self.economist.trim(
            wishes,
            [len(draft.tokens) for draft in drafts],
            [draft.confidence for draft in drafts],
            others,
            plan.refilled,
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
                if work.chunk.decodes:
                    continue
                choosing += [work.for_choice(other) for other in _forks(work.sequence)]
        return [
            _Verified(work, verdict) for work, verdict in zip(choosing, verify(choosing, output), strict=True)
        ]

    # Commit

    def _commit(self, works: Items[Work], verified: Items[_Verified], output: TargetOutput) -> list[Progress]:
        accepted = {id(one.work): one.verdict.accepted for one in verified}
        kept = []
        for work in works:
            if not work.chunk.decodes:
                _score_prompt(work, output)
                self.metrics.computed_prompt_tokens += work.chunk.count
            kept.append((work.sequence, work.first_row, work.chunk.count + accepted.get(id(work), 0)))
        self.memory.commit(kept, output)
        self._fork(works)
        return [self._accept(one, output) for one in verified]

    def _fork(self, works: Items[Work]) -> None:
        for work in works:
            if work.chunk.last and not work.chunk.decodes:
                for other in _forks(work.sequence):
                    self.memory.fork(work.sequence, other)

    def _accept(self, one: _Verified, output: TargetOutput) -> Progress:
        work, verdict = one.work, one.verdict
        sequence = work.sequence
        if verdict.error is not None:
            return Progress(sequence, error=verdict.error)
        kept = [*work.drafts[: verdict.accepted], verdict.bonus]
        try:
            block = commit_tokens(sequence, kept, verdict.accepted, work, output)
        except Exception as error:  # a tokenizer or a grammar may raise what it likes; the others go on
            return Progress(sequence, error=as_coded(error))
        self.metrics.output_tokens += len(block.token_ids)
        if work.chunk.decodes:
            accepted = min(verdict.accepted, len(block.token_ids))
            self._count(sequence, len(work.drafts), accepted, block)
            if work.draft.origin == "prediction":
                _count_prediction(sequence, len(work.drafts), verdict.accepted, accepted)
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
        going_on, prompts, ended = [], [], []
        for work in works:
            sequence = work.sequence
            if sequence.finish_reason is not None:
                ended.append(sequence)
                continue
            going_on.append(sequence)
            if not work.chunk.decodes:
                prompts.append(sequence)
        self.memory.settle(going_on, prompts, ended)

    # Learn

    def _learn(self, verified: Items[_Verified]) -> None:
        drafted = [one for one in verified if one.verdict.error is None and _was_drafted(one.work)]
        if drafted:
            self.economist.observe([_outcome(one) for one in drafted])


def _was_drafted(work: Work) -> bool:
    """Whether the economist and the drafter made its draft, who are to learn from it."""
    return work.draft.origin == "economist" and (bool(work.drafts) or bool(work.draft.confidence))


def _count_prediction(sequence: Sequence, drafted: int, accepted: int, kept: int) -> None:
    assert sequence.prediction is not None
    sequence.prediction.note(drafted, accepted)
    sequence.stats.predicted_accepted += kept
    sequence.stats.predicted_rejected += drafted - accepted


def _outcome(one: _Verified) -> DraftOutcome:
    """What became of a draft. An output that ended inside its block says nothing of the drafts behind the end."""
    draft, sequence = one.work.draft, one.work.sequence
    checked = len(draft.tokens) if sequence.finish_reason is None else one.verdict.accepted
    return DraftOutcome(sequence.acceptance, draft.confidence, checked, one.verdict.accepted)


@dataclass(frozen=True)
class _StepSize:
    """Of a pass: rows that belong to prompts, tokens attended to by all rows."""

    other_rows: int
    context: int

    @staticmethod
    def of(works: Items[Work]) -> _StepSize:
        return _StepSize(
            other_rows=sum(work.chunk.count for work in works if not work.chunk.decodes),
            context=sum(work.rows * len(work.sequence.tokens) for work in works),
        )


class _Clock:
    """Seconds by phase of a step, in the order draft, target, verify, commit; a phase not reached has 0."""

    __slots__ = ("_last", "commit", "draft", "target", "verify")

    def __init__(self) -> None:
        self.draft = self.target = self.verify = self.commit = 0.0
        self._last = time.perf_counter()

    def mark(self, phase: str) -> None:
        """The phase ends here."""
        now = time.perf_counter()
        setattr(self, phase, now - self._last)
        self._last = now

    def book(self, metrics: Metrics, plan: StepPlan) -> None:
        """Add the phases to the engine's and to those of every sequence in the plan."""
        draft, target, verify, commit = self.draft, self.target, self.verify, self.commit
        metrics.draft_seconds += draft
        metrics.target_seconds += target
        metrics.verify_seconds += verify
        metrics.commit_seconds += commit
        for chunk in plan.chunks:
            seconds = chunk.sequence.stats.seconds
            if chunk.decodes:
                seconds.draft += draft
                seconds.target += target
                seconds.verify += verify
                seconds.commit += commit
            else:
                seconds.prefill += draft + target + verify + commit


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
    keys = [
        (chunk.sequence.rules is not None, not chunk.sequence.sampling.is_greedy, len(draft.tokens))
        for chunk, draft in zip(chunks, drafts, strict=True)
    ]
    if keys.count(keys[0]) == len(keys):
        return list(chunks), list(drafts)
    order = sorted(range(len(chunks)), key=keys.__getitem__)
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
