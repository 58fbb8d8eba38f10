"""Promise 3 on the user's own machine: every feature of a request works the same with the drafter on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftproof.audit.differences import Difference, first_difference
from draftproof.audit.features import Feature, features_for
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
)
from draftproof.audit.watch import Budget, Watcher, nobody
from draftproof.engine import LLM, EngineOptions, RequestResult, StreamEvent
from draftproof.errors import DraftproofError, RequestError
from draftproof.models.executor import precision_of
from draftproof.sampling import SamplingParams

State = Literal["identical", "refused", "failed", "violated", "differs", "not run"]
_GRAVITY: tuple[State, ...] = ("identical", "refused", "not run", "failed", "violated", "differs")
STREAMED_CHOICES = 2
SPECIALS = ("streaming", "prefix hit", "abort")


@dataclass(frozen=True)
class WholeOptions:
    """What to run.

    Attributes:
        max_tokens: most tokens of each output.
        seed: of the sampled requests.
        budget_s: begin no new feature after so many seconds.
        only: names of features to run; empty for all.
    """

    max_tokens: int = 48
    seed: int = 0
    budget_s: float | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class FeatureRow:
    """What became of one feature, over all prompts, greedy and sampled, alone and in one batch with all others.

    Attributes:
        name: the feature.
        state: the gravest of its requests. ``"identical"``: the same with and without drafting; ``"refused"``: with and
            without drafting, by the same code; ``"differs"``; ``"violated"``: the same, but not what was asked for, or memory
            was kept;
            ``"failed"``: an error while running, on either side; ``"not run"``: time was over.
        requests, tokens: how much was compared.
        detail: the code, the violation or the difference in words.
        difference: the first one.
    """

    name: str
    state: State
    requests: int
    tokens: int
    detail: str
    difference: Difference | None = None

    @property
    def fine(self) -> bool:
        return self.state in ("identical", "refused")


@dataclass(frozen=True)
class WholeReport:
    """What was found: a row a feature. `drafted_tokens` were verified, `accepted_tokens` kept."""

    model: str
    drafter: str
    dtype: str
    rows: list[FeatureRow]
    drafted_tokens: int
    accepted_tokens: int
    prompts: list[str]

    @property
    def proven(self) -> bool:
        return self.drafted_tokens > 0 and all(row.fine for row in self.rows)

    @property
    def verdict(self) -> str:
        """One line."""
        return f"whole: {'proven' if self.proven else 'NOT PROVEN'}: {self._reason()}"

    def _reason(self) -> str:
        for row in sorted(self.rows, key=lambda row: -_GRAVITY.index(row.state)):
            if not row.fine:
                return f"{row.name}: {row.state}" + (f": {row.detail}" if row.detail else "")
        if not self.drafted_tokens:
            return f"{self.drafter} proposed nothing, so nothing was tested; use more or longer prompts"
        refused = [row.name for row in self.rows if row.state == "refused"]
        same = len(self.rows) - len(refused)
        end = f"; refused with and without a drafter: {', '.join(refused)}" if refused else ""
        return f"{same} features give the same with the drafter on{end}"


@dataclass(frozen=True)
class _Asked:
    """A feature's request and the answer without drafting, or why there is none."""

    feature: Feature
    request: AuditRequest | None
    expected: RequestResult | None
    refusal: DraftproofError | None


@dataclass(frozen=True)
class _Finding:
    """What one run of one request showed."""

    state: State
    tokens: int = 0
    detail: str = ""
    difference: Difference | None = None


_OVER = _Finding("not run", detail="time was over")
_TOGETHER = "all in one batch"


def prove_whole(
    llm: LLM,
    prompts: Sequence[AuditPrompt],
    options: WholeOptions | None = None,
    watcher: Watcher = nobody,
) -> WholeReport:
    """Run every feature with drafting on and off, and compare everything that comes back.

    Args:
        llm: the target and the drafter under test.
        prompts: what to ask; each feature is asked of every one.
        options: how much.
        watcher: is told how far it is.

    Raises:
        RequestError: DP463, there is no drafter; DP462, `only` names a feature that there is not; DP4xx, a prompt is not
            acceptable.
    """
    if llm.drafter is None:
        raise RequestError(
            "DP463", "prove whole compares a drafter with none: name a drafter other than 'none'"
        )
    return _Whole(llm, prompts, options or WholeOptions(), watcher).run()


