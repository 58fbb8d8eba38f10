"""The offline API: load a target and a drafter, generate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from draftproof.engine.building import build_core
from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.core import EngineOptions
from draftproof.engine.detokenize import TokenKinds
from draftproof.engine.economics import DraftMode, Economist
from draftproof.engine.intake import Intake
from draftproof.engine.loading import Loaded, check_lossless, insist, load, make_drafter
from draftproof.engine.loop import SharedLoop
from draftproof.engine.metrics import Metrics
from draftproof.engine.progress import showing_progress
from draftproof.engine.prompts import Messages, Prompt, as_prompt_list, render_chat
from draftproof.engine.request import Request
from draftproof.engine.results import RequestResult, StreamEvent, TextPiece
from draftproof.engine.token_bytes import TokenBytes, decode_tokens
from draftproof.errors import RequestError
from draftproof.models.drafters.base import Drafter
from draftproof.models.executor import TargetModel
from draftproof.models.registry import resolve_model
from draftproof.models.target import TargetOptions
from draftproof.sampling import SamplingDefaults, SamplingParams


class LLM:
    """A target with or without a drafter. Everything asked of it at once, from any thread, runs in one batch.

    Args:
        model: a known name (``"smollm2-135m"``), a folder, or a hub id.
        drafter: None, ``"ngram"``, a folder with a DFlash checkpoint, or a hub id of one.
        dtype: ``"float32"``, ``"bfloat16"``, ``"int8"``, ``"int4"`` (of the weights), or ``"auto"``: the fastest of the last
            three that changes next to nothing, for a model from 50 million parameters up stored in 16 bits; else the
            checkpoint's own where this machine computes it well. See docs/models.md.
        block_size: anchor + draft tokens per step at most, at least 2; the drafter's own when None.
        draft_mode: ``"auto"`` drafts as far as pays on this machine, ``"fixed=N"`` always N tokens, ``"off"`` never.
        lossless: ``"auto"`` warns where this machine cannot give bit-identical rows, ``"strict"`` refuses.
        max_model_len: most tokens of prompt and output together; the model's own when None.
        max_num_seqs: most outputs decoded at once.
        max_num_batched_tokens: prompt and draft tokens processed per step at most.
        kv_cache_memory: bytes for keys and values; None: what `max_num_seqs` full contexts need, a quarter of the free memory at
            most. Memory is taken as it is used.
        prefix_caching: reuse what prompts have in common with earlier ones.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
        executor: ``"fused"`` (a whole pass is one compiled call), ``"transformers"`` (the model's own code), or ``"auto"``:
            fused where the model and this machine allow.
        revision: hub revision of the model.
        trust_remote_code: run modelling code that comes with the checkpoint. Off, and best left so.

    Raises:
        ModelError: the model cannot be found, read or used (DP2xx); DP264, not bit-identical under ``lossless="strict"``.
        DrafterError: the drafter cannot be read or does not fit (DP3xx).
        RequestError: DP431, DP440, DP441, DP450: one of the options above is not acceptable.
    """

    def __init__(
        self,
        model: str | Path,
        drafter: str | Path | None = None,
        *,
        dtype: str = "auto",
        block_size: int | None = None,
        draft_mode: str = "auto",
        lossless: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        kv_cache_memory: int | None = None,
        prefix_caching: bool = True,
        device: str = "auto",
        executor: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        check_lossless(lossless)
        mode = DraftMode.parse(draft_mode)
        options = EngineOptions(max_num_seqs, max_num_batched_tokens, kv_cache_memory, prefix_caching)
        resolved = resolve_model(str(model), revision=revision, trust_remote_code=trust_remote_code)
        target_options = TargetOptions(
            dtype=dtype, device=device, trust_remote_code=trust_remote_code, executor=executor
        )
        loaded = load(resolved.path, resolved.name, target_options, lossless)
        self._set_up(loaded, max_model_len, options)
        self._set_drafter(make_drafter(drafter, self.target, block_size), mode)

    @classmethod
    def from_parts(
        cls,
        target: TargetModel,
        tokenizer: Any,
        drafter: Drafter | None = None,
        *,
        defaults: SamplingDefaults | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        draft_mode: str = "auto",
        lossless: str = "auto",
        max_model_len: int | None = None,
        options: EngineOptions | None = None,
    ) -> LLM:
        """An `LLM` around a target that is already in memory (tests, notebooks, models of your own making)."""
        check_lossless(lossless)
        sound = target.self_test()
        insist(sound, target.name, lossless)
        kinds = TokenKinds.of(tokenizer)
        llm = cls.__new__(cls)
        loaded = Loaded(target, tokenizer, kinds, defaults or SamplingDefaults(), end_token_ids, sound)
        llm._set_up(loaded, max_model_len, options or EngineOptions())
        llm._set_drafter(make_drafter(drafter, target, None), DraftMode.parse(draft_mode))
        return llm

    def with_drafter(
        self,
        drafter: str | Path | Drafter | None,
        block_size: int | None = None,
        *,
        draft_mode: str | None = None,
        max_model_len: int | None = None,
        options: EngineOptions | None = None,
    ) -> LLM:
        """The same target with another drafter, or with none, or otherwise run. Nothing of the target is loaded again.

        Args:
            drafter, block_size, draft_mode, max_model_len: as for `LLM`; mode and length stay as they are when None.
            options: sizes of the engine; as they are when None.
        """
        mode = self._mode if draft_mode is None else DraftMode.parse(draft_mode)
        twin = LLM.__new__(LLM)
        twin._set_up(self._loaded, max_model_len or self.max_model_len, options or self._options)
        twin._set_drafter(make_drafter(drafter, self.target, block_size), mode)
        return twin

    def _set_up(self, loaded: Loaded, max_model_len: int | None, options: EngineOptions) -> None:
        self._loaded, self._options = loaded, options
        self.max_model_len = _context_length(loaded.target, max_model_len)
        self._intake = Intake(loaded, self.max_model_len)
        self._bytes = TokenBytes(loaded.tokenizer, loaded.token_kinds)

    def _set_drafter(self, drafter: Drafter | None, mode: DraftMode) -> None:
        self.drafter, self._mode = drafter, mode
        core = build_core(self.target, drafter, mode, self._options, self.max_model_len)
        self._economist: Economist = core.economist
        self.loop = SharedLoop(core)

    @property
    def target(self) -> TargetModel:
        return self._loaded.target

    @property
    def options(self) -> EngineOptions:
        """Sizes of the engine."""
        return self._options

    @property
    def tokenizer(self) -> Any:
        return self._loaded.tokenizer

    @property
    def row_invariant(self) -> bool:
        """Whether the start-up self-test found this machine to be lossless token for token."""
        return self._loaded.row_invariant

    @property
    def metrics(self) -> Metrics:
        """What the engine has done so far."""
        return self.loop.metrics

    def generate(
        self,
        prompts: Prompt | Items[Prompt],
        params: SamplingParams | Items[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestResult]:
        """Complete prompts, in order.

        Args:
            prompts: a text, token ids, or a list of either.
            params: one for all, or one for each; the model's defaults when None.
            progress: show a bar on standard error; None: on a terminal, for more than a few prompts.

        Raises:
            RequestError: a prompt or parameter is not acceptable (DP4xx); found before anything is generated.
            DraftproofError: a request failed while running. The others run to their end first; all results, the failed
                one's too, are on the exception's `results`.
        """
        listed = as_prompt_list(prompts)
        encoded = [self._intake.encode(prompt) for prompt in listed]
        return self._generate_all(encoded, params, progress)

    def chat(
        self,
        messages: Messages | Items[Messages],
        params: SamplingParams | Items[SamplingParams] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestResult]:
        """Answer a conversation, or several, through the model's chat template.

        Args:
            messages: ``[{"role": ..., "content": ...}, ...]``, or a list of such lists.
            params: one for all, or one for each; the model's defaults when None.
            chat_template_kwargs: extra variables for the template.
            progress: as for `generate`.

        Raises:
            RequestError: DP405, DP406 and those of `generate`.
        """
        listed = messages if isinstance(messages, (list, tuple)) else ()
        many = bool(listed) and all(isinstance(item, (list, tuple)) for item in listed)
        conversations: Any = messages if many else [messages]
        options = ChatOptions(template_kwargs=chat_template_kwargs or {})
        encoded = [self._intake.encode_chat(conversation, options) for conversation in conversations]
        return self._generate_all(encoded, params, progress)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamEvent]:
        """Complete one prompt, an event for every committed block. Bad input raises here, not at the first event."""
        return self._stream(self._intake.encode(prompt), params)

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamEvent]:
        """Answer one conversation, an event for every committed block. Bad input raises here."""
        options = ChatOptions(template_kwargs=chat_template_kwargs or {})
        return self._stream(self._intake.encode_chat(messages, options), params)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, checked. Raises `RequestError` DP401 to DP404."""
        return self._intake.encode(prompt)

    def encode_chat(self, messages: Messages, chat: ChatOptions | None = None) -> list[int]:
        """Token ids of a conversation through the model's chat template. Raises `RequestError` DP401 to DP406."""
        return self._intake.encode_chat(messages, chat or ChatOptions())

    def render_chat(self, messages: Messages, chat: ChatOptions | None = None) -> str:
        """The text that the chat template makes of a conversation. Raises `RequestError` DP405, DP406."""
        return render_chat(self.tokenizer, messages, chat or ChatOptions())

    def decode(self, token_ids: Items[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens, as it is: no space is tidied away."""
        return decode_tokens(self.tokenizer, token_ids, skip_special_tokens)

    def token_texts(self, token_ids: Items[int]) -> list[str]:
        """Each token's own text; what is no whole character is shown by the replacement character."""
        return [self.token_bytes(token).decode("utf-8", "replace") for token in token_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token brings to the text, wherever it stands; UTF-8 cut anywhere where a token is part of a character."""
        return self._bytes.of(token_id)

    def prepare(
        self,
        prompt: Prompt | None,
        params: SamplingParams | None,
        deliver: Callable[[StreamEvent], None],
        *,
        messages: Messages | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        chat: ChatOptions | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> Request:
        """A checked request for ``self.loop.add``, for those who drive the engine themselves (`AsyncEngine`, a server).

        Args:
            prompt: text or token ids; or None with `messages`.
            params: the model's defaults when None.
            deliver: called with every event, from whichever thread steps; must not block.
            messages, chat_template_kwargs: a conversation, instead of a prompt.
            chat: how the conversation becomes a prompt; its own `template_kwargs` win over `chat_template_kwargs`.
            request_id: made up when None.
            priority: smaller goes first.

        Raises:
            RequestError: DP4xx, something about it is not acceptable.
        """
        if (prompt is None) == (messages is None):
            raise RequestError("DP404", "give either a prompt or messages, got both or none of them")
        if messages is not None:
            tokens = self._intake.encode_chat(messages, _with_variables(chat, chat_template_kwargs))
        else:
            assert prompt is not None
            tokens = self._intake.encode(prompt)
        return self._intake.request(
            tokens, params, deliver, self._economist, request_id=request_id, priority=priority
        )

    def _generate_all(
        self,
        encoded: list[list[int]],
        params: SamplingParams | Items[SamplingParams] | None,
        progress: bool | None,
    ) -> list[RequestResult]:
        each: list[Any] = list(params) if isinstance(params, (list, tuple)) else [params] * len(encoded)
        if len(each) != len(encoded):
            raise RequestError(
                "DP430", f"expected one SamplingParams or {len(encoded)} of them, got {len(each)}"
            )
        inboxes: list[deque[StreamEvent]] = [deque() for _ in encoded]
        requests = [
            self._request(tokens, mine, inbox)
            for tokens, mine, inbox in zip(encoded, each, inboxes, strict=True)
        ]
        try:
            for request in requests:
                self.loop.add(request)
            with showing_progress(len(requests), progress) as advance:
                results = [self._collect(inbox, advance) for inbox in inboxes]
        finally:
            for request in requests:  # after a failure or an interrupt; nothing happens to finished ones
                self.loop.abort(request.request_id)
        _raise_first_error(results)
        return results

    def _request(
        self, tokens: list[int], params: SamplingParams | None, inbox: deque[StreamEvent]
    ) -> Request:
        request = self._intake.request(tokens, params, inbox.append, self._economist)
        self.loop.check_size(request)
        return request

    def _collect(self, inbox: deque[StreamEvent], advance: Callable[[], None]) -> RequestResult:
        result = None
        for event in self.loop.events(inbox):
            result = event.result
        assert result is not None
        advance()
        return result

    def _stream(self, tokens: list[int], params: SamplingParams | None) -> Iterator[StreamEvent]:
        inbox: deque[StreamEvent] = deque()
        return self._events(self._request(tokens, params, inbox), inbox)

    def _events(self, request: Request, inbox: deque[StreamEvent]) -> Iterator[StreamEvent]:
        """The request's events; it enters the engine with the first one asked for and leaves it when nobody reads on."""
        self.loop.add(request)
        try:
            for event in self.loop.events(inbox):
                if event.result is not None:
                    _raise_first_error([event.result])
                yield event
        finally:
            self.loop.abort(request.request_id)


def _with_variables(chat: ChatOptions | None, more: Mapping[str, Any] | None) -> ChatOptions:
    chat = chat or ChatOptions()
    return replace(chat, template_kwargs={**more, **chat.template_kwargs}) if more else chat


def _raise_first_error(results: list[RequestResult]) -> None:
    """Raise the error of the first request that failed, with all results attached."""
    for result in results:
        if result.error is not None:
            result.error.results = results
            raise result.error


def _context_length(target: TargetModel, asked: int | None) -> int:
    own = target.info.max_position
    if asked is None:
        return own
    if isinstance(asked, bool) or not isinstance(asked, Integral) or not 2 <= asked <= own:
        raise RequestError(
            "DP431", f"max_model_len must be a whole number from 2 to {own} (the model's own), got {asked!r}"
        )
    return int(asked)


__all__ = ["LLM", "RequestResult", "StreamEvent", "TextPiece"]
