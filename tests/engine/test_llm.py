"""The offline API: where output ends, what is counted, what streams, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftproof import LLM, EngineOptions, RequestResult, SamplingParams
from draftproof.errors import DrafterError, EngineError, ModelError, RequestError
from draftproof.models.drafters.base import DraftProposal, DraftRequest
from support.llms import END, make_drafter, tiny_llm
from support.scripted import ScriptedDrafter
from support.tiny import random_tokens

PROMPT = random_tokens(8, seed=4).tolist()
FREE = {"temperature": 1.0, "seed": 3, "ignore_eos": True}


def undrafted(max_tokens: int = 48, **options: object) -> RequestResult:
    return tiny_llm().generate(PROMPT, SamplingParams(**{**FREE, "max_tokens": max_tokens, **options}))[0]


def knowing(period: int = 0, block: int = 7) -> LLM:
    """An LLM whose drafter knows the output: whole blocks are accepted."""
    return tiny_llm().with_drafter(ScriptedDrafter({tuple(PROMPT): undrafted().token_ids}, period, block))


@pytest.mark.parametrize("limit", range(1, 20))
def test_max_tokens_inside_a_block_cuts_exactly_there(limit: int) -> None:
    result = knowing().generate(PROMPT, SamplingParams(**FREE, max_tokens=limit))[0]
    assert result.token_ids == undrafted().token_ids[:limit]
    assert result.finish_reason == "length"
    assert 1 + result.stats.decode_tokens == limit
    assert sum(result.stats.accepted_lengths) == result.stats.accepted_tokens <= result.stats.drafted_tokens


@pytest.mark.parametrize("at", range(1, 17))
def test_a_stop_token_inside_a_block_cuts_exactly_there(at: int) -> None:
    tokens = undrafted().token_ids
    stop = tokens[at]
    first = tokens.index(stop)
    result = knowing().generate(PROMPT, SamplingParams(**FREE, max_tokens=48, stop_token_ids=[stop]))[0]
    assert result.token_ids == tokens[: first + 1]
    assert result.finish_reason == "stop"
    assert result.stats.decode_tokens == first
    plain = undrafted(stop_token_ids=[stop])
    assert (result.token_ids, result.text) == (plain.token_ids, plain.text)
    assert result.stats.acceptance_length == pytest.approx(first / max(1, result.stats.target_steps))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("period", [0, 2, 5])
def test_stop_strings_do_not_depend_on_blocks(period: int, include: bool) -> None:
    text = undrafted().text
    for start in range(2, len(text) - 4, 8):
        options = {"stop": [text[start : start + 4], "never there"], "include_stop_str_in_output": include}
        plain = undrafted(**options)
        drafted = knowing(period).generate(PROMPT, SamplingParams(**FREE, max_tokens=48, **options))[0]
        assert (drafted.text, drafted.token_ids, drafted.finish_reason) == (
            plain.text,
            plain.token_ids,
            "stop",
        )
        assert plain.text == text[: len(plain.text)]
        assert plain.text.endswith(options["stop"][0]) is include


def test_the_model_s_end_token_ends_unless_ignored() -> None:
    tokens = undrafted().token_ids
    llm = LLM.from_parts(tiny_llm().target, tiny_llm().tokenizer, end_token_ids=frozenset({tokens[5]}))
    at = tokens.index(tokens[5])
    script = ScriptedDrafter({tuple(PROMPT): tokens}, 0, 7)
    for mine in (llm, llm.with_drafter(script)):
        result = mine.generate(PROMPT, SamplingParams(temperature=1.0, seed=3, max_tokens=48))[0]
        assert (result.token_ids, result.finish_reason) == (tokens[: at + 1], "stop")
        assert mine.generate(PROMPT, SamplingParams(**FREE, max_tokens=48))[0].token_ids == tokens


def test_the_context_s_end() -> None:
    llm = LLM.from_parts(
        tiny_llm().target, tiny_llm().tokenizer, end_token_ids=frozenset({END}), max_model_len=20
    )
    script = ScriptedDrafter({tuple(PROMPT): undrafted().token_ids}, 0, 7)
    for mine in (llm, llm.with_drafter(script)):
        result = mine.generate(PROMPT, SamplingParams(**FREE, max_tokens=100))[0]
        assert result.token_ids == undrafted().token_ids[:12]
        assert result.finish_reason == "length"


def test_the_model_s_own_context_is_filled_to_the_last_position() -> None:
    llm = tiny_llm()
    prompt = random_tokens(500, seed=8).tolist()
    for mine in (
        llm,
        llm.with_drafter(make_drafter(llm, "dflash", 8)),
        llm.with_drafter(make_drafter(llm, "ngram", 8)),
    ):
        result = mine.generate(prompt, SamplingParams(**FREE, max_tokens=100))[0]
        assert len(result.token_ids) == 12
        assert result.finish_reason == "length"


def test_counts() -> None:
    result = knowing(period=0, block=3).generate(PROMPT, SamplingParams(**FREE, max_tokens=41))[0]
    stats = result.stats
    assert stats.target_steps == 10
    assert stats.accepted_lengths == [3] * 10
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.decode_tokens) == (30, 30, 40)
    assert stats.acceptance_length == 4.0
    plain = undrafted(41).stats
    assert (plain.target_steps, plain.drafted_tokens, plain.acceptance_length) == (40, 0, 1.0)
    assert plain.accepted_lengths == [0] * 40
    for seconds in (stats.seconds, plain.seconds):
        assert 0 < seconds.prefill < seconds.total
        assert seconds.prefill + seconds.decode <= seconds.total


@pytest.mark.parametrize("drafter", ["dflash", "ngram", "scripted"])
def test_streaming_shows_the_whole_text_and_nothing_twice(drafter: str) -> None:
    llm = (
        knowing(3) if drafter == "scripted" else tiny_llm().with_drafter(make_drafter(tiny_llm(), drafter, 8))
    )
    for options in ({}, {"stop": [undrafted().text[9:12]]}):
        asked = SamplingParams(**FREE, max_tokens=48, **options)
        events = list(llm.stream(PROMPT, asked))
        result = events[-1].result
        assert result is not None
        assert [event.finished for event in events] == [False] * (len(events) - 1) + [True]
        assert "".join(event.text for event in events) == result.text == llm.generate(PROMPT, asked)[0].text
        assert [token for event in events for token in event.token_ids] == result.token_ids
        for event in events:
            assert "".join(piece.text for piece in event.pieces) == event.text
        assert not events[0].pieces or not events[0].pieces[0].drafted


def test_accepted_drafts_are_marked_in_the_stream() -> None:
    events = list(knowing(period=0, block=3).stream(PROMPT, SamplingParams(**FREE, max_tokens=21)))
    marks = [[piece.drafted for piece in event.pieces] for event in events[1:-1] if len(event.pieces) == 4]
    assert marks
    assert all(mark == [True, True, True, False] for mark in marks)


def test_an_abandoned_stream_harms_nobody() -> None:
    llm = knowing(3)
    stream = llm.stream(PROMPT, SamplingParams(**FREE, max_tokens=48))
    next(stream)
    assert not torch.is_inference_mode_enabled()
    stream.close()
    assert llm.generate(PROMPT, SamplingParams(**FREE, max_tokens=48))[0].token_ids == undrafted().token_ids


def test_prompt_forms_and_order() -> None:
    llm = tiny_llm()
    text = "The quick brown fox"
    ids = llm.tokenizer(text)["input_ids"]
    asked = SamplingParams(max_tokens=5)
    (one,) = llm.generate(text, asked)
    assert one.prompt_token_ids == ids
    many = llm.generate([text, "lazy dog", ids], asked)
    assert [result.token_ids for result in many] == [
        llm.generate(p, asked)[0].token_ids for p in (text, "lazy dog", ids)
    ]
    each = llm.generate([text, text], [SamplingParams(max_tokens=3), SamplingParams(max_tokens=6)])
    assert [len(result.token_ids) for result in each] == [3, 6]


def test_chat_goes_through_the_template() -> None:
    llm = tiny_llm()
    messages = [{"role": "user", "content": "hello"}]
    (result,) = llm.chat(messages, SamplingParams(max_tokens=4))
    shown = llm.tokenizer.decode(result.prompt_token_ids)
    assert shown.endswith("hello<|im_end|>\n<|im_start|>assistant\n")
    (thinking,) = llm.chat(messages, SamplingParams(max_tokens=4), chat_template_kwargs={"thinking": True})
    assert llm.tokenizer.decode(thinking.prompt_token_ids).endswith("assistant\nhm ")
    assert len(llm.chat([messages, messages], SamplingParams(max_tokens=2))) == 2
    events = list(llm.stream_chat(messages, SamplingParams(max_tokens=4)))
    assert events[-1].result is not None
    assert events[-1].result.token_ids == result.token_ids


@pytest.mark.parametrize(
    ("prompt", "code", "match"),
    [
        ("", "DP401", "empty"),
        ([[]], "DP401", "empty"),
        ([list(range(3, 30)) * 20], "DP402", "540 tokens and the context holds 512"),
        ([3, 4, 99999], "DP403", "got 99999 at index 2"),
        ([3, -1], "DP403", "got -1 at index 1"),
        (7, "DP404", "got int"),
        ([[3, "x"]], "DP404", "'x'"),
        ([None], "DP404", "NoneType"),
        ([[3.5]], "DP404", "3.5"),
        (b"abc", "DP404", "got bytes"),
        ([b"abc"], "DP404", "got bytes"),
        ("abc\ud800", "DP404", "surrogate pair at character 3"),
        ([torch.tensor([6.5])], "DP404", "6.5"),
        ([True, False], "DP404", "bool"),
    ],
)
def test_bad_prompts(prompt: object, code: str, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        tiny_llm().generate(prompt, SamplingParams(max_tokens=4))  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize("form", [tuple, np.array, torch.tensor, lambda ids: [np.int64(i) for i in ids]])
def test_token_ids_in_any_form(form: Callable[[list[int]], object]) -> None:
    expected = tiny_llm().generate(PROMPT, SamplingParams(max_tokens=4))[0]
    for prompt in (form(PROMPT), [form(PROMPT)]):
        (result,) = tiny_llm().generate(prompt, SamplingParams(max_tokens=4))  # type: ignore[arg-type]
        assert (result.token_ids, result.prompt_token_ids) == (expected.token_ids, PROMPT)


@pytest.mark.parametrize("params", [{"temperature": 1}, 5, "greedy", [{"temperature": 1}]])
def test_bad_params(params: object) -> None:
    with pytest.raises(RequestError, match="SamplingParams") as caught:
        tiny_llm().generate(PROMPT, params)  # type: ignore[arg-type]
    assert caught.value.code == "DP432"


class Proposes:
    """A drafter of somebody's own making."""

    name, max_draft_tokens, tap_layer_ids, page_bytes = "mine", 3, (), 0

    def __init__(self, answer: Callable[[DraftRequest], object]) -> None:
        self.answer = answer

    def new_pages(self, num_pages: int) -> None:
        return None

    def copy_page(self, pages: object, source: int, destination: int) -> None:
        pass

    def new_state(self, pages: object = None, table: object = None, length: int = 0) -> None:
        return None

    def extend(self, updates: object) -> None:
        pass

    def propose(self, requests: list[DraftRequest]) -> list[object]:
        answers = [self.answer(request) for request in requests]
        return [DraftProposal(answer) for answer in answers if answer != "nothing"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        torch.tensor([99999]),
        torch.tensor([-1]),
        torch.tensor([1.0]),
        torch.tensor([[3]]),
        [3, 4],
        None,
        "nothing",
    ],
    ids=["beyond the vocabulary", "negative", "floats", "matrix", "list", "None", "no proposal"],
)
def test_bad_proposals_end_their_request_with_a_code(answer: object) -> None:
    llm = tiny_llm().with_drafter(Proposes(lambda request: answer))  # type: ignore[arg-type]
    with pytest.raises(DrafterError) as caught:
        llm.generate(PROMPT, SamplingParams(max_tokens=4))
    assert caught.value.code == "DP318"
    assert (
        tiny_llm().generate(PROMPT, SamplingParams(**FREE, max_tokens=48))[0].token_ids
        == undrafted().token_ids
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_proposals_of_any_length(count: int, dtype: torch.dtype) -> None:
    script = undrafted().token_ids

    def answer(request: DraftRequest) -> torch.Tensor:
        return torch.tensor((script + [3] * 50)[request.output_position :][:count], dtype=dtype)

    llm = tiny_llm().with_drafter(Proposes(answer))  # type: ignore[arg-type]
    assert llm.generate(PROMPT, SamplingParams(**FREE, max_tokens=48))[0].token_ids == script


@pytest.mark.parametrize(
    ("drafter", "block_size"), [(5, None), (object(), None), (Proposes(lambda r: None), 4)]
)
def test_what_is_no_drafter(drafter: object, block_size: int | None) -> None:
    with pytest.raises(DrafterError) as caught:
        tiny_llm().with_drafter(drafter, block_size)  # type: ignore[arg-type]
    assert caught.value.code == "DP317"


@pytest.mark.parametrize("drafter", [None, "dflash"])
def test_the_caller_s_autocast_and_default_dtype_change_nothing(drafter: str | None) -> None:
    llm = tiny_llm().with_drafter(make_drafter(tiny_llm(), drafter, 8)) if drafter else tiny_llm()
    asked = SamplingParams(**FREE, max_tokens=48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert llm.generate(PROMPT, asked)[0].token_ids == undrafted().token_ids
    torch.set_default_dtype(torch.float64)
    try:
        assert llm.generate(PROMPT, asked)[0].token_ids == undrafted().token_ids
    finally:
        torch.set_default_dtype(torch.float32)


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]
    (came,) = tiny_llm().chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=2))
    (plain,) = tiny_llm().chat([{"role": "user", "content": "hello\nthere"}], SamplingParams(max_tokens=2))
    assert came.prompt_token_ids == plain.prompt_token_ids
    with pytest.raises(RequestError, match="image_url") as caught:
        tiny_llm().chat([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])
    assert caught.value.code == "DP406"


