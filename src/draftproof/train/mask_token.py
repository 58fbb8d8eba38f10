"""Which token fills the slots of a block that are to be guessed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from draftproof.errors import RequestError


def choose_mask_token(tokenizer: Any, vocab_size: int, used: Iterable[int]) -> int:
    """A token that texts never hold: the first special one that the data do not use, else the last one in the vocabulary.

    Ends, beginnings and padding are not taken, whether or not the data hold them.

    Args:
        tokenizer: of the target.
        vocab_size: of the target; may be larger than the tokenizer's.
        used: ids that the data hold, prompts and answers.

    Raises:
        RequestError: DP520, every token is in use.
    """
    named = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    taken = {*used, *(getattr(tokenizer, name, None) for name in named)}
    added = getattr(tokenizer, "added_tokens_decoder", {}) or {}
    special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
    for number in sorted(special):
        if number < vocab_size and number not in taken and not _in_template(tokenizer, number):
            return int(number)
    for number in range(vocab_size - 1, -1, -1):
        if number not in taken:
            return number
    raise RequestError("DP520", "mask_token_id: the data hold every token there is; name the rarest yourself")


def _in_template(tokenizer: Any, number: int) -> bool:
    """Whether the chat template writes the token, if only for roles that the data do not have."""
    text = tokenizer.convert_ids_to_tokens(number)
    return bool(text) and str(text) in str(getattr(tokenizer, "chat_template", "") or "")
