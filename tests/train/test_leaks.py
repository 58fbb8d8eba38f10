"""No disguise that people's data come in hides a held-out prompt, and no prompt is taken for one that it isn't."""

from __future__ import annotations

import pytest

from draftproof.engine.chat_options import ChatOptions
from draftproof.engine.prompt_files import FilePrompt
from draftproof.engine.prompts import encode_chat
from draftproof.errors import RequestError
from draftproof.train.leaks import LONG, HeldOut, normalised, refuse_leaked_responses, refuse_leaks
from draftproof.train.responses import Response
from support.llms import tiny_llm
from support.tiny_tokenizers import tiny_tokenizer

LONG_ONE = "Janet’s ducks lay 16 eggs per day. She eats three for breakfast; how many does she sell?"
SHORT_ONE = "Who wrote it?"
HELD = [
    FilePrompt.asking(LONG_ONE),
    FilePrompt((("system", "Be brief."), ("user", "Name a river.")), later=(SHORT_ONE,)),
]


@pytest.mark.parametrize(
    "text",
    [
        LONG_ONE,
        LONG_ONE.upper(),
        LONG_ONE.replace("’", "'"),
        f"  {LONG_ONE} \n".replace(" ", "\n\t "),
        LONG_ONE.replace("fi", "ﬁ").replace(" ", "\u00a0"),
        f"Answer step by step. {LONG_ONE} Show your work.",
        LONG_ONE[3:-3],
        LONG_ONE[: LONG + 2],
        "name a  river.",
        SHORT_ONE,
    ],
)
def test_a_held_out_prompt_is_found(text: str) -> None:
    held = HeldOut(HELD)
    assert held.find(text) is not None
    with pytest.raises(RequestError, match=r"1 of the training prompts are held out.*prompt 2") as caught:
        refuse_leaks([FilePrompt.asking("Fine."), FilePrompt.asking(text)], held)
    assert caught.value.code == "DP504"
    assert refuse_leaks([FilePrompt.asking("Fine."), FilePrompt.asking(text)], held, drop=True) == [
        FilePrompt.asking("Fine.")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Be brief.",
        f"{SHORT_ONE} And when?",
        "who wrote it",
        LONG_ONE[:20],
        LONG_ONE.replace("16", "17"),
        LONG_ONE[: LONG + 5] + "something else entirely, at some length",
    ],
)
def test_another_prompt_is_let_through(text: str) -> None:
    assert HeldOut(HELD).find(text) is None


def test_every_message_and_turn_is_looked_at() -> None:
    prompts = [
        FilePrompt((("user", "Hello"), ("assistant", "Yes?"), ("user", SHORT_ONE))),
        FilePrompt((("user", "Hello"),), later=(SHORT_ONE,)),
        FilePrompt((("user", "Hello"), ("assistant", SHORT_ONE), ("user", "What?"))),
    ]
    assert refuse_leaks(prompts, HeldOut(HELD), drop=True) == prompts[2:]


def test_answers_are_judged_by_their_prompts() -> None:
    llm = tiny_llm()
    held = HeldOut(HELD, llm.tokenizer)

    def response(text: str) -> Response:
        ids = encode_chat(llm.tokenizer, [{"role": "user", "content": text}], 1000, 1000, ChatOptions())
        return Response(tuple(ids), (5, 6))

    bad = [
        response(text) for text in (LONG_ONE, SHORT_ONE, SHORT_ONE.upper(), LONG_ONE[2:], f"So: {LONG_ONE}")
    ]
    fine = [response("Name two rivers."), Response((7, 8, 9), (5,)), response(SHORT_ONE + " And when?")]
    assert refuse_leaked_responses([*bad, *fine], held, drop=True) == fine
    with pytest.raises(RequestError, match=r"5 of the training answers.*answer 1:.*and 2 more") as caught:
        refuse_leaked_responses([*fine[:0], *bad, *fine], held)
    assert caught.value.code == "DP504"
    # Without a template, text and token ids are all there is.
    plain = tiny_tokenizer("byte_level")
    held = HeldOut(HELD, plain)
    ids = tuple(plain(SHORT_ONE)["input_ids"])
    assert held.find_in_ids(ids) == SHORT_ONE
    assert held.find_in_ids(ids[:-1]) is None
    assert HeldOut(HELD).find_in_ids(ids) is None


def test_nothing_is_held_out() -> None:
    prompts = [FilePrompt.asking("x" * 100)]
    assert refuse_leaks(prompts, HeldOut([])) == prompts


def test_what_normalising_puts_aside() -> None:
    assert normalised(" A\u3000ﬁne\n“Day” – İ") == normalised('a fine "day" - i̇')
    assert normalised("3 - 4") != normalised("3 + 4")
