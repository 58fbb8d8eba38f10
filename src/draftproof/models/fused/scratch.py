"""Memory that passes work in, kept from one to the next."""

from __future__ import annotations

import numpy as np
import torch

from draftproof.models.fused.packed import PackedModel
from draftproof.models.fused.spec import FusedSpec
from draftproof.models.kernels import forward as program
from draftproof.models.kernels import weight_fields
from draftproof.models.kernels.packing import TILE, Activations, Precision, padded

MAX_ROWS = 512
"""Rows that go through the model at once; longer passes are cut, which changes nothing about a row."""


class Scratch:
    """Buffers for up to `MAX_ROWS` rows; they grow when they must.

    Attributes:
        addresses: what `kernels.forward.run` calls `own`. Logits and features are the caller's to fill in.
    """

    def __init__(self, spec: FusedSpec, model: PackedModel, precision: Precision) -> None:
        state = padded(spec.hidden_size, TILE)
        projected = int(model.layers[0, weight_fields.QKV + weight_fields.TILES]) * TILE
        gated = int(model.layers[0, weight_fields.DOWN + weight_fields.PADDED_IN])
        self._widths = (state, state, projected, spec.heads * spec.head_dim, gated)
        self._widest, self._precision = model.widest_input, precision
        self.rows = 0
        self.addresses = np.zeros(program.PASS_FIELDS, np.int64)

    def hold(self, rows: int) -> None:
        """Have room for `rows` rows."""
        if rows <= self.rows:
            return
        self.rows = min(MAX_ROWS, max(rows, 2 * self.rows))
        self._buffers = [torch.empty(self.rows, width, dtype=torch.float32) for width in self._widths]
        self._prepared = Activations.empty(self.rows, self._widest, self._precision)
        places = [buffer.data_ptr() for buffer in self._buffers] + list(self._prepared.address())
        self.addresses[: len(places)] = places
