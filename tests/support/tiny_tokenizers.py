"""Small real tokenizers of every family, trained on a little text with every kind of awkward character."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXT = """
The quick brown fox doesn't jump over the lazy dog. It's 3.14 , isn't it ? Stop! STOP!! User: hello
def f(x):\n\treturn x * 2  # doubled\n
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。 Καλημέρα κόσμε. Привет, мир! नमस्ते दुनिया
e\u0301te\u0301 n\u0303 a\u0308 \u1112\u1161\u11ab 👩‍👩‍👧‍👦 👍🏽 🇩🇪 😀😀 ❤️ 𝔘𝔫𝔦 \ufeff \u200b \ufffd
"""
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
PIECES = TEXT.split() * 3 + TEXT.splitlines() * 3


def _wrap(tokenizer: Tokenizer, **options: bool) -> PreTrainedTokenizerFast:
    tokenizer.add_tokens(["<tool>"])  # added, but not special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", **options
    )


def _byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(PIECES, trainer)
    return _wrap(tokenizer, clean_up_tokenization_spaces=True)


def _unigram_pieces() -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    # Chinese and emojis stay out of the vocabulary, so that byte fallback has work to do.
    plain = ["".join(c for c in piece if c < "\u0400") for piece in PIECES]
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(plain, trainer)
    known = {piece for piece, _ in tokenizer_vocab(tokenizer)}
    return tokenizer_vocab(tokenizer) + [(piece, -12.0) for piece in ("▁", "▁▁", "a▁b") if piece not in known]


def tokenizer_vocab(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [(piece, 0.0 if piece in SPECIAL else -5.0 - index / 50) for index, (piece, _) in enumerate(ids)]


def _with_byte_fallback(decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    pieces = _unigram_pieces() + [(f"<0x{value:02X}>", -20.0) for value in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(SPECIAL)
    return _wrap(tokenizer)


def _llama() -> PreTrainedTokenizerFast:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _with_byte_fallback(decoders.Sequence(steps))


def _gemma() -> PreTrainedTokenizerFast:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _with_byte_fallback(decoders.Sequence(steps))


def _metaspace() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.Unigram(_unigram_pieces(), unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return _wrap(tokenizer)


def _word_piece() -> PreTrainedTokenizerFast:
    pieces = [
        "the",
        "dog",
        "##s",
        "##ing",
        "un",
        "##do",
        ".",
        ",",
        "!",
        "?",
        "'",
        "n't",
        "'s",
        "天",
        "地",
        "##地",
    ]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(SPECIAL + pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens(SPECIAL)
    return _wrap(tokenizer)


def _end_of_word() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(PIECES, trainer)
    return _wrap(tokenizer)


_MAKERS = {
    "byte_level": _byte_level,
    "llama": _llama,
    "gemma": _gemma,
    "metaspace": _metaspace,
    "word_piece": _word_piece,
    "end_of_word": _end_of_word,
}
NAMES = tuple(_MAKERS)


@cache
def tiny_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of that family: `byte_level`, `llama`, ..."""
    return _MAKERS[name]()
