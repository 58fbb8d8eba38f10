"""Explanations of DP470 to DP479: how a benchmark (`draftproof bench`) is asked for."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP470",
        name="bad-bench-prompts",
        title="The file with the benchmark's prompts cannot be used.",
        meaning=(
            "`draftproof bench --prompts` takes a JSON Lines file: one JSON object a line, with a text under `prompt` (or a list "
            "under `turns` or a conversation under `messages`, of which the user's first text is asked) and the name of its "
            "group under `group`. The file is missing or empty, or a line is something else."
        ),
        triggers=(
            "A misspelt path.",
            "A CSV file, or one JSON array over all lines.",
            "A prompt that is an empty text.",
        ),
        fix="Mend the line that the message names.",
        before='[{"prompt": "Why is the sky blue?"}]',
        after='{"group": "qa", "prompt": "Why is the sky blue?"}',
        prevention="Try a new file with `--rounds 1 --batch 1 --max-tokens 8` first.",
    ),
    Explanation(
        code="DP471",
        name="no-such-prompt-group",
        title="The prompts have no group of that name.",
        meaning=(
            "`--groups` names groups as the prompts file has them under `group`. Two names are always there: `mixed` takes the "
            "groups in turn, and `all` measures each of them and mixed. Without `--prompts` the groups are prose, code, math and "
            "lists."
        ),
        triggers=(
            "A misspelt name; case counts.",
            "A group of another prompts file.",
        ),
        fix="Take one of the names that the message lists.",
        before="draftproof bench --groups Code",
        after="draftproof bench --groups code,math",
        prevention="Leave `--groups` out for a first look.",
    ),
    Explanation(
        code="DP472",
        name="bad-bench-option",
        title="An option of the benchmark is out of range.",
        meaning=(
            "Batch sizes and rounds are whole numbers from 1; outputs have at least 2 tokens, since the first one belongs to the "
            "prompt; temperatures are numbers from 0; several values go with commas between them."
        ),
        triggers=("`--batch 1,,4` or `--batch 0`.", "`--temperature hot`.", "`--max-tokens 1`."),
        fix="Give the value that the message expects.",
        before="draftproof bench --batch 1;4;16",
        after="draftproof bench --batch 1,4,16",
        prevention="Leave the sizes at their defaults for a first look.",
    ),
    Explanation(
        code="DP473",
        name="bench-mode-without-drafter",
        title="A draft mode is to be measured, but there is no drafter.",
        meaning="Modes `auto` and `fixed=N` draft. With `--drafter none` there is nothing they could draft with.",
        triggers=("`--drafter none --modes off,auto`.", "`DRAFTPROOF_DRAFTER=none` in the environment."),
        fix="Name a drafter, or measure mode `off` alone.",
        before="draftproof bench --drafter none --modes off,auto",
        after="draftproof bench --drafter ngram --modes off,auto",
        prevention="Leave `--modes` out: it follows the drafter.",
    ),
    Explanation(
        code="DP474",
        name="results-of-another-setup",
        title="The results file was measured otherwise.",
        meaning=(
            "With `--json` the benchmark goes on from a file that is already there. Its cells can only stand beside new ones if "
            "they were measured alike: the same model, drafter, precision, modes, sizes, prompts, threads, machine and version. "
            "The message names the first thing that is not the same. Groups, batch sizes and temperatures may differ: each is a "
            "cell of its own."
        ),
        triggers=(
            "Another `--max-tokens` or `--rounds` with the old file.",
            "The old file brought over from another machine.",
            "A new version of draftproof or of torch.",
        ),
        fix="Name another file, or remove the old one.",
        before="draftproof bench --dtype float32 --json results.json",
        after="draftproof bench --dtype float32 --json results-float32.json",
        prevention="Put what differs into the file's name.",
    ),
    Explanation(
        code="DP475",
        name="plot-needs-matplotlib",
        title="A plot was asked for, and matplotlib is not installed.",
        meaning="`--plot` draws with matplotlib, which draftproof does not need otherwise and so does not install.",
        triggers=("`draftproof bench --plot speed.png` after a plain `pip install draftproof`.",),
        fix="Install the extra, or leave `--plot` out. Nothing has been measured yet.",
        before="pip install draftproof",
        after="pip install 'draftproof[bench]'",
        prevention="Install the extra `bench` on machines that measure.",
    ),
    Explanation(
        code="DP476",
        name="results-file-unusable",
        title="A file for the benchmark's results cannot be read or written.",
        meaning=(
            "`--json` and `--plot` name files. The folder is not there, the file may not be written, or a file of that name "
            "exists and is no results file of `draftproof bench`. A results file that exists is never damaged: a new one is "
            "written beside it and then takes its place."
        ),
        triggers=(
            "A folder that does not exist yet.",
            "`--json` with a file that another program wrote.",
            "A results file of a later version.",
        ),
        fix="Make the folder, or name another file.",
        before="draftproof bench --json results/today.json",
        after="mkdir -p results && draftproof bench --json results/today.json",
        prevention="Keep results in a folder of their own.",
    ),
)
