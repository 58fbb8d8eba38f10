"""Options that several commands have, with one meaning and one text."""

from __future__ import annotations

from typing import Annotated

import typer

DrafterName = Annotated[
    str,
    typer.Option(
        help="none, ngram, default, folder or hub id of a DFlash checkpoint; auto: $DRAFTPROOF_DRAFTER, default, or ngram."
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, int8 or int4.")]
Executor = Annotated[
    str, typer.Option(help="fused: one compiled call a pass; transformers: the model's own code; auto.")
]
DraftModeName = Annotated[
    str, typer.Option(help="auto: as far as pays here; fixed=N: always N tokens; off: never.")
]
Lossless = Annotated[
    str, typer.Option(help="strict: refuse a machine that is not bit-identical; auto: warn.")
]
BlockSizeAtMost = Annotated[int | None, typer.Option(help="Tokens per step at most: anchor and drafts.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
