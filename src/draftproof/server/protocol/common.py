"""What requests for text have in common, whatever they start from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from draftproof.server.protocol.types import (
    Biases,
    Body,
    Count,
    DraftLength,
    Factor,
    Penalty,
    Positive,
    Schema,
    Share,
    Strings,
    Switch,
    Temperature,
    TokenIds,
    Whole,
)

MAX_LOGPROBS = 20
"""Most of the likeliest tokens that a request may see, as with OpenAI's chat API."""
MAX_STOPS = 64
"""Most stop strings: each costs a look at every token, of every request in the batch."""


class StreamOptions(Body):
    """How a stream reports.

    Attributes:
        include_usage: one more chunk at the end, without choices, with the counts of tokens.
        continuous_usage_stats: the counts so far in every chunk (needs `include_usage`, as in vLLM).
        include_obfuscation: OpenAI's padding of chunks; only false is taken.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Speculative(Body):
    """How this request is to be drafted. The text is the same whatever is asked.

    Attributes:
        draft_length: ``"auto"``, or exactly so many tokens where the drafter can; 0 for none.
        include_pieces: say in every chunk which text came from the drafter.
    """

    draft_length: DraftLength = None
    include_pieces: bool | None = None


class Prediction(Body):
    """Text that the answer is expected to resemble: served as drafts.

    Attributes:
        type: ``"content"``.
        content: the text, or a list of text parts.
    """

    type: Literal["content"]
    content: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
    ]


class JsonSchemaFormat(Body):
    """OpenAI's wrapping of a schema.

    Attributes:
        name: of the schema; not used.
        schema_: that the output fits.
        description: for the reader; not used.
        strict: output always fits, so that both values mean the same.
    """

    name: str | None = None
    schema_: Schema = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputsBody(Body):
    """vLLM's `structured_outputs`: exactly one field is set. See `StructuredOutputs`."""

    json_: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]})] = Field(
        default=None, alias="json"
    )
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    json_object: bool | None = None


class TextRequest(Body):
    """What every request for text may say. Fields that are missing or null mean their defaults.

    Attributes:
        model: a served name; None: the one there is.
        stream, stream_options: see `StreamOptions`.
        max_tokens ... prompt_logprobs: as in `SamplingParams`, which checks them.
        response_format, structured_outputs: the form of the output; one of the two.
        prediction, speculative: see `Prediction` and `Speculative`.
        return_token_ids: give the ids of prompt and output.
        priority: smaller goes first; 0 as a rule.
        user, safety_identifier, prompt_cache_key, prompt_cache_retention, metadata: taken and without effect.
        service_tier, store: taken where they ask for what happens anyway.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count = None
    temperature: Temperature = None
    top_p: Share = None
    top_k: Whole = None
    min_p: Share = None
    n: Positive = None
    seed: Whole = None
    stop: Strings = None
    stop_token_ids: TokenIds = None
    ignore_eos: Switch = None
    include_stop_str_in_output: Switch = None
    skip_special_tokens: Switch = None
    min_tokens: Count = None
    repetition_penalty: Factor = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Biases = None
    allowed_token_ids: TokenIds = None
    banned_token_ids: TokenIds = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsBody | None = None
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    return_token_ids: bool | None = None
    priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @property
    def wants_pieces(self) -> bool:
        return bool(self.speculative and self.speculative.include_pieces)

    @property
    def wants_usage(self) -> bool:
        """Whether the last chunk of a stream is to be the counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        return self.wants_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)
