"""`draftproof generate`: options in, streamed text out, and the proof on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.options import (
    BlockSizeAtMost,
    DrafterName,
    DraftModeName,
    Dtype,
    Executor,
    Lossless,
    TrustRemoteCode,
)
from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.cli import report
    from draftproof.engine import LLM, RequestResult, StreamEvent
    from draftproof.sampling import SamplingParams, StructuredOutputs


@dataclass(frozen=True)
class Question:
    """What the model is asked: a text as it is, or a conversation for its chat template."""

    prompt: str
    system: str | None
    raw: bool

    def stream(self, llm: LLM, params: SamplingParams) -> Iterator[StreamEvent]:
        """The events of one run."""
        if self.raw:
            return llm.stream(self.prompt, params)
        messages = [{"role": "user", "content": self.prompt}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return llm.stream_chat(messages, params)

    def answer(self, llm: LLM, params: SamplingParams) -> RequestResult:
        """The result of one run, not shown."""
        result = None
        for event in self.stream(llm, params):
            result = event.result
        assert result is not None
        return result


@coded
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    model: Annotated[str, typer.Option(help="Known name, folder, or hub id.")] = "smollm2-135m",
    drafter: DrafterName = "auto",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens under this share of the best.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the text, with any drafter or none.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End at this text; may be repeated.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1 discourages tokens of prompt and output.")
    ] = None,
    presence_penalty: Annotated[float, typer.Option(help="Lowers tokens already in the output.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, for each time they came.")] = 0.0,
    min_tokens: Annotated[int, typer.Option(help="No end before so many tokens.")] = 0,
    json_schema: Annotated[
        str | None, typer.Option(help="The output must be JSON of this schema: a file, or the schema itself.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The output must match this expression.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="The output must follow this Lark grammar (a file).", exists=True)
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the prompt as it is, no chat template.")
    ] = False,
    dtype: Dtype = "auto",
    executor: Executor = "auto",
    block_size: BlockSizeAtMost = None,
    draft_mode: DraftModeName = "auto",
    lossless: Lossless = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of prompt and output.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run without the drafter too; status 1 if any token differs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the text at the end.")] = False,
    debug: Debug = False,
) -> None:
    """Generate text. Standard output carries the text alone; everything else goes to standard error.

    On a terminal, accepted draft tokens are green and the target's own tokens plain.
    """
    if raw and system is not None:
        raise typer.BadParameter("--system needs the chat template, which --raw switches off")
    question = Question(_read(prompt), system, raw)

    from draftproof.cli import report
    from draftproof.cli.show import Screen
    from draftproof.engine import LLM
    from draftproof.sampling import SamplingParams

    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop or None,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        structured_outputs=_form(json_schema, regex, grammar),
    )
    hide_loading_bars()
    llm = LLM(
        model=model,
        drafter=drafter_source(drafter, model),
        dtype=dtype,
        block_size=block_size,
        draft_mode=draft_mode,
        lossless=lossless,
        max_model_len=max_model_len,
        executor=executor,
        trust_remote_code=trust_remote_code,
    )
    if compare:
        _warm_up(question, llm, params)
    screen = Screen(silent=as_json, at_the_end=no_stream)
    result = screen.show(question.stream(llm, params))
    name = llm.drafter.name if llm.drafter is not None else "no drafter"
    comparison = _without_drafter(question, llm, params, result) if compare else None
    if as_json:
        document = report.as_document(model, name, result, comparison)
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(report.footer(name, result), err=True)
        if comparison is not None:
            typer.echo(report.comparison_table(name, comparison), err=True)
    if comparison is not None and not comparison.identical:
        raise typer.Exit(1)


def _read(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        source = "standard input" if prompt == "-" else "the prompt"
        raise RequestError("DP401", f"{source} is empty: expected at least one token, got none")
    return text


def _form(json_schema: str | None, regex: str | None, grammar: Path | None) -> StructuredOutputs | None:
    """The form asked for, if any."""
    from draftproof.sampling import StructuredOutputs

    if json_schema is None and regex is None and grammar is None:
        return None
    schema = json_schema
    if schema is not None and not schema.lstrip().startswith(("{", "true", "false")):
        try:
            schema = Path(schema).read_text(encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(
                f"--json-schema is neither a schema nor a file that can be read: {error}"
            ) from error
    text = None if grammar is None else grammar.read_text(encoding="utf-8")
    return StructuredOutputs(json=schema, regex=regex, grammar=text)


def drafter_source(option: str, model: str) -> str | None:
    """What `--drafter` means for a model: a name, folder or hub id; None for none."""
    from draftproof.models.drafters.shipped import has_default

    if option == "auto":
        usual = "default" if has_default(model) else "ngram"
        option = os.environ.get("DRAFTPROOF_DRAFTER") or usual
    return None if option == "none" else option


def hide_loading_bars() -> None:
    """A model of this size is read in a second; Transformers would draw a bar for it all the same."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _warm_up(question: Question, llm: LLM, params: SamplingParams) -> None:
    """A few tokens each way first: compiling and paging in, which come once, are not to be compared."""
    few = replace(params, max_tokens=min(params.max_tokens, 4))
    question.answer(llm, few)
    question.answer(llm.with_drafter(None), few)


def _without_drafter(
    question: Question, llm: LLM, params: SamplingParams, drafted: RequestResult
) -> report.Comparison:
    """The same request, same seed, with nothing drafted."""
    from draftproof.cli import report

    plain = question.answer(llm.with_drafter(None), replace(params, seed=drafted.seed))
    return report.Comparison(drafted, plain)
