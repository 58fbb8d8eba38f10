"""The target: a Hugging Face causal LM that takes flat rows of several sequences and gives logit rows and context features."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from draftproof.errors import ModelError
from draftproof.models import kernels
from draftproof.models.attention import AttentionSite
from draftproof.models.attention_pass import ForwardPass, ProbingPass
from draftproof.models.drafters.base import TargetInfo
from draftproof.models.functional import OwnCalls, RowInvariantFunctions
from draftproof.models.kv import LayerShape, PrivateKV, SequenceKV, TargetPages
from draftproof.models.linear import Route, best_route
from draftproof.models.loading import load_causal_lm
from draftproof.models.masks import noting_masks
from draftproof.models.rows import Segment, TargetOutput
from draftproof.models.self_test import rows_stand_alone
from draftproof.models.structure import Structure, find_structure
from draftproof.models.swap import swap_operators


@dataclass(frozen=True)
class TargetOptions:
    """How to load a target.

    Attributes:
        dtype: ``"auto"``, ``"float32"``, ``"bfloat16"``, ``"int8"`` or ``"int4"`` (of the weights; the fused executor only).
            `auto` is the checkpoint's own where this machine computes it well; the fused executor takes a faster one for a
            larger model whose answers stay the same (`models.quality`).
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` ...; `auto` is CUDA where there is one.
        route: how the Transformers executor's linears compute; the best row-invariant route when None. With a route
            given, that executor runs.
        trust_remote_code: run modelling code that comes with the checkpoint.
        executor: ``"auto"``, ``"fused"`` or ``"transformers"``; `auto` is fused where the model and this machine allow.
    """

    dtype: str = "auto"
    device: str = "auto"
    route: Route | None = None
    trust_remote_code: bool = False
    executor: str = "auto"


class _Tapped:
    """Catches hidden states on their way through the layers of one pass."""

    def __init__(self) -> None:
        self._wanted: frozenset[int] = frozenset()
        self._caught: dict[int, torch.Tensor] = {}

    def start(self, layer_ids: Sequence[int]) -> None:
        self._wanted = frozenset(layer_ids)
        self._caught = {}

    def catch(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            if layer in self._wanted:
                self._caught[layer] = (output if isinstance(output, torch.Tensor) else output[0])[0]

        return keep

    def features(self, layer_ids: Sequence[int]) -> torch.Tensor:
        """``[rows, num_taps * hidden]``."""
        return torch.cat([self._caught[layer] for layer in layer_ids], dim=-1)


class Target:
    """A causal LM behind the seam the engine works with.

    `forward` is row-invariant: a token's logit row and features depend, bit for bit, on its own sequence up to it, not on
    what shares the pass nor on how the sequence was cut into passes (`self_test` checks it on this machine).
    """

    def __init__(self, model: nn.Module, name: str, route: Route | None = None) -> None:
        self.model = model.eval()
        self.name = name
        self.structure: Structure = find_structure(model, name)
        parameter = self.structure.embedding.weight
        self.dtype, self.device = parameter.dtype, parameter.device
        self.route = route or best_route(self.dtype, self.device)
        self._site = AttentionSite()
        self._one_pass = threading.Lock()  # attention modules find their pass through the one site
        self.structure.attach(self._site)
        swap_operators(model, self.route)
        self._mode: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._lm_head: Callable[[torch.Tensor], torch.Tensor] = self.structure.lm_head()
        self._tapped = _Tapped()
        self._hooks: dict[int, Any] = {}
        self._shapes: tuple[LayerShape | None, ...] = (None,) * self.structure.num_layers
        self._kv_dtype = self.dtype
        self._compiled = False
        self._probe()

    @classmethod
    def load(cls, path: Path, name: str | None = None, options: TargetOptions | None = None) -> Target:
        """Load a checkpoint folder.

        Raises:
            ModelError: the folder is no usable causal LM (codes DP250 to DP269), or asks for what is not supported.
        """
        options = options or TargetOptions()
        model = load_causal_lm(
            path, name or str(path), options.dtype, options.device, options.trust_remote_code
        )
        return cls(model, name or str(path), options.route)

    @property
    def info(self) -> TargetInfo:
        """What a drafter may borrow and is checked against."""
        shape = self.structure
        return TargetInfo(
            name=self.name,
            hidden_size=shape.hidden_size,
            num_layers=shape.num_layers,
            vocab_size=shape.vocab_size,
            max_position=shape.max_position,
            embedding=shape.embedding.weight.detach(),
            lm_head=self._lm_head,
            dtype=self.dtype,
            device=self.device,
            model_type=shape.model_type,
        )

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of keys and values (`KEY_BLOCK` positions, all layers)."""
        return TargetPages.bytes_per_page(self._shapes, self._kv_dtype)

    def new_pages(self, num_pages: int) -> TargetPages:
        """Storage for the keys and values of many sequences, ``num_pages * page_bytes`` bytes, zeros."""
        return TargetPages(self._shapes, num_pages, self._kv_dtype, self.device)

    def new_sequence(self) -> SequenceKV:
        """An empty sequence with pages of its own, which grow as it does."""
        return PrivateKV(self.new_pages(0))

    def _hook_taps(self, layer_ids: Sequence[int]) -> None:
        """See to it that the outputs of these layers are caught; a hook once set stays and costs nothing when not asked."""
        for layer in layer_ids:
            if not 0 <= layer < self.structure.num_layers:
                raise ModelError(
                    "DP257",
                    f"tap layers must lie in 0..{self.structure.num_layers - 1} ({self.name} has "
                    f"{self.structure.num_layers} layers), got {layer}",
                )
            if layer not in self._hooks:
                self._hooks[layer] = self.structure.tap_module(layer).register_forward_hook(
                    self._tapped.catch(layer)
                )

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], taps: Sequence[int] = ()) -> TargetOutput:
        """Run the tokens of all segments in one pass and append their keys and values.

        Nothing is committed: call ``segment.kv.commit_to`` with the length to keep. When the pass fails, every
        sequence is as it was.

        Args:
            segments: at least one, each of another sequence.
            taps: layers whose outputs make up the context features, in this order; none for no features.

        Raises:
            ModelError: DP251, another number of logit rows came than was asked for; DP257, no such tap; DP258, no room in
                the context.
            RuntimeError: a sequence's page table is too short for its rows (private sequences grow by themselves).
        """
        self._check_room(segments)
        tokens = torch.cat([segment.token_ids for segment in segments])
        positions, wanted = (torch.from_numpy(x).to(self.device) for x in _rows_of(segments))
        with self._one_pass:
            current = ForwardPass(segments, self._compiled)
            logits, features = self._pass(current, tokens, positions, wanted, tuple(taps))
        if logits.shape[0] != wanted.shape[0]:
            raise _row_mismatch(self.name, wanted.shape[0], logits.shape[0])
        for segment in segments:
            segment.kv.written = segment.kv.length + segment.count
        return TargetOutput(logits, features)

    def _pass(
        self,
        current: ForwardPass,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        taps: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logit rows and features; leaves nothing behind in the model, even when it fails."""
        self._hook_taps(taps)
        self._tapped.start(taps)
        self._site.current = current
        try:
            with self._mode():
                logits = self._run(tokens, positions, wanted)
            return logits, self._tapped.features(taps) if taps else None
        finally:
            self._site.current = None
            self._tapped.start(())

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Logit rows ``[wanted, vocab]``."""
        if wanted.shape[0] == 0:
            self.structure.decoder(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
            return torch.empty(0, self.structure.vocab_size, dtype=self.dtype, device=self.device)
        if self.structure.takes_logits_to_keep:
            out = self.model(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=wanted
            )
            return out.logits[0]
        out = self.model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        if out.logits.shape[1] != tokens.shape[0]:
            raise _row_mismatch(self.name, tokens.shape[0], out.logits.shape[1])
        return out.logits[0, wanted]

    def _check_room(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            end = segment.kv.length + segment.count
            if end > self.structure.max_position:
                raise ModelError(
                    "DP258",
                    f"position {end - 1} is beyond the context of {self.name}: {self.structure.max_position} tokens",
                )

    @torch.inference_mode()
    def _probe(self) -> None:
        """Run two tokens and look at what the model does: better a failed load than a failed request."""
        calls = OwnCalls()
        self._mode = lambda: calls
        tokens, positions = torch.zeros(2, dtype=torch.long), torch.arange(2)
        tokens, positions = tokens.to(self.device), positions.to(self.device)
        probe = ProbingPass(2, self.structure.num_layers)
        try:
            with noting_masks(self.model) as masks, self._one_pass:
                logits, _ = self._pass(probe, tokens, positions, positions, ())
            if logits.shape[0] != 2:
                raise _row_mismatch(self.name, 2, logits.shape[0])
        except ModelError as error:
            if error.code != "DP251":
                raise
            raise self._last_token_only(error) from error
        except Exception as error:  # whatever the model's own code raises
            raise ModelError(
                "DP253", f"{self.name}: the {self.structure.model_type} code fails under draftproof: {error}"
            ) from error
        self._mode = RowInvariantFunctions if calls.found else nullcontext
        self._adopt_windows(masks, set(probe.windows.values()))
        self._adopt_shapes(probe)

    @property
    def has_compiled_attention(self) -> bool:
        """Whether attention runs compiled; else in the plain form, slower and as exact."""
        return self._compiled

    def use_plain_attention(self) -> None:
        """From now on, attention in its plain form: for machines on which the compiled one is not row-invariant."""
        self._compiled = False

    def _last_token_only(self, error: ModelError) -> ModelError:
        return ModelError(
            "DP252",
            f"{self.name} gives logits for the last token only ({error.message}); verification needs one row per "
            "candidate. Use a model class whose forward takes logits_to_keep, or returns logits for every position.",
        )

    def _adopt_shapes(self, probe: ProbingPass) -> None:
        """Keep what the layers keep, in the dtype they make it in (float32 where they disagree)."""
        self._shapes = tuple(probe.shapes)
        self._kv_dtype = probe.dtypes.pop() if len(probe.dtypes) == 1 else torch.float32
        self._compiled = kernels.available(self.device, self._kv_dtype)

    def _adopt_windows(self, masks: Sequence[int | None], seen: set[int | None]) -> None:
        """Where a model puts its window into the mask alone, give it to the layers.

        With `layer_types` in the config there is nothing to find out: `Structure.windows` has read them.
        """
        if self.structure.names_layer_types:
            return
        lost = {window for window in masks if window is not None} - seen
        if not lost:
            return
        if len(set(masks)) > 1:
            raise ModelError(
                "DP253",
                f"{self.name}: the {self.structure.model_type} code does not say which of its layers use the sliding window "
                f"of {', '.join(map(str, sorted(lost)))}",
            )
        self.structure.set_window(lost.pop())

    def self_test(self) -> bool:
        """Whether rows come out bit-identical alone, chunked and in company, on this machine: see `rows_stand_alone`.

        Raises:
            ModelError: DP263, the rows differ by more than rounding.
        """
        return rows_stand_alone(self, self.structure.vocab_size, self.structure.model_type)


def _rows_of(segments: Sequence[Segment]) -> tuple[np.ndarray, np.ndarray]:
    """Every row's position in its sequence, and the rows whose logits are wanted; int64."""
    positions, wanted, at = [], [], 0
    for segment in segments:
        start, count = segment.kv.length, segment.count
        positions.append(np.arange(start, start + count))
        wanted.append(np.arange(at + segment.logits_from, at + count))
        at += count
    return np.concatenate(positions), np.concatenate(wanted)


def _row_mismatch(name: str, expected: int, came: int) -> ModelError:
    return ModelError("DP251", f"{name} returned {came} logit rows where {expected} were asked for")