class _Whole:
    def __init__(
        self, llm: LLM, prompts: Sequence[AuditPrompt], options: WholeOptions, watcher: Watcher
    ) -> None:
        self.llm, self.options, self.watcher = llm, options, watcher
        self.texts = [prompt.text for prompt in prompts]
        self.prompts = encoded(llm, prompts)
        self.budget = Budget(options.budget_s)
        self.drafted_tokens = self.accepted_tokens = 0
        self._new_engines()
        self.samplings: tuple[tuple[str, dict[str, Any]], ...] = (
            ("greedy", {"temperature": 0.0, "seed": options.seed}),
            ("sampled", {"temperature": 0.8, "top_p": 0.95, "seed": options.seed}),
        )

    def _new_engines(self) -> None:
        self.plain = undrafted(self.llm, EngineOptions(prefix_caching=False))
        self.on = drafted(self.llm, longest_drafts(self.llm))

    def _count_drafts(self) -> None:
        """Before the drafting engine goes."""
        metrics = self.on.metrics
        self.drafted_tokens += metrics.drafted_tokens
        self.accepted_tokens += metrics.accepted_tokens

    def run(self) -> WholeReport:
        features = self._features()
        names = self._chosen([*(feature.name for feature, _ in features[0]), *SPECIALS])
        fields = [name for name in names if name not in SPECIALS]
        ways = [name for name in names if name in SPECIALS]
        findings = self._fields(features, fields, len(names) + 1)
        rows = [_row(name, found) for name, found in findings.items()]
        rows += self._specials(ways, len(fields) + 1)
        self._count_drafts()
        assert self.llm.drafter is not None
        return WholeReport(
            model=self.llm.target.name,
            drafter=self.llm.drafter.name,
            dtype=precision_of(self.llm.target),
            rows=rows,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            prompts=self.texts,
        )

    # Features that are fields of a request

    def _features(self) -> list[list[tuple[Feature, AuditRequest]]]:
        """For every prompt and sampling: its features, with a plain request that says where they are asked."""
        listed = []
        for number, tokens in enumerate(self.prompts, 1):
            for kind, sampling in self.samplings:
                plain = AuditRequest(number, kind, tokens, self._plain_params(tokens, sampling))
                answer = run_together(self.plain, [plain])[0]
                if answer.error is not None:
                    raise answer.error
                made = features_for(answer, plain.params.max_tokens, self.options.seed)
                listed.append([(feature, plain) for feature in made])
        return listed

    def _fields(
        self, features: list[list[tuple[Feature, AuditRequest]]], names: Sequence[str], total: int
    ) -> dict[str, list[_Finding]]:
        """Each feature alone, then all that went well together."""
        findings: dict[str, list[_Finding]] = {}
        mixed: list[tuple[str, _Asked]] = []
        for index, name in enumerate(names):
            self.watcher(name, index, total)
            if self.budget.over:
                findings[name] = [_OVER]
                continue
            asked = [self._ask(one, plain) for ones in features for one, plain in ones if one.name == name]
            found = [self._alone(one) for one in asked]
            mixed += [
                (name, one)
                for one, finding in zip(asked, found, strict=True)
                if finding.state not in ("refused", "failed")
            ]
            findings[name] = found + self._leaks()
        self.watcher(_TOGETHER, len(names), total)
        self._in_batch(mixed, findings)
        return findings

    def _leaks(self) -> list[_Finding]:
        """What the engines still hold, now that they have nothing to do; the engine is replaced, so that it is said once."""
        found = []
        for words, engine in (("without", self.plain), ("with", self.on)):
            left = left_behind(engine)
            if left:
                found.append(_Finding("violated", detail=f"after the last answer, {words} drafting: {left}"))
        if found:
            self._count_drafts()
            self._new_engines()
        return found

    def _chosen(self, names: Sequence[str]) -> list[str]:
        """All names, or those asked for."""
        unknown = [name for name in self.options.only if name not in names]
        if unknown:
            raise RequestError("DP462", f"only must name features ({', '.join(names)}), got {unknown[0]!r}")
        return [name for name in names if not self.options.only or name in self.options.only]

    def _plain_params(self, tokens: list[int], sampling: dict[str, Any]) -> SamplingParams:
        room = self.llm.max_model_len - len(tokens)
        return SamplingParams(max_tokens=max(1, min(self.options.max_tokens, room)), **sampling)

    def _ask(self, feature: Feature, plain: AuditRequest) -> _Asked:
        """The answer without drafting, alone."""
        sampling = dict(self.samplings)[plain.kind]
        request = None
        try:
            params = feature.params(sampling, plain.params.max_tokens)
            request = AuditRequest(plain.prompt, plain.kind, plain.tokens, params)
            answer = run_together(self.plain, [request])[0]
        except DraftproofError as error:
            return _Asked(feature, request, None, error)
        return _Asked(feature, request, answer, answer.error)

    def _alone(self, asked: _Asked) -> _Finding:
        if asked.request is None:  # there is no such request, with or without a drafter
            assert asked.refusal is not None
            return _Finding("refused", detail=describe(asked.refusal))
        try:
            came = run_alone(self.on, [asked.request])[0]
        except DraftproofError as error:
            return _refusal(asked, error)
        return self._compared(asked, came)

    def _compared(self, asked: _Asked, came: RequestResult) -> _Finding:
        if came.error is not None:
            return _refusal(asked, came.error)
        if asked.expected is None or asked.refusal is not None:
            assert asked.refusal is not None
            return _Finding("failed", detail=f"without drafting alone: {describe(asked.refusal)}")
        assert asked.request is not None
        tokens = sum(len(choice.token_ids) for choice in came.choices)
        found = first_difference(
            asked.request.prompt, asked.request.kind, asked.expected, came, self._text_of
        )
        if found is not None:
            where = f"prompt {found.prompt}, {found.kind}, {found.detail}"
            return _Finding("differs", tokens, where + (" (a near tie)" if found.near_tie else ""), found)
        broken = asked.feature.check(came)
        return _Finding("violated", tokens, broken) if broken else _Finding("identical", tokens)

    def _in_batch(self, mixed: Sequence[tuple[str, _Asked]], findings: dict[str, list[_Finding]]) -> None:
        """The features mixed in one batch, in the engine that has drafted them alone."""
        requests = [one.request for _, one in mixed if one.request is not None]
        if not requests:
            return
        if self.budget.over:
            findings[_TOGETHER] = [_OVER]
            return
        for (name, one), came in zip(mixed, run_together(self.on, requests), strict=True):
            findings[name].append(self._compared(one, came))
        leaks = self._leaks()
        if leaks:
            findings[_TOGETHER] = leaks

    # Features that are ways of using the engine

    def _specials(self, names: Sequence[str], at: int) -> list[FeatureRow]:
        ways: dict[str, Callable[[], _Finding]] = {
            "streaming": self._streaming,
            "prefix hit": self._prefix_hit,
            "abort": self._abort,
        }
        rows = []
        for index, name in enumerate(names):
            self.watcher(name, at + index, at + len(names))
            if self.budget.over:
                rows.append(_row(name, [_OVER]))
                continue
            try:
                rows.append(_row(name, [ways[name]()]))
            except DraftproofError as error:
                rows.append(_row(name, [_Finding("failed", detail=describe(error))]))
        self.watcher("done", at + len(names), at + len(names))
        return rows

    def _requests(self) -> list[AuditRequest]:
        """Plain requests, one a prompt and sampling, with log-probabilities, so that a difference shows its margin."""
        return [
            AuditRequest(
                number,
                kind,
                tokens,
                SamplingParams(
                    max_tokens=self._plain_params(tokens, sampling).max_tokens, logprobs=2, **sampling
                ),
            )
            for number, tokens in enumerate(self.prompts, 1)
            for kind, sampling in self.samplings
        ]

    def _streaming(self) -> _Finding:
        """Events, joined, are the result; and the result is that of drafting off. With one output and with several."""
        tokens = 0
        for request in self._requests():
            for count in (1, STREAMED_CHOICES):
                asked = self._ask(Feature("streaming", {"logprobs": 2, "n": count}), request)
                assert asked.request is not None
                events = list(self.on.stream(asked.request.tokens, asked.request.params))
                result = events[-1].result
                assert result is not None
                found = self._compared(asked, result)
                if found.state != "identical":
                    return found
                broken = _joined_differently(events, result)
                if broken:
                    where = f"prompt {request.prompt}, {request.kind}, n = {count}"
                    return _Finding("violated", tokens, f"{where}: {broken}")
                tokens += found.tokens
        leaks = self._leaks()
        return leaks[0] if leaks else _Finding("identical", tokens)

    def _prefix_hit(self) -> _Finding:
        """Asked twice: the second time most of the prompt comes from the cache, for both models, and nothing changes."""
        engine = drafted(self.llm, longest_drafts(self.llm))
        tokens, cached = 0, 0
        for request in self._requests():
            asked = self._ask(Feature("prefix hit", {"logprobs": 2}), request)
            miss, hit = run_alone(engine, [request, request])
            for result in (miss, hit):
                found = self._compared(asked, result)
                if found.state != "identical":
                    return found
            if hit.cached_tokens == 0:
                detail = f"prompt {request.prompt}: nothing of its {len(request.tokens)} tokens came from the cache"
                return _Finding("violated", tokens, detail)
            cached += hit.cached_tokens
            tokens += len(hit.token_ids)
        return _Finding("identical", tokens, f"{cached} prompt tokens from the cache")

    def _abort(self) -> _Finding:
        """A reader that walks off after the first events leaves no block taken, and the next request goes as ever."""
        engine = drafted(self.llm, longest_drafts(self.llm))
        tokens = 0
        for request in self._requests():
            asked = self._ask(Feature("abort", {"logprobs": 2}), request)
            events = iter(engine.stream(request.tokens, request.params))
            for _, _event in zip(range(2), events, strict=False):
                pass
            close = getattr(events, "close", None)
            if close is not None:
                close()
            left = left_behind(engine)
            if left:
                return _Finding("violated", tokens, f"after an abort: {left}")
            found = self._compared(asked, run_alone(engine, [request])[0])
            if found.state != "identical":
                return found
            tokens += found.tokens
        return _Finding("identical", tokens, "no block left taken")

    def _text_of(self, token: int) -> str:
        return str(self.llm.tokenizer.decode([token]))


