"""A soak of CI size; `bench/soak.py` runs the same for as long as one likes."""

from __future__ import annotations

import random

from support.engines import short_llm, tiny_drafter
from support.soaking import Asks, Soak
from support.tiny_tokenizers import TEXT


def test_soak() -> None:
    rng = random.Random(2026)
    off = short_llm(256)
    asks = Asks(off, TEXT, rng, count=60, longest=256, most_output=48)
    drafters = [
        lambda kind=kind: tiny_drafter(kind, off) for kind in ("dflash", "dflash2", "ngram", "witness")
    ]
    report = Soak(off, asks, [*drafters, *drafters[3:] * 3], rng, blocks=[4, 6, 12]).run(240)
    assert report.wrong == []
    assert report.leaks == []
    assert report.outputs_compared > 150
    assert min(report.aborted, report.preemptions, report.block_copies, report.evictions) > 5
    assert report.prefix_hit_tokens > 500
    assert report.accepted_tokens > 500
