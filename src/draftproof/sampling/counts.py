"""Penalties for tokens that a request already has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from draftproof.sampling.resolved import ResolvedSampling


class TokenCounts:
    """Repetition, presence and frequency penalties of one output sequence.

    Only the tokens that occur are looked at, so the work grows with the text, not with the vocabulary. Every entry of a row
    goes through the same arithmetic whatever stands beside it, hence a row's bits do not depend on the drafts after it: a
    token that has not come yet is divided by 1 and reduced by 0, which changes nothing.

    Repetition: Keskar et al. 2019, "CTRL", section 4.1, in the form of Transformers (positive logits divided, others
    multiplied). Presence and frequency: as the OpenAI API defines them.
    """

    def __init__(self, sampling: ResolvedSampling, prompt_token_ids: Iterable[int]) -> None:
        self._repetition = sampling.repetition_penalty
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        # Prompt tokens count for the repetition penalty alone.
        ids = (
            np.unique(np.fromiter(prompt_token_ids, np.int64))
            if self._repetition != 1
            else np.empty(0, np.int64)
        )
        self._slots = {token: slot for slot, token in enumerate(ids.tolist())}
        self._ids = ids
        self._counts = np.zeros(len(ids), np.float32)  # in the output; exact up to 2**24

    @staticmethod
    def wanted(sampling: ResolvedSampling) -> bool:
        """Whether any of the penalties is on."""
        return (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
        )

    def add(self, tokens: Iterable[int]) -> None:
        """Count tokens that the output now has."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot >= len(self._ids):
                self._grow()
            self._ids[slot] = token
            self._counts[slot] += 1

    def _grow(self) -> None:
        room = max(64, len(self._ids))
        self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])

    def penalise(self, rows: torch.Tensor, drafts: Sequence[int]) -> None:
        """Apply the penalties to rows in place.

        Args:
            rows: float32 ``[1 + len(drafts), vocab]``; row t sees what was counted and ``drafts[:t]``.
            drafts: token ids.
        """
        ids, counts, seen = self._along(drafts)
        if not len(ids):
            return
        where = torch.from_numpy(ids).to(rows.device)
        count = torch.from_numpy(counts).to(rows.device)
        values = rows.index_select(1, where)
        if self._repetition != 1:
            factors = np.where(seen, np.float32(self._repetition), np.float32(1))
            factor = torch.from_numpy(factors).to(rows.device)
            values = torch.where(values > 0, values / factor, values * factor)
        if self._presence != 0:
            values = torch.where(count > 0, values - self._presence, values)
        if self._frequency != 0:
            values = values - count * self._frequency
        rows.index_copy_(1, where, values)

    def _along(self, drafts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids ``[u]`` of all tokens on the path, and for every row how often the output has each and whether prompt or
        output have it, ``[1 + len(drafts), u]``."""
        known = len(self._slots)
        new = list(dict.fromkeys(token for token in drafts if token not in self._slots))
        slots = {token: known + index for index, token in enumerate(new)}
        ids = np.concatenate([self._ids[:known], np.array(new, np.int64)])
        counts = np.zeros((1 + len(drafts), len(ids)), np.float32)
        counts[:, :known] = self._counts[:known]
        seen = np.zeros(counts.shape, bool)
        seen[:, :known] = True
        for index, token in enumerate(drafts):
            slot = self._slots.get(token, slots.get(token, -1))
            counts[index + 1 :, slot] += 1
            seen[index + 1 :, slot] = True
        return ids, counts, seen
