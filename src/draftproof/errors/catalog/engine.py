"""Explanations of DP440 to DP443 and DP450 to DP459: how the engine is asked to run, and what can happen to it."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP440",
        name="bad-draft-mode",
        title="The draft mode is not one of auto, fixed=N, off.",
        meaning=(
            "The mode says how many tokens the drafter may propose in a step: `auto` chooses by measured costs and "
            "acceptance, `fixed=N` always takes N, `off` never drafts. What was given is none of these. The output "
            "is the same in every mode; only the speed differs."
        ),
        triggers=(
            "A bare number, such as `4`, where `fixed=4` is meant.",
            "A negative or fractional N.",
            "`none`, `true` or `on`, as other programs have it.",
        ),
        fix='Pass "auto", "off", or "fixed=N" with N a whole number from 0; N above what the drafter can is cut.',
        before='LLM("smollm2-135m", draft_mode="4")',
        after='LLM("smollm2-135m", draft_mode="fixed=4")',
        prevention="Leave the mode at `auto` outside of experiments.",
    ),
    Explanation(
        code="DP441",
        name="kv-memory-too-small",
        title="The memory for keys and values does not hold one sequence.",
        meaning=(
            "Keys and values of the target and the drafter live in a pool of blocks of 64 tokens. A request must be able to run "
            "to its end alone, so the pool has to hold at least one sequence of `max_model_len` tokens."
        ),
        triggers=(
            "`kv_cache_memory` set in megabytes where bytes are meant.",
            "A model with a long context and a small budget.",
        ),
        fix="Give at least the bytes the message names, or lower `max_model_len`.",
        before='LLM("smollm2-135m", kv_cache_memory=64_000_000)',
        after='LLM("smollm2-135m", kv_cache_memory=64_000_000, max_model_len=1024)',
        prevention="Leave `kv_cache_memory` out: memory is taken only as it is used.",
    ),
    Explanation(
        code="DP442",
        name="request-id-in-use",
        title="Another running request has this id.",
        meaning="Events and `abort` find a request by its id, so no two running requests may share one.",
        triggers=(
            "The same request added twice, for instance by a retry.",
            "Ids counted per client rather than per engine.",
        ),
        fix="Give each request an id of its own, or leave `request_id` out to have one made up.",
        before='engine.add_request("hello", request_id="1")  # twice',
        after='engine.add_request("hello", request_id=str(uuid.uuid4()))',
        prevention="Use random ids.",
    ),
    Explanation(
        code="DP443",
        name="n-above-max-num-seqs",
        title="More choices than the engine decodes at once.",
        meaning=(
            "The `n` outputs of a request start together from the same processed prompt, so the engine needs a place for each "
            "of them. It has `max_num_seqs` places."
        ),
        triggers=("`n` larger than `max_num_seqs`.",),
        fix="Lower `n`, send several requests with different seeds, or raise `max_num_seqs`.",
        before='LLM("smollm2-135m", max_num_seqs=4).generate(prompt, SamplingParams(n=8, temperature=1))',
        after='LLM("smollm2-135m", max_num_seqs=8).generate(prompt, SamplingParams(n=8, temperature=1))',
        prevention="Choose `max_num_seqs` no smaller than the largest n you serve.",
    ),
    Explanation(
        code="DP450",
        name="bad-lossless-mode",
        title="`lossless` is neither auto nor strict.",
        meaning=(
            "`lossless` says what to do on a machine where rows of a pass are not bit-identical in different company: `auto` "
            "goes on with a warning, `strict` refuses to start."
        ),
        triggers=("`lossless=True`.", "A misspelt value."),
        fix='Pass "auto" or "strict".',
        before='LLM("smollm2-135m", lossless=True)',
        after='LLM("smollm2-135m", lossless="strict")',
        prevention="Leave it at auto unless a weaker promise must be an error.",
    ),
    Explanation(
        code="DP451",
        name="step-failed",
        title="A step of the engine failed.",
        meaning=(
            "Something in the model, the drafter or the tokenizer raised an error without a code while several requests shared a "
            "step. The requests in that step ended with this error and gave their memory back; all others go on."
        ),
        triggers=(
            "Out of memory in the target's pass.",
            "A custom model, drafter or tokenizer that raises.",
            "A fault in draftproof.",
        ),
        fix="Look at the cause: it is named in the message, and attached as `__cause__`. Then send the request again.",
        before="llm.generate(prompts)  # out of memory with a chunk of 512 rows",
        after='LLM("smollm2-135m", max_num_batched_tokens=128).generate(prompts)',
        prevention="Lower `max_num_batched_tokens` or `max_num_seqs` where memory is short.",
    ),
    Explanation(
        code="DP452",
        name="engine-closed",
        title="The engine takes no more requests.",
        meaning="`drain` or `close` was called on this `AsyncEngine`: what runs goes on to its end, nothing new starts.",
        triggers=(
            "A request sent while the program shuts down.",
            "An engine used after its `async with` block.",
        ),
        fix="Send the request to another engine, or make a new `AsyncEngine` from the same `LLM`.",
        before="await engine.drain(); await engine.add_request(prompt)",
        after="await engine.add_request(prompt); await engine.drain()",
        prevention="Stop accepting work before draining.",
    ),
)
