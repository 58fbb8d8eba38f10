"""Explanations of what can go wrong with a target model once its files are there (DP250 to DP269)."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP250",
        name="target-unreadable",
        title="The target's checkpoint cannot be loaded",
        meaning="The folder exists, but Transformers could not build a causal language model from it, or some weights were "
        "missing or had another shape. Transformers fills such gaps with random numbers and a warning; draftproof stops.",
        triggers=(
            "a weights file was cut short or belongs to another model than config.json",
            "config.json names an architecture that this Transformers version does not know",
            "the checkpoint needs its own modelling code, which is not run unless asked for",
        ),
        fix="Fetch the checkpoint again; if the message names an unknown architecture, upgrade transformers; if you trust the "
        "authors of a checkpoint with its own code, pass trust_remote_code=True.",
        before='LLM("./my-model")            # config.json says 32 layers, the weights hold 30',
        after='LLM("./my-model-complete")   # every weight the config asks for is there',
        prevention="Save models with save_pretrained, and copy whole folders.",
    ),
    Explanation(
        code="DP251",
        name="target-row-count",
        title="The target returned another number of logit rows than was asked for",
        meaning="One logit row per candidate is what verification stands on. The model's forward returned more or fewer, so "
        "nothing it said in this pass can be trusted; the pass is dropped and the sequence stays as it was.",
        triggers=("modelling code that ignores or misreads logits_to_keep", "a patched or wrapped model"),
        fix="Use the model class as Transformers ships it, or mend the forward so that it returns the rows it was asked for.",
        before="class Mine(LlamaForCausalLM):\n    def forward(self, input_ids, logits_to_keep=0, **kw):\n"
        "        return super().forward(input_ids, **kw)          # drops logits_to_keep",
        after="class Mine(LlamaForCausalLM):\n    def forward(self, input_ids, logits_to_keep=0, **kw):\n"
        "        return super().forward(input_ids, logits_to_keep=logits_to_keep, **kw)",
        prevention="Run `draftproof generate --compare` once with every new target.",
    ),
    Explanation(
        code="DP252",
        name="last-token-logits-only",
        title="The target gives logits for the last token only",
        meaning="To check a block of k draft tokens the target must give k + 1 logit rows, one for each candidate. This model "
        "computes only the row of the last token, whatever it is asked for.",
        triggers=(
            "modelling code that slices hidden states to the last position before the LM head",
            "a model exported or wrapped for plain decoding",
        ),
        fix="Use the model's ordinary Transformers class, or let its forward take logits_to_keep (an int or a tensor of row "
        "indices), or return logits for every position.",
        before="logits = self.lm_head(hidden[:, -1:])",
        after="logits = self.lm_head(hidden[:, logits_to_keep])   # the rows asked for",
        prevention="Load-time probing finds it before the first request: the load fails, not a request.",
    ),
    Explanation(
        code="DP253",
        name="unsupported-architecture",
        title="The target's architecture is not one draftproof can run",
        meaning="draftproof gives the model its own row-invariant attention through Transformers' attention interface and reads "
        "its decoder layers, embedding and LM head. This model lacks one of them.",
        triggers=(
            "an encoder-decoder or embedding model",
            "an old architecture whose attention is written into its layers (ALiBi models, for instance)",
            "remote code that does not use the attention interface",
            "layers that attend twice in a pass, or whose keys and values change their shape from pass to pass",
        ),
        fix="Use a causal language model whose Transformers code supports the attention interface: Llama, SmolLM, Qwen, "
        "Mistral, Gemma, Phi and most others since 2023.",
        before='LLM("google-t5/t5-small")',
        after='LLM("smollm2-135m")',
        prevention="`draftproof models` shows names that work.",
    ),
    Explanation(
        code="DP254",
        name="state-cannot-roll-back",
        title="The target has layers whose state cannot be rolled back",
        meaning="After a rejected draft the target must forget it. Attention forgets by position; recurrent, convolutional and "
        "linear-attention layers fold every token into one state and cannot.",
        triggers=(
            "Mamba, RWKV, Jamba, Qwen3-Next and other recurrent or hybrid models",
            "chunked or compressed attention layers",
        ),
        fix="Use a target with attention layers only.",
        before='LLM("state-spaces/mamba-130m-hf", drafter="ngram")',
        after='LLM("smollm2-135m", drafter="ngram")',
        prevention="Look at layer_types in the model's config.json.",
    ),
    Explanation(
        code="DP255",
        name="rope-not-static",
        title="The target's rotary embedding depends on the longest row of a pass",
        meaning="With dynamic NTK or LongRoPE scaling the angles change with the sequence length, so a cached key would have "
        "to be rotated anew and a token would depend on its neighbours: output could not be lossless.",
        triggers=('rope_parameters with rope_type "dynamic" or "longrope"',),
        fix="Use the model without that scaling (its original context length), or one with a static type such as llama3 or yarn.",
        before='"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, ...}',
        after='"rope_parameters": {"rope_type": "yarn", "factor": 4.0, ...}',
        prevention="Look at rope_parameters (or rope_scaling) in config.json.",
    ),
    Explanation(
        code="DP256",
        name="attention-outside-pass",
        title="The target's model was called directly",
        meaning="The model behind a draftproof target reads keys and values from draftproof's own store. Called by itself it has "
        "no sequence to read them from.",
        triggers=("calling llm.target.model(...) or model.generate on a model that draftproof has loaded",),
        fix="Go through LLM.generate or Target.forward, or load a second copy of the model with Transformers.",
        before="llm.target.model(input_ids)",
        after='llm.generate("...")',
        prevention="Treat the model inside a target as part of it.",
    ),
    Explanation(
        code="DP257",
        name="tap-out-of-range",
        title="A tap layer does not exist in the target",
        meaning="The drafter asks for the output of a target layer by number, and the target has fewer layers.",
        triggers=(
            "a drafter trained for a larger target",
            "taps counted from 1, or with the embedding as layer 0",
        ),
        fix="Use a drafter made for this target; taps are 0-based and mean the output after that layer.",
        before='"target_layer_ids": [1, 16, 32]   # the target has 32 layers: 0..31',
        after='"target_layer_ids": [0, 15, 31]',
        prevention="Write num_target_layers into the drafter's config: a mismatch is then found by name.",
    ),
    Explanation(
        code="DP258",
        name="context-full",
        title="A pass reached beyond the target's context",
        meaning="The target was asked to process a position it was not made for.",
        triggers=("using Target.forward directly without watching the length",),
        fix="Stop at info.max_position, or use LLM.generate, which finishes the request with reason 'length' there.",
        before="target.forward([Segment(kv, tokens, 0)])   # kv.length + len(tokens) > max_position",
        after="room = target.info.max_position - kv.length\ntarget.forward([Segment(kv, tokens[:room], 0)])",
        prevention="Leave the bookkeeping to LLM.",
    ),
    Explanation(
        code="DP259",
        name="bad-dtype-or-device",
        title="The dtype or device cannot be used",
        meaning="draftproof computes in float32, bfloat16, int8 or int4 (weights), on the CPU or on a device this PyTorch "
        "build can reach.",
        triggers=(
            'dtype="float16" or a misspelt dtype',
            'device="cuda" with a CPU build of PyTorch, or without a GPU',
        ),
        fix='Use dtype "auto", "float32", "bfloat16", "int8" or "int4"; use device "cpu" or install a PyTorch '
        "build for your GPU.",
        before='LLM("smollm2-135m", dtype="fp16")',
        after='LLM("smollm2-135m", dtype="bfloat16")',
        prevention='Leave both on "auto".',
    ),
    Explanation(
        code="DP260",
        name="quantised-target",
        title="The target is a quantised checkpoint",
        meaning="The checkpoint carries a quantization_config (GPTQ, AWQ, bitsandbytes, FP8 ...). Its kernels are not "
        "row-invariant here, and a drafter trained on the unquantised model silently accepts less.",
        triggers=("loading a -GPTQ, -AWQ, -FP8 or similar variant of a model",),
        fix="Load the unquantised weights of the same model.",
        before='LLM("org/model-7B-AWQ")',
        after='LLM("org/model-7B")',
        prevention="Train and run the drafter against the same unquantised weights.",
    ),
    Explanation(
        code="DP261",
        name="tokenizer-unreadable",
        title="The model's tokenizer cannot be loaded",
        meaning="The weights are there, but the files that turn text into tokens are missing or damaged, or need code that is "
        "not run unless asked for.",
        triggers=(
            "a folder saved with model.save_pretrained but without tokenizer.save_pretrained",
            "a tokenizer with its own code, without trust_remote_code",
            "tokenizer.json cut short",
        ),
        fix="Save or fetch the tokenizer into the same folder.",
        before='model.save_pretrained("my-model")\nLLM("my-model")',
        after='model.save_pretrained("my-model")\ntokenizer.save_pretrained("my-model")\nLLM("my-model")',
        prevention="Keep model and tokenizer in one folder.",
    ),
    Explanation(
        code="DP262",
        name="target-gave-nan",
        title="The target gave NaN logits",
        meaning="Some logit of the target is not a number, so there is no likeliest token. The request stops; tokens it gave "
        "before are sound.",
        triggers=(
            "weights that overflow in bfloat16",
            "a damaged or half-trained checkpoint",
        ),
        fix='Load the model with dtype="float32"; if NaN stays, the weights are damaged: fetch them again.',
        before='LLM("./my-model", dtype="bfloat16").generate("hi")',
        after='LLM("./my-model", dtype="float32").generate("hi")',
        prevention="Check a checkpoint of your own with one short generation after saving it.",
    ),
    Explanation(
        code="DP263",
        name="hidden-state-between-tokens",
        title="The target gives other logits when its tokens come in pieces",
        meaning="The same tokens were run in one pass and in several, and the logits differed by far more than rounding. The "
        "model keeps something from token to token besides its attention keys and values, so drafts could not be rolled back.",
        triggers=(
            "an architecture with convolutions or other state over tokens that its config does not name",
            "remote code with a cache of its own",
        ),
        fix="Use a target whose layers are attention only.",
        before='LLM("org/attention-plus-convolution")',
        after='LLM("smollm2-135m")',
        prevention="The check runs whenever a model is loaded: what loads, works.",
    ),
    Explanation(
        code="DP264",
        name="not-row-invariant",
        title="This machine does not give bit-identical rows, and lossless=strict was asked for.",
        meaning=(
            "At start draftproof runs the same tokens alone, in pieces and in company, and compares bits. On this machine, in "
            "this precision, they differ, by every way of computing that it knows. Drafting would still be lossless in "
            "distribution, but single tokens could differ where two are almost equally likely."
        ),
        triggers=(
            "A model whose own code computes across rows.",
            "A device or dtype without row-invariant products.",
        ),
        fix="Use another dtype (float32), or accept the weaker promise with lossless='auto'.",
        before='LLM(model, lossless="strict", dtype="bfloat16")',
        after='LLM(model, lossless="strict", dtype="float32")',
        prevention="Run `draftproof prove lossless` once on every kind of machine you use.",
    ),
    Explanation(
        code="DP265",
        name="fused-executor-cannot-run-it",
        title="The fused executor was asked for and cannot run this model here.",
        meaning="The fused executor runs a whole pass as one compiled call. It covers plain decoders of the Llama, Mistral, "
        "Qwen2, Qwen3 and Gemma 3 families with safetensors weights, on a CPU, with numba. The message says what is lacking.",
        triggers=(
            "an architecture, rope or activation that it does not cover",
            'device="cuda", or a machine with a GPU and device="auto"',
            "an environment without numba",
        ),
        fix='Leave executor on "auto": what the fused executor cannot run, the Transformers executor runs.',
        before='LLM("org/mixture-of-experts", executor="fused")',
        after='LLM("org/mixture-of-experts")',
        prevention='Ask for executor="fused" only in measurements that mean that executor.',
    ),
    Explanation(
        code="DP266",
        name="integers-need-the-fused-executor",
        title="Weights in int8 or int4 need the fused executor, which cannot run here.",
        meaning="Only the fused executor has products of integers whose rows do not depend on their company. For this model, "
        "device or environment it cannot be had; the message says why.",
        triggers=(
            'dtype="int4" for an architecture that the fused executor does not cover',
            'dtype="int8" together with device="cuda" or executor="transformers"',
        ),
        fix='Use dtype "bfloat16" or "float32", or leave it "auto".',
        before='LLM("org/mixture-of-experts", dtype="int8")',
        after='LLM("org/mixture-of-experts", dtype="bfloat16")',
        prevention='Leave dtype on "auto": it takes integers where they can be had and change next to nothing.',
    ),
    Explanation(
        code="DP267",
        name="unknown-executor",
        title="There is no such executor.",
        meaning='A target runs on the "fused" executor (one compiled call a pass) or on the "transformers" executor (the '
        'model\'s own code). "auto" takes the first where it can.',
        triggers=("a misspelt executor=", "a dtype or device given in its place"),
        fix='Use "auto", "fused" or "transformers".',
        before='LLM("smollm2-135m", executor="numba")',
        after='LLM("smollm2-135m", executor="fused")',
        prevention='Leave it on "auto".',
    ),
    Explanation(
        code="DP268",
        name="weights-beyond-the-precision",
        title="The weights cannot be stored in the precision asked for.",
        meaning="In int8 and int4 every 32 weights share a scale in float16. A weight that is infinite, not a number, or "
        "beyond 65,504 cannot be stored so.",
        triggers=(
            "a damaged or half-trained checkpoint",
            "weights of a size that only float32 or bfloat16 holds",
        ),
        fix='Use dtype "bfloat16" or "float32"; if the answers are nonsense, fetch the checkpoint again.',
        before='LLM("./my-model", dtype="int4")',
        after='LLM("./my-model", dtype="bfloat16")',
        prevention="Look for weights that are not finite before saving a checkpoint of your own.",
    ),
)
