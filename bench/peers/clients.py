"""What every peer is asked and gives back, and a client for servers with the OpenAI completions interface."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """A batch handed in at once, greedy, every output exactly `max_tokens` long.

    Attributes:
        prompts: token ids of each prompt.
        texts: the same prompts as text, for a peer that takes no token ids.
        max_tokens: of each output.
    """

    prompts: list[list[int]]
    texts: list[str]
    max_tokens: int


@dataclass(frozen=True)
class Timing:
    """What came of a job, seen from outside. Seconds count from handing it in; lists have an entry a request.

    Attributes:
        first: when the first token came.
        last: when the last one came.
        tokens: output tokens.
        prompt_tokens: of the prompts, by the peer's own count.
    """

    first: list[float]
    last: list[float]
    tokens: list[int]
    prompt_tokens: list[int]

    @property
    def total_tokens_per_second(self) -> float:
        """All output tokens over the whole time, prompts included."""
        return sum(self.tokens) / max(self.last)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after everybody's first one over the time from then on; for one request, plain decoding speed."""
        start, end = max(self.first), max(self.last)
        return (sum(self.tokens) - len(self.tokens)) / (end - start) if end > start else float("nan")

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens over the time to the last first token."""
        return sum(self.prompt_tokens) / max(self.first)


@dataclass(frozen=True)
class Dialect:
    """How a server wants to be asked.

    Attributes:
        model: its name for the model.
        takes_ids: whether a prompt may be token ids.
        extra: fields of the request that switch off the end of text and the prompt cache.
    """

    model: str
    takes_ids: bool
    extra: dict[str, object] = field(default_factory=dict)


def complete_all(port: int, dialect: Dialect, job: Job) -> Timing:
    """Stream all completions of a job at once, one connection each."""
    count = len(job.prompts)
    first, last = [0.0] * count, [0.0] * count
    tokens, prompt_tokens = [0] * count, [0] * count
    failures: list[BaseException] = []
    ready = threading.Barrier(count + 1)
    started = 0.0

    def one(place: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1800)
        try:
            connection.connect()
            ready.wait()
            prompt: object = job.prompts[place] if dialect.takes_ids else job.texts[place]
            usage = None
            for event, when in _events(connection, _body(dialect, prompt, job.max_tokens)):
                usage = event.get("usage") or usage
                choices = event.get("choices") or []
                if choices and (choices[0].get("text") or choices[0].get("finish_reason") is None):
                    tokens[place] += 1
                    first[place] = first[place] or when - started
                    last[place] = when - started
            if usage:  # a server's own count; a chunk may hold more or less than a token
                tokens[place], prompt_tokens[place] = usage["completion_tokens"], usage["prompt_tokens"]
            else:
                prompt_tokens[place] = len(job.prompts[place])
        except BaseException as error:
            failures.append(error)
            ready.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(count)]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    with suppress(threading.BrokenBarrierError):  # a connection failed; its error is among the failures
        ready.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"a request failed: {failures[0]!r}") from failures[0]
    return Timing(first, last, tokens, prompt_tokens)


def _body(dialect: Dialect, prompt: object, max_tokens: int) -> str:
    return json.dumps(
        {
            "model": dialect.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **dialect.extra,
        }
    )


def _events(connection: http.client.HTTPConnection, body: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Server-sent events as JSON objects, each with the moment it was read."""
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read(400)!r}")
    for line in response:
        when = time.perf_counter()
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            yield event, when