def test_no_prompts_no_results() -> None:
    assert tiny_llm().generate([]) == []


def test_one_bad_prompt_is_found_before_anything_runs() -> None:
    with pytest.raises(RequestError):
        tiny_llm().generate([PROMPT, [3, 99999]], SamplingParams(max_tokens=4))
    with pytest.raises(RequestError, match="got 1") as caught:
        tiny_llm().generate([PROMPT, PROMPT], [SamplingParams()])
    assert caught.value.code == "DP430"


@pytest.mark.parametrize(
    "messages", [[], "hello", [{"role": "user"}], [["x"]], {"role": "user", "content": "x"}]
)
def test_bad_messages(messages: object) -> None:
    with pytest.raises(RequestError) as caught:
        tiny_llm().chat(messages)  # type: ignore[arg-type]
    assert caught.value.code == "DP406"


def test_no_chat_template() -> None:
    llm = LLM.from_parts(tiny_llm().target, _without_template())
    with pytest.raises(RequestError, match="generate") as caught:
        llm.chat([{"role": "user", "content": "x"}])
    assert caught.value.code == "DP405"


def _without_template() -> object:
    from copy import copy

    tokenizer = copy(tiny_llm().tokenizer)
    tokenizer.chat_template = None
    return tokenizer


@pytest.mark.parametrize("length", [1, 0, -4, 513, True, 3.5])
def test_bad_context_length(length: object) -> None:
    with pytest.raises(RequestError, match="2 to 512") as caught:
        LLM.from_parts(tiny_llm().target, tiny_llm().tokenizer, max_model_len=length)  # type: ignore[arg-type]
    assert caught.value.code == "DP431"


