"""Explanations of DP63x and DP64x: what is wrong with an HTTP request, or ended it."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

_BODIES: tuple[Explanation, ...] = (
    Explanation(
        code="DP630",
        name="bad-request-body",
        title="The body of the request is not a JSON object.",
        meaning=(
            "Every POST route reads one JSON object in UTF-8, sent with the content type application/json. What came "
            "could not be read as one, so no field of it was looked at. The message says where reading failed."
        ),
        triggers=(
            "`curl -d` without `-H 'Content-Type: application/json'`: curl then says it sends a form.",
            "A comma too many, single quotes, or a text with a bare line break in it.",
            "A list or a text instead of an object; an empty body.",
            "Half a surrogate pair (`\\ud83d` alone) from a text that was cut in the middle of an emoji.",
        ),
        fix="Let a JSON library write the body, and send it as application/json.",
        before="curl http://localhost:8000/v1/completions -d \"{'prompt': 'Hi'}\"",
        after=(
            "curl http://localhost:8000/v1/completions \\\n"
            "  -H 'Content-Type: application/json' -d '{\"prompt\": \"Hi\"}'"
        ),
        prevention="Use a client library; in shell scripts build bodies with `jq -n`.",
    ),
    Explanation(
        code="DP631",
        name="bad-request-field",
        title="A field of the request has a value that it cannot have.",
        meaning=(
            "The field exists, but its value is of another type than the one expected, or out of bounds. Values are not "
            'converted: the text "5" is no number, and 1 is not true. `param` names the field.'
        ),
        triggers=(
            "Numbers sent as texts, often out of a form or an environment variable.",
            "A role that does not exist, or content that is neither a text nor a list of parts.",
            "More log-probabilities than the 20 that a request may ask for.",
        ),
        fix="Send the type that the message asks for.",
        before='{"messages": [{"role": "user", "content": "Hi"}], "stream": "true"}',
        after='{"messages": [{"role": "user", "content": "Hi"}], "stream": true}',
        prevention="Check requests against `/openapi.json`, or use a typed client.",
    ),
    Explanation(
        code="DP632",
        name="unknown-request-field",
        title="The request has a field that this server does not know.",
        meaning=(
            "A field that nobody acts on would be ignored silently, and a slip of the keyboard would change the output "
            "without a word. So it is refused, with the closest known name."
        ),
        triggers=(
            "A typing error: `temprature`.",
            "An option of another server, or of a newer API.",
            "A field one level too high or too deep (`include_usage` belongs into `stream_options`).",
        ),
        fix="Correct the name, move the field to its place, or leave it out.",
        before='{"prompt": "Hi", "temprature": 0.2}',
        after='{"prompt": "Hi", "temperature": 0.2}',
        prevention="Take names from docs/api.md or `/openapi.json`.",
    ),
    Explanation(
        code="DP633",
        name="unsupported-request-field",
        title="The request asks for something that this server does not do.",
        meaning=(
            "The field is known, from OpenAI's API or from another engine, but not supported here. Its neutral value (null, "
            "or for instance `best_of: 1`) is taken; anything else is refused, for an answer without it would be another one "
            "than you asked for."
        ),
        triggers=(
            "`functions` and `function_call`, which OpenAI replaced by `tools`.",
            "`guided_json` and its like, which became `structured_outputs`.",
            "Beam search, `suffix`, images, audio.",
        ),
        fix="Do what the message says instead, or leave the field out.",
        before='{"prompt": "Hi", "guided_regex": "[a-z]+"}',
        after='{"prompt": "Hi", "structured_outputs": {"regex": "[a-z]+"}}',
        prevention="docs/api.md lists the fields there are.",
    ),
    Explanation(
        code="DP634",
        name="endpoint-not-built",
        title="This part of the API is not built.",
        meaning=(
            "The address is one that other servers have. This one does not, yet or at all, and says so instead of an empty "
            "404, so that you need not look for a typing error."
        ),
        triggers=(
            "A client that uses OpenAI's Responses API by default.",
            "Loading a LoRA adapter into the running server.",
            "Asking a server for text about embeddings, images or audio.",
        ),
        fix="Use /v1/chat/completions or /v1/completions; merge a LoRA adapter into the model before serving it.",
        before='client.responses.create(model="smollm2-135m", input="Hi")',
        after=(
            'client.chat.completions.create(\n    model="smollm2-135m", messages=[{"role": "user", "content": "Hi"}]\n)'
        ),
        prevention="`/openapi.json` lists the addresses there are.",
    ),
    Explanation(
        code="DP635",
        name="unsupported-content-part",
        title="A message holds something other than text.",
        meaning=(
            "The content of a message may be a list of parts, as with OpenAI, but only of type text: the model that is served "
            "reads nothing else. Leaving the other parts out silently would make the model answer about an image it never saw."
        ),
        triggers=(
            "`image_url`, `input_audio` or `file` parts.",
            "Parts of another API: `input_text` belongs to the Responses API.",
        ),
        fix="Send text parts alone; describe the rest in words or serve it to a model that takes it.",
        before='{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "..."}}]}',
        after='{"role": "user", "content": [{"type": "text", "text": "A red square on white. What is it?"}]}',
        prevention="Filter attachments in the client, where the user can still be told.",
    ),
)
_TOGETHER: tuple[Explanation, ...] = (
    Explanation(
        code="DP636",
        name="fields-do-not-fit-together",
        title="Fields of the request exclude each other, or one lacks the other it needs.",
        meaning=(
            "Each field is fine by itself, but together they say two things at once, or one means nothing without another. "
            "The server does not guess which was meant."
        ),
        triggers=(
            "`max_tokens` and `max_completion_tokens` both.",
            "`response_format` and `structured_outputs`, or one of them with `tools`.",
            "`top_logprobs` without `logprobs`, `stream_options` without `stream`.",
            "`continue_final_message` with `add_generation_prompt`.",
        ),
        fix="Leave one of them out, or add the one that is missing; the message says which.",
        before='{"messages": [...], "top_logprobs": 3}',
        after='{"messages": [...], "logprobs": true, "top_logprobs": 3}',
        prevention="Set such pairs at one place in the client.",
    ),
    Explanation(
        code="DP637",
        name="missing-request-field",
        title="A field that the request must have is missing.",
        meaning="Without it there is nothing to do, and no default that would be right. Null counts as missing.",
        triggers=(
            "A body without `messages` or `prompt`.",
            "A chat body sent to /v1/completions, or the other way round.",
            "A message of role `tool` without the `tool_call_id` it answers.",
        ),
        fix="Add the field that `param` names.",
        before='{"messages": [{"content": "Hi"}]}',
        after='{"messages": [{"role": "user", "content": "Hi"}]}',
        prevention="Use a typed client, which will not send such a request.",
    ),
    Explanation(
        code="DP638",
        name="too-many-outputs",
        title="One request asks for more outputs than the server makes for one.",
        meaning=(
            "Every prompt of a request, times `n`, is an output that takes its place in the batch. The server sets a limit, so "
            "that one request cannot keep all others waiting."
        ),
        triggers=("A large `n`.", "A long list of prompts in one completion request."),
        fix="Send several requests; they run in one batch anyway. Or start the server with a higher limit.",
        before='{"prompt": ["...", "... (500 of them)"]}',
        after='{"prompt": ["...", "... (32 of them)"]}   # and the others in further requests',
        prevention="Cut lists of prompts into slices in the client.",
    ),
    Explanation(
        code="DP639",
        name="reserved-template-variable",
        title="`chat_template_kwargs` names something that is no variable of a template.",
        meaning=(
            "The variables are handed to the model's chat template. Some names mean the rendering itself: which template, "
            "which messages, whether to tokenize. Those have fields of their own, or are not for a client to set."
        ),
        triggers=(
            "`add_generation_prompt` or `tools` inside `chat_template_kwargs`.",
            "A template of one's own under `chat_template`.",
        ),
        fix="Use the request's own field; render a template of your own and send the text to /v1/completions.",
        before='{"messages": [...], "chat_template_kwargs": {"add_generation_prompt": false}}',
        after='{"messages": [...], "add_generation_prompt": false}',
        prevention="Keep to the variables that the model's card names, such as `enable_thinking`.",
    ),
)
_ENDED: tuple[Explanation, ...] = (
    Explanation(
        code="DP640",
        name="request-timeout",
        title="The request took longer than the server allows.",
        meaning=(
            "The server's time limit for one request, waiting included, has passed. The request was ended and its memory "
            "given free. A stream has had its text so far; an answer in one piece is lost."
        ),
        triggers=(
            "A very long output on a small machine.",
            "A full queue in front of the request.",
            "A time limit meant for short answers.",
        ),
        fix="Ask for fewer tokens, stream, send fewer requests at once, or start the server with a higher limit.",
        before="draftproof serve smollm2-135m --request-timeout 10",
        after="draftproof serve smollm2-135m --request-timeout 600",
        prevention="Set `max_completion_tokens` in every request, to what you will read.",
    ),
    Explanation(
        code="DP641",
        name="request-ended-by-server",
        title="The server ended the request before it was complete.",
        meaning=(
            "The server is shutting down and the time it grants running requests has passed. Nothing is wrong with the "
            "request; sent again, with the same seed, it gives the same answer."
        ),
        triggers=("A new version is being rolled out.", "Somebody stopped the server."),
        fix="Send the request again, to another server or when this one is back.",
        before="draftproof serve smollm2-135m --grace 1",
        after="draftproof serve smollm2-135m --grace 120",
        prevention="Give the server as long a grace time as your longest answers take.",
    ),
    Explanation(
        code="DP643",
        name="stream-failed",
        title="Something went wrong inside the server while it wrote a stream.",
        meaning=(
            "This is a fault of the server, not of the request. The status had long been sent, so the error comes as the "
            "stream's last event. The server's log has the details, under the request's id."
        ),
        triggers=("A bug.",),
        fix="Send the request again; if it happens again, report it with the log's lines.",
        before='data: {"error": {"code": "DP643", ...}}',
        after="data: [DONE]",
        prevention="None known; a report helps.",
    ),
)

EXPLANATIONS: tuple[Explanation, ...] = (*_BODIES, *_TOGETHER, *_ENDED)