def _joined_differently(events: Sequence[StreamEvent], result: RequestResult) -> str:
    """Where the events of an output, joined, are not that output; empty when they are."""
    for choice in result.choices:
        mine = [event for event in events if event.index == choice.index]
        text = "".join(event.text for event in mine)
        tokens = [token for event in mine for token in event.token_ids]
        rows = [row for event in mine for row in event.logprobs or []]
        if (text, tokens, rows) != (choice.text, choice.token_ids, choice.logprobs):
            return (
                f"the events of output {choice.index} hold {len(tokens)} tokens, the result {len(choice.token_ids)}; "
                "joined they are not the result"
            )
        if [event.finish_reason for event in mine[-1:]] != [choice.finish_reason]:
            return f"the last event of output {choice.index} does not say why it ended"
    return ""


def _refusal(asked: _Asked, error: DraftproofError) -> _Finding:
    """An error with drafting on: a request refused as it is without drafting is a refusal, anything else a failure."""
    same = asked.refusal is not None and asked.refusal.code == error.code
    if same and isinstance(error, RequestError):
        return _Finding("refused", detail=describe(error))
    if same:
        return _Finding("failed", detail=f"with and without drafting: {describe(error)}")
    return _Finding("failed", detail=f"with drafting alone: {describe(error)}")


def _row(name: str, findings: Sequence[_Finding]) -> FeatureRow:
    worst = max(findings, key=lambda one: _GRAVITY.index(one.state))
    return FeatureRow(
        name=name,
        state=worst.state,
        requests=sum(one.state != "not run" for one in findings),
        tokens=sum(one.tokens for one in findings),
        detail=worst.detail,
        difference=worst.difference,
    )
