"""The engine: takes requests in, steps, and sees to it that no request's trouble becomes another's."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch

from draftproof.engine.commit import CommittedBlock
from draftproof.engine.crew import Crew
from draftproof.engine.economics import Economist
from draftproof.engine.faults import as_coded
from draftproof.engine.memory import KVMemory, blocks_within
from draftproof.engine.metrics import Metrics
from draftproof.engine.request import Request
from draftproof.engine.results import RequestResult, StreamEvent, TextPiece
from draftproof.engine.scheduler import Scheduler, StepPlan
from draftproof.engine.sequence import Sequence
from draftproof.engine.step import Progress, StepRunner
from draftproof.engine.undisturbed import undisturbed
from draftproof.errors import DraftproofError, EngineError, RequestError
from draftproof.models.drafters.base import Drafter
from draftproof.models.executor import TargetModel


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs.

    Attributes:
        max_num_seqs: most outputs decoded at once.
        max_num_batched_tokens: rows of a step, anchors aside (prompt chunks and drafts).
        kv_cache_memory: bytes for keys and values of target and drafter together; None: decided by the memory there is.
        prefix_caching: reuse what prompts have in common with earlier ones.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    kv_cache_memory: int | None = None
    prefix_caching: bool = True


class EngineCore:
    """Continuous batching over one target and at most one drafter. Not thread-safe: one thread at a time.

    Args:
        target, drafter: the models.
        economist: how far to draft.
        options: sizes.
        kv_cache_memory: bytes for the pool.
        max_model_len: most tokens of prompt and output together.

    Raises:
        RequestError: DP441, the memory given does not hold one sequence of `max_model_len`.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter | None,
        economist: Economist,
        options: EngineOptions,
        kv_cache_memory: int,
        max_model_len: int,
    ) -> None:
        self.target, self.drafter, self.options = target, drafter, options
        blocks = blocks_within(kv_cache_memory, target, drafter, max_model_len)
        self.memory = KVMemory(target, drafter, blocks, options.prefix_caching)
        self.economist = economist
        self._metrics = Metrics()
        self._scheduler = Scheduler(self.memory, options.max_num_seqs, options.max_num_batched_tokens)
        self._runner = StepRunner(target, drafter, self.memory, economist, self._metrics)
        self._requests: dict[str, Request] = {}
        self._crew = Crew(torch.get_num_threads() if target.device.type == "cpu" else 1)

    # Requests

    def add(self, request: Request) -> None:
        """Take a request in; its events come from `step`.

        Raises:
            RequestError: DP442, its id is in use; DP443, more choices than the engine runs at once.
        """
        self.check_size(request)
        if request.request_id in self._requests:
            raise RequestError("DP442", f"request_id {request.request_id!r} is in use by a running request")
        request.arrival = self._metrics.requests
        self._metrics.requests += 1
        self._metrics.prompt_tokens += len(request.prompt_token_ids)
        self._requests[request.request_id] = request
        self._scheduler.enqueue(request.sequences[0])

    def check_size(self, request: Request) -> None:
        """Whether the engine can ever run it. Raises `RequestError` DP443."""
        count = len(request.sequences)
        if count > self.options.max_num_seqs:
            raise RequestError(
                "DP443", f"n must be at most max_num_seqs, which is {self.options.max_num_seqs}, got {count}"
            )

    def abort(self, request_id: str) -> bool:
        """End a request now, with what it has; its last event says ``"abort"``. False when there is no such request."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._end(request, "abort", keep=True)
        return True

    @property
    def unfinished(self) -> int:
        """Requests that have yet to give their last event."""
        return len(self._requests)

    @property
    def metrics(self) -> Metrics:
        """A copy of the counters, with the present state of queues and pool."""
        now, scheduler, cache = self._metrics.copied(), self._scheduler, self.memory.cache
        now.preemptions = scheduler.preemptions
        now.running, now.waiting = len(scheduler.running), len(scheduler.waiting)
        now.blocks, now.free_blocks = cache.num_blocks, cache.num_free
        now.prefix_lookups = cache.stats.lookups
        now.prefix_asked_tokens = cache.stats.asked_tokens
        now.prefix_hit_tokens = cache.stats.hit_tokens
        now.evictions, now.block_copies = cache.stats.evictions, cache.stats.copies
        return now

    # Steps

    def step(self) -> None:
        """Run one step, if there is anything to do, and deliver what came of it.

        A failure fails the requests it touched, with an error event each; the engine goes on. Interrupts (Ctrl-C) pass
        through, after the requests of the step have been ended, since half a step cannot be resumed.
        """
        plan = StepPlan([], 0)
        try:
            with undisturbed(self.target.device):
                plan = self._scheduler.plan()
                self._note_cached(plan)
                if not plan.chunks:
                    self._refuse_to_stall()
                    return
                progress = self._run(plan)
            self._deliver_all(progress)
        except Exception as error:  # whatever a model, a drafter or a tokenizer raises
            self._fail(self._touched(plan), as_coded(error))
            return
        except BaseException:
            for request in self._touched(plan):
                self._end(request, "abort", keep=False)
            raise

    def _run(self, plan: StepPlan) -> list[Progress]:
        metrics, start = self._metrics, time.perf_counter()
        rows, drafted = metrics.rows, metrics.drafted_tokens
        with self._crew.at_work():
            progress = self._runner.run(plan)
        self._crew.done(metrics.rows - rows, metrics.drafted_tokens - drafted, time.perf_counter() - start)
        return progress

    def _deliver_all(self, progress: list[Progress]) -> None:
        self._forks_run(progress)
        # Failures last: what the step brought to a request's other choices is told before one of them ends them all.
        if any(one.error is not None for one in progress):
            progress = sorted(progress, key=lambda one: one.error is not None)
        for one in progress:
            try:
                self._deliver(one)
            except Exception as error:  # a receiver that is gone, say: its request ends, nobody else's
                self._fail([one.sequence.request], as_coded(error))

    def _refuse_to_stall(self) -> None:
        if not self._scheduler.idle:
            raise RuntimeError("requests are waiting, but none could be scheduled")

    def _touched(self, plan: StepPlan) -> list[Request]:
        """The requests of a plan; all that run when the failure came before there was one."""
        sequences = [chunk.sequence for chunk in plan.chunks] or [
            *self._scheduler.running,
            *self._scheduler.waiting[:1],
        ]
        return list({id(sequence.request): sequence.request for sequence in sequences}.values())

    def _note_cached(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            request = chunk.sequence.request
            if request.cached_tokens is None:
                request.cached_tokens = chunk.sequence.running_memory.kv.length
                self._metrics.cached_prompt_tokens += request.cached_tokens

    def _forks_run(self, progress: list[Progress]) -> None:
        """Choices that forked in this step run from the next one on."""
        for one in progress:
            sequence = one.sequence
            if sequence.index > 0 and sequence.memory is not None and sequence not in self._scheduler.running:
                self._scheduler.join(sequence)

    # Ends

    def _deliver(self, progress: Progress) -> None:
        sequence, block = progress.sequence, progress.block
        request = sequence.request
        if request.request_id not in self._requests:  # failed through another of its choices
            return
        if progress.error is not None or block is None:
            error = progress.error or EngineError("DP451", "a step ended without a verdict")
            self._fail([request], error)
            return
        if sequence.finish_reason is not None:
            self._scheduler.remove(sequence)
            self._finish(sequence)
        result = None
        # Choices that end in one step each give their blocks back, and their event, before the request is over.
        if (
            sequence.finish_reason is not None
            and request.finished
            and all(one.memory is None for one in request.sequences)
        ):
            del self._requests[request.request_id]
            result = request.result()
        request.deliver(_event(sequence, block, result))

    def _finish(self, sequence: Sequence) -> None:
        assert sequence.finish_reason is not None
        sequence.stats.seconds.total = time.perf_counter() - sequence.request.created
        self._metrics.count_finished(sequence.finish_reason)
        self._metrics.queue_seconds += sequence.stats.seconds.queue

    def _fail(self, requests: list[Request], error: DraftproofError) -> None:
        for request in requests:
            request.error = error
            self._end(request, "error", keep=False)

    def _end(self, request: Request, reason: str, keep: bool) -> None:
        """End all of a request's unfinished outputs, give back their blocks, and send the last event."""
        if self._requests.pop(request.request_id, None) is None:
            return
        ended = [s for s in request.sequences if s.finish_reason is None or s.memory is not None]
        ended = ended or request.sequences[-1:]  # an interrupt came when only the last event was missing
        for sequence in ended:
            sequence.finish_reason = sequence.finish_reason or reason
            self._scheduler.remove(sequence, keep)
            self._finish(sequence)
        # Text that waited for the rest of a stop string: now it is certain that nothing follows.
        held = [_held_text(sequence) for sequence in ended]
        for sequence, pieces in zip(ended, held, strict=True):
            result = request.result() if sequence is ended[-1] else None
            # A receiver that is gone has no use for it, and must not keep the others from theirs.
            with suppress(Exception):
                request.deliver(_event(sequence, CommittedBlock([], pieces), result))


def _held_text(sequence: Sequence) -> list[TextPiece]:
    """What the text of an output that ends early still held back; nothing where the detokeniser is at fault."""
    with suppress(Exception):
        text = sequence.text.release()
        return [TextPiece(text, False)] if text else []
    return []


def _event(sequence: Sequence, block: CommittedBlock, result: RequestResult | None) -> StreamEvent:
    pieces = block.pieces
    return StreamEvent(
        text=pieces[0].text if len(pieces) == 1 else "".join([piece.text for piece in pieces]),
        token_ids=block.token_ids,
        pieces=block.pieces,
        finished=result is not None,
        result=result,
        index=sequence.index,
        finish_reason=sequence.finish_reason,
        logprobs=block.logprobs if sequence.sampling.logprobs is not None else None,
        request_id=sequence.request.request_id,
        stop_reason=sequence.stop_reason,
    )