def test_unknown_model_and_drafter() -> None:
    with pytest.raises(ModelError):
        LLM("no-such-model-by-this-name")
    with pytest.raises((DrafterError, ModelError)):
        tiny_llm().with_drafter("./no/such/folder")


def test_stop_strings_wait_for_min_tokens() -> None:
    text = undrafted().text
    stop = text[2:4]
    plain = undrafted(stop=[stop])
    late = undrafted(stop=[stop], min_tokens=20)
    assert len(plain.token_ids) < 20 <= len(late.token_ids)
    assert late.token_ids[:20] == undrafted(min_tokens=20).token_ids[:20]
    drafted = knowing().generate(PROMPT, SamplingParams(**FREE, max_tokens=48, stop=[stop], min_tokens=20))[0]
    assert (drafted.token_ids, drafted.text) == (late.token_ids, late.text)


def test_progress_is_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    tiny_llm().generate([PROMPT] * 3, SamplingParams(**FREE, max_tokens=3), progress=True)
    shown = capfd.readouterr()
    assert "requests" in shown.err
    assert shown.out == ""
    tiny_llm().generate([PROMPT] * 3, SamplingParams(**FREE, max_tokens=3))
    assert capfd.readouterr().err == ""


def test_what_the_others_gave_comes_with_the_error() -> None:
    class Fails(Proposes):
        def propose(self, requests: list[DraftRequest]) -> list[object]:
            raise ArithmeticError("no idea")

    llm = tiny_llm().with_drafter(Fails(lambda _: None))
    short = SamplingParams(**FREE, max_tokens=1)  # over before anything is drafted
    long = SamplingParams(**FREE, max_tokens=30)
    with pytest.raises(EngineError) as caught:
        llm.generate([PROMPT, PROMPT[:5]], [short, long])
    assert caught.value.code == "DP451"
    assert isinstance(caught.value.__cause__, ArithmeticError)
    first, second = caught.value.results
    assert isinstance(first, RequestResult)
    assert isinstance(second, RequestResult)
    assert (first.finish_reason, first.token_ids) == ("length", undrafted(1).token_ids)
    assert (second.finish_reason, second.error) == ("error", caught.value)
    assert llm.metrics.free_blocks == llm.metrics.blocks


def test_sizes_are_checked() -> None:
    for sizes in (EngineOptions(max_num_seqs=0), EngineOptions(max_num_batched_tokens=-1)):
        with pytest.raises(RequestError) as caught:
            tiny_llm().with_drafter(None, options=sizes)
        assert caught.value.code == "DP431"
    with pytest.raises(RequestError) as caught:
        tiny_llm().with_drafter(None, options=EngineOptions(kv_cache_memory=1000))
    assert caught.value.code == "DP441"
    with pytest.raises(RequestError) as caught:
        tiny_llm().with_drafter(None, draft_mode="4")
    assert caught.value.code == "DP440"
