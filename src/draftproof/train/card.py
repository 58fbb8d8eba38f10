"""The card that goes with a drafter: what it was trained on and how, and what was measured of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from draftproof.train.evaluate import Evaluation


@dataclass(frozen=True)
class DataFacts:
    """What a run learnt from.

    Attributes:
        prompts: prompts given, by group.
        own_prompts: prompts that the target made up and answered.
        responses: answers of the target that were learnt from.
        response_tokens: in them.
        greedy: answers among them at temperature 0.
        held_out: held-out prompts, by group.
        digest: of all answers, in their order.
    """

    prompts: dict[str, int]
    own_prompts: int
    responses: int
    response_tokens: int
    greedy: int
    held_out: dict[str, int]
    digest: str


@dataclass(frozen=True)
class CardFacts:
    """Everything a card says.

    Attributes:
        target: name of the target.
        precision: of the target's products, in which answers, features and figures were made.
        taps: target layers that feed the drafter.
        mask_token: id and text of the token in the slots to be guessed.
        parameters: trained weights.
        data: what it learnt from.
        recipe: the settings that make the run.
        step, minutes: optimizer steps and training time of the weights that were kept, and of the whole run.
        last_step, last_minutes: of the whole run.
        processes: that trained.
        final: figures of these weights on all held-out prompts.
        version: of this package.
        before: the drafter whose weights the run started from, and what its card said; None where it started afresh.
    """

    target: str
    precision: str
    taps: tuple[int, ...]
    mask_token: tuple[int, str]
    parameters: int
    data: DataFacts
    recipe: dict[str, Any]
    step: int
    last_step: int
    last_minutes: float
    processes: int
    final: Evaluation
    version: str
    before: tuple[str, str | None] | None = None


def card(facts: CardFacts) -> str:
    """The card, in Markdown."""
    return "\n".join(
        (
            *_head(facts),
            "",
            "## Figures",
            "",
            *_figures(facts.final),
            "",
            "## Data",
            "",
            *_data(facts.data),
            "",
            "## Recipe",
            "",
            *_recipe(facts),
            *_before(facts.before),
            "",
        )
    )


def _head(facts: CardFacts) -> list[str]:
    settings = facts.recipe
    token, text = facts.mask_token
    return [
        "---",
        f"base_model: {facts.target}",
        "library_name: draftproof",
        "tags: [speculative-decoding, dflash]",
        "---",
        f"# A DFLASH drafter for {facts.target}",
        "",
        f"{settings['num_layers']} layers, {facts.parameters:,} trained weights, bfloat16. Blocks of "
        f"{settings['block_size']} (the anchor and {settings['block_size'] - 1} guesses), mask token {token} (`{text}`), taps on "
        f"layers {', '.join(map(str, facts.taps))} of the target, whose embedding and LM head it borrows.",
        "",
        "```python",
        "from draftproof import LLM",
        f'llm = LLM("{facts.target}", drafter="path/to/this/folder")',
        "```",
    ]


def _figures(final: Evaluation) -> list[str]:
    rows = [
        f"| {group.group} | {group.prompts} | {group.tokens} | {group.steps} | {group.acceptance_length:.2f} |"
        for group in final.groups
    ]
    return [
        f"Held-out prompts, decoded greedily with whole blocks, at most {final.max_tokens} tokens each. Acceptance length: "
        "tokens committed per step of the target, its own one included; 1.00 without drafting.",
        "",
        "| group | prompts | tokens | steps | acceptance length |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        f"| mean of the groups | | | | {final.mean:.2f} |",
    ]


def _data(data: DataFacts) -> list[str]:
    own = f", and {data.own_prompts} prompts that the target made up itself" if data.own_prompts else ""
    sampled = data.responses - data.greedy
    return [
        f"{data.responses} answers of the target itself, {data.response_tokens} tokens ({data.greedy} greedy, {sampled} "
        f"sampled), to {_by_group(data.prompts)}{own}. No held-out prompt is among them "
        f"({_by_group(data.held_out)} were held out). Digest of the answers: `{data.digest}`.",
    ]


def _by_group(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    named = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{total} prompts ({named})" if total else "no prompts of a file"


def _recipe(facts: CardFacts) -> list[str]:
    return [
        f"`draftproof train`, version {facts.version}, {facts.processes} process{'es' if facts.processes > 1 else ''}, seed "
        f"{facts.recipe['seed']}. These weights: step {facts.step}, the best by held-out acceptance during training; the run "
        f"took {facts.last_step} steps in {facts.last_minutes:.0f} minutes. Answers, features and figures come from the target "
        f"in {facts.precision}.",
        "",
        "```json",
        json.dumps(facts.recipe, indent=1),
        "```",
    ]


def _before(before: tuple[str, str | None] | None) -> list[str]:
    if before is None:
        return []
    name, said = before
    told = "which came without a card" if said is None else "of which its card said"
    lines = [
        "",
        "## Before that",
        "",
        f"The run started from the weights of `{name}`, {told}{'.' if said is None else ':'}",
    ]
    return lines if said is None else [*lines, "", said]
