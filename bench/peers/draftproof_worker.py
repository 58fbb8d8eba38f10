"""draftproof as a peer: jobs as lines of JSON on standard input, timings on standard output."""

from __future__ import annotations

import argparse
import json
import sys

import torch

from draftproof import LLM, EngineOptions, SamplingParams
from draftproof.bench.passes import run_pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--drafter", default=None)
    parser.add_argument("--mode", default="off")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plain = LLM(options.model, dtype=options.dtype, draft_mode="off", max_model_len=options.context)
    llm = plain.with_drafter(
        options.drafter,
        draft_mode=options.mode,
        options=EngineOptions(max_num_seqs=options.batch, prefix_caching=False),
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(llm, json.loads(line))), flush=True)


def run(llm: LLM, job: dict[str, object]) -> dict[str, object]:
    params = SamplingParams(temperature=0.0, max_tokens=int(str(job["max_tokens"])), ignore_eos=True)
    prompts: list[list[int]] = job["prompts"]  # type: ignore[assignment]
    done = run_pass(llm, prompts, [params] * len(prompts))
    return {
        "first": done.first_token_seconds,
        "last": [mine[-1].seconds for mine in done.arrivals],
        "tokens": [len(output) for output in done.outputs],
        "prompt_tokens": done.prompt_tokens,
    }


if __name__ == "__main__":
    main()
