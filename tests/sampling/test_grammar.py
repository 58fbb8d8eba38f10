"""Grammars: masks along a draft path, rollback, ends, and what cannot be compiled."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import llguidance
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from draftproof.errors import RequestError, explanation
from draftproof.sampling import (
    Grammar,
    GrammarCompiler,
    RowRules,
    SamplingDefaults,
    SamplingParams,
    StructuredOutputs,
)
from draftproof.sampling.grammar import _read_tokenizer
from support.tiny_tokenizers import tiny_tokenizer

VOCAB = 450  # more than any of the tokenizers has
ENDS = frozenset({2, 4})
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = {
    "schema": StructuredOutputs(json=SCHEMA),
    "regex": StructuredOutputs(regex="[a-c]{2,4}(x|yz)?"),
    "choice": StructuredOutputs(choice=["yes", "no", 'a "b"\n\\', "天😀"]),
    "lark": StructuredOutputs(grammar='start: "(" start ")" | /[a-z]{1,3}/'),
    "gbnf": StructuredOutputs(grammar='root ::= "x"? [0-9] [0-9]'),
    "object": StructuredOutputs(json_object=True),
}
BYTE_TOKENIZERS = ("byte_level", "llama", "gemma")


@cache
def compiler(name: str = "byte_level") -> GrammarCompiler:
    return GrammarCompiler(tiny_tokenizer(name), VOCAB, ENDS)


def rules_for(form: StructuredOutputs, name: str = "byte_level", **fields: Any) -> RowRules:
    return rules_of(compiler(name).compile(form), **fields)


def rules_of(grammar: Grammar, ends: frozenset[int] = ENDS, **fields: Any) -> RowRules:
    sampling = SamplingParams(**fields).resolve(SamplingDefaults(), vocab_size=VOCAB)
    rules = RowRules.of(sampling, [5], ends, grammar, VOCAB)
    assert rules is not None
    return rules


def allowed(rules: RowRules, drafts: list[int] | None = None) -> list[set[int]]:
    drafts = drafts or []
    adjusted = rules.apply(torch.zeros(1 + len(drafts), VOCAB), drafts)
    assert len(adjusted.logits) == 1 + adjusted.drafts
    return [set(row.isfinite().nonzero()[:, 0].tolist()) for row in adjusted.logits]


def encoded(text: str, tokenizer: PreTrainedTokenizerFast | None = None) -> list[int]:
    return (tokenizer or tiny_tokenizer("byte_level")).encode(text, add_special_tokens=False)


def walk(rules: RowRules, choose: random.Random, most: int = 200) -> Iterator[int]:
    """Random tokens that the rules let through, up to an end token, which is not given."""
    for _ in range(most):
        options = sorted(allowed(rules)[0])
        # An end as soon as there may be one, every other time: objects and repetitions could go on for ever.
        ends = sorted(ENDS & set(options))
        token = choose.choice(ends if ends and choose.random() < 0.5 else options)
        rules.advance([token])
        if token in ENDS:
            return
        yield token
    raise AssertionError(f"no end within {most} tokens")


def fits(form: str, text: str) -> bool:
    if form == "schema":
        value = json.loads(text)
        return list(value) == ["name", "age"] and len(value["name"]) <= 6 and value["age"] <= 120
    if form == "choice":
        return text in (FORMS["choice"].choice or ())
    patterns = {"regex": "[a-c]{2,4}(x|yz)?", "lark": r"\(*[a-z]{1,3}\)*", "gbnf": "x?[0-9]{2}"}
    return re.fullmatch(patterns[form], text) is not None and text.count("(") == text.count(")")


@pytest.mark.parametrize("form", [name for name in FORMS if name != "object"])
@pytest.mark.parametrize("name", BYTE_TOKENIZERS)
def test_every_walk_through_a_grammar_spells_what_it_describes(name: str, form: str) -> None:
    choose = random.Random(f"{name} {form}")
    tokenizer = tiny_tokenizer(name)
    spell, _ = _read_tokenizer(tokenizer, VOCAB)
    for _ in range(8):
        tokens = list(walk(rules_for(FORMS[form], name), choose))
        text = spell.decode_bytes(tokens).decode("utf-8")
        assert fits(form, text), text
        assert tokenizer.decode(tokens, clean_up_tokenization_spaces=False).strip() == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": [1, 2.5e3, null, true], "b": {"c": "天\\n"}}',
        '{\n  "a": {\n    "b": []\n  }\n}',
        '{"a":1}',
    ],
)
def test_any_json_object_passes(text: str) -> None:
    tokens = encoded(text)
    rules = rules_for(FORMS["object"])
    steps = allowed(rules, tokens)
    assert len(steps) == 1 + len(tokens)
    assert all(token in step for token, step in zip(tokens, steps, strict=False))
    assert steps[-1] == ENDS


@pytest.mark.parametrize("text", ["[1]", "{" + " " * 100, '{"a" 1}', "{,", "x"])
def test_what_is_no_json_object_does_not(text: str) -> None:
    rules = rules_for(FORMS["object"])
    assert len(allowed(rules, encoded(text))) <= len(encoded(text))


OBJECT = '{"a": [1, {"b": "c"}], "d": null}'


def failure_of(rules: RowRules, raw: torch.Tensor, drafts: Sequence[int] = ()) -> str | None:
    try:
        rules.apply(raw, drafts)
    except RequestError as error:
        return error.message
    return None


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(BYTE_TOKENIZERS),
    st.integers(0, 2**31),
    st.integers(0, 9),
    st.data(),
)
def test_rows_along_a_draft_path_equal_those_of_single_steps_bitwise(
    form: str, name: str, seed: int, committed: int, data: st.DataObject
) -> None:
    fields = {"repetition_penalty": 1.2, "logit_bias": {70: 5}, "min_tokens": data.draw(st.integers(0, 3))}
    grammar = compiler(name).compile(FORMS[form])
    path = (
        encoded(OBJECT, tiny_tokenizer(name))
        if form == "object"
        else list(walk(rules_of(grammar), random.Random(seed)))
    )
    if name != "byte_level" and form == "object":
        path = path[1:]  # the space in front
    committed = min(committed, len(path))
    drafts = path[committed : committed + 7]
    for _ in range(data.draw(st.integers(0, 2))):  # some drafts are wrong, or end
        drafts.insert(data.draw(st.integers(0, len(drafts))), data.draw(st.integers(0, VOCAB - 1)))
    raw = torch.randn(1 + len(drafts), VOCAB, generator=torch.Generator().manual_seed(seed))
    together, step = rules_of(grammar, **fields), rules_of(grammar, **fields)
    together.advance(path[:committed])
    step.advance(path[:committed])
    if (failure := failure_of(step, raw[:1])) is not None:  # complete before min_tokens
        assert "no end token yet" in failure
        assert failure_of(together, raw, drafts) == failure
        return
    adjusted = together.apply(raw, drafts)
    for t in range(1 + adjusted.drafts):
        assert torch.equal(step.apply(raw[t : t + 1], []).logits[0], adjusted.logits[t])
        if t < adjusted.drafts:
            step.advance(drafts[t : t + 1])
    if adjusted.drafts < len(
        drafts
    ):  # and the cut was due: the next draft ends, is refused, or leads nowhere
        refused = drafts[adjusted.drafts]
        if refused not in ENDS and bool(adjusted.logits[-1, refused].isfinite()):
            step.advance([refused])
            with pytest.raises(RequestError, match="no token is left"):
                step.apply(raw[:1], [])
    assert torch.equal(
        together.apply(raw, drafts).logits, adjusted.logits
    )  # rolled back, so it comes out again
    together.advance(path[committed : committed + 1])


def test_rows_end_where_the_grammar_refuses_a_draft() -> None:
    rules = rules_for(FORMS["regex"])
    a, b, q = (encoded(letter)[0] for letter in "abq")
    assert rules.apply(torch.zeros(5, VOCAB), [a, b, q, a]).drafts == 2
    assert rules.apply(torch.zeros(5, VOCAB), [q, a, b, a]).drafts == 0
    assert rules.apply(torch.zeros(5, VOCAB), [a, b, a, b]).drafts == 4
    assert rules.apply(torch.zeros(5, VOCAB), [a, 2, a, b]).drafts == 1


def test_end_tokens_come_where_the_grammar_is_complete_and_alone_where_nothing_can_follow() -> None:
    rules = rules_for(StructuredOutputs(regex="ab?"))
    a, b = encoded("a")[0], encoded("b")[0]
    assert allowed(rules, [a, b]) == [{a}, {b} | ENDS, set(ENDS)]
    assert not rules.is_exhausted
    rules.advance([a])
    assert not rules.is_exhausted
    rules.advance([b])
    assert rules.is_exhausted


def test_the_requests_own_stop_tokens_count_as_ends() -> None:
    rules = rules_for(StructuredOutputs(regex="ab?"), stop_token_ids=[3, 9])
    a = encoded("a")[0]
    assert allowed(rules, [a])[1] >= ENDS | {3, 9}
    assert not allowed(rules)[0] & (ENDS | {3, 9})
    rules.advance([a, 9])  # how the request ends


def test_with_end_tokens_ignored_only_they_follow_a_complete_output() -> None:
    grammar = compiler().compile(StructuredOutputs(regex="a+"))
    a = encoded("a")[0]
    rules = rules_of(grammar, ends=frozenset(), ignore_eos=True)
    assert allowed(rules, [a, 2, 4, a])[1:] == [allowed(rules, [a])[1], set(ENDS), set(ENDS)]
    rules.advance([a, 2])
    assert rules.is_exhausted
    assert allowed(rules, [a]) == [set(ENDS)]
    assert allowed(rules, [4]) == [set(ENDS), set(ENDS)]


def test_without_end_tokens_nothing_follows() -> None:
    compiler = GrammarCompiler(tiny_tokenizer("byte_level"), VOCAB, [])
    rules = rules_of(compiler.compile(StructuredOutputs(choice=["a"])), ends=frozenset())
    rules.advance(encoded("a"))
    assert rules.is_exhausted
    with pytest.raises(RequestError, match="no token is left"):
        rules.apply(torch.zeros(1, VOCAB), [])


def test_no_token_beyond_the_tokenizer_and_none_of_ours_is_ever_allowed() -> None:
    size = len(tiny_tokenizer("byte_level"))
    for form in FORMS.values():
        for step in allowed(rules_for(form), encoded("aby")):
            assert max(step) < size
    free = allowed(rules_for(StructuredOutputs(regex=r"(.|\n)*")))[0]
    assert max(free) < size
    assert len(free) > 250


def test_a_vocabulary_smaller_than_the_tokenizers() -> None:
    small = 300
    grammar = GrammarCompiler(tiny_tokenizer("byte_level"), small, ENDS).compile(FORMS["object"])
    sampling = SamplingParams().resolve(SamplingDefaults(), vocab_size=small)
    rules = RowRules.of(sampling, [5], ENDS, grammar, small)
    assert rules is not None
    assert rules.apply(torch.zeros(1, small), []).logits.isfinite().any()


def test_masks_of_the_grammar_and_of_the_request_both_hold() -> None:
    a, b, c = (encoded(letter)[0] for letter in "abc")
    rules = rules_for(FORMS["regex"], banned_token_ids=[a], allowed_token_ids=[a, b, c, 2])
    assert allowed(rules, [b, c]) == [{b, c}, {b, c}, {b, c, 2}]


def test_min_tokens_hold_in_a_grammar_and_no_longer_than_they_should() -> None:
    a = encoded("a")[0]
    rules = rules_for(StructuredOutputs(regex="a+"), min_tokens=3)
    assert [bool(step & ENDS) for step in allowed(rules, [a, a, a])] == [False, False, False, True]
    rules.advance([a, a])
    assert [bool(step & ENDS) for step in allowed(rules, [a])] == [False, True]


def test_where_no_token_is_left_the_request_fails_when_it_gets_there() -> None:
    y, e, s = (encoded(letter)[0] for letter in "yes")
    form = StructuredOutputs(choice=["yes", "ye"])
    rules = rules_for(form, banned_token_ids=[e])
    assert (
        rules.apply(torch.zeros(4, VOCAB), [y, e, s]).drafts == 0
    )  # the row after y has no token: not verified
    rules.advance([y])
    with pytest.raises(
        RequestError, match=r"at output token 1: what the grammar needs there, allowed"
    ) as caught:
        rules.apply(torch.zeros(1, VOCAB), [])
    assert caught.value.code == "DP448"
    rules = rules_for(form, min_tokens=7)
    rules.advance([y, e, s])
    with pytest.raises(RequestError, match="complete, and min_tokens=7 allows no end token yet"):
        rules.apply(torch.zeros(1, VOCAB), [])


def test_a_committed_token_that_the_grammar_refuses_is_an_engine_fault() -> None:
    with pytest.raises(RuntimeError, match="was committed though the grammar refuses it"):
        rules_for(FORMS["regex"]).advance(encoded("q"))


def test_outputs_of_one_grammar_do_not_see_each_other() -> None:
    grammar = compiler().compile(FORMS["choice"])
    one, other = rules_of(grammar), rules_of(grammar)
    before = allowed(other)
    one.advance(encoded("ye"))
    assert allowed(other) == before
    other.advance(encoded("n"))
    assert allowed(one) == [set(encoded("s"))]
    assert allowed(rules_of(grammar)) == before


def test_grammars_may_be_compiled_and_followed_in_different_threads() -> None:
    own = GrammarCompiler(tiny_tokenizer("byte_level"), VOCAB, ENDS)

    def follow(seed: int) -> list[int]:
        torch.set_num_threads(1)
        grammar = own.compile(FORMS["schema" if seed % 2 else "regex"])
        return list(walk(rules_of(grammar), random.Random(seed)))

    alone = [follow(seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(follow, range(16))) == alone


def test_compiled_grammars_are_kept_for_a_while() -> None:
    own = GrammarCompiler(tiny_tokenizer("byte_level"), VOCAB, ENDS)
    first = own.compile(StructuredOutputs(regex="a{1}"))
    assert own.compile(StructuredOutputs(regex="a{1}")) is first
    for count in range(2, 70):
        own.compile(StructuredOutputs(regex=f"a{{{count}}}"))
    assert own.compile(StructuredOutputs(regex="a{1}")) is not first


@pytest.mark.parametrize(
    ("form", "code", "message"),
    [
        ({"regex": "[0-9"}, "DP446", "unclosed character class"),
        ({"regex": "(?=a)b"}, "DP446", "look-around"),
        ({"regex": r"[^\s\S]"}, "DP446", "no text that this model's tokens can spell"),
        ({"json": {"not": {"type": "string"}}}, "DP445", 'Unimplemented keys: ["not"]'),
        ({"json": {"type": "array", "uniqueItems": True}}, "DP445", "uniqueItems"),
        ({"json": {"$ref": "#/x"}}, "DP445", "does not exist"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 3}}, "DP445", "minLength (5) is greater"),
        ({"json": {"type": "foo"}}, "DP445", "Invalid type: foo"),
        ({"regex": "\ud800"}, "DP446", "surrogates not allowed"),
        ({"choice": ["\ud800"]}, "DP444", "surrogates not allowed"),
        ({"grammar": "start: digits"}, "DP447", 'unknown name: "digits"'),
        ({"grammar": "start digits"}, "DP447", "Expected ::= at line 1"),
        ({"grammar": 'root ::= "a'}, "DP447", "cannot be used"),
    ],
)
def test_what_cannot_be_compiled_says_why(form: dict[str, Any], code: str, message: str) -> None:
    kind = next(iter(form))
    with pytest.raises(RequestError) as caught:
        compiler().compile(StructuredOutputs(**form))
    assert caught.value.code == code
    assert caught.value.message.startswith(f"structured_outputs.{kind} cannot be used: ")
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_characters_that_the_tokens_cannot_spell_are_found_before_the_first_token() -> None:
    with pytest.raises(RequestError, match="no text that this model's tokens can spell") as caught:
        compiler("metaspace").compile(StructuredOutputs(choice=["天"]))
    assert caught.value.code == "DP444"
    assert compiler("metaspace").compile(StructuredOutputs(choice=["天", "dog"]))


@pytest.mark.parametrize("regex", ["(the|dog)(天|地)x", "(the|dog)天"])
def test_characters_that_the_tokens_cannot_spell_later_on_fail_the_request_there(regex: str) -> None:
    tokens = tiny_tokenizer("metaspace").convert_tokens_to_ids(["d", "o", "g"])
    rules = rules_for(StructuredOutputs(regex=regex), "metaspace")
    for _ in range(2):
        assert rules.apply(torch.zeros(5, VOCAB), [*tokens, 9]).drafts == 2  # no row after the g
    rules.advance(tokens[:2])
    assert rules.apply(torch.zeros(3, VOCAB), [tokens[2], 9]).drafts == 0
    rules.advance(tokens[2:])
    with pytest.raises(
        RequestError, match="at output token 3: no token of this model fits the grammar"
    ) as caught:
        rules.apply(torch.zeros(1, VOCAB), [])
    assert caught.value.code == "DP448"


def test_a_metaspace_tokenizer_spells_its_spaces() -> None:
    tokenizer = tiny_tokenizer("metaspace")
    tokens = encoded("the quick dog", tokenizer)
    steps = allowed(rules_for(StructuredOutputs(regex="[a-z ]+"), "metaspace"), tokens)
    assert len(steps) == 1 + len(tokens)
    assert all(token in step for token, step in zip(tokens, steps, strict=False))


@pytest.mark.parametrize("name", ["word_piece", "end_of_word"])
def test_a_tokenizer_that_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="with this model's tokenizer: can't determine decoder") as caught:
        compiler(name).compile(FORMS["regex"])
    assert caught.value.code == "DP449"


@pytest.mark.parametrize("tokenizer", [None, object()])
def test_without_a_fast_tokenizer_there_are_no_grammars(tokenizer: object) -> None:
    with pytest.raises(RequestError, match="need a fast tokenizer, got ") as caught:
        GrammarCompiler(tokenizer, VOCAB, ENDS).compile(FORMS["regex"])
    assert caught.value.code == "DP449"


def limited_grammar(most_items: int) -> Grammar:
    """A grammar whose parsing grows with every token, with a small budget."""
    tokenizer, end = _read_tokenizer(tiny_tokenizer("byte_level"), VOCAB)
    definition = llguidance.LLMatcher.grammar_from_lark('start: a\na: "x" | a a')
    limits = llguidance.LLParserLimits(step_max_items=most_items)
    matcher = llguidance.LLMatcher(tokenizer, definition, log_level=0, limits=limits)
    return Grammar(matcher, ENDS, tokenizer.vocab_size, end)


def test_a_parser_at_its_limit_cuts_the_drafts_and_fails_the_request_when_it_gets_there() -> None:
    x = encoded("x")[0]
    rules = rules_of(limited_grammar(200))
    adjusted = rules.apply(torch.zeros(101, VOCAB), [x] * 100)
    assert 2 <= adjusted.drafts < 100
    for _ in range(2):  # the failed state was replaced
        again = rules.apply(torch.zeros(101, VOCAB), [x] * 100)
        assert torch.equal(again.logits, adjusted.logits)
    rules.advance([x] * 100)
    with pytest.raises(RequestError, match=r"^following the grammar failed: .*Too many items") as caught:
        rules.apply(torch.zeros(1, VOCAB), [])
    assert caught.value.code == "DP447"
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("code", ["DP446", "DP447", "DP448"])
def test_the_example_of_each_explanation_fails_as_told_and_its_mend_works(code: str) -> None:
    names = {"SamplingParams": SamplingParams, "StructuredOutputs": StructuredOutputs}

    def follow(example: str) -> None:
        params = eval(example, names)
        sampling = params.resolve(SamplingDefaults(), vocab_size=VOCAB)
        grammar = compiler().compile(params.structured_outputs)
        rules = RowRules.of(sampling, [5], ENDS, grammar, VOCAB)
        assert rules is not None
        for _ in range(10):
            rules.advance(rules.apply(torch.zeros(1, VOCAB), []).logits.argmax(dim=1).tolist())

    entry = explanation(code)
    with pytest.raises(RequestError) as caught:
        follow(entry.before)
    assert caught.value.code == code
    follow(entry.after)
