"""What DFlash drafters have in common, however they compute: their context's memory, and the checks on what they are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.errors import DrafterError
from draftproof.models.drafters.base import ContextUpdate, DraftRequest
from draftproof.models.drafters.choice import Draw
from draftproof.models.drafters.config import DrafterConfig
from draftproof.models.drafters.context import DFlashState
from draftproof.models.drafters.pages import ContextPages
from draftproof.models.kv import KEY_BLOCK

_FIRST_PAGES = 4


class ContextKeeper:
    """The part of a `Drafter` that deals in pages and states.

    Args:
        config: the checkpoint's.
        target_hidden: width of the target's hidden states.
        block_size: anchor plus mask slots of the longest block, at most the checkpoint's own.
        dtype, device: of the pages.
    """

    def __init__(
        self,
        config: DrafterConfig,
        target_hidden: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.name: str = config.algorithm
        self.max_draft_tokens = block_size - 1
        self.tap_layer_ids = config.target_layer_ids
        self.config = config
        self._dtype, self._device = dtype, device
        self._feature_width = len(config.target_layer_ids) * target_hidden
        self.page_bytes = (
            2 * config.num_layers * config.num_kv_heads * KEY_BLOCK * config.head_dim * dtype.itemsize
        )

    def new_pages(self, num_pages: int) -> ContextPages:
        config = self.config
        return ContextPages(
            config.num_layers, config.num_kv_heads, config.head_dim, num_pages, self._dtype, self._device
        )

    def copy_page(self, pages: ContextPages, source: int, destination: int) -> None:
        pages.copy(source, destination)

    def new_state(
        self, pages: ContextPages | None = None, table: list[int] | None = None, length: int = 0
    ) -> DFlashState:
        """See `Drafter.new_state`.

        Raises:
            ValueError: pages without a table, or a length without pages to hold it.
        """
        if pages is None:
            if length:
                raise ValueError(f"private memory starts empty, so length must be 0, got {length}")
            return DFlashState(self.new_pages(_FIRST_PAGES), list(range(_FIRST_PAGES)), private=True)
        if table is None:
            raise ValueError("pages need the table that says which of them are the sequence's")
        return DFlashState(pages, table, length)

    def _reserved(self, updates: Sequence[ContextUpdate]) -> dict[int, int]:
        """The length that each state will have, by its id; every update is checked, and every state has the pages.

        Raises:
            DrafterError: DP316 a start or the features' width is not what a state needs.
            RuntimeError: a table is too short for its tokens.
        """
        lengths: dict[int, int] = {}
        for update in updates:
            state = update.state
            held = lengths.get(id(state), state.length)
            lengths[id(state)] = held + self._checked(update, held).shape[0]
            state.reserve(lengths[id(state)])
        return lengths

    def _checked(self, update: ContextUpdate, length: int) -> torch.Tensor:
        """The update's features, which must continue a context of `length` tokens."""
        features = update.features
        if features is None or features.ndim != 2 or features.shape[1] != self._feature_width:
            got = None if features is None else tuple(features.shape)
            raise DrafterError(
                "DP316", f"context features must have shape (n, {self._feature_width}), got {got}"
            )
        if update.start != length:
            raise DrafterError(
                "DP316",
                f"context features start at position {update.start}, but the drafter holds {length} tokens",
            )
        return features

    def _draws(self, requests: Sequence[DraftRequest]) -> list[Draw]:
        """How each request's rows choose.

        Raises:
            DrafterError: DP316 a state does not hold exactly the tokens before its anchor.
        """
        most = self.max_draft_tokens
        for request in requests:
            have, need = request.state.length, len(request.tokens) - 1
            if have != need:
                raise DrafterError(
                    "DP316",
                    f"the drafter holds the context of {have} tokens, but {need} tokens lie before the anchor; "
                    "every committed token except the last must have been given to extend, once",
                )
        return [Draw(r.sampling, r.output_position, max(0, min(r.num_draft_tokens, most))) for r in requests]


def usable(finite: torch.Tensor, counts: Sequence[int]) -> list[int]:
    """How many leading rows of each sequence are finite; ``finite [rows]``, bool, `counts` rows of each."""
    if bool(finite.all()):
        return list(counts)
    return [int(part.cumprod(0).sum()) for part in finite.split(list(counts))]
