"""What passes cost on this machine: measured once at start, kept in the cache folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from draftproof.engine.economics import (
    CostCurve,
    CostKey,
    CostTable,
    DraftMode,
    Economist,
    load_costs,
    measure_costs,
    save_costs,
)
from draftproof.engine.economics.store import cpu_name
from draftproof.engine.undisturbed import undisturbed
from draftproof.models.drafters.base import ContextUpdate, Drafter, DraftRequest, DraftSampling
from draftproof.models.executor import TargetModel, describe
from draftproof.models.kv import KEY_BLOCK, SequenceKV, TargetPages
from draftproof.models.rows import Segment

CONTEXT = 192
"""Tokens before the rows that are timed: a short chat."""
LONG_CONTEXT = 1024
"""What a token of context adds is measured against this."""
MOST_SEQUENCES = 32
"""Larger batches are extrapolated: every sequence measured takes memory."""
BUDGET = 3.0
"""Seconds of passes; filling the contexts comes on top."""
CHUNK = 256
TOKEN = 5
"""Any token will do: what a pass costs does not depend on it."""


def economist_for(
    target: TargetModel,
    drafter: Drafter | None,
    mode: DraftMode,
    max_sequences: int,
    folder: Path | None,
) -> Economist:
    """An economist with this machine's costs: from the folder when they are there, else measured now (under 5 seconds).

    Args:
        target, drafter: the models.
        mode: costs are only needed for ``auto`` with a drafter.
        max_sequences: most sequences in a step.
        folder: where costs are kept; None: nowhere.
    """
    most = drafter.max_draft_tokens if drafter is not None else 0
    if drafter is None or mode.kind != "auto":
        return Economist(mode, free_costs(), most)
    key = CostKey(
        model=_shape(target),
        dtype=describe(target),
        drafter=f"{drafter.name}/{drafter.page_bytes}/{','.join(map(str, drafter.tap_layer_ids))}",
        threads=torch.get_num_threads(),
        cpu=cpu_name() if target.device.type == "cpu" else torch.cuda.get_device_name(target.device),
        torch=torch.__version__,
        version=version("draftproof"),
        max_sequences=max_sequences,
        max_draft_tokens=most,
    )
    costs = load_costs(folder, key) if folder is not None else None
    if costs is None:
        with undisturbed(target.device):
            costs = _Measuring(target, drafter, max_sequences).measure()
        if folder is not None:
            save_costs(folder, key, costs)
    return Economist(mode, costs, most)


def _shape(target: TargetModel) -> str:
    """The target's name and sizes: two models of one name may be different ones."""
    shape = target.structure
    return f"{target.name}/{shape.num_layers}x{shape.hidden_size}/{shape.vocab_size}"


def free_costs() -> CostTable:
    """A table for those who never look at it."""
    nothing = CostCurve([1], [1e-9])
    return CostTable(nothing, nothing, nothing)


class _Measuring:
    """Passes like the engine's, over sequences of made-up tokens, each with keys and values of its own in memory."""

    def __init__(self, target: TargetModel, drafter: Drafter, max_sequences: int) -> None:
        self.target, self.drafter = target, drafter
        self.sequences = min(max_sequences, MOST_SEQUENCES)
        self.context = min(CONTEXT, target.structure.max_position // 4)
        self.long_context = min(LONG_CONTEXT, target.structure.max_position // 2)
        room = self.context + 1 + drafter.max_draft_tokens
        self._each = -(-room // KEY_BLOCK)
        pages = self._filled_pages()
        self._tables = [list(range(n * self._each, (n + 1) * self._each)) for n in range(self.sequences)]
        self._kvs = [SequenceKV(pages, table, self.context) for table in self._tables]
        self._drafter_pages = drafter.new_pages(self.sequences * self._each) if drafter.page_bytes else None

    def _filled_pages(self) -> TargetPages:
        """Pages of which every sequence's hold the same context, computed once and copied."""
        pages = self.target.new_pages(self.sequences * self._each)
        first = SequenceKV(pages, list(range(self._each)))
        output = self.target.forward([self._segment(first, self.context, 0)], self.drafter.tap_layer_ids)
        self._features = output.features
        for page in range(self._each, self.sequences * self._each):
            pages.copy(page % self._each, page)
        return pages

    def measure(self) -> CostTable:
        """The table; takes under 5 seconds."""
        drafts = self._drafter_pages is not None
        long = self.target.new_sequence()
        for start in range(0, self.long_context, CHUNK):
            count = min(CHUNK, self.long_context - start)
            self.target.forward([self._segment(long, count, 0)])
            long.commit_to(start + count)
        return measure_costs(
            lambda n, rows: self._target_pass(self._kvs[:n], rows),
            self._draft_pass if drafts else None,
            self._extend if drafts else None,
            max_sequences=self.sequences,
            max_draft_tokens=self.drafter.max_draft_tokens,
            budget_s=BUDGET,
            measured_context=self.context,
            run_target_long=lambda n, rows: self._target_pass([long][:n], rows),
            long_context=self.long_context,
        )

    def _segment(self, kv: SequenceKV, rows: int, logits: int) -> Segment:
        tokens = torch.full((rows,), TOKEN, dtype=torch.long, device=self.target.device)
        return Segment(kv, tokens, rows - logits)

    def _target_pass(self, kvs: list[SequenceKV], rows: int) -> float:
        """A verify pass with `rows` candidates each, verdict included; nothing of it is committed."""

        def run() -> None:
            output = self.target.forward(
                [self._segment(kv, rows, rows) for kv in kvs], self.drafter.tap_layer_ids
            )
            output.logits.float().argmax(-1).tolist()

        return _timed(run)

    def _draft_pass(self, count: int, slots: int) -> float:
        tokens = [TOKEN] * (self.context + 1)
        requests = [
            DraftRequest(self._state(n, self.context), tokens, slots, 0, DraftSampling())
            for n in range(count)
        ]
        return _timed(lambda: [one.tokens.tolist() for one in self.drafter.propose(requests)])

    def _extend(self, count: int, tokens: int) -> float:
        features = None if self._features is None else self._features[:1].expand(tokens, -1).clone()
        updates = [ContextUpdate(self._state(n, 0), features, 0) for n in range(count)]
        return _timed(lambda: self.drafter.extend(updates))

    def _state(self, sequence: int, length: int) -> Any:
        return self.drafter.new_state(self._drafter_pages, self._tables[sequence], length)


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
