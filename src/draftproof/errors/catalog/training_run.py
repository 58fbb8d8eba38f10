"""Explanations of DP520 to DP529: a training run (`draftproof train`), its settings, its folder, its checkpoints."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP520",
        name="bad-training-option",
        title="A setting of the training run is out of range.",
        meaning=(
            "Every setting has a range, and some go together: a run needs an end (`--steps`, `--time-limit`, or both), and the "
            "sequences of an optimizer step (`--batch`) are shared out evenly among passes (`--micro-batch`) and processes."
        ),
        triggers=(
            "Neither `--steps` nor `--time-limit`.",
            "`--batch 6 --micro-batch 4`, or a batch that the processes cannot share.",
            "A preset or an optimizer that does not exist.",
            "A tap beyond the target's last layer.",
        ),
        fix="Give the value that the message expects.",
        before="draftproof train --prompts train.jsonl --held-out dev.jsonl --out drafter --batch 6 --micro-batch 4 --steps 500",
        after="draftproof train --prompts train.jsonl --held-out dev.jsonl --out drafter --batch 8 --micro-batch 4 --steps 500",
        prevention="Start from a preset and change one thing at a time; `--estimate` checks a command line in a minute.",
    ),
    Explanation(
        code="DP521",
        name="another-training-run",
        title="The folder holds a training run with other settings.",
        meaning=(
            "A run goes on by itself when the same command is given again. That works only if what it learns from and how stay "
            "the same: target, prompts, size, recipe, seed. The length of the run (`--steps`, `--time-limit`) and how often it "
            "evaluates and saves may change."
        ),
        triggers=(
            "The same `--out` for an experiment with another learning rate, another preset or another target.",
            "A prompts file that was changed since.",
        ),
        fix="Give the experiment an `--out` of its own, or start over with `--restart`, which removes the old run's folder.",
        before="draftproof train ... --out drafter --learning-rate 2e-3   # drafter was begun with 1e-3",
        after="draftproof train ... --out drafter-2e-3 --learning-rate 2e-3",
        prevention="Name the output folder after what is different about the run.",
    ),
    Explanation(
        code="DP522",
        name="training-folder-in-use",
        title="Another process is training in this folder.",
        meaning=(
            "A run's folder is locked while a process works in it, so that two of them cannot write into each other's files. "
            "The lock goes with the process, however it ends: one that was killed leaves none."
        ),
        triggers=("The same command in two terminals.", "A run that still goes on in the background."),
        fix="Wait for the other process or end it, then give the command again: it goes on where that one stopped.",
        before="draftproof train ... --out drafter &   draftproof train ... --out drafter",
        after="draftproof train ... --out drafter &   draftproof train ... --out drafter-b",
        prevention="One output folder for each run.",
    ),
    Explanation(
        code="DP523",
        name="broken-training-checkpoint",
        title="A file of the training run cannot be read.",
        meaning=(
            "A checkpoint is written beside its place and moved there when it is whole, so a killed run leaves none that is "
            "broken. If the newest one cannot be read the run goes back one; this error says that no checkpoint is left to go on "
            "from, or that the file with the run's settings is damaged."
        ),
        triggers=(
            "A disk that was full or failed.",
            "Files in the run's folder that were edited or copied in part.",
            "Checkpoints of another version of torch that this one cannot read.",
            "More or fewer processes than before under FSDP.",
        ),
        fix="Remove the folder that the message names: answers and features of the target are kept, training starts anew.",
        before="drafter.training/checkpoints/step-00000500/model.safetensors   # 0 bytes",
        after="rm -r drafter.training/checkpoints, then the same command again",
        prevention="Leave the run's folder to the command, and room on the disk for three checkpoints.",
    ),
    Explanation(
        code="DP524",
        name="nothing-to-train-on",
        title="No answers of the target are left to train on.",
        meaning=(
            "The drafter learns from what the target itself answers, longer than a token. Prompts that are too long for it, that "
            "it answers with nothing, or that are held out for measuring give nothing to learn from."
        ),
        triggers=(
            "A file of prompts that are all in `--held-out` too.",
            "A `--responses` file of another target, or an empty one.",
            "No held-out prompts: without them nothing says which checkpoint is the best.",
        ),
        fix="Give prompts of your own kind of work, some thousands of them, and others to measure with.",
        before="draftproof train --prompts dev.jsonl --held-out dev.jsonl --out drafter --steps 500",
        after="draftproof train --prompts train.jsonl --held-out dev.jsonl --out drafter --steps 500",
        prevention="Look at the estimate that is shown first: it counts the answers.",
    ),
    Explanation(
        code="DP525",
        name="training-diverged",
        title="The loss is not a number any more.",
        meaning=(
            "After some step the loss, or its gradient, was infinite or not a number. Nothing good comes after that, so the run "
            "stops; its last checkpoint is from before."
        ),
        triggers=(
            "A learning rate that is too high, for the batch or for Muon.",
            "Features with infinite values.",
        ),
        fix="Lower the rate or raise the warm-up, in a run of its own.",
        before="draftproof train ... --learning-rate 0.1",
        after="draftproof train ... --learning-rate 1e-3",
        prevention="Try a rate for a hundred steps and look at `plot.png` before a long run.",
    ),
    Explanation(
        code="DP526",
        name="training-output-not-written",
        title="A file of the training run cannot be written.",
        meaning=(
            "The output folder, or the folder of the run beside it, cannot be made or written. The message has the system's "
            "reason."
        ),
        triggers=(
            "A full disk: features take the most room.",
            "A folder of another user.",
            "`--out` names a file.",
        ),
        fix="Make room or give another `--out`, then the same command again: it goes on from the last checkpoint.",
        before="draftproof train ... --out /drafter",
        after="draftproof train ... --out drafters/mine",
        prevention="The estimate says how much the features will take; `--cache-gib` bounds it.",
    ),
    Explanation(
        code="DP527",
        name="unsupported-training-layout",
        title="This way of spreading the run over processes does not work with these settings.",
        meaning=(
            "Muon makes the update of a whole matrix orthogonal. FSDP gives every process a slice of each matrix, and the slices "
            "by themselves would come out as something else; so the two are not combined."
        ),
        triggers=("`accelerate launch --use_fsdp ... --optimizer muon`.",),
        fix="Take AdamW with FSDP, or Muon with DDP (`accelerate launch --multi_gpu`). A drafter is small: DDP is the usual way.",
        before="accelerate launch --use_fsdp -m draftproof.cli train ... --optimizer muon",
        after="accelerate launch --multi_gpu -m draftproof.cli train ... --optimizer muon",
        prevention="Use FSDP only for drafters that do not fit on one GPU with their optimizer.",
    ),
)
