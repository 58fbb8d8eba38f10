"""Where outputs end: end tokens, lengths, stop strings; however text or tokens are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.detokenize import TokenKinds
from draftproof.engine.output_text import OutputText, Step
from draftproof.engine.stops import StopMatcher, end_token_set, finish_reason
from support.tiny_tokenizers import NAMES, tiny_tokenizer

KINDS = {name: TokenKinds.of(tiny_tokenizer(name)) for name in NAMES}

# Two letters, so that stop strings overlap, nest, and nearly match all the time.
text_of_two_letters = st.text("ab", max_size=24)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def expected(text: str, stop: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The definition, character by character: the shown text and the stop string that ended it."""
    for end in range(1, len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            longest = max(completed, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=800, deadline=None)
@given(text_of_two_letters, stop_strings, st.booleans(), st.lists(st.integers(0, 24), max_size=8))
def test_shown_text_and_verdict_do_not_depend_on_the_pieces(
    text: str, stop: list[str], include: bool, cuts: list[int]
) -> None:
    matcher = StopMatcher(stop, include)
    shown = "".join(map(matcher.push, pieces(text, cuts)))
    shown += matcher.flush()
    assert (shown, matcher.stop_string) == expected(text, stop, include)


@settings(max_examples=500, deadline=None)
@given(text_of_two_letters, stop_strings, st.booleans())
def test_what_is_held_back_is_exactly_what_might_begin_a_stop_string(
    text: str, stop: list[str], include: bool
) -> None:
    matcher = StopMatcher(stop, include)
    shown = ""
    for count, letter in enumerate(text, start=1):
        shown += matcher.push(letter)
        so_far = text[:count]
        if matcher.stop_string is not None:
            return
        prefixes = [s[:n] for s in stop for n in range(1, len(s))]
        held = max((p for p in prefixes if so_far.endswith(p)), key=len, default="")
        assert shown == (so_far if include else so_far[: len(so_far) - len(held)])


@pytest.mark.parametrize(
    ("text", "stop", "include", "shown", "by"),
    [
        ("one two three", ["two"], False, "one ", "two"),
        ("one two three", ["two"], True, "one two", "two"),
        ("one two", [], False, "one two", None),
        ("abcd", ["abcd", "bc"], False, "a", "bc"),  # bc is complete first, though abcd began first
        ("xabc", ["bc", "abc"], False, "x", "abc"),  # both are complete at once: the one that began first
        ("aab", ["ab"], False, "a", "ab"),
        ("stop", ["stop"], False, "", "stop"),
        ("unfinished sto", ["stop"], False, "unfinished sto", None),
        ("a\n\nb", ["\n\n"], False, "a", "\n\n"),
        ("ça va 漢字 ok", ["漢"], False, "ça va ", "漢"),
    ],
)
def test_cases_by_hand(text: str, stop: list[str], include: bool, shown: str, by: str | None) -> None:
    for cuts in ([], range(len(text))):
        matcher = StopMatcher(stop, include)
        assert "".join(map(matcher.push, pieces(text, cuts))) + matcher.flush() == shown
        assert matcher.stop_string == by


def test_nothing_is_shown_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_a_suffix_that_may_begin_a_stop_string_waits_and_is_given_when_it_does_not() -> None:
    matcher = StopMatcher(["User:", "\n\n"])
    assert matcher.push("Hello\n") == "Hello"
    assert matcher.push("Us") == "\n"
    assert matcher.push("ed ") == "Used "
    assert matcher.push("U") == ""
    assert matcher.flush() == "U"


# Tokens.


def run_blocks(
    name: str, blocks: Sequence[Sequence[int]], stop: Sequence[str], include: bool
) -> tuple[str, str | None, list[int], list[str]]:
    """What an engine does: commit blocks token by token, stop where told, flush at the end."""
    output = OutputText(
        tiny_tokenizer(name), [1], stop=stop, include_stop_str_in_output=include, kinds=KINDS[name]
    )
    kept: list[int] = []
    shown: list[str] = []
    for token_id in (token_id for block in blocks for token_id in block):
        kept.append(token_id)
        step = output.push(token_id)
        shown.append(step.text)
        if step.stopped:
            break
    shown.append(output.finish())
    assert "".join(shown) == output.text
    return output.text, output.stop_string, kept, shown


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_text_and_last_token_are_those_of_the_whole_text(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["byte_level", "llama", "gemma", "end_of_word"]))
    tokenizer = tiny_tokenizer(name)
    ids = data.draw(st.lists(st.integers(5, len(tokenizer) - 1), max_size=20))
    whole = run_blocks(name, [ids], [], False)[0]
    start = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    found_in_text = whole[start : start + data.draw(st.integers(1, 6))]
    stop = [s for s in (found_in_text, data.draw(st.text("ab .", max_size=2))) if s]
    include = data.draw(st.booleans())
    text, by, kept, _ = run_blocks(name, [ids], stop, include)
    assert (text, by) == expected(whole, stop, include)
    # The last token is the first one after which the text so far completes a stop string.
    assert kept == ids[: len(kept)]
    if by is not None and len(kept) < len(ids):
        before = OutputText(tokenizer, [1], stop=[], kinds=KINDS[name])
        for token_id in kept[:-1]:
            before.push(token_id)
        assert expected(before.text, stop, include)[1] is None


