"""What `generate` says about a run, in words and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftproof.audit.differences import first_unequal
from draftproof.engine import PhaseSeconds, RequestResult, RequestStats


@dataclass(frozen=True)
class Comparison:
    """The same request with and without a drafter."""

    drafted: RequestResult
    plain: RequestResult

    @property
    def identical(self) -> bool:
        """Whether every token, and the reason for the end, is the same."""
        same_end = self.drafted.finish_reason == self.plain.finish_reason
        return same_end and self.drafted.token_ids == self.plain.token_ids

    @property
    def first_difference(self) -> int | None:
        """Output index of the first token that differs or is missing; None when there is none."""
        return first_unequal(self.drafted.token_ids, self.plain.token_ids)

    @property
    def speedup(self) -> float:
        """Decode speed with the drafter over decode speed without; 0.0 when there was nothing to measure."""
        base = self.plain.stats.decode_tokens_per_second
        return self.drafted.stats.decode_tokens_per_second / base if base else 0.0


def footer(name: str, result: RequestResult) -> str:
    """One line about one run."""
    stats = result.stats
    parts = [
        f"{len(result.token_ids)} tokens ({result.finish_reason}) in {stats.seconds.total:.2f} s",
        f"{stats.decode_tokens_per_second:.1f} tok/s decoding",
        f"{name}: acceptance length {stats.acceptance_length:.2f}, "
        f"{stats.accepted_tokens} of {stats.drafted_tokens} drafts kept in {stats.target_steps} steps",
        f"seed {result.seed}",
    ]
    return " · ".join(parts)


def comparison_table(name: str, comparison: Comparison) -> str:
    """A verdict and the two runs under each other."""
    rows = [(f"with {name}", comparison.drafted.stats), ("without", comparison.plain.stats)]
    width = max(len(label) for label, _ in rows)
    lines = [_verdict(comparison)]
    for label, stats in rows:
        lines.append(
            f"  {label:<{width}}  {stats.decode_tokens_per_second:7.1f} tok/s  "
            f"acceptance length {stats.acceptance_length:4.2f}  {stats.target_steps:4d} steps"
        )
    lines.append(f"  speed with over without: {comparison.speedup:.2f}")
    return "\n".join(lines)


def _verdict(comparison: Comparison) -> str:
    count = len(comparison.drafted.token_ids)
    if comparison.identical:
        return f"identical: yes, all {count} tokens are the same with and without the drafter"
    if comparison.first_difference is None:
        ends = f"{comparison.drafted.finish_reason} and {comparison.plain.finish_reason}"
        return f"identical: NO, the {count} tokens are the same but the runs ended differently: {ends}"
    return f"identical: NO, the first difference is at output token {comparison.first_difference}"


def as_document(
    model: str, drafter: str, result: RequestResult, comparison: Comparison | None
) -> dict[str, Any]:
    """The JSON object of `--json`. Fields are only ever added to it."""
    document: dict[str, Any] = {"model": model, "drafter": drafter, **_result_fields(result)}
    document["prompt_token_ids"] = result.prompt_token_ids
    document["compare"] = None
    if comparison is not None:
        document["compare"] = {
            "identical": comparison.identical,
            "first_difference": comparison.first_difference,
            "speedup": comparison.speedup,
            "without_drafter": _result_fields(comparison.plain),
        }
    return document


def _result_fields(result: RequestResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "stats": _stats_fields(result.stats),
    }


def _stats_fields(stats: RequestStats) -> dict[str, Any]:
    return {
        "acceptance_length": stats.acceptance_length,
        "decode_tokens_per_second": stats.decode_tokens_per_second,
        "target_steps": stats.target_steps,
        "decode_tokens": stats.decode_tokens,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "accepted_lengths": stats.accepted_lengths,
        "seconds": _seconds_fields(stats.seconds),
    }


def _seconds_fields(seconds: PhaseSeconds) -> dict[str, float]:
    return {
        "prefill": seconds.prefill,
        "draft": seconds.draft,
        "target": seconds.target,
        "verify": seconds.verify,
        "commit": seconds.commit,
        "total": seconds.total,
    }
