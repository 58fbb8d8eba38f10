"""A plain reading of the drafter's definition (design section 4), to hold the real one against.

Everything is recomputed from the features of all committed tokens: no cache, no merged weights, one head at a
time, masks by explicit loops over pairs of positions, float64 throughout. It reads the raw ``config.json`` by
itself.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Tensor = torch.Tensor


@dataclass(frozen=True)
class PlainOutput:
    """`hidden` of all slots, anchor included; `logits` and greedy `tokens` of the mask slots."""

    hidden: Tensor
    logits: Tensor
    tokens: list[int]


class PlainDrafter:
    def __init__(self, folder: Path, embedding: Tensor, head: Tensor) -> None:
        self.top: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.own: dict[str, Any] = self.top["dflash_config"]
        weights = {name: t.double() for name, t in load_file(folder / "model.safetensors").items()}
        self.weights = weights
        self.embedding = weights.get("embed_tokens.weight", embedding.double())
        self.head = weights.get("lm_head.weight", head.double())
        self.dim = self.top["head_dim"]
        self.heads, self.kv_heads = self.top["num_attention_heads"], self.top["num_key_value_heads"]

    def run(self, features: Tensor, anchor: int, count: int) -> PlainOutput:
        """One block: the anchor and `count` mask tokens, after the tokens of ``features [n, width]``."""
        context = norm(
            features.double() @ self.weights["fc.weight"].T, self.weights["hidden_norm.weight"], self.eps
        )
        ids = [anchor] + [self.own["mask_token_id"]] * count
        x = self.embedding[ids] * self.own.get("input_embedding_scale", 1.0)
        for index in range(self.top["num_hidden_layers"]):
            x = self.layer(index, x, context)
        hidden = norm(x, self.weights["norm.weight"], self.eps)
        logits = hidden[1:] @ self.head.T * self.own.get("output_multiplier", 1.0)
        cap = self.own.get("final_logit_softcapping")
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return PlainOutput(hidden, logits, self.choose(hidden[1:], logits, anchor))

    @property
    def eps(self) -> float:
        return self.top["rms_norm_eps"]

    def layer(self, index: int, x: Tensor, context: Tensor) -> Tensor:
        def weight(name: str) -> Tensor:
            return self.weights[f"layers.{index}.{name}"]

        def attention(h: Tensor) -> Tensor:
            return self.attention(index, h, context)

        def mlp(h: Tensor) -> Tensor:
            gate = h @ weight("mlp.gate_proj.weight").T
            act = ACTIVATIONS[self.top.get("hidden_act", "silu")](gate)
            return (act * (h @ weight("mlp.up_proj.weight").T)) @ weight("mlp.down_proj.weight").T

        h = norm(x, weight("input_layernorm.weight"), self.eps)
        x = x + self.convolved(attention, h, f"layers.{index}.attention_conv")
        h = norm(x, weight("post_attention_layernorm.weight"), self.eps)
        return x + self.convolved(mlp, h, f"layers.{index}.mlp_conv")

    def convolved(self, sublayer: Any, h: Tensor, name: str) -> Tensor:
        base = self.weights.get(f"{name}.base_kernel")
        if base is None:
            return sublayer(h)
        size, hidden = base.shape[1:]
        group = self.own["conv_group_size"]
        dynamic = (h @ self.weights[f"{name}.kernel_projection.weight"].T).view(
            len(h), 2, size, hidden // group
        )

        def stage(s: int, x: Tensor) -> Tensor:
            y = torch.zeros_like(x)
            for t in range(len(x)):
                for o in range(size):
                    if t - o >= 0:
                        by_channel = torch.stack([dynamic[t, s, o, c // group] for c in range(hidden)])
                        y[t] += (base[s, o] + by_channel) * x[t - o]
            return y

        return stage(1, sublayer(stage(0, h)))

    def attention(self, index: int, h: Tensor, context: Tensor) -> Tensor:
        def project(x: Tensor, name: str) -> Tensor:
            out = x @ self.weights[f"layers.{index}.self_attn.{name}.weight"].T
            bias = self.weights.get(f"layers.{index}.self_attn.{name}.bias")
            return out if bias is None else out + bias

        n, rows = len(context), len(h)
        q = project(h, "q_proj").view(rows, self.heads, self.dim)
        k = torch.cat((project(context, "k_proj"), project(h, "k_proj"))).view(
            n + rows, self.kv_heads, self.dim
        )
        v = torch.cat((project(context, "v_proj"), project(h, "v_proj"))).view(
            n + rows, self.kv_heads, self.dim
        )
        v = v * self.own.get("attention_value_scale", 1.0)
        q = norm(q, self.weights[f"layers.{index}.self_attn.q_norm.weight"], self.eps)
        k = norm(k, self.weights[f"layers.{index}.self_attn.k_norm.weight"], self.eps)
        k = torch.stack([self.rotated(k[j], j) for j in range(n + rows)])
        q = torch.stack([self.rotated(q[row], n + row) for row in range(rows)])
        sinks = self.weights.get(f"layers.{index}.self_attn.attention_sink_bias")
        out = torch.zeros(rows, self.heads, self.dim, dtype=torch.float64)
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            for row in range(rows):
                seen = [j for j in range(n + rows) if self.sees(index, n + row, j)]
                scores = [float(q[row, head] @ k[j, kv]) / math.sqrt(self.dim) for j in seen]
                total = sum(math.exp(s) for s in scores)
                if sinks is not None:
                    total += math.exp(float(sinks[head]))
                for j, score in zip(seen, scores, strict=True):
                    out[row, head] += math.exp(score) / total * v[j, kv]
        return project(out.reshape(rows, -1), "o_proj")

    def sees(self, index: int, q: int, k: int) -> bool:
        sliding = self.top.get("layer_types", [""] * (index + 1))[index] == "sliding_attention"
        any_sliding = "sliding_attention" in self.top.get("layer_types", [])
        causal = sliding
        if self.own.get("causal") is not None:
            causal = self.own["causal"]
        if self.top.get("is_causal") is not None:
            causal = self.top["is_causal"]
        if causal and k > q:
            return False
        if not sliding and not (self.own.get("use_swa") and not any_sliding):
            return True
        window = self.own.get("swa_window_size")
        if window is None and (self.top.get("use_sliding_window") or self.own.get("use_swa")):
            window = self.top.get("sliding_window")
        return window is None or (q - k < window and k - q < window)

    def rotated(self, x: Tensor, position: int) -> Tensor:
        """``[..., head_dim]`` turned: channels i and i + head_dim / 2 are the plane of frequency i."""
        theta = self.top.get("rope_parameters", self.top)["rope_theta"]
        half = self.dim // 2
        angles = [position * theta ** (-2 * i / self.dim) for i in range(half)]
        turn = torch.polar(torch.ones(half, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))
        plane = torch.complex(x[..., :half], x[..., half:]) * turn
        return torch.cat((plane.real, plane.imag), -1)

    def choose(self, hidden: Tensor, logits: Tensor, anchor: int) -> list[int]:
        if "selector_top_k" not in self.own:
            return [int(row.argmax()) for row in logits]
        chosen, previous = [], anchor
        predecessors, successors = (
            self.weights[f"candidate_selector.{side}_codebook.weight"]
            for side in ("predecessor", "successor")
        )
        for h, row in zip(hidden, logits, strict=True):
            candidates = row.topk(self.own["selector_top_k"]).indices.tolist()
            projected = self.weights["candidate_selector.hidden_projection.weight"] @ h
            scores = {
                c: float(row[c] + (predecessors[previous] * projected) @ successors[c]) for c in candidates
            }
            previous = max(sorted(scores), key=scores.__getitem__)
            chosen.append(previous)
        return chosen


ACTIVATIONS = {
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
}


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight
