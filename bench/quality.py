"""What each precision costs in quality: perplexity, and agreement with bfloat16, teacher-forced.

    python bench/quality.py --prompts dev.jsonl --limit 40 --json quality.json

The model answers the prompts greedily in bfloat16 on the fused executor. Every precision then predicts each token of prompts
and answers after the same true tokens. "transformers" is Transformers' own bfloat16: what it differs by is what the order of
rounding alone makes of bfloat16, and a precision that differs by less is none the worse for it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from draftproof.models.executor import TargetModel, load_target
from draftproof.models.quality import Answer, answers_of, logits_of
from draftproof.models.registry import resolve_model
from draftproof.models.target import TargetOptions

PRECISIONS = ("bfloat16", "transformers", "float32", "int8", "int4")


@dataclass(frozen=True)
class Row:
    """One precision.

    Attributes:
        precision: its name.
        prompt_perplexity, answer_perplexity: of the tokens of prompts (from the second on) and of answers.
        agreement: share of answer tokens with bfloat16's argmax.
        rise: expected relative rise of the negative log-likelihood of answers, see `models.quality`.
        measured_rise: relative rise for the very tokens of prompts and answers.
        weight_bytes: as packed; 0 for Transformers.
        tokens: of answers.
    """

    precision: str
    prompt_perplexity: float
    answer_perplexity: float
    agreement: float
    rise: float
    measured_rise: float
    weight_bytes: int
    tokens: int


class Sums:
    """Sums over tokens for one precision."""

    def __init__(self) -> None:
        self.prompt_nll = self.answer_nll = self.divergence = self.entropy = 0.0
        self.prompt_tokens = self.tokens = self.same = 0

    def add(self, reference: torch.Tensor, own: torch.Tensor, answer: Answer) -> None:
        """Take in all rows of a prompt and its answer, float32 ``[tokens - 1, vocab]``."""
        true = torch.tensor(answer.prompt + answer.tokens)[1:]
        start = len(answer.prompt) - 1
        sure, shares = reference.log_softmax(-1), reference.softmax(-1)
        mine = own.log_softmax(-1)
        nll = -mine.gather(1, true[:, None])[:, 0].double()
        self.prompt_nll += float(nll[:start].sum())
        self.answer_nll += float(nll[start:].sum())
        self.prompt_tokens += start
        self.tokens += len(answer.tokens)
        self.same += int((reference[start:].argmax(-1) == own[start:].argmax(-1)).sum())
        self.divergence += float((shares * (sure - mine))[start:].sum())
        self.entropy -= float((shares * sure)[start:].sum())

    def row(self, precision: str, reference: Sums, weight_bytes: int) -> Row:
        return Row(
            precision,
            math.exp(self.prompt_nll / max(1, self.prompt_tokens)),
            math.exp(self.answer_nll / self.tokens),
            self.same / self.tokens,
            self.divergence / self.entropy,
            (self.prompt_nll + self.answer_nll) / (reference.prompt_nll + reference.answer_nll) - 1,
            weight_bytes,
            self.tokens,
        )


@torch.inference_mode()
def measured(targets: dict[str, TargetModel], answers: Sequence[Answer]) -> list[Row]:
    """A row for each precision; the first is the reference."""
    sums = {name: Sums() for name in targets}
    first = next(iter(targets))
    for answer in answers:
        everything = Answer(answer.prompt[:1], answer.prompt[1:] + answer.tokens)
        reference = logits_of(targets[first], everything)
        for name, target in targets.items():
            sums[name].add(reference, logits_of(target, everything), answer)
    return [
        sums[name].row(name, sums[first], int(getattr(target, "weight_bytes", 0)))
        for name, target in targets.items()
    ]


def encoded(path: Path, prompts: Path, limit: int) -> list[list[int]]:
    """Token ids of prompts, spread over the file, through the chat template."""
    texts = [json.loads(line)["prompt"] for line in prompts.read_text(encoding="utf-8").splitlines()]
    texts = texts[:: max(1, len(texts) // limit)][:limit]
    tokenizer = AutoTokenizer.from_pretrained(path)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]
    return [tokenizer(chat, add_special_tokens=False)["input_ids"] for chat in chats]


def load(path: Path, name: str, precision: str) -> TargetModel:
    """A target in a precision on the fused executor, or Transformers' bfloat16."""
    if precision == "transformers":
        return load_target(path, name, TargetOptions(dtype="bfloat16", device="cpu", executor="transformers"))
    return load_target(path, name, TargetOptions(dtype=precision, device="cpu", executor="fused"))


def show(rows: list[Row], console: Console) -> None:
    """The table."""
    table = Table(title=f"{rows[0].tokens} answer tokens, against {rows[0].precision}")
    for heading in (
        "precision",
        "perplexity: prompts",
        "answers",
        "same argmax",
        "NLL expected",
        "NLL measured",
        "MB",
    ):
        table.add_column(heading, justify="left" if heading == "precision" else "right")
    for row in rows:
        table.add_row(
            row.precision,
            f"{row.prompt_perplexity:.3f}",
            f"{row.answer_perplexity:.4f}",
            f"{row.agreement:.2%}",
            f"{100 * row.rise:+.3f}%",
            f"{100 * row.measured_rise:+.3f}%",
            f"{row.weight_bytes / 1e6:.0f}" if row.weight_bytes else "",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines, a field `prompt` a line")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer at most")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="the first is the reference")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    resolved = resolve_model(options.model)
    names = options.precisions.split(",")
    targets = {name: load(resolved.path, resolved.name, name) for name in names}
    reference = targets[names[0]]
    ends = getattr(reference, "end_token_ids", frozenset())
    prompts = encoded(resolved.path, options.prompts, options.limit)
    rows = measured(targets, answers_of(reference, prompts, ends, options.tokens))
    show(rows, Console())
    if options.json:
        document = {"model": resolved.name, "reference": names[0], "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
