"""What a run learns from and is measured with: prompts, answers, and the check that they are kept apart."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftproof.engine import LLM
from draftproof.engine.prompt_files import FilePrompt, read_prompt_file
from draftproof.engine.prompts import encode_chat, encode_prompt
from draftproof.errors import RequestError
from draftproof.train.card import DataFacts
from draftproof.train.leaks import HeldOut, refuse_leaked_responses, refuse_leaks
from draftproof.train.regenerate import OWN_GROUP, ResponsePlan
from draftproof.train.responses import Response, check_vocabulary, read_responses, within_budget
from draftproof.train.settings import TrainSettings

UNGROUPED = "prompts"
"""The name of the group of prompts that name none."""


@dataclass(frozen=True)
class RunData:
    """What a run has been given.

    Attributes:
        held_out: prompts to measure with.
        kept_out: the same, ready to be looked for.
        prompts: for the target to answer; none is held out.
        given: answers that exist; none is to a held-out prompt.
    """

    held_out: list[FilePrompt]
    kept_out: HeldOut
    prompts: list[FilePrompt]
    given: list[Response]


def read_data(
    llm: LLM, prompts: Sequence[Path], responses: Sequence[Path], held_out: Path, *, drop_leaks: bool
) -> RunData:
    """Read the files of a run.

    Args:
        llm: the target.
        prompts, responses, held_out: files.
        drop_leaks: leave out what is held out, instead of refusing it.

    Raises:
        RequestError: DP500 to DP502, a file; DP504, a prompt is held out; DP524, there is nothing to measure with.
    """
    measured = [_grouped(prompt) for prompt in read_prompt_file(held_out, "DP500")]
    if not measured:
        raise RequestError("DP524", f"{held_out} holds no prompt to measure with")
    kept_out = HeldOut(measured, llm.tokenizer)
    asked = [_grouped(prompt) for path in prompts for prompt in read_prompt_file(path, "DP500")]
    given = [one for path in responses for one in read_responses(path)]
    check_vocabulary(given, llm.target.info.vocab_size, llm.target.name)
    return RunData(
        measured,
        kept_out,
        refuse_leaks(asked, kept_out, drop=drop_leaks),
        refuse_leaked_responses(given, kept_out, drop=drop_leaks),
    )


def plan_of(settings: TrainSettings) -> ResponsePlan:
    """How the target answers."""
    return ResponsePlan(
        greedy_share=settings.greedy_share,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        answers_per_prompt=settings.answers_per_prompt,
        seed=settings.seed,
        own_prompts=settings.own_prompts,
        response_tokens=settings.response_tokens,
    )


def answers_to_learn_from(llm: LLM, data: RunData, settings: TrainSettings, file: Path) -> list[Response]:
    """Answers of the run's file to the run's prompts, then those given, cut to the settings' length.

    The file may hold more: answers of a run that was started over with other prompts.

    Raises:
        RequestError: DP524, there are none.
    """
    mine: list[Response] = []
    if file.exists() and (data.prompts or settings.own_prompts):
        asked = {_encoded(llm, prompt) for prompt in data.prompts}
        mine = [
            one
            for one in read_responses(file)
            if one.prompt_ids in asked or (one.group == OWN_GROUP and settings.own_prompts)
        ]
        mine = refuse_leaked_responses(mine, data.kept_out, drop=True)
    responses = _cut([*within_budget(mine, settings.response_tokens), *data.given], settings.max_length)
    if not responses:
        raise RequestError(
            "DP524", f"the target answered nothing that fits into max_length {settings.max_length}"
        )
    return responses


def data_facts(data: RunData, responses: Sequence[Response]) -> DataFacts:
    """What the card says of the data."""
    return DataFacts(
        prompts=dict(Counter(prompt.group for prompt in data.prompts)),
        own_prompts=len({one.prompt_ids for one in responses if one.group == OWN_GROUP}),
        responses=len(responses),
        response_tokens=sum(len(one.output_ids) for one in responses),
        greedy=sum(one.temperature == 0 for one in responses),
        held_out=dict(Counter(prompt.group for prompt in data.held_out)),
        digest=digest_of_responses(responses),
    )


def digest_of_responses(responses: Sequence[Response]) -> str:
    """Sixteen hexadecimal digits that tell one set of answers from another."""
    said = hashlib.sha256()
    for one in responses:
        said.update(f"{one.prompt_ids}{one.output_ids}".encode())
    return said.hexdigest()[:16]


def digest_of_prompts(prompts: Sequence[FilePrompt]) -> str:
    """The same for prompts, with their groups."""
    said = hashlib.sha256()
    for prompt in prompts:
        said.update(f"{prompt.group}{prompt.messages}".encode())
    return said.hexdigest()[:16]


def _grouped(prompt: FilePrompt) -> FilePrompt:
    return prompt if prompt.group else replace(prompt, group=UNGROUPED)


def _encoded(llm: LLM, prompt: FilePrompt) -> tuple[int, ...]:
    """Token ids of a prompt as the target is asked it; none where the context does not hold them."""
    size, length = llm.target.info.vocab_size, llm.max_model_len
    try:
        if getattr(llm.tokenizer, "chat_template", None):
            return tuple(encode_chat(llm.tokenizer, prompt.chat, size, length))
        return tuple(encode_prompt(llm.tokenizer, prompt.text, size, length))
    except RequestError:
        return ()


def _cut(responses: Sequence[Response], max_length: int) -> list[Response]:
    """Answers as far as they go within the length; those of which nothing is left are left out."""
    cut = [
        replace(one, output_ids=one.output_ids[: max(0, max_length - len(one.prompt_ids))])
        for one in responses
    ]
    return [one for one in cut if one.output_ids]