def test_a_stop_string_inside_a_block_cuts_there_and_across_blocks_too() -> None:
    tokenizer = tiny_tokenizer("byte_level")
    ids = tokenizer.encode("The quick brown fox", add_special_tokens=False)
    for size in range(1, len(ids) + 1):
        blocks = [ids[i : i + size] for i in range(0, len(ids), size)]
        text, by, kept, _ = run_blocks("byte_level", blocks, ["ck br"], False)
        assert (text, by) == ("The qui", "ck br")
        assert tokenizer.decode(kept).startswith("The quick br")
        assert "ck br" not in tokenizer.decode(kept[:-1])


def test_finish_gives_what_was_held_back() -> None:
    tokenizer = tiny_tokenizer("byte_level")
    ids = tokenizer.encode("x漢", add_special_tokens=False)[:-1]
    text, by, _, shown = run_blocks("byte_level", [ids], ["\ufffdy", "xz"], False)
    assert text == tokenizer.decode(ids, clean_up_tokenization_spaces=False) == "x\ufffd"
    assert by is None
    assert shown[-1] == "x\ufffd"


def test_the_end_token_leaves_no_text_unless_asked_for() -> None:
    tokenizer = tiny_tokenizer("byte_level")
    word, end = tokenizer.convert_tokens_to_ids(["fo", "<|im_end|>"])
    for last, skip, include, text in [
        (end, True, False, "fo"),
        (end, False, False, "fo"),
        (end, True, True, "fo"),
        (end, False, True, "fo<|im_end|>"),
        (word, True, False, "fo"),
        (word, True, True, "fofo"),
    ]:
        output = OutputText(
            tokenizer,
            [1],
            include_stop_str_in_output=include,
            skip_special_tokens=skip,
            kinds=KINDS["byte_level"],
        )
        output.push(word)
        step = output.push(last, is_end_token=True)
        assert not step.stopped
        output.finish()
        assert output.text == text


def test_pushing_on_after_a_stop_is_a_bug_and_says_so() -> None:
    tokenizer = tiny_tokenizer("byte_level")
    word = tokenizer.convert_tokens_to_ids("fo")
    output = OutputText(tokenizer, [1], stop=["fo"], kinds=KINDS["byte_level"])
    assert output.push(word) == Step("", True)
    assert output.finish() == ""
    with pytest.raises(RuntimeError, match="after a stop string"):
        output.push(word)


# End tokens and lengths.


def test_end_tokens_are_the_models_unless_ignored_and_the_requests() -> None:
    assert end_token_set([2, 7], [9], ignore_eos=False) == {2, 7, 9}
    assert end_token_set([2, 7], [9], ignore_eos=True) == {9}
    assert end_token_set([2, 7], [2], ignore_eos=True) == {2}
    assert end_token_set([], [], ignore_eos=False) == frozenset()


@pytest.mark.parametrize(
    ("token_id", "index", "reason"),
    [(5, 0, None), (2, 0, "stop"), (5, 8, None), (5, 9, "length"), (2, 9, "stop"), (5, 10, "length")],
)
def test_finish_reason(token_id: int, index: int, reason: str | None) -> None:
    assert finish_reason(token_id, index, end_tokens={2}, max_tokens=10) == reason


def test_an_aborted_output_shows_what_a_stop_string_had_held_back() -> None:
    """The text ends as if nothing had been waited for."""
    from collections import deque

    from draftproof import SamplingParams
    from draftproof.engine import StreamEvent
    from support.llms import tiny_llm
    from support.tiny import random_tokens

    llm = tiny_llm().with_drafter(None)
    prompt = random_tokens(8, seed=4).tolist()
    free = SamplingParams(temperature=1.0, seed=3, ignore_eos=True, max_tokens=48)
    text = llm.generate(prompt, free)[0].text
    inbox: deque[StreamEvent] = deque()
    stop = text[8:10] + "\x00"  # its beginning comes, its end never does
    request = llm.prepare(
        prompt,
        SamplingParams(temperature=1.0, seed=3, ignore_eos=True, max_tokens=48, stop=stop),
        inbox.append,
    )
    llm.loop.add(request)
    while not request.sequences[0].text._matcher._tail:
        llm.loop.step()
    llm.loop.abort(request.request_id)
    result = inbox[-1].result
    assert result is not None
    assert result.finish_reason == "abort"
    assert result.text == "".join(event.text for event in inbox) == text[: len(result.text)]
    assert inbox[-1].text == result.text[-len(inbox[-1].text) :] != ""
