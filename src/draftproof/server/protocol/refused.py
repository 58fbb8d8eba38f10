"""Fields that other servers know and this one does not act on: refused by name, never silently dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.errors import ServerError


@dataclass(frozen=True)
class Refused:
    """A field that is not supported.

    Attributes:
        hint: what to do instead; ends the message.
        harmless: values that ask for nothing beyond what happens anyway; these are taken. Null always is one.
    """

    hint: str
    harmless: tuple[object, ...] = ()


_STRUCTURED = (
    "use response_format, or structured_outputs with one of json, regex, choice, grammar, json_object"
)
_BEAMS = "beam search is not built; leave it out"
_DRAFTS = 'use speculative: {"draft_length": "auto" or a number} for the drafter'
_LORA = "this server has no LoRA adapters"

COMMON: Mapping[str, Refused] = {
    "best_of": Refused("use n", (1,)),
    "use_beam_search": Refused(_BEAMS, (False,)),
    "length_penalty": Refused(_BEAMS, (1, 1.0)),
    "early_stopping": Refused(_BEAMS, (False,)),
    "bad_words": Refused("use banned_token_ids (POST /tokenize gives the ids)", ([],)),
    "spaces_between_special_tokens": Refused("text is decoded as the tokenizer does it", (True,)),
    "truncate_prompt_tokens": Refused("shorten the prompt yourself: a cut prompt asks another question"),
    "logits_processors": Refused("use logit_bias, allowed_token_ids or banned_token_ids"),
    "logit_processors": Refused("use logit_bias, allowed_token_ids or banned_token_ids"),
    "guided_json": Refused(_STRUCTURED),
    "guided_regex": Refused(_STRUCTURED),
    "guided_choice": Refused(_STRUCTURED),
    "guided_grammar": Refused(_STRUCTURED),
    "guided_decoding_backend": Refused("there is one backend; leave it out"),
    "guided_whitespace_pattern": Refused("write the white space into a regex or grammar"),
    "regex": Refused(_STRUCTURED),
    "ebnf": Refused(_STRUCTURED),
    "json_schema": Refused(_STRUCTURED),
    "structural_tag": Refused(_STRUCTURED),
    "lora_request": Refused(_LORA),
    "lora_path": Refused(_LORA),
    "num_speculative_tokens": Refused(_DRAFTS),
    "speculative_config": Refused(_DRAFTS),
    "request_id": Refused("send an X-Request-Id header"),
    "kv_transfer_params": Refused("a request runs on this server alone"),
    "cache_salt": Refused("prompts share one prefix cache"),
    "return_tokens_as_token_ids": Refused("use return_token_ids", (False,)),
    "mm_processor_kwargs": Refused("only text is taken"),
    "vllm_xargs": Refused("every option has a field of its own"),
    "min_new_tokens": Refused("use min_tokens"),
    "max_new_tokens": Refused("use max_tokens"),
    "no_stop_trim": Refused("use include_stop_str_in_output", (False,)),
    "return_hidden_states": Refused("hidden states are not given out", (False,)),
}
CHAT: Mapping[str, Refused] = {
    **COMMON,
    "functions": Refused("use tools"),
    "function_call": Refused("use tool_choice"),
    "audio": Refused("only text is generated"),
    "web_search_options": Refused("the server reaches no other machine"),
    "verbosity": Refused("say in the prompt how long an answer should be", ("medium",)),
    "echo": Refused("read the prompt you sent, or use /v1/completions", (False,)),
    "chat_template": Refused("the model's own template is used; render yours and send it to /v1/completions"),
    "documents": Refused(
        "put documents into the messages, or into chat_template_kwargs if the template knows them"
    ),
    "include_reasoning": Refused("leave reasoning_content unread", (True,)),
    "separate_reasoning": Refused("reasoning is always apart, in reasoning_content", (True,)),
    "add_special_tokens": Refused("the chat template has placed them already", (False,)),
    "moderation": Refused("there is none"),
}
COMPLETIONS: Mapping[str, Refused] = {
    **COMMON,
    "suffix": Refused(
        "filling in the middle is not built; write the model's own marks into the prompt", ("",)
    ),
    "prompt_embeds": Refused("send text or token ids"),
    "messages": Refused("send conversations to /v1/chat/completions"),
    "tools": Refused("send tools to /v1/chat/completions", ([],)),
}


def drop_refused(body: dict[str, Any], refused: Mapping[str, Refused]) -> dict[str, Any]:
    """The body without nulls and without harmless values of refused fields.

    Raises:
        ServerError: DP633, a field that is not supported asks for something.
    """
    kept = {}
    for name, value in body.items():
        if value is None:
            continue
        if name not in refused:
            kept[name] = value
        elif not _is_one_of(value, refused[name].harmless):
            raise ServerError("DP633", f"{name} is not supported: {refused[name].hint}", name)
    return kept


def _is_one_of(value: object, harmless: tuple[object, ...]) -> bool:
    """Like `in`, with 1 and True told apart."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in harmless)
