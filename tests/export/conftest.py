"""The target of the export tests: a small Llama in a folder, and the same as a GGUF file."""

from __future__ import annotations

import pytest
import torch
from export_support import DEPTH, HIDDEN, VOCAB
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>"]


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Byte-level BPE of 202 tokens and one merge; the embedding has rows to spare."""
    folder = tmp_path_factory.mktemp("target")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:198]
    words = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "ab"])}
    inner = Tokenizer(models.BPE(vocab=words, merges=[("a", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.add_tokens(["<tool>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=DEPTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def target_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GGUF file without weights: sizes and a SentencePiece vocabulary, which no folder gives."""
    path = tmp_path_factory.mktemp("gguf") / "target.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(DEPTH)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"▁token{index}" for index in range(VOCAB)])
    writer.add_token_scores([-float(index) for index in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_mask_token_id(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
