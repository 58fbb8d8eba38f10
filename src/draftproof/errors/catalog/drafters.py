"""Explanations, one family of codes: drafters (DP3xx)."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP301",
        name="drafter-not-found",
        title="The drafter is not where you said.",
        meaning="A drafter is either the word 'ngram' or a folder with config.json and model.safetensors in"
        " it. What was given is neither.",
        triggers=(
            "a typing mistake in the path, or a path relative to another folder",
            "the path names model.safetensors itself instead of the folder that holds it",
            "a download that was stopped before config.json arrived",
        ),
        fix="Name the folder that holds config.json, or 'ngram' for the drafter that needs no model.",
        before='LLM("smollm2-135m", drafter="drafters/smollm2/model.safetensors")',
        after='LLM("smollm2-135m", drafter="drafters/smollm2")',
        prevention="Use absolute paths in scripts, and check with `ls FOLDER/config.json`.",
    ),
    Explanation(
        code="DP302",
        name="drafter-config-invalid",
        title="The drafter's config.json does not make sense.",
        meaning="A field is missing, has the wrong type, or contradicts another one. The message names the "
        "file and the field. Nothing is guessed: a drafter built on a wrong guess still runs, and "
        "only drafts badly.",
        triggers=(
            "config.json was edited by hand",
            "a training script that leaves out fields which its own loader fills in",
            "layer_types with fewer entries than num_hidden_layers",
        ),
        fix="Correct the field that the message names, or fetch the published config.json again.",
        before='{"num_hidden_layers": 3, "layer_types": ["full_attention"], ...}',
        after='{"num_hidden_layers": 3, "layer_types": ["full_attention", "full_attention", '
        '"full_attention"], ...}',
        prevention="Let your trainer write every field of the published layout; docs/drafters.md lists them.",
    ),
    Explanation(
        code="DP303",
        name="drafter-unsupported",
        title="The drafter asks for something that draftproof does not do.",
        meaning="The checkpoint has a feature, architecture or storage format which this version does not "
        "compute. Leaving the feature out would give wrong drafts without any other sign, so "
        "loading stops.",
        triggers=(
            "an architecture other than DFlashDraftModel and DFlash2DraftModel",
            "a key in dflash_config that is not known here",
            "quantised weights, a reduced draft vocabulary, a trained mask embedding",
            "a RoPE type whose angles change with the text's length (dynamic, longrope)",
        ),
        fix="Use an unquantised DFlash or DFlash 2 checkpoint. If the unknown key belongs to training only,"
        " remove it from dflash_config.",
        before='"dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 7, 14], "sample_from_anchor":'
        " true}",
        after='"dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 7, 14]}',
        prevention="Keep training settings out of dflash_config: it describes what the drafter computes.",
    ),
    Explanation(
        code="DP304",
        name="drafter-weights-unreadable",
        title="The drafter's weight file is missing, cut short or corrupt.",
        meaning="The folder has a config, but its safetensors files cannot be read in full.",
        triggers=(
            "an interrupted download or copy, or a full disk",
            "a Git LFS pointer in place of the file",
            "weights stored only as .bin or .pt",
            "a shard that model.safetensors.index.json names but that is not there",
        ),
        fix="Fetch the checkpoint again. Convert .bin weights with safetensors.torch.save_file.",
        before="$ ls -l drafter/model.safetensors   # 134 bytes: a Git LFS pointer",
        after="$ git lfs pull && ls -l drafter/model.safetensors   # 24,600,000 bytes",
        prevention="Compare file sizes or checksums after copying a checkpoint.",
    ),
    Explanation(
        code="DP305",
        name="drafter-weight-missing",
        title="The drafter lacks weights that its config calls for.",
        meaning="The config determines the name of every tensor, and some of them are not in the files. "
        "They are not filled with anything, since random or zero weights would only show as poor "
        "acceptance.",
        triggers=(
            "num_hidden_layers in config.json is larger than the number of layers stored",
            "attention_bias or attention_sink_bias is true, but the tensors were not saved",
            "a DFlash checkpoint that is labelled DFlash2DraftModel",
            "tensors under other names, for example with a wrapper's prefix",
        ),
        fix="Make config.json describe the weights that are there, or save the missing tensors from "
        "training.",
        before='{"num_hidden_layers": 5, ...}   # but layers.0 to layers.2 are stored',
        after='{"num_hidden_layers": 3, ...}',
        prevention="Write config.json and weights in one step, from the same model object.",
    ),
    Explanation(
        code="DP306",
        name="drafter-weight-unexpected",
        title="The drafter holds weights that its config does not call for.",
        meaning="A tensor with no place in the model means that the checkpoint computes something its "
        "config does not say, or that names do not follow the published layout.",
        triggers=(
            "biases are stored, but attention_bias is false or absent",
            "sinks are stored, but dflash_config.attention_sink_bias is false or absent",
            "some names begin with 'model.' and others do not",
            "leftovers of training, such as an optimiser's or a teacher's tensors",
        ),
        fix="Set the flag that belongs to the tensors, or save the checkpoint without them.",
        before='{"attention_bias": false, ...}   # but layers.0.self_attn.q_proj.bias is stored',
        after='{"attention_bias": true, ...}',
        prevention="Save only the drafter's own state_dict.",
    ),
    Explanation(
        code="DP307",
        name="drafter-weight-shape",
        title="A drafter weight has another shape than its config says.",
        meaning="Config and weights describe different models. The message gives both shapes.",
        triggers=(
            "config.json comes from another drafter",
            "head_dim is absent and is not hidden_size / num_attention_heads",
            "a change of sizes during training that config.json did not follow",
        ),
        fix="Use the config.json that was published with these weights.",
        before='{"hidden_size": 576, "num_attention_heads": 9, ...}   # heads of 128 channels stored',
        after='{"hidden_size": 576, "num_attention_heads": 9, "head_dim": 128, ...}',
        prevention="Always write head_dim, even where it could be derived.",
    ),
    Explanation(
        code="DP308",
        name="drafter-weight-not-finite",
        title="A drafter weight holds NaN or infinity.",
        meaning="One such number makes every draft meaningless, so the checkpoint is refused as damaged.",
        triggers=(
            "training that diverged before the checkpoint was written",
            "a conversion to float16 that overflowed",
        ),
        fix="Go back to an earlier checkpoint, or convert to bfloat16 instead of float16.",
        before='save_file({k: v.half() for k, v in weights.items()}, "model.safetensors")',
        after='save_file({k: v.bfloat16() for k, v in weights.items()}, "model.safetensors")',
        prevention="Check torch.isfinite on every tensor before you save.",
    ),
    Explanation(
        code="DP309",
        name="drafter-taps-out-of-range",
        title="The drafter taps layers that the target does not have.",
        meaning="target_layer_ids are 0-based numbers of the target's decoder layers; the drafter reads the"
        " hidden state after each. At least one of them does not exist in this target.",
        triggers=(
            "a drafter of a deeper target",
            "ids counted from 1, or counted in hidden_states, where entry 0 is the embedding",
        ),
        fix="Use the drafter made for this target. If the ids are off by one, subtract one from each.",
        before='"target_layer_ids": [2, 8, 15, 21, 30]   # target with layers 0 to 29',
        after='"target_layer_ids": [1, 7, 14, 20, 29]',
        prevention="Write num_target_layers into config.json, so that a wrong target is named as such.",
    ),
    Explanation(
        code="DP310",
        name="drafter-target-depth-mismatch",
        title="The drafter was trained for a target with another number of layers.",
        meaning="num_target_layers in the drafter's config differs from the depth of the target, so it is "
        "the drafter of another model. Its taps may exist here, but they would carry something "
        "else.",
        triggers=("target and drafter of different sizes of the same family",),
        fix="Pair each target with its own drafter.",
        before='LLM("HuggingFaceTB/SmolLM2-360M-Instruct", drafter="smollm2-135m-dflash")   # 32 layers, '
        "not 30",
        after='LLM("smollm2-135m", drafter="smollm2-135m-dflash")',
        prevention="Keep drafters in folders named after their targets.",
    ),
    Explanation(
        code="DP311",
        name="drafter-hidden-size-mismatch",
        title="The drafter's widths do not fit the target's hidden size.",
        meaning="The drafter takes num_taps x the target's hidden size as input, and its own hidden size "
        "must be the target's wherever it borrows the target's embedding or LM head. One of the two"
        " does not hold.",
        triggers=(
            "a drafter of another target of the same depth",
            "a number of taps in config.json other than the one fc.weight was trained with",
        ),
        fix="Use the drafter made for this target, with the target_layer_ids it was trained with.",
        before='"target_layer_ids": [1, 14, 27]   # fc.weight is [576, 2880], that is 5 taps of 576',
        after='"target_layer_ids": [1, 7, 14, 20, 27]',
        prevention="Never edit target_layer_ids after training.",
    ),
    Explanation(
        code="DP312",
        name="drafter-vocabulary-mismatch",
        title="Drafter and target have different vocabularies.",
        meaning="Draft tokens are the target's own token ids, so vocab_size in the drafter's config must "
        "equal the number of rows of the target's embedding.",
        triggers=(
            "a drafter of another target",
            "tokens were added to the target, and its embedding resized, after the drafter was trained",
        ),
        fix="Use the drafter made for this target. If only unused rows were added to the target, set "
        "vocab_size to the new number.",
        before='{"vocab_size": 49152, ...}   # target resized to 49280 rows',
        after='{"vocab_size": 49280, ...}',
        prevention="Add tokens before you train the drafter.",
    ),
    Explanation(
        code="DP313",
        name="drafter-mask-token",
        title="The drafter's mask token is missing or is no token of the target.",
        meaning="The slots to be filled enter the drafter as one special token, whose embedding comes from "
        "the target. The drafter learned that very row; with any other one it drafts noise.",
        triggers=(
            "dflash_config has no mask_token_id",
            "the mask token was added to the tokenizer in training, but the target has no row for it",
        ),
        fix="Set dflash_config.mask_token_id to the id used in training.",
        before='"dflash_config": {"target_layer_ids": [1, 7, 14, 20, 27]}',
        after='"dflash_config": {"target_layer_ids": [1, 7, 14, 20, 27], "mask_token_id": 5}',
        prevention="Train with an unused id that the target already has.",
    ),
    Explanation(
        code="DP314",
        name="drafter-rope-base-missing",
        title="The drafter's config gives no RoPE base.",
        meaning="The base of the rotary position embedding is needed, and loaders disagree on what it is "
        "when absent (10,000 in some, 1,000,000 in others). A wrong base lowers acceptance and "
        "shows in no other way.",
        triggers=("a config written by a tool that drops fields equal to its own defaults",),
        fix="Add the base the drafter was trained with, as rope_theta or in rope_parameters.",
        before='{"rope_scaling": null, ...}',
        after='{"rope_theta": 1000000.0, "rope_scaling": null, ...}',
        prevention="Let your trainer always write rope_theta.",
    ),
    Explanation(
        code="DP315",
        name="drafter-block-size",
        title="The block size asked for cannot be used.",
        meaning="A block is the anchor plus the draft tokens, so it has at least 2 slots; and a trained "
        "drafter knows only as many slots as its own block_size, so it has at most those.",
        triggers=(
            "block_size given as 1 to mean 'one draft token' (that is 2)",
            "block_size larger than the checkpoint's",
        ),
        fix="Choose a block size from 2 to the checkpoint's own, or leave it out. The n-gram drafter takes "
        "any from 2.",
        before='LLM("smollm2-135m", drafter="drafters/smollm2", block_size=16)   # trained on 8',
        after='LLM("smollm2-135m", drafter="drafters/smollm2", block_size=8)',
        prevention="Leave block_size out unless you measure; the checkpoint's own is the default.",
    ),
    Explanation(
        code="DP316",
        name="drafter-out-of-step",
        title="Drafter and text are out of step (an internal error).",
        meaning="When a block is drafted, the drafter must hold the context of every committed token except"
        " the last one, the anchor: no more, no fewer, each at its own position. Otherwise all its "
        "positions would be off, and the only sign would be poor acceptance. The engine keeps this "
        "by itself.",
        triggers=(
            "code that calls a drafter's extend or propose itself, and extends twice, or too late, or "
            "with rejected tokens",
            "a fault in draftproof: please report it with the message",
        ),
        fix="In your own code: extend with the features of tokens as they commit, once, in order, and "
        "propose with len(tokens) - 1 tokens taken in.",
        before="drafter.extend([ContextUpdate(state, features, start=0)])   # all tokens, the anchor included",
        after="drafter.extend([ContextUpdate(state, features[: len(tokens) - 1], start=0)])",
        prevention="Use draftproof.LLM, which does the bookkeeping.",
    ),
    Explanation(
        code="DP317",
        name="not-a-drafter",
        title="What was given as a drafter is none",
        meaning="A drafter is named by a string or a folder, or is an object with the methods of the Drafter protocol. Such an "
        "object has its own block size, so block_size cannot be given beside it.",
        triggers=(
            "a number or another library's model in place of a drafter",
            "block_size together with a drafter object",
        ),
        fix='Pass None, "ngram", a checkpoint folder, a hub id, or an object with all of the protocol\'s methods.',
        before="llm.with_drafter(my_torch_module)",
        after='llm.with_drafter("path/to/checkpoint")',
        prevention="Look at draftproof.models.drafters.base.Drafter before writing your own.",
    ),
    Explanation(
        code="DP318",
        name="bad-proposal",
        title="A drafter proposed something that cannot be verified",
        meaning="Draft tokens become candidates for the target, so they must be whole numbers of its vocabulary, one row per "
        "sequence. The request ends here; others are not touched.",
        triggers=(
            "a drafter of your own that returns floats, a list, a matrix, or ids of another vocabulary",
            "a different number of proposals than requests",
        ),
        fix="Return one DraftProposal per request, tokens as an int64 tensor [k], ids from 0 to vocab_size - 1; k may be 0.",
        before="return [DraftProposal(logits.softmax(-1))]",
        after="return [DraftProposal(logits.argmax(-1))]",
        prevention="Try a new drafter with `draftproof generate --compare` first.",
    ),
    Explanation(
        code="DP319",
        name="bad-draft-vocabulary",
        title="The checkpoint's list of draft tokens cannot be used.",
        meaning=(
            "A checkpoint may name the tokens that it proposes, in `draft_vocabulary.json`; its LM head then leaves out the "
            "others, which makes its passes faster. The list must hold token ids of the target, in ascending order, each once."
        ),
        triggers=(
            "The file was written for a target with another vocabulary.",
            "It was edited by hand, or copied in part.",
        ),
        fix="Correct the file, or remove it: without it the drafter proposes all tokens.",
        before='{"token_ids": [5, 3, 3]}',
        after='{"token_ids": [3, 5]}',
        prevention="Leave the file as `draftproof train` wrote it.",
    ),
)
