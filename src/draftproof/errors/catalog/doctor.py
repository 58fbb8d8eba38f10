"""Explanations of DP540 to DP549: `draftproof doctor`, and the drafters that come with the package."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP540",
        name="no-checkpoint-to-examine",
        title="Doctor needs a DFlash checkpoint, and none was named.",
        meaning=(
            "`draftproof doctor` looks for a mismatch between a target and a trained drafter: taps, RoPE, mask token and so on. "
            "`none` and `ngram` have none of these, so there is nothing to examine."
        ),
        triggers=(
            "`--drafter ngram`.",
            "`--drafter none`.",
            "`--drafter auto` with no checkpoint in DRAFTPROOF_DRAFTER.",
        ),
        fix="Name the drafter's folder or hub id, or `default` where one comes with the package.",
        before="draftproof doctor --target smollm2-135m --drafter ngram",
        after="draftproof doctor --target smollm2-135m --drafter path/to/checkpoint",
        prevention="Use doctor for trained drafters; `draftproof bench` says how much any drafter brings.",
    ),
    Explanation(
        code="DP541",
        name="too-little-text-to-examine",
        title="There is too little text to tell one correction from another.",
        meaning=(
            "Doctor compares acceptance lengths over several prompts and suggests only what is clearly better, by an interval "
            "over the prompts. That takes answers of at least 4 tokens to at least 4 prompts. This target gave fewer, or "
            "fewer were asked for."
        ),
        triggers=(
            "`--limit 2`, or a file with two or three prompts.",
            "`--max-tokens 2`.",
            "A target that ends its answers at once, which itself points to a wrong template or a damaged checkpoint.",
        ),
        fix="Give 8 or more prompts and 32 tokens or more, or leave both options out.",
        before="draftproof doctor --drafter path/to/checkpoint --limit 2",
        after="draftproof doctor --drafter path/to/checkpoint --limit 12",
        prevention="Leave `--prompts`, `--limit` and `--max-tokens` out for a first look.",
    ),
    Explanation(
        code="DP542",
        name="bad-doctor-option",
        title="An option of doctor is out of range.",
        meaning="`--limit` and `--max-tokens` are whole numbers from 1, and `--only` takes the name of a kind of correction.",
        triggers=("`--limit 0`.", "`--only tap` where `taps` is meant."),
        fix="Give numbers from 1, and one of the kinds that the message lists.",
        before="draftproof doctor --drafter path/to/checkpoint --only tap",
        after="draftproof doctor --drafter path/to/checkpoint --only taps",
        prevention="Without `--only` every kind of correction is tried.",
    ),
    Explanation(
        code="DP548",
        name="no-default-drafter",
        title="No drafter comes with the package for this target.",
        meaning=(
            '`drafter="default"` stands for a drafter inside the package, trained for one particular target. A drafter '
            "only works for the model it was trained for, so there is no default for any other."
        ),
        triggers=(
            '`LLM("my-org/my-model", drafter="default")`.',
            "The right model under a name of your own: the default goes by the known name, or the published one at the end of "
            "a hub id or a path.",
            "A folder of your own called `default`; write `./default` for it.",
        ),
        fix="Name a checkpoint for this target, use `ngram`, which fits any, or train one with `draftproof train`.",
        before='LLM("path/to/another-model", drafter="default")',
        after='LLM("smollm2-135m", drafter="default")',
        prevention="The message lists the targets that have a default drafter.",
    ),
    Explanation(
        code="DP549",
        name="default-drafter-missing-files",
        title="The default drafter's files are not in this installation.",
        meaning=(
            "The package should hold the drafter's `config.json` and `model.safetensors`, and at least one of them is not there. "
            "They are ordinary files inside the installed package."
        ),
        triggers=(
            "A copy of the source without its large files.",
            "A build that left package data out.",
            "Files deleted by hand to save space.",
        ),
        fix="Install draftproof again from a wheel, or name a checkpoint folder instead of `default`.",
        before='LLM("smollm2-135m", drafter="default")  # the folder in the message is empty',
        after='LLM("smollm2-135m", drafter="path/to/checkpoint")',
        prevention="Build with the project's own `pyproject.toml`, which lists the drafters as package data.",
    ),
)
