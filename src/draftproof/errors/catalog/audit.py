"""Explanations of DP460 to DP469: how an audit (`draftproof prove`) is asked for."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP460",
        name="bad-prompts-file",
        title="The file with prompts cannot be read.",
        meaning=(
            "`draftproof prove --prompts` takes a JSON Lines file: one JSON object a line, with the text to ask under `prompt` "
            "(or as the first of `turns` or `messages`) and, if there are several kinds, the kind under `group`. The file is "
            "missing, or a line is something else."
        ),
        triggers=(
            "A misspelt path.",
            "One JSON array instead of an object a line.",
            "The text under another name, such as `text` or `question`.",
        ),
        fix="Mend the line that the message names.",
        before='{"text": "Why is the sky blue?"}',
        after='{"group": "chat", "prompt": "Why is the sky blue?"}',
        prevention="Try the file with `--limit 1` first.",
    ),
    Explanation(
        code="DP461",
        name="no-prompts-left",
        title="There is no prompt to run an audit with.",
        meaning="The file has no line with a prompt in it, or the limit leaves none.",
        triggers=("An empty file.", "`--limit 0`."),
        fix="Give a file with at least one prompt and a limit of at least 1, or leave both out for the built-in prompts.",
        before="draftproof prove lossless --limit 0",
        after="draftproof prove lossless --limit 8",
        prevention="Leave `--prompts` out unless your own texts matter.",
    ),
    Explanation(
        code="DP462",
        name="bad-audit-option",
        title="An option of the audit is out of range.",
        meaning="Batch sizes, pairs, tokens and limits are whole numbers from 1; the time budget is a number of seconds above 0.",
        triggers=(
            "`--batch 0`, or a list with a gap in it, such as `1,,4`.",
            "`--pairs 0`.",
            "`--budget 0`.",
        ),
        fix="Give numbers from 1; several batch sizes go with commas between them.",
        before="draftproof prove speed --batch 0,4",
        after="draftproof prove speed --batch 1,4",
        prevention="Leave the sizes at their defaults for a first look.",
    ),
    Explanation(
        code="DP463",
        name="nothing-to-compare",
        title="This proof needs a drafter, and there is none.",
        meaning=(
            "`prove speed` and `prove whole` hold a drafter against no drafter. Without one both sides are the same. "
            "`prove lossless` does run without a drafter: it then compares batches, cached prefixes and preemption alone."
        ),
        triggers=("`--drafter none`.", "`DRAFTPROOF_DRAFTER=none` in the environment."),
        fix="Name a drafter: `ngram`, or the folder or hub id of a DFlash checkpoint.",
        before="draftproof prove speed --drafter none",
        after="draftproof prove speed --drafter ngram",
        prevention="Leave `--drafter` out: the default is the drafter that `draftproof generate` takes.",
    ),
)
