"""`draftproof train`: a drafter for the user's own model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.generate import hide_loading_bars
from draftproof.errors import RequestError

if TYPE_CHECKING:
    from draftproof.train.run import TrainReport


@coded
def train(
    held_out: Annotated[Path, typer.Option(help="Prompts to measure with; none may be trained on.")],
    out: Annotated[
        Path, typer.Option(help="Folder of the drafter; the run works in OUT.training beside it.")
    ],
    target: Annotated[str, typer.Option(help="Known name, folder, or hub id.")] = "smollm2-135m",
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="JSON Lines of prompts for the target to answer; may be repeated."),
    ] = None,
    responses: Annotated[
        list[Path] | None, typer.Option(help="JSON Lines of answers that the target gave; may be repeated.")
    ] = None,
    own_prompts: Annotated[
        int | None, typer.Option(help="So many prompts more that the target makes up itself.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Sizes and rates: tiny, small or base.")] = "small",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Minutes of training, over all calls; sets the length without --steps."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Draft layers.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Anchor and guesses of a block.")] = None,
    taps: Annotated[
        str | None, typer.Option(help="Target layers to read, with commas, from 0; spread evenly without.")
    ] = None,
    mask_token_id: Annotated[int | None, typer.Option(help="Token in the slots to be guessed.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    greedy_share: Annotated[float | None, typer.Option(help="Share of answers at temperature 0.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the other answers.")] = None,
    answers_per_prompt: Annotated[int | None, typer.Option(help="One at most is greedy.")] = None,
    response_tokens: Annotated[int | None, typer.Option(help="Enough tokens of answers.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of prompt and answer; cut there.")] = None,
    cache_gib: Annotated[float | None, typer.Option(help="Most disk space for features.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences an optimizer step, all processes.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Sequences a pass.")] = None,
    anchors: Annotated[int | None, typer.Option(help="Blocks a sequence.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Guess k weighs exp(-(k-1)/gamma).")] = None,
    distill: Annotated[
        float | None, typer.Option(help="Weight of the target's distribution, 0 to 1.")
    ] = None,
    distill_top_k: Annotated[int | None, typer.Option(help="Its tokens that count one by one.")] = None,
    full_vocabulary: Annotated[
        bool, typer.Option("--full-vocabulary", help="Loss over all tokens, not those that occur.")
    ] = False,
    random_start: Annotated[
        bool, typer.Option("--random-start", help="Random layers, not the target's last ones.")
    ] = False,
    start_from: Annotated[
        str | None, typer.Option(help="Drafter to go on from: default, folder, or hub id.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or muon.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of matrices.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the run with a rising rate.")] = None,
    final_rate: Annotated[float | None, typer.Option(help="Share of the rate at the end.")] = None,
    clip: Annotated[float | None, typer.Option(help="Longest gradient.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the passes: auto, bfloat16 or float32.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything drawn.")] = None,
    draft_vocabulary: Annotated[
        float | None,
        typer.Option(help="Propose the commonest tokens that make up this share of the answers; 1: all."),
    ] = None,
    eval_minutes: Annotated[float | None, typer.Option(help="Between evaluations.")] = None,
    eval_steps: Annotated[int | None, typer.Option(help="The same in steps; goes before minutes.")] = None,
    eval_prompts: Annotated[
        int | None, typer.Option(help="Held-out prompts a group, during training.")
    ] = None,
    eval_tokens: Annotated[int | None, typer.Option(help="Tokens of each, during training.")] = None,
    final_tokens: Annotated[int | None, typer.Option(help="Tokens of each, at the end.")] = None,
    checkpoint_minutes: Annotated[float | None, typer.Option(help="Between checkpoints.")] = None,
    checkpoint_steps: Annotated[int | None, typer.Option(help="The same in steps.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the target, as in generate.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    drop_leaks: Annotated[
        bool, typer.Option("--drop-leaks", help="Leave out prompts that are held out; refused without.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget the run in OUT.training, except for its answers.")
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what the run would cost, and end.")
    ] = False,
    no_estimate: Annotated[bool, typer.Option("--no-estimate", help="Start at once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Train a drafter: the target answers prompts, the drafter learns to guess the answers, held-out prompts are decoded.

    Given again, the command goes on where it was stopped, in any stage. Under `accelerate launch -m draftproof.cli train ...`
    it trains on several processes.
    """
    from draftproof.cli.training_screen import show_report, showing_training
    from draftproof.engine.loading import find_drafter
    from draftproof.train.run import TrainJob
    from draftproof.train.run import train as run_training
    from draftproof.train.settings import preset as named
    from draftproof.train.start import settings_of

    start = None if start_from is None else Path(find_drafter(start_from, target))
    shape: dict[str, Any] = {} if start is None else settings_of(start)
    asked = {
        "num_layers": layers,
        "block_size": block_size,
        "taps": None if taps is None else _layers(taps),
        "mask_token_id": mask_token_id,
    }
    settings = named(
        preset,
        **(shape | {name: value for name, value in asked.items() if value is not None}),
        greedy_share=greedy_share,
        temperature=temperature,
        max_tokens=max_tokens,
        answers_per_prompt=answers_per_prompt,
        own_prompts=own_prompts,
        response_tokens=response_tokens,
        max_length=max_length,
        cache_gib=cache_gib,
        batch=batch,
        micro_batch=micro_batch,
        anchors=anchors,
        gamma=gamma,
        distill=distill,
        distill_top_k=distill_top_k,
        reduced_vocabulary=False if full_vocabulary else None,
        from_target=False if random_start else None,
        optimizer=optimizer,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        warmup=warmup,
        final_rate=final_rate,
        clip=clip,
        precision=precision,
        seed=seed,
        draft_vocabulary=draft_vocabulary,
        steps=steps,
        time_limit=time_limit,
        eval_minutes=eval_minutes,
        eval_steps=eval_steps,
        eval_prompts=eval_prompts,
        eval_tokens=eval_tokens,
        final_tokens=final_tokens,
        checkpoint_minutes=checkpoint_minutes,
        checkpoint_steps=checkpoint_steps,
    )
    job = TrainJob(
        target=target,
        out=out,
        held_out=held_out,
        prompts=tuple(prompts or ()),
        responses=tuple(responses or ()),
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        drop_leaks=drop_leaks,
        restart=restart,
        start_from=start,
        measure=not no_estimate,
        only_measure=estimate,
    )
    hide_loading_bars()
    with showing_training() as screen:
        report = run_training(job, settings, screen)
    if estimate or int(os.environ.get("RANK", "0")) > 0:
        return
    if not report.finished:
        typer.echo(
            f"stopped after step {report.progress.step}: the same command goes on from there", err=True
        )
        raise typer.Exit(130)
    if as_json:
        typer.echo(json.dumps(_document(report), indent=1))
    else:
        show_report(report)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise RequestError("DP520", f"taps: expected layer numbers with commas, got {text!r}") from None


def _document(report: TrainReport) -> dict[str, object]:
    assert report.final is not None
    return {
        "schema": 1,
        "out": str(report.out),
        "run": str(report.folder),
        "steps": report.progress.step,
        "training_seconds": round(report.progress.seconds, 1),
        "final": report.final.as_json(),
    }
