"""Explanations of DP600 to DP615: what a server refuses before it reads a request, and why one cannot start."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

_ADDRESSED: tuple[Explanation, ...] = (
    Explanation(
        code="DP600",
        name="model-not-served",
        title="The server does not serve a model of this name.",
        meaning="One server serves one model, under the names it was started with. The `model` of the request is none of them.",
        triggers=(
            "A client that keeps the name of another provider's model.",
            "The hub id, where the server was started with `--served-model-name`.",
        ),
        fix="Take a name that `GET /v1/models` lists, or start the server with the name your clients use.",
        before='client.completions.create(model="gpt-4o", prompt="Hi")',
        after='client.completions.create(model=client.models.list().data[0].id, prompt="Hi")',
        prevention="Give the server a name of its role (`--served-model-name assistant`), which stays when the model changes.",
    ),
    Explanation(
        code="DP601",
        name="bad-api-key",
        title="The API key is missing, or not one of the server's.",
        meaning=(
            "The server was started with API keys, and this route is for those who have one. The key is looked for in the "
            "header `Authorization: Bearer KEY`. The message never repeats what was sent."
        ),
        triggers=(
            "No header, or one of another kind (`Basic`, `x-api-key`).",
            "A key that was taken out of the server's file.",
            "A line break or a space at the end of the key, out of a file.",
        ),
        fix="Send a key of the server. Whoever runs it finds them in the file of `--api-key-file` and in `DRAFTPROOF_API_KEYS`.",
        before="curl http://localhost:8000/v1/models",
        after='curl http://localhost:8000/v1/models -H "Authorization: Bearer $KEY"',
        prevention="Keep the key in the client's environment (`OPENAI_API_KEY`), not in its code.",
    ),
    Explanation(
        code="DP602",
        name="no-such-address",
        title="There is nothing at this address.",
        meaning="The server runs and was reached, but it has no route of this path.",
        triggers=(
            "`/v1` missing from a client's base URL, or there twice.",
            "A proxy that takes a part of the path away, or leaves one there.",
            "The playground, on a server started with `--no-playground`.",
        ),
        fix="Use one of the paths in `/openapi.json`.",
        before='OpenAI(base_url="http://localhost:8000")',
        after='OpenAI(base_url="http://localhost:8000/v1")',
        prevention="Try a new base URL with `GET /v1/models` first.",
    ),
    Explanation(
        code="DP603",
        name="wrong-method",
        title="The address takes another HTTP method.",
        meaning="The route is there, but for another method; the answer's header `Allow` says for which.",
        triggers=(
            "A completion route opened in a browser, which sends GET.",
            "A redirect that turned POST into GET.",
        ),
        fix="Send the method that `Allow` names.",
        before="curl http://localhost:8000/v1/completions",
        after="curl http://localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"Hi\"}'",
        prevention="Let a client library send the requests.",
    ),
)
_LATER: tuple[Explanation, ...] = (
    Explanation(
        code="DP604",
        name="queue-full",
        title="As many requests wait as may wait.",
        meaning=(
            "The engine is busy, and so many requests wait for it that this one would wait too long. It is refused at once, and "
            "nothing of it was done. `Retry-After` says in how many seconds a new try makes sense."
        ),
        triggers=(
            "More load than this machine can take.",
            "Very long outputs.",
            "A `--max-queue` that is very small.",
        ),
        fix="Try again after the seconds in `Retry-After`; most client libraries do so by themselves.",
        before="draftproof serve smollm2-135m --max-queue 0",
        after="draftproof serve smollm2-135m --max-queue 256",
        prevention="Watch `draftproof:num_requests_waiting`; limit `max_completion_tokens`; add servers.",
    ),
    Explanation(
        code="DP605",
        name="too-many-requests-of-key",
        title="This API key has as many requests running as it may have.",
        meaning=(
            "The server lets each key have only so many requests at once, so that one caller cannot keep out the others. Without "
            "API keys all callers count as one."
        ),
        triggers=(
            "A script that sends all its requests at once.",
            "Several programs with the same key.",
            "`--max-concurrent-per-key` on a server without keys.",
        ),
        fix="Send fewer at once, or try again after the seconds in `Retry-After`.",
        before="await asyncio.gather(*(ask(prompt) for prompt in prompts))",
        after=(
            "limit = asyncio.Semaphore(8)\nasync def polite(prompt):\n    async with limit:\n        return await ask(prompt)"
        ),
        prevention="Give every program a key of its own.",
    ),
    Explanation(
        code="DP606",
        name="server-shutting-down",
        title="The server is about to end and takes no new requests.",
        meaning="It was told to end. What runs may finish; what is new has to go elsewhere, or wait until this one is back.",
        triggers=("A new version is being rolled out.", "Somebody stopped the server."),
        fix="Send the request again after the seconds in `Retry-After`.",
        before='{"error": {"code": "DP606", ...}}   # status 503',
        after="OpenAI(max_retries=5)",
        prevention="Let the load balancer ask `/ready`, which answers 503 from the first moment of the shutdown.",
    ),
    Explanation(
        code="DP609",
        name="engine-not-working",
        title="The engine does not work at the moment.",
        meaning="The thread that computes has ended, or one of its steps has taken more than a minute. Requests could only wait.",
        triggers=("A machine that was asleep or swaps.", "A driver that hangs.", "A bug."),
        fix="If it lasts, start the server again, and report what its log says.",
        before="kubectl get pods   # running, but every request waits",
        after="livenessProbe: {httpGet: {path: /health, port: 8000}}",
        prevention="Let whatever runs the server ask `/health` and start it again on 503.",
    ),
)
_BODIES: tuple[Explanation, ...] = (
    Explanation(
        code="DP607",
        name="body-too-long",
        title="The body of the request is longer than the server takes.",
        meaning="The server stops to read at its limit, so that no caller can fill its memory. It closed the connection.",
        triggers=(
            "Files pasted into prompts.",
            "A very long conversation.",
            "A limit set low by `--max-body`.",
        ),
        fix="Send less, or start the server with a higher limit.",
        before="draftproof serve smollm2-135m --max-body 64k",
        after="draftproof serve smollm2-135m --max-body 32m",
        prevention="Cut conversations in the client: what exceeds the model's context is refused in any case.",
    ),
    Explanation(
        code="DP613",
        name="body-too-slow",
        title="The body of the request did not come whole in time.",
        meaning="A connection that sends nothing, or a byte now and then, holds a place for nothing. The server closed it.",
        triggers=(
            "A `Content-Length` greater than what was sent.",
            "A very slow network.",
            "A client that stopped in the middle.",
        ),
        fix="Send the body at once; raise `--body-timeout` where the network is that slow.",
        before="curl -H 'Content-Length: 500' -H 'Content-Type: application/json' -d '{}' http://localhost:8000/v1/completions",
        after="curl -H 'Content-Type: application/json' -d '{\"prompt\": \"Hi\"}' http://localhost:8000/v1/completions",
        prevention="Let the client compute the length. A proxy in front collects bodies before it passes them on.",
    ),
    Explanation(
        code="DP608",
        name="internal-fault",
        title="Something went wrong inside the server.",
        meaning=(
            "This is a fault of the server, not of the request. The answer tells no more, because details could hold what is "
            "nobody else's business; the log has them, under the request's id (`x-request-id`)."
        ),
        triggers=("A bug.",),
        fix="Send the request again; if it happens again, report it with the lines of the log that carry the id.",
        before='{"error": {"code": "DP608", ...}}',
        after="grep REQUEST_ID server.log",
        prevention="None known; a report helps.",
    ),
    Explanation(
        code="DP614",
        name="unknown-error-code",
        title="No error has this code or name.",
        meaning="`/api/errors/{code}` explains the errors of draftproof, by code or name. This is neither.",
        triggers=("A typing error.", "A code of another program.", "A code of a newer version."),
        fix="Look it up in the list at `/api/errors`.",
        before="curl http://localhost:8000/api/errors/604",
        after="curl http://localhost:8000/api/errors/DP604",
        prevention="Follow the address in `explanation`, which every error carries.",
    ),
)
_STARTING: tuple[Explanation, ...] = (
    Explanation(
        code="DP610",
        name="bad-server-option",
        title="An option of the server has a value that it cannot have.",
        meaning="The option is checked before the model is loaded. The message names it and says what is expected.",
        triggers=(
            "A negative number or a port above 65535.",
            "A size with an unknown unit.",
            "A path without / at the front.",
        ),
        fix="Correct the value; `draftproof serve --help` lists all options.",
        before="draftproof serve smollm2-135m --max-body 8MB",
        after="draftproof serve smollm2-135m --max-body 8m",
        prevention="Keep the command in a file under version control.",
    ),
    Explanation(
        code="DP611",
        name="address-not-free",
        title="The server cannot listen at this address.",
        meaning="The port is taken, needs rights that this user lacks, or the host is no address of this machine.",
        triggers=(
            "A server that still runs.",
            "A port below 1024.",
            "The machine's public address, inside a container.",
        ),
        fix="Stop the other program, take another port (`--port 0` takes a free one), or listen at 0.0.0.0.",
        before="draftproof serve smollm2-135m --port 80",
        after="draftproof serve smollm2-135m --port 8000",
        prevention="Let whatever runs the server wait for the end of the old one.",
    ),
    Explanation(
        code="DP612",
        name="bad-api-keys",
        title="The API keys cannot be read, or there are none where some were promised.",
        meaning=(
            "A file or variable for keys was named. Were it empty and the server started all the same, everybody would be let "
            "in, so it does not start. Keys are printable ASCII text without spaces."
        ),
        triggers=(
            "A file that is not there, or that this user may not read.",
            "`DRAFTPROOF_API_KEYS=` with nothing behind it, from a secret that was not filled in.",
        ),
        fix="Put at least one key into the file, one a line, or unset what should not be used.",
        before="DRAFTPROOF_API_KEYS= draftproof serve smollm2-135m",
        after="openssl rand -hex 24 > keys.txt && draftproof serve smollm2-135m --api-key-file keys.txt",
        prevention="Have keys made by a tool, and the file readable by the server's user alone.",
    ),
    Explanation(
        code="DP615",
        name="no-traces",
        title="Traces cannot be sent.",
        meaning="Traces go to an OpenTelemetry collector over OTLP (HTTP), by packages that are not installed unasked.",
        triggers=(
            "OpenTelemetry's packages are missing.",
            "An endpoint without http://, as the gRPC exporter takes it.",
        ),
        fix="Install `draftproof[otel]` and give the collector's URL for traces, or leave the option out.",
        before="draftproof serve smollm2-135m --otlp-traces-endpoint localhost:4317",
        after="draftproof serve smollm2-135m --otlp-traces-endpoint http://localhost:4318/v1/traces",
        prevention="Install the extra together with the package.",
    ),
)

EXPLANATIONS: tuple[Explanation, ...] = (*_ADDRESSED, *_LATER, *_BODIES, *_STARTING)
