"""Draft modes as text."""

from __future__ import annotations

import pytest

from draftproof.engine.economics import DraftMode
from draftproof.errors import RequestError


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("auto", DraftMode("auto")),
        ("off", DraftMode("off")),
        ("fixed=0", DraftMode("fixed", 0)),
        ("fixed=15", DraftMode("fixed", 15)),
        (" Fixed=3 ", DraftMode("fixed", 3)),
        (DraftMode("fixed", 2), DraftMode("fixed", 2)),
    ],
)
def test_every_mode_is_read(text: str, mode: DraftMode) -> None:
    assert DraftMode.parse(text) == mode
    assert DraftMode.parse(str(mode)) == mode


@pytest.mark.parametrize(
    "text",
    ["", "on", "fixed", "fixed=", "fixed=-1", "fixed=1.5", "fixed=x", "4", 4, None, True, "fixed=99999999"],
)
def test_anything_else_is_refused_by_name(text: object) -> None:
    with pytest.raises(RequestError, match="draft_mode must be") as caught:
        DraftMode.parse(text)  # type: ignore[arg-type]
    assert caught.value.code == "DP440"
