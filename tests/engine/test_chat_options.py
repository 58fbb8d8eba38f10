"""From messages and tokens to text and back: what a server asks of an `LLM`."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

from draftproof import LLM
from draftproof.engine import ChatOptions
from draftproof.engine.detokenize import TokenKinds
from draftproof.engine.token_bytes import TokenBytes, decode_tokens
from draftproof.errors import RequestError
from support.llms import END, tiny_llm
from support.tiny_tokenizers import tiny_tokenizer

TOOL_TEMPLATE = (
    "{% for t in tools or [] %}<{{ t['function']['name'] }}>{% endfor %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}:{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}"
    "{% endfor %}{% endfor %}[/]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = {"role": "user", "content": "hi there"}


def with_template(template: str) -> LLM:
    llm = tiny_llm()
    tokenizer = copy(llm.tokenizer)
    tokenizer.chat_template = template
    return LLM.from_parts(llm.target, tokenizer, end_token_ids=frozenset({END}))


def test_a_turn_is_opened_or_not() -> None:
    llm = tiny_llm()
    opened = llm.render_chat([USER])
    assert (
        opened
        == llm.render_chat([USER], ChatOptions(add_generation_prompt=False)) + "<|im_start|>assistant\n"
    )
    assert llm.render_chat([USER], ChatOptions(template_kwargs={"thinking": True})) == opened + "hm "
    assert llm.encode_chat([USER]) == llm.tokenizer(opened, add_special_tokens=False)["input_ids"]


def test_the_last_message_is_continued() -> None:
    begun = {"role": "assistant", "content": "Well, I"}
    text = tiny_llm().render_chat([USER, begun], ChatOptions(continue_final_message=True))
    assert text.endswith("assistant\nWell, I")


def test_tools_and_calls_reach_the_template() -> None:
    llm = with_template(TOOL_TEMPLATE)
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"city": "Oslo"}'}}
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    tools = [{"type": "function", "function": {"name": "find"}}]
    text = llm.render_chat(messages, ChatOptions(tools=tools))
    assert text == "<find>[user]hi there[/][assistant]find:city=Oslo[/][tool]rain[/][assistant]"
    assert call["function"]["arguments"] == '{"city": "Oslo"}'  # the caller's message is as it was
    with pytest.raises(RequestError) as refused:
        llm.render_chat([{"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}])
    assert refused.value.code == "DP406"


def test_prepare_takes_options() -> None:
    llm = tiny_llm()
    options = ChatOptions(add_generation_prompt=False, template_kwargs={})
    request = llm.prepare(None, None, lambda event: None, messages=[USER], chat=options)
    assert request.prompt_token_ids == llm.encode_chat([USER], options)
    both = llm.prepare(
        None, None, lambda event: None, messages=[USER], chat_template_kwargs={"thinking": True}
    )
    assert llm.decode(both.prompt_token_ids).endswith("hm ")


@pytest.mark.parametrize("text", ["plain words", "naïve 東京 🙂🏽!", " \n\t x"])
def test_bytes_of_tokens_add_up(text: str) -> None:
    llm = tiny_llm()
    tokens = llm.encode(text)
    assert b"".join(map(llm.token_bytes, tokens)).decode() == llm.decode(tokens) == text
    assert len(llm.token_texts(tokens)) == len(tokens)


def test_bytes_of_every_token() -> None:
    llm = tiny_llm()
    special = llm.tokenizer.all_special_ids[0]
    assert llm.token_bytes(special).decode() == llm.tokenizer.convert_ids_to_tokens(special)
    assert llm.decode([special], skip_special_tokens=True) == ""
    assert llm.token_bytes(10**6) == b""


@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma", "metaspace"])
@pytest.mark.parametrize("text", ["plain words", "naïve 🙂🏽!", "It's 3.14 , isn't it ?"])
def test_bytes_of_tokens_add_up_in_every_family(name: str, text: str) -> None:
    """SentencePiece marks blanks with a sign of its own, spells what it does not know in bytes, and puts a blank in front."""
    tokenizer = tiny_tokenizer(name)
    table = TokenBytes(tokenizer, TokenKinds.of(tokenizer))
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id in tokens:
        assert name == "metaspace"  # it has no bytes to fall back to
        return
    joined = b"".join(map(table.of, tokens)).decode()
    assert joined.removeprefix(" ") == text == decode_tokens(tokenizer, tokens, False).removeprefix(" ")
