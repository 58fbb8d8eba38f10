"""Promise 1 on the user's own machine: the same requests, run in every way there is, give the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.audit.differences import Difference, first_difference
from draftproof.audit.preemption import Span, copies_needed, pool_sizes
from draftproof.audit.prompts import AuditPrompt, encoded
from draftproof.audit.runs import (
    AuditRequest,
    describe,
    drafted,
    left_behind,
    longest_drafts,
    run_alone,
    run_together,
    undrafted,
    with_context_of,
)
from draftproof.audit.watch import Budget, Watcher, nobody
from draftproof.engine import LLM, EngineOptions, RequestResult
from draftproof.engine.memory import bytes_per_block
from draftproof.models.executor import precision_of
from draftproof.models.kv import KEY_BLOCK
from draftproof.sampling import SamplingParams

CHUNK = 16
"""Prompt tokens a step at most, where the prompt is to come in small pieces."""
SHOWN = 2
"""Likeliest tokens reported at every position: what a margin needs."""


@dataclass(frozen=True)
class LosslessOptions:
    """What to run.

    Attributes:
        max_tokens: most tokens of each output.
        seed: of the first sampled request; the others count on from it.
        budget_s: begin nothing new after so many seconds; None: take the time it takes.
    """

    max_tokens: int = 64
    seed: int = 0
    budget_s: float | None = None


@dataclass(frozen=True)
class Case:
    """One way of running the requests, compared with the run without drafting, each request alone.

    Attributes:
        name: which way.
        requests, tokens: how much was compared.
        drafted_tokens, accepted_tokens: draft tokens verified and kept.
        differences: the first one of every request that differs.
        errors: of requests that failed, in a line each; and what the engine still held in the end.
        exercised: whether what this way is about really happened (a preemption, a prefix hit).
        evidence: how that is known.
    """

    name: str
    requests: int
    tokens: int
    drafted_tokens: int
    accepted_tokens: int
    differences: list[Difference]
    errors: list[str]
    exercised: bool
    evidence: str

    @property
    def proven(self) -> bool:
        return self.exercised and not self.differences and not self.errors


@dataclass(frozen=True)
class LosslessReport:
    """What was found.

    Attributes:
        model, drafter: by name.
        dtype: of the target.
        row_invariant: the target's self-test, run again now: rows have the same bits in any company.
        requests, tokens: of the run without drafting.
        cases: the ways of running, compared.
        skipped: ways left out because time was over.
        prompts: the texts, in order; a difference names its prompt by number, from 1.
    """

    model: str
    drafter: str
    dtype: str
    row_invariant: bool
    requests: int
    tokens: int
    cases: list[Case]
    skipped: list[str]
    prompts: list[str] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        return (
            self.row_invariant
            and not self.skipped
            and all(case.proven for case in self.cases)
            and (self.drafter == NO_DRAFTER or any(case.drafted_tokens for case in self.cases))
        )

    @property
    def verdict(self) -> str:
        """One line."""
        return f"lossless: {'proven' if self.proven else 'NOT PROVEN'}: {self._reason()}"

    def _reason(self) -> str:
        for case in self.cases:
            if case.differences:
                first = case.differences[0]
                tie = " (a near tie)" if first.near_tie else ""
                return f"{case.name}: prompt {first.prompt}, {first.kind}, {first.detail}{tie}"
            if case.errors:
                return f"{case.name}: {case.errors[0]}"
        if not self.row_invariant:
            return "the target's self-test found rows that depend on their company; no difference showed in these requests"
        if self.skipped:
            return f"time was over before: {', '.join(self.skipped)}"
        for case in self.cases:
            if not case.exercised:
                return f"{case.name}: {case.evidence}"
        if self.drafter != NO_DRAFTER and not any(case.drafted_tokens for case in self.cases):
            return f"{self.drafter} proposed nothing, so nothing was tested; use more or longer prompts"
        ways = len(self.cases)
        return (
            f"{self.tokens} tokens of {self.requests} requests are identical in {ways} ways of running, with their "
            "log-probabilities to the last bit"
        )


NO_DRAFTER = "none"


def audit_requests(
    prompts: Sequence[list[int]], max_tokens: int, seed: int, context: int
) -> list[AuditRequest]:
    """Every prompt greedy and sampled, with log-probabilities; outputs end where the context of `context` tokens does."""
    requests = []
    for number, tokens in enumerate(prompts, 1):
        most = max(1, min(max_tokens, context - len(tokens)))
        greedy = SamplingParams(temperature=0.0, seed=seed, max_tokens=most, logprobs=SHOWN)
        sampled = SamplingParams(
            temperature=0.8, top_p=0.95, seed=seed + number, max_tokens=most, logprobs=SHOWN
        )
        requests.append(AuditRequest(number, "greedy", tokens, greedy))
        requests.append(AuditRequest(number, "sampled", tokens, sampled))
    return requests


def prove_lossless(
    llm: LLM,
    prompts: Sequence[AuditPrompt],
    options: LosslessOptions | None = None,
    watcher: Watcher = nobody,
) -> LosslessReport:
    """Run the prompts without the drafter, each alone, then with it in every way, and compare tokens and log-probabilities.

    Args:
        llm: the target and the drafter under test (none: the ways of running are compared all the same).
        prompts: what to ask.
        options: how much.
        watcher: is told how far it is.

    Raises:
        RequestError: a prompt is not acceptable (DP4xx).
        ModelError: DP263, the target's rows differ by more than rounding when they come in pieces.
    """
    return _Lossless(llm, prompts, options or LosslessOptions(), watcher).run()


class _Lossless:
    """One audit: the requests, what is expected of them, and the ways of running them."""

    def __init__(
        self, llm: LLM, prompts: Sequence[AuditPrompt], options: LosslessOptions, watcher: Watcher
    ) -> None:
        self.llm, self.prompts, self.options, self.watcher = llm, prompts, options, watcher
        self.budget = Budget(options.budget_s)
        tokens = encoded(llm, prompts)
        self.requests = audit_requests(tokens, options.max_tokens, options.seed, llm.max_model_len)
        self.expected: list[RequestResult] = []

    def run(self) -> LosslessReport:
        ways: list[tuple[str, Callable[[str], Case]]] = [
            ("alone", self.alone),
            ("in one batch", self.in_batch),
            ("in one batch, draft mode auto", self.in_batch_auto),
            ("in one batch, not drafted", self.in_batch_undrafted),
            ("prefix cached", self.prefix_cached),
            ("preempted", self.preempted),
            (f"prompts in chunks of {CHUNK}", self.chunked),
        ]
        if self.llm.drafter is None:  # the others would be the same once more
            ways = [("alone", self.alone), *ways[3:]]
        total = len(self.requests) + len(ways)
        row_invariant = self.llm.target.self_test()
        self._expect(total)
        cases, skipped = [], []
        for index, (name, way) in enumerate(ways):
            if self.budget.over:
                skipped.append(name)
                continue
            self.watcher(name, len(self.requests) + index, total)
            cases.append(way(name))
        self.watcher("done", total, total)
        return LosslessReport(
            model=self.llm.target.name,
            drafter=self.llm.drafter.name if self.llm.drafter is not None else NO_DRAFTER,
            dtype=precision_of(self.llm.target),
            row_invariant=row_invariant and self.llm.row_invariant,
            requests=len(self.requests),
            tokens=sum(len(result.token_ids) for result in self.expected),
            cases=cases,
            skipped=skipped,
            prompts=[prompt.text for prompt in self.prompts],
        )

    def _expect(self, total: int) -> None:
        """The truth: nothing drafted, nothing cached, nobody else in the batch."""
        engine = undrafted(self.llm, EngineOptions(prefix_caching=False))
        done = 0

        def one_done() -> None:
            nonlocal done
            done += 1
            self.watcher("without drafting", done, total)

        self.expected = run_alone(engine, self.requests, one_done)
        for result in self.expected:
            if result.error is not None:  # nothing to compare with
                raise result.error

    # The ways of running

    def alone(self, name: str) -> Case:
        engine = drafted(self.llm, longest_drafts(self.llm), EngineOptions(prefix_caching=False))
        return self._compare(name, run_alone(engine, self.requests), engine)

    def in_batch(self, name: str) -> Case:
        engine = drafted(self.llm, longest_drafts(self.llm), EngineOptions(prefix_caching=False))
        return self._batch(name, engine)

    def in_batch_auto(self, name: str) -> Case:
        return self._batch(name, drafted(self.llm, "auto", EngineOptions(prefix_caching=False)))

    def in_batch_undrafted(self, name: str) -> Case:
        return self._batch(name, undrafted(self.llm, EngineOptions(prefix_caching=False)))

    def chunked(self, name: str) -> Case:
        options = EngineOptions(max_num_batched_tokens=CHUNK, prefix_caching=False)
        return self._batch(name, drafted(self.llm, longest_drafts(self.llm), options))

    def _batch(self, name: str, engine: LLM) -> Case:
        results = run_together(engine, self.requests)
        metrics = engine.metrics
        return self._compare(
            name, results, engine, evidence=f"{metrics.rows / metrics.steps:.1f} rows a step"
        )

    def prefix_cached(self, name: str) -> Case:
        engine = drafted(self.llm, longest_drafts(self.llm))
        run_together(engine, self.requests)
        results = run_together(engine, self.requests)
        cached = sum(result.cached_tokens for result in results)
        asked = sum(len(request.tokens) for request in self.requests)
        evidence = f"{cached} of {asked} prompt tokens from the cache"
        return self._compare(name, results, engine, cached > 0, evidence)

    def preempted(self, name: str) -> Case:
        """In a pool too small for all, so that some lose their memory and are recomputed. Sizes are tried until it happens."""
        ends = [
            Span(len(r.tokens), len(r.tokens) + len(e.token_ids))
            for r, e in zip(self.requests, self.expected, strict=True)
        ]
        longest = max(len(r.tokens) + r.params.max_tokens for r in self.requests)
        least = -(-longest // KEY_BLOCK)
        copies = copies_needed(ends, least)
        case = None
        for blocks in pool_sizes(ends * copies, least):
            for caching in (True, False):  # shared prefixes may leave enough room after all
                case = self._in_pool(name, blocks, longest, copies, caching)
                if case.exercised or case.differences or case.errors:
                    return case
        assert case is not None
        return case

    def _in_pool(self, name: str, blocks: int, context: int, copies: int, caching: bool) -> Case:
        memory = blocks * bytes_per_block(self.llm.target, self.llm.drafter)
        options = EngineOptions(kv_cache_memory=memory, prefix_caching=caching)
        engine = with_context_of(self.llm, context, longest_drafts(self.llm), options)
        results = run_together(engine, self.requests * copies)
        metrics = engine.metrics
        evidence = f"{metrics.preemptions} preemptions in a pool of {metrics.blocks} blocks"
        if not metrics.preemptions:
            evidence += ": nobody had to give way; use more prompts or a larger --max-tokens"
        return self._compare(name, results, engine, metrics.preemptions > 0, evidence, copies)

    def _compare(
        self,
        name: str,
        results: Sequence[RequestResult],
        engine: LLM,
        exercised: bool = True,
        evidence: str = "",
        copies: int = 1,
    ) -> Case:
        differences, errors = [], []
        for request, expected, came in zip(
            self.requests * copies, self.expected * copies, results, strict=True
        ):
            if came.error is not None:
                errors.append(f"prompt {request.prompt}, {request.kind}: {describe(came.error)}")
                continue
            found = first_difference(request.prompt, request.kind, expected, came, self._text_of)
            if found is not None:
                differences.append(found)
        leak = left_behind(engine)
        if leak:
            errors.append(f"after the last answer: {leak}")
        stats = [choice.stats for result in results for choice in result.choices]
        return Case(
            name=name,
            requests=len(results),
            tokens=sum(len(result.token_ids) for result in results),
            drafted_tokens=sum(one.drafted_tokens for one in stats),
            accepted_tokens=sum(one.accepted_tokens for one in stats),
            differences=differences,
            errors=errors,
            exercised=exercised,
            evidence=evidence,
        )

    def _text_of(self, token: int) -> str:
        return str(self.llm.tokenizer.decode([token]))
