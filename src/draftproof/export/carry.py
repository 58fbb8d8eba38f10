"""What each format cannot hold. A drafter that asks for it is refused: left out, it would only draft badly.

The facts are those of speculators 0.9 (``models/dflash``, ``models/dflash2``), of vLLM 0.32
(``transformers_utils/configs/speculators``, ``models/qwen3_dflash.py``) and of llama.cpp's ``models/dflash.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.errors import DrafterError
from draftproof.export.source import Source


def check_speculators(source: Source) -> None:
    """Raises `DrafterError` DP531 for a drafter that the `speculators` format does not describe."""
    _refuse(source, "speculators", [*_both(source), *_speculators(source)])


def check_gguf(source: Source) -> None:
    """Raises `DrafterError` DP531 for a drafter that a GGUF file, as llama.cpp reads it, does not describe."""
    _refuse(source, "gguf", [*_both(source), *_gguf(source)])


def all_causal(source: Source) -> bool:
    """Whether slots see no later slots, for drafters in which all layers agree on that."""
    return source.config.layers[0].causal


def window(source: Source) -> int | None:
    """The window of the windowed layers: the published layout has one for all of them."""
    return next((layer.window for layer in source.config.layers if layer.window is not None), None)


def _refuse(source: Source, form: str, reasons: list[str]) -> None:
    if reasons:
        raise DrafterError("DP531", f"{source.folder} cannot be written as {form}: {'; '.join(reasons)}")


def _both(source: Source) -> Iterator[str]:
    config = source.config
    if source.num_target_layers - 1 in config.target_layer_ids:
        yield (
            f"it taps the last layer ({source.num_target_layers - 1}) of its target, whose output is taken after the "
            "final norm here, but before it there"
        )
    if len(set(config.target_layer_ids)) < len(config.target_layer_ids):
        yield f"it taps a layer twice ({list(config.target_layer_ids)})"
    if len({layer.causal for layer in config.layers}) > 1:
        yield (
            "some of its layers are causal and some are not (layer_types without dflash_config.causal), and the format's "
            "one flag would hold for all of them"
        )
    if source.target_hidden != config.hidden_size:
        yield f"its hidden size {config.hidden_size} is not the target's {source.target_hidden}"


def _speculators(source: Source) -> Iterator[str]:
    config = source.config
    if all_causal(source) and any(layer.window is None for layer in config.layers):
        yield "it has causal layers without a window, and there such layers always see the whole block"
    for name, value, neutral in (
        ("attention_sink_bias", config.attention_sinks, False),
        ("attention_value_scale", config.value_scale, 1.0),
        ("input_embedding_scale", config.embedding_scale, 1.0),
        ("output_multiplier", config.output_multiplier, 1.0),
        ("final_logit_softcapping", config.softcap, None),
    ):
        if value != neutral:
            yield f"there is no place for {name} = {value!r}"
    own = sorted({"embed_tokens.weight", "lm_head.weight"} & source.tensors.keys())
    if own:
        yield f"it brings its own {' and '.join(own)}, and there the target's are taken"
    if config.conv is not None and config.conv.kernel_size > config.block_size:
        yield f"its convolution reaches over {config.conv.kernel_size} slots, more than a block's {config.block_size}"


def _gguf(source: Source) -> Iterator[str]:
    config = source.config
    if config.attention_bias:
        yield "there is no place for the biases of its attention (attention_bias)"
    if config.hidden_act not in ("silu", "swish", "gelu_pytorch_tanh"):
        yield f"there is no activation {config.hidden_act!r} there (silu and gelu_pytorch_tanh are)"
    width = window(source)
    if width is not None and width < config.block_size and not all_causal(source):
        yield f"its window of {width} is shorter than a block of {config.block_size}, and there no window looks ahead"
    if config.output_multiplier <= 0:
        yield f"output_multiplier {config.output_multiplier} turns the order of the logits, and there it is not applied"
    own_embedding = "embed_tokens.weight" in source.tensors
    if own_embedding and "lm_head.weight" not in source.tensors and not config.tie_word_embeddings:
        yield "it brings its own embedding but borrows the target's LM head, and there the embedding would be the head"
    selector = config.selector
    if selector is not None and config.hidden_size < selector.top_k * (selector.top_k + 1):
        yield f"its hidden size {config.hidden_size} has no room for {selector.top_k} candidates (selector_top_k)"
