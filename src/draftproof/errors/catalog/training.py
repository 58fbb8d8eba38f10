"""Explanations of DP510 to DP519: what a drafter is trained from, and what it is written to."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP510",
        name="nothing-to-borrow",
        title="The target has no embedding or LM head that a drafter can borrow.",
        meaning=(
            "A DFlash drafter has no vocabulary of its own: its block begins with rows of the target's embedding, and its tokens "
            "come out of the target's LM head, both frozen. Both must be plain matrices [vocab, hidden]; a head with a bias is "
            "not covered."
        ),
        triggers=(
            "A model that is no causal LM, or whose embedding is split or compressed.",
            "An architecture whose LM head has a bias (Phi-1, Phi-2, PhiMoE).",
        ),
        fix="Train for another target; for one with a biased head use the n-gram drafter.",
        before="draftproof train --target microsoft/phi-2 --prompts prompts.jsonl --out drafter",
        after="draftproof generate --target microsoft/phi-2 --drafter ngram 'Hello'",
        prevention="Llama, Qwen, Mistral, Gemma and SmolLM models all have plain matrices.",
    ),
    Explanation(
        code="DP511",
        name="drafter-shape-does-not-fit",
        title="A drafter of that shape does not fit the target.",
        meaning=(
            "Taps are layers of the target, counted from 0 and tapped behind the layer; a block holds the anchor and at least "
            "one mask slot; the mask token is an id of the target's vocabulary. One of these numbers is out of range, or "
            "is not that of the drafter whose weights the run starts from."
        ),
        triggers=(
            "Taps counted from 1, as other formats do, so that the last one does not exist.",
            "Taps of a deeper model of the same family.",
            "block_size 1, meaning one draft token (that is 2).",
            "A drafter to start from that was trained with other taps, another mask token or another RoPE than the run has.",
        ),
        fix="Take numbers in the range that the message gives, or leave the taps out: they are then spread evenly.",
        before="shape_for(target, taps=(2, 16, 30), mask_token_id=5)   # 30 layers: 0 to 29",
        after="shape_for(target, taps=(1, 15, 29), mask_token_id=5)",
        prevention="Leave the taps to the default until you have a drafter that works.",
    ),
    Explanation(
        code="DP512",
        name="bad-training-sample",
        title="A training sample contradicts itself or the others.",
        meaning=(
            "A sample is one text with one feature row for each token, all samples of the same width and dtype, and with one row "
            "of the target's likeliest tokens for each response token where there are any. Anything else would train the drafter "
            "on features of other tokens, and the only sign would be poor acceptance."
        ),
        triggers=(
            "Features cached for another target, other taps or another precision.",
            "A feature file that was cut short.",
            "Samples of your own that hold features of the response only.",
        ),
        fix="Delete the cached features and let them be computed again.",
        before="Sample(token_ids=tokens, response_start=40, features=features[40:])",
        after="Sample(token_ids=tokens, response_start=40, features=features)",
        prevention="Let `open_features` compute and keep the features; it checks what they belong to.",
    ),
    Explanation(
        code="DP513",
        name="nothing-to-learn",
        title="No sample holds a response token to learn from.",
        meaning=(
            "A drafter learns to predict tokens of responses, from blocks that begin at the prompt's last token or later. All "
            "samples of a batch have empty responses, so there is no block."
        ),
        triggers=(
            "Prompts that fill the context, so that nothing was generated.",
            "A responses file whose `output_ids` are empty.",
        ),
        fix="Drop responses without tokens, and see why the target says nothing (often a missing chat template).",
        before='{"prompt_ids": [1, 2, 3], "output_ids": []}',
        after='{"prompt_ids": [1, 2, 3], "output_ids": [4, 5, 6]}',
        prevention="Look at a few responses before training: `head -n 3 responses.jsonl`.",
    ),
    Explanation(
        code="DP514",
        name="drafter-folder-not-written",
        title="The drafter's folder cannot be written.",
        meaning=(
            "A trained drafter replaces the folder it goes to as a whole. That is only done with a folder that is empty, absent, "
            "or a drafter's checkpoint; any other is left alone. Or the disk refused."
        ),
        triggers=(
            "An output path that names a project folder or a target's checkpoint.",
            "A full disk, or a folder without write permission.",
        ),
        fix="Name a new folder for the drafter, or make room.",
        before="draftproof train --target smollm2-135m --prompts p.jsonl --out .",
        after="draftproof train --target smollm2-135m --prompts p.jsonl --out drafters/mine",
        prevention="Give every drafter a folder of its own.",
    ),
    Explanation(
        code="DP515",
        name="drafter-kind-not-trained",
        title="Drafters of this kind can be run, but not trained here.",
        meaning=(
            "Training covers plain DFlash drafters that borrow the target's embedding and LM head. DFlash 2 (convolutions and a "
            "candidate selector) and checkpoints with an embedding or head of their own are run, not trained."
        ),
        triggers=(
            "Going on from a DFlash 2 checkpoint.",
            "Going on from a checkpoint with `embed_tokens.weight` or `lm_head.weight`.",
        ),
        fix="Start a plain DFlash drafter from the target's own layers, which is the default.",
        before="TrainableDrafter(read_config(dflash2_folder), embedding, lm_head)",
        after="TrainableDrafter(shape_for(target, mask_token_id=5).config(), target.embedding, target.lm_head)",
        prevention="Look at `architectures` in the checkpoint's config.json: DFlashDraftModel can be trained.",
    ),
    Explanation(
        code="DP516",
        name="bad-optimizer-settings",
        title="The optimiser's settings cannot be used.",
        meaning=(
            "The optimiser is `adamw` or `muon`. Rates and weight decay are finite numbers, rates above 0, betas in [0, 1); a "
            "schedule has fewer warm-up steps than steps."
        ),
        triggers=(
            "A misspelt optimiser.",
            "A learning rate of 0, or a warm-up that is longer than the run.",
        ),
        fix="Take a value in the range that the message gives.",
        before='OptimizerSettings(kind="adam")',
        after='OptimizerSettings(kind="adamw", learning_rate=1e-3)',
        prevention="Leave the settings out: the defaults were measured on SmolLM2-135M.",
    ),
    Explanation(
        code="DP517",
        name="bad-loss-settings",
        title="The loss's settings cannot be used.",
        meaning=(
            "The loss weighs slot k with exp(-(k-1)/gamma), gamma above 0, and mixes hard labels with distillation by alpha in "
            "[0, 1]. Distillation needs the target's likeliest tokens with the samples. A reduced vocabulary is a list of "
            "distinct token ids of the target."
        ),
        triggers=(
            "Distillation over features that were cached without `top_k`.",
            "A reduced vocabulary of another tokenizer.",
        ),
        fix="Cache the features again with a `top_k`, or set alpha to 0.",
        before="block_loss(model, hidden, batch, LossSettings(distillation=0.5))   # batch.top_ids is None",
        after="open_features(target, responses, taps, folder=cache, max_bytes=2**33, top_k=16)",
        prevention="Decide about distillation before the features are computed.",
    ),
)
