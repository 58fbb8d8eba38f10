"""The offline API: load a target and a drafter, generate."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig

from draftproof.engine.detokenize import TokenKinds
from draftproof.engine.output_text import OutputText
from draftproof.engine.prompts import Messages, Prompt, as_prompt_list, encode_chat, encode_prompt
from draftproof.engine.results import RequestResult, StreamEvent, TextPiece
from draftproof.engine.sequence import Sequence
from draftproof.engine.step import CommittedBlock, decode_step, prefill
from draftproof.engine.stops import end_token_set
from draftproof.errors import DrafterError, DraftproofWarning, ModelError, RequestError
from draftproof.models.drafters import load_drafter
from draftproof.models.drafters.base import Drafter
from draftproof.models.linear import Route
from draftproof.models.registry import resolve_model
from draftproof.models.target import Target, TargetOptions
from draftproof.sampling import ResolvedSampling, SamplingDefaults, SamplingParams
from draftproof.verify import SamplingInfo


@dataclass(frozen=True)
class _Loaded:
    """What several `LLM`s may share: the target and what came with it."""

    target: Target
    tokenizer: Any
    token_kinds: TokenKinds
    defaults: SamplingDefaults
    end_token_ids: frozenset[int]
    row_invariant: bool


class LLM:
    """A target with or without a drafter, one sequence at a time.

    Args:
        model: a known name (``"smollm2-135m"``), a folder, or a hub id.
        drafter: None, ``"ngram"``, a folder with a DFlash checkpoint, or a hub id of one.
        dtype: ``"auto"`` (the checkpoint's own where this machine computes it well), ``"bfloat16"`` or ``"float32"``.
        block_size: anchor + draft tokens per step, at least 2; the drafter's own when None.
        max_model_len: most tokens of prompt and output together; the model's own when None.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.
        revision: hub revision of the model.
        trust_remote_code: run modelling code that comes with the checkpoint. Off, and best left so.

    Raises:
        ModelError: the model cannot be found, read or used (DP2xx).
        DrafterError: the drafter cannot be read or does not fit (DP3xx).
    """

    def __init__(
        self,
        model: str | Path,
        drafter: str | Path | None = None,
        *,
        dtype: str = "auto",
        block_size: int | None = None,
        max_model_len: int | None = None,
        device: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        resolved = resolve_model(str(model), revision=revision, trust_remote_code=trust_remote_code)
        options = TargetOptions(dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        self._loaded = _load(resolved.path, resolved.name, options)
        self.max_model_len = _context_length(self.target, max_model_len)
        self._set_drafter(drafter, block_size)

    @classmethod
    def from_parts(
        cls,
        target: Target,
        tokenizer: Any,
        drafter: Drafter | None = None,
        *,
        defaults: SamplingDefaults | None = None,
        end_token_ids: frozenset[int] = frozenset(),
        max_model_len: int | None = None,
    ) -> LLM:
        """An `LLM` around a target that is already in memory (tests, notebooks, models of your own making)."""
        llm = cls.__new__(cls)
        kinds = TokenKinds.of(tokenizer)
        llm._loaded = _Loaded(
            target, tokenizer, kinds, defaults or SamplingDefaults(), end_token_ids, target.self_test()
        )
        llm.max_model_len = _context_length(target, max_model_len)
        llm.drafter = drafter
        return llm

    def with_drafter(self, drafter: str | Path | Drafter | None, block_size: int | None = None) -> LLM:
        """The same target with another drafter, or with none. Nothing of the target is loaded again."""
        twin = LLM.__new__(LLM)
        twin._loaded = self._loaded
        twin.max_model_len = self.max_model_len
        twin._set_drafter(drafter, block_size)
        return twin

    def _set_drafter(self, drafter: str | Path | Drafter | None, block_size: int | None) -> None:
        self.drafter: Drafter | None
        if drafter is None:
            self.drafter = None
        elif not isinstance(drafter, (str, Path)):
            self.drafter = _ready_made(drafter, block_size)
        else:
            self.drafter = load_drafter(_drafter_source(drafter), self.target.info, block_size)

    @property
    def target(self) -> Target:
        return self._loaded.target

    @property
    def tokenizer(self) -> Any:
        return self._loaded.tokenizer

    @property
    def row_invariant(self) -> bool:
        """Whether the start-up self-test found this machine to be lossless token for token."""
        return self._loaded.row_invariant

    def generate(
        self, prompts: Prompt | Items[Prompt], params: SamplingParams | Items[SamplingParams] | None = None
    ) -> list[RequestResult]:
        """Complete prompts, in order.

        Args:
            prompts: a text, token ids, or a list of either.
            params: one for all, or one for each; the model's defaults when None.

        Raises:
            RequestError: a prompt or parameter is not acceptable (DP4xx); found before anything is generated.
        """
        listed = as_prompt_list(prompts)
        encoded = [self._encode(prompt) for prompt in listed]
        return self._generate_all(encoded, params)

    def chat(
        self,
        messages: Messages | Items[Messages],
        params: SamplingParams | Items[SamplingParams] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestResult]:
        """Answer a conversation, or several, through the model's chat template.

        Args:
            messages: ``[{"role": ..., "content": ...}, ...]``, or a list of such lists.
            params: one for all, or one for each; the model's defaults when None.
            chat_template_kwargs: extra variables for the template.

        Raises:
            RequestError: DP405, DP406 and those of `generate`.
        """
        listed = messages if isinstance(messages, (list, tuple)) else ()
        many = bool(listed) and all(isinstance(item, (list, tuple)) for item in listed)
        conversations: Any = messages if many else [messages]
        encoded = [self._encode_chat(conversation, chat_template_kwargs) for conversation in conversations]
        return self._generate_all(encoded, params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamEvent]:
        """Complete one prompt, an event for every committed block. Bad input raises here, not at the first event."""
        return self._stream(self._new_sequence(self._encode(prompt), params))

    def stream_chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamEvent]:
        """Answer one conversation, an event for every committed block. Bad input raises here."""
        return self._stream(self._new_sequence(self._encode_chat(messages, chat_template_kwargs), params))

    def _encode(self, prompt: Prompt) -> list[int]:
        return encode_prompt(self.tokenizer, prompt, self.target.info.vocab_size, self.max_model_len)

    def _encode_chat(self, messages: Messages, options: Mapping[str, Any] | None) -> list[int]:
        vocab_size = self.target.info.vocab_size
        return encode_chat(self.tokenizer, messages, vocab_size, self.max_model_len, options)

    def _generate_all(
        self, encoded: list[list[int]], params: SamplingParams | Items[SamplingParams] | None
    ) -> list[RequestResult]:
        each: list[Any] = list(params) if isinstance(params, (list, tuple)) else [params] * len(encoded)
        if len(each) != len(encoded):
            raise RequestError(
                "DP430", f"expected one SamplingParams or {len(encoded)} of them, got {len(each)}"
            )
        sequences = [self._new_sequence(tokens, mine) for tokens, mine in zip(encoded, each, strict=True)]
        return [self._run(sequence) for sequence in sequences]

    def _new_sequence(self, prompt: list[int], params: SamplingParams | None) -> Sequence:
        info = self.target.info
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError(
                "DP432", f"params must be SamplingParams or a list of them, got {type(params).__name__}"
            )
        sampling = (params or SamplingParams()).resolve(self._loaded.defaults, vocab_size=info.vocab_size)
        return Sequence(
            prompt_token_ids=prompt,
            sampling=sampling,
            max_length=self.max_model_len,
            end_token_ids=end_token_set(
                self._loaded.end_token_ids, sampling.stop_token_ids, sampling.ignore_eos
            ),
            kv=self.target.new_sequence(),
            draft_state=self.drafter.new_state() if self.drafter else None,
            text=self._output_text(prompt, sampling),
            sampling_info=_sampling_info(sampling, info.device),
        )

    def _output_text(self, prompt: list[int], sampling: ResolvedSampling) -> OutputText:
        return OutputText(
            self.tokenizer,
            prompt,
            stop=sampling.stop,
            include_stop_str_in_output=sampling.include_stop_str_in_output,
            skip_special_tokens=sampling.skip_special_tokens,
            kinds=self._loaded.token_kinds,
        )

    def _run(self, sequence: Sequence) -> RequestResult:
        result = None
        for event in self._stream(sequence):
            result = event.result
        assert result is not None
        return result

    def _stream(self, sequence: Sequence) -> Iterator[StreamEvent]:
        started = time.perf_counter()
        for block in self._blocks(sequence):
            result = None
            if sequence.finish_reason is not None:
                sequence.stats.seconds.total = time.perf_counter() - started
                result = _result(sequence)
            yield _event(block, result)

    def _blocks(self, sequence: Sequence) -> Iterator[CommittedBlock]:
        # Entered anew for every step, so that a caller who stops reading is not left in inference mode.
        with _undisturbed(self.target.device):
            block = prefill(self.target, self.drafter, sequence)
        yield block
        while sequence.finish_reason is None:
            with _undisturbed(self.target.device):
                block = decode_step(self.target, self.drafter, [sequence])[0]
            yield block


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast of the caller's, which would change dtypes under the target."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


def _event(block: CommittedBlock, result: RequestResult | None) -> StreamEvent:
    text = "".join(piece.text for piece in block.pieces)
    return StreamEvent(text, block.token_ids, block.pieces, result is not None, result)


def _result(sequence: Sequence) -> RequestResult:
    assert sequence.finish_reason is not None
    return RequestResult(
        text=sequence.text.text,
        token_ids=sequence.output_token_ids,
        prompt_token_ids=sequence.prompt_token_ids,
        finish_reason=sequence.finish_reason,
        seed=sequence.sampling.seed,
        stats=sequence.stats,
    )


def _sampling_info(sampling: ResolvedSampling, device: torch.device) -> SamplingInfo:
    return SamplingInfo.of(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        batch_size=1,
        device=device,
    )


def _context_length(target: Target, asked: int | None) -> int:
    own = target.info.max_position
    if asked is None:
        return own
    if isinstance(asked, bool) or not isinstance(asked, Integral) or not 2 <= asked <= own:
        raise RequestError(
            "DP431", f"max_model_len must be a whole number from 2 to {own} (the model's own), got {asked!r}"
        )
    return int(asked)


def _load(path: Path, name: str, options: TargetOptions) -> _Loaded:
    """Load a target and test it; where packed linears are not row-invariant on this machine, fall back to tiles."""
    target = Target.load(path, name, options)
    sound = target.self_test()
    if not sound and target.route is Route.PACKED:
        target = Target.load(
            path, name, TargetOptions(options.dtype, options.device, Route.TILES, options.trust_remote_code)
        )
        sound = target.self_test()
    if not sound:
        warnings.warn(
            f"{name}: on this machine rows are not bit-identical in different company, so output is lossless in distribution "
            "only: drafting may change single tokens where two are almost equally likely",
            DraftproofWarning,
            stacklevel=3,
        )
    tokenizer = _tokenizer(path, name, options.trust_remote_code)
    defaults, end_token_ids = _generation_defaults(path, target, tokenizer)
    return _Loaded(target, tokenizer, TokenKinds.of(tokenizer), defaults, end_token_ids, sound)


def _tokenizer(path: Path, name: str, trust_remote_code: bool) -> Any:
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # tokenizers raise whatever their files make them
        first_line = str(error).strip().splitlines()[:1]
        raise ModelError("DP261", f"cannot load the tokenizer of {name}: {''.join(first_line)}") from error


def _generation_defaults(
    path: Path, target: Target, tokenizer: Any
) -> tuple[SamplingDefaults, frozenset[int]]:
    """Sampling defaults and end tokens: of the generation config, else of the model's config and tokenizer."""
    model_config: Any = target.model.config
    try:
        config = GenerationConfig.from_pretrained(path)
    except OSError:
        return SamplingDefaults(), _ids(model_config.eos_token_id) or _ids(tokenizer.eos_token_id)
    ends = _ids(config.eos_token_id) or _ids(model_config.eos_token_id) or _ids(tokenizer.eos_token_id)
    return SamplingDefaults.from_generation_config(config.to_diff_dict()), ends


def _ids(ids: int | list[int] | None) -> frozenset[int]:
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def _ready_made(drafter: Drafter, block_size: int | None) -> Drafter:
    """A drafter object, checked for what the engine will ask of it."""
    lacking = [
        name
        for name in ("max_draft_tokens", "tap_layer_ids", "new_state", "extend", "propose")
        if not hasattr(drafter, name)
    ]
    if lacking or block_size is not None:
        problem = (
            f"a {type(drafter).__name__} without {', '.join(lacking)}"
            if lacking
            else "block_size beside a drafter object"
        )
        raise DrafterError(
            "DP317",
            f"drafter must be None, 'ngram', a folder, a hub id or a Drafter object of its own block size, got {problem}",
        )
    return drafter


def _drafter_source(drafter: str | Path) -> str | Path:
    """A drafter's name or folder; a hub id becomes the folder it was fetched into."""
    if drafter == "ngram" or Path(drafter).exists():
        return drafter
    return resolve_model(str(drafter)).path


__all__ = ["LLM", "RequestResult", "StreamEvent", "TextPiece"]
