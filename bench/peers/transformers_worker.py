"""Transformers' `generate` in bfloat16 as a peer: jobs as lines of JSON on standard input, timings on standard output."""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, StoppingCriteria, StoppingCriteriaList


class Stamps(StoppingCriteria):
    """Notes when each token came; ends nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("--threads", "--batch", "--context"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(model, json.loads(line))), flush=True)


@torch.inference_mode()
def run(model: PreTrainedModel, job: dict[str, object]) -> dict[str, object]:
    prompts: list[list[int]] = job["prompts"]  # type: ignore[assignment]
    tokens = int(str(job["max_tokens"]))
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    stamps = Stamps()
    started = time.perf_counter()
    output = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([stamps]),
    )
    count = len(prompts)
    return {
        "first": [stamps.times[0] - started] * count,
        "last": [stamps.times[-1] - started] * count,
        "tokens": [output.shape[1] - width] * count,
        "prompt_tokens": [len(prompt) for prompt in prompts],
    }


if __name__ == "__main__":
    main()
