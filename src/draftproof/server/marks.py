"""What a tokenizer tells of the marks that a model writes around thoughts and calls."""

from __future__ import annotations

from typing import Any


def template_text(tokenizer: Any) -> str:
    """A tokenizer's chat template, or all of them."""
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        return "\n".join(map(str, template.values()))
    return template if isinstance(template, str) else ""


def special_id(tokenizer: Any, text: str) -> int | None:
    """The id of a special token of that text; outputs leave such tokens out as a rule."""
    special = {str(token) for token in getattr(tokenizer, "all_special_tokens", ())}
    special |= {
        str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special
    }
    return int(tokenizer.convert_tokens_to_ids(text)) if text in special else None


def any_special(tokenizer: Any, *texts: str) -> bool:
    """Whether one of the texts is a special token."""
    return any(special_id(tokenizer, text) is not None for text in texts)


def grammar_id(tokenizer: Any, text: str) -> int | None:
    """The id of the token of that text, where a grammar knows it by its id alone.

    To llguidance, added tokens in pointed brackets are no text, whether the tokenizer calls them special or not.
    """
    pointed = text.startswith("<") and text.endswith(">")
    return single_id(tokenizer, text) if pointed else special_id(tokenizer, text)


def single_id(tokenizer: Any, text: str) -> int | None:
    """The id of the one token that always stands for a text: an added one, special or not. None where there is none."""
    for token_id, token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if str(token) == text:
            return int(token_id)
    return special_id(tokenizer, text)
