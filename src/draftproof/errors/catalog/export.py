"""Explanations of DP530 to DP539: a drafter written in another engine's format (`draftproof export`)."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP530",
        name="no-such-export-format",
        title="There is no export format of that name.",
        meaning=(
            "`draftproof export --to` knows two formats: `speculators`, a folder that vLLM and the speculators library read, and "
            "`gguf`, one file that llama.cpp reads. The published layout itself needs no export: SGLang, vLLM and the reference "
            "implementation load the checkpoint folder as it is."
        ),
        triggers=(
            "`--to vllm` or `--to llama.cpp`: the format is asked for, not the engine.",
            "A typing mistake.",
        ),
        fix="Write `--to speculators` or `--to gguf`.",
        before="draftproof export drafter --to vllm --out exported",
        after="draftproof export drafter --to speculators --out exported",
        prevention="`draftproof export --help` lists both.",
    ),
    Explanation(
        code="DP531",
        name="export-cannot-carry",
        title="The format has no place for something that the drafter needs.",
        meaning=(
            "The checkpoint asks for a computation that the other format cannot describe, or that its readers are known to do in "
            "another way. An export without it would load and run there, and only draft badly, so none is written. The message "
            "lists every such thing."
        ),
        triggers=(
            "Sliding layers that are causal beside full ones that are not: both formats have one flag for all layers.",
            "A tap on the target's last layer: its state is taken before the final norm there, after it here.",
            "`input_embedding_scale`, soft-capped logits or attention sinks in a `speculators` export.",
            "Attention biases in a GGUF export.",
        ),
        fix=(
            "Take the other format if it can hold the drafter, or use the checkpoint folder as it is in an engine that reads the "
            "published layout. Otherwise train without that feature."
        ),
        before="draftproof export scaled-drafter --to speculators --out exported   # input_embedding_scale 27.7",
        after="draftproof export scaled-drafter --to gguf --target target.gguf --out drafter.gguf",
        prevention="Decide before training where the drafter has to run; docs/export.md has the table of what each format holds.",
    ),
    Explanation(
        code="DP532",
        name="export-target-needed",
        title="The export needs the target, or cannot read it.",
        meaning=(
            "A GGUF drafter carries the vocabulary of its target, and the taps of any drafter are checked against the target's "
            "depth. So the target must be named where the checkpoint alone does not say enough, and be readable. Its weights are "
            "not read. An option that belongs to the other format is refused with this code as well."
        ),
        triggers=(
            "`--to gguf` without `--target`.",
            "A checkpoint without `num_target_layers`, and no `--target`.",
            "A GGUF file as `--target` that is cut short or holds no language model.",
            "`--verifier` with `--to gguf`.",
        ),
        fix="Give `--target` the model that the drafter was trained for: a known name, a folder, a hub id or a GGUF file.",
        before="draftproof export drafter --to gguf --out drafter.gguf",
        after="draftproof export drafter --to gguf --target smollm2-135m --out drafter.gguf",
        prevention="Always give `--target`: it makes the checks stricter in both formats.",
    ),
    Explanation(
        code="DP533",
        name="export-tokenizer-unsupported",
        title="The target's tokenizer cannot be written into a GGUF file from its folder.",
        meaning=(
            "From a model folder only byte-level BPE tokenizers are written. Others (SentencePiece, Unigram) need data that "
            "their `tokenizer.json` does not hold in the form GGUF wants. From a GGUF file of the target any vocabulary is "
            "copied as it is."
        ),
        triggers=(
            "A Gemma, Llama 2 or T5 tokenizer with a folder or hub id as `--target`.",
            "A tokenizer with more tokens than the drafter's vocabulary.",
        ),
        fix="Give the GGUF file of the target that llama.cpp will run as `--target`.",
        before="draftproof export drafter --to gguf --target ./gemma --out drafter.gguf",
        after="draftproof export drafter --to gguf --target gemma-Q4_K_M.gguf --out drafter.gguf",
        prevention="Name the very GGUF file that the drafter will run beside.",
    ),
    Explanation(
        code="DP534",
        name="export-output-unusable",
        title="The export cannot be written to that place.",
        meaning=(
            "`speculators` writes a folder and `gguf` a file; the folder around it must exist and be writable, and nothing may "
            "be there yet unless `--overwrite` is given. An export appears whole or not at all; a failure leaves "
            "nothing behind."
        ),
        triggers=(
            "A second export to the same place.",
            "A full disk, or a folder without write permission.",
            "The drafter's own folder as `--out`.",
        ),
        fix="Name another place, free some space, or add `--overwrite`.",
        before="draftproof export drafter --to gguf --target smollm2-135m --out drafter.gguf   # the second time",
        after="draftproof export drafter --to gguf --target smollm2-135m --out drafter.gguf --overwrite",
        prevention="Keep exports beside the checkpoint, not inside it.",
    ),
    Explanation(
        code="DP535",
        name="export-dtype-unusable",
        title="The drafter's weights cannot be stored in that type.",
        meaning=(
            "In a GGUF file the matrices can be f32, f16, bf16 or q8_0; `auto` keeps what the checkpoint has. q8_0 needs rows in "
            "whole groups of 32 numbers, and f16 ends at 65,504. A `speculators` export keeps the checkpoint's own type."
        ),
        triggers=(
            "A type that llama.cpp's own quantiser makes, such as q4_k_m.",
            "A hidden size that is no multiple of 32 with q8_0.",
            "`--dtype` with `--to speculators`.",
        ),
        fix="Take `--dtype bf16`, or leave the option out.",
        before="draftproof export drafter --to gguf --target smollm2-135m --dtype q4_k_m --out drafter.gguf",
        after="draftproof export drafter --to gguf --target smollm2-135m --dtype q8_0 --out drafter.gguf",
        prevention="For smaller types, export as bf16 and run llama.cpp's quantiser on the file.",
    ),
)
