"""From what a client asks to what the engine takes: `SamplingParams` and `ChatOptions`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.engine import LLM
from draftproof.engine.chat_options import ChatOptions
from draftproof.errors import RequestError, ServerError
from draftproof.sampling import SamplingParams, StructuredOutputs
from draftproof.server.protocol import ChatRequest, CompletionRequest, TextRequest, content_text
from draftproof.server.protocol.common import MAX_STOPS, Prediction, ResponseFormat, StructuredOutputsBody
from draftproof.server.protocol.faults import renamed

COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that names none, as with OpenAI."""

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "min_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "banned_token_ids",
    "prompt_logprobs",
)
"""Fields that mean the same here and there and are checked there."""

_TEMPLATE_ARGUMENTS = frozenset(
    {
        "self",
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)
"""Names that are arguments of rendering, not variables of a template."""


@dataclass(frozen=True)
class FromPlan:
    """What the plan for tool calls asks of sampling.

    Attributes:
        structured_outputs: the form of calls, or None where there are none.
        stop: stop strings besides the client's.
        keep_special_tokens: whether calls are marked by special tokens, which therefore must leave text.
    """

    structured_outputs: StructuredOutputs | None = None
    stop: tuple[str, ...] = ()
    keep_special_tokens: bool = False


NO_PLAN = FromPlan()


def draw_seed() -> int:
    """A seed for a request that names none: 53 random bits, so that a client in JavaScript reads it back unharmed."""
    return secrets.randbits(53)


def chat_params(
    request: ChatRequest, context: int, temperature: float, plan: FromPlan = NO_PLAN
) -> SamplingParams:
    """The sampling of a chat request.

    Args:
        request: the body.
        context: most tokens the model's context holds; what `max_completion_tokens` is when it is left out.
        temperature: when left out.
        plan: what tool calls need.

    Raises:
        ServerError: a field is not acceptable (DP42x to DP44x, DP631, DP636); `param` names it.
    """
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise _conflict("max_completion_tokens", "max_tokens", "they are two names of one limit")
    if request.top_logprobs is not None and not request.logprobs:
        raise _conflict("top_logprobs", None, "set logprobs to true with it")
    names = {"logprobs": "top_logprobs"}
    limit = request.max_tokens
    if request.max_completion_tokens is not None:
        names["max_tokens"], limit = "max_completion_tokens", request.max_completion_tokens
    asked = _asked(request, temperature, plan)
    asked["max_tokens"] = context if limit is None else limit
    if request.logprobs:
        asked["logprobs"] = request.top_logprobs or 0
    return _made(request, asked, names)


def completion_params(request: CompletionRequest, temperature: float) -> SamplingParams:
    """The sampling of a completion request. `max_tokens` 0 becomes 1: the engine always makes a token; whoever answers drops it.

    Args:
        request: the body.
        temperature: when left out.

    Raises:
        ServerError: as for `chat_params`.
    """
    asked = _asked(request, temperature, NO_PLAN)
    limit = COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    asked["max_tokens"] = 1 if request.echo and limit == 0 and type(limit) is int else limit
    if request.logprobs is not None:
        asked["logprobs"] = request.logprobs
        if request.echo:
            asked["prompt_logprobs"] = max(request.logprobs, request.prompt_logprobs or 0)
    return _made(request, asked, {})


def chat_options(request: ChatRequest) -> ChatOptions:
    """How the model's template is to render the conversation, functions aside.

    Raises:
        ServerError: DP636, DP639.
    """
    continued = bool(request.continue_final_message)
    if continued and request.add_generation_prompt:
        raise _conflict("continue_final_message", "add_generation_prompt", "a turn is opened or continued")
    variables = dict(request.chat_template_kwargs or {})
    return ChatOptions(
        add_generation_prompt=not continued
        if request.add_generation_prompt is None
        else request.add_generation_prompt,
        continue_final_message=continued,
        template_kwargs=_reasoning(request.reasoning_effort) | checked_variables(variables),
    )


def checked_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a template. Raises `ServerError` DP639 for a name that is none."""
    for name in variables:
        if name in _TEMPLATE_ARGUMENTS:
            param = f"chat_template_kwargs.{name}"
            raise ServerError(
                "DP639",
                f"{param} is no variable of a template: it would change how the template is run",
                param,
            )
    return dict(variables)


def _reasoning(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    # Templates know one of two variables: how much to think, or whether to think at all.
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


def structured_of(request: TextRequest) -> StructuredOutputs | None:
    """The form that the client asks for.

    Raises:
        ServerError: DP444, DP445, DP636, DP637.
    """
    form = _of_format(request.response_format) if request.response_format is not None else None
    if request.structured_outputs is None:
        return form
    if form is not None:
        raise _conflict("structured_outputs", "response_format", "both say what form the output has")
    return _of_fields(request.structured_outputs)


def _of_format(asked: ResponseFormat) -> StructuredOutputs | None:
    if asked.type == "json_schema":
        wrapped = asked.json_schema
        if wrapped is None:
            raise ServerError(
                "DP637", "response_format.json_schema is missing", "response_format.json_schema"
            )
        param = "response_format.json_schema.schema"
        if wrapped.schema_ is None:
            raise ServerError("DP637", f"{param} is missing", param)
        if not isinstance(wrapped.schema_, (dict, bool)):
            raise ServerError("DP445", f"{param} must be a schema (an object)", param)
        return _structured(param, StructuredOutputsBody.model_construct(json_=wrapped.schema_))
    if asked.json_schema is not None:
        raise _conflict(
            "response_format.json_schema", "response_format.type", "set type to 'json_schema' with it"
        )
    return StructuredOutputs(json_object=True) if asked.type == "json_object" else None


def _of_fields(asked: StructuredOutputsBody) -> StructuredOutputs:
    return _structured("structured_outputs", asked)


def _structured(param: str, asked: StructuredOutputsBody) -> StructuredOutputs:
    schema = {} if asked.json_ is True else asked.json_
    try:
        return StructuredOutputs(
            json=schema,
            regex=asked.regex,
            grammar=asked.grammar,
            choice=asked.choice,
            json_object=bool(asked.json_object),
        )
    except RequestError as error:
        found = error.message.split(" ")[0].rstrip(":")
        if param != "structured_outputs":  # the client knows the field by another name
            raise ServerError(error.code, error.message.replace(found, param, 1), param) from error
        raise ServerError(error.code, error.message, found.replace("[", ".").replace("]", "")) from error


def _asked(request: TextRequest, temperature: float, plan: FromPlan) -> dict[str, Any]:
    """The fields that were given, under the engine's names."""
    asked = {name: getattr(request, name) for name in _SAME_NAME if getattr(request, name) is not None}
    asked.setdefault("temperature", temperature)
    asked["seed"] = draw_seed() if request.seed is None or request.seed == -1 else request.seed
    asked["stop"] = _stops(request.stop, plan.stop)
    form = structured_of(request)
    if form is not None and plan.structured_outputs is not None:
        other = "response_format" if request.structured_outputs is None else "structured_outputs"
        raise _conflict(
            other, "tools", "calls and the form of the answer cannot both be fixed; set tool_choice to 'none'"
        )
    asked["structured_outputs"] = form or plan.structured_outputs
    if plan.keep_special_tokens:
        asked["skip_special_tokens"] = False
    if request.speculative is not None and request.speculative.draft_length is not None:
        asked["draft_length"] = request.speculative.draft_length
    if request.prediction is not None:
        asked["prediction"] = _predicted(request.prediction)
    return asked


def _stops(asked: object, more: tuple[str, ...]) -> object:
    if isinstance(asked, list) and len(asked) > MAX_STOPS:
        raise ServerError("DP631", f"stop must have at most {MAX_STOPS} strings, got {len(asked)}", "stop")
    if not more:
        return asked
    if asked is None:
        return more
    return (asked, *more) if isinstance(asked, str) else (*asked, *more) if isinstance(asked, list) else asked


def _predicted(prediction: Prediction) -> str | None:
    return content_text("prediction.content", prediction.content) or None


def _made(request: TextRequest, asked: dict[str, Any], names: Mapping[str, str]) -> SamplingParams:
    names = {"draft_length": "speculative.draft_length", "prediction": "prediction.content", **names}
    try:
        # Names were chosen above, one by one; what was not given keeps the default it has there.
        return SamplingParams(**asked)
    except RequestError as error:
        raise renamed(error, frozenset(type(request).model_fields), names) from error


def usual_temperature(llm: LLM) -> float:
    """The temperature of a request that names none: what the model's generation config samples with, else OpenAI's 1.

    The offline API decodes greedily where the config does not ask for sampling, as Transformers does; clients of OpenAI's API
    expect the API's default.
    """
    own = llm._loaded.defaults.temperature
    return own if own > 0 else 1.0


def check_together(request: TextRequest) -> None:
    """That fields which need each other, or exclude each other, are given so. Raises `ServerError` DP636."""
    options = request.stream_options
    if not request.stream:
        if options is not None:
            raise _conflict("stream_options", None, "set stream to true with it")
        if request.wants_pieces:
            raise _conflict("speculative.include_pieces", None, "set stream to true with it")
        return
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise _conflict("stream_options.continuous_usage_stats", None, "set include_usage to true with it")
    if request.prompt_logprobs is not None:
        raise _conflict("prompt_logprobs", "stream", "a stream holds what is generated")
    if isinstance(request, CompletionRequest) and request.echo and request.logprobs is not None:
        raise _conflict("logprobs", "echo with stream", "a stream has no log-probabilities of its prompt")


def check_size(outputs: int, most: int, param: str) -> None:
    """That a request does not ask for more outputs than the server makes at once. Raises `ServerError` DP638."""
    if outputs > most:
        raise ServerError(
            "DP638",
            f"{outputs} outputs are more than the {most} that this server makes for one request",
            param,
        )


def _conflict(field: str, other: str | None, why: str) -> ServerError:
    said = f"{field} and {other} exclude each other" if other else f"{field} does not stand alone"
    return ServerError("DP636", f"{said}: {why}", field)
