"""A model behind an OpenAI-compatible server, for `draftproof chat --url`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from draftproof.cli.chat_speakers import Drafted, Messages, Said, Wishes, note
from draftproof.engine import TextPiece
from draftproof.errors import ServerError, explanation

OURS = "draftproof"
"""How our own server signs its models (`owned_by`); it alone is sent the fields that OpenAI's API does not have."""
PATIENCE = httpx.Timeout(10.0, read=600.0)
"""Seconds: a busy server may keep one waiting for a while before the first token."""


class Remote:
    """See `chat_speakers.Speaker`.

    Args:
        url: the server's address, with or without ``/v1``.
        model: the name it gives the model; None: the first it lists.
        key: API key.

    Raises:
        ServerError: DP680 to DP682, or the server's own code.
    """

    waits_for_itself = True

    def __init__(self, url: str, model: str | None, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        base = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(base_url=f"{base}/v1/", headers=headers, timeout=PATIENCE)
        self._base = base
        listed = self._models()
        if model is None and not listed:
            raise ServerError("DP682", f"{base} offers no model")
        self.name = model or str(listed[0].get("id"))
        owners = {entry.get("owned_by") for entry in listed if entry.get("id") == self.name}
        self._ours = OURS in owners
        self.drafts = None if self._ours else "this server has no switch for drafting"

    def answer(self, messages: Messages, wishes: Wishes) -> Generator[Said, None, None]:
        """See `Speaker`."""
        body = self._body(messages, wishes)
        gathered = _Gathered()
        with (
            self._understood(),
            self._client.stream("POST", "chat/completions", json=body) as response,
        ):
            self._check(response)
            for chunk in _events(response.iter_lines()):
                if "error" in chunk:
                    raise _refusal(chunk, response.status_code)
                yield gathered.take(chunk)
        yield Said(note=gathered.note(body.get("seed")))

    def _body(self, messages: Messages, wishes: Wishes) -> dict[str, Any]:
        given = {name: value for name, value in wishes.sampling.items() if value is not None}
        body: dict[str, Any] = {"model": self.name, "messages": messages, "stream": True, **given}
        body["stream_options"] = {"include_usage": True}
        if self._ours:
            body.setdefault("seed", random.getrandbits(31))  # drawn here, so that it can be told
            body["speculative"] = {"include_pieces": True}
            if wishes.draft_length is not None:
                body["speculative"]["draft_length"] = wishes.draft_length
        return body

    def _models(self) -> list[dict[str, Any]]:
        with self._understood():
            response = self._client.get("models")
            self._check(response)
            listed = response.json()["data"]
            return [dict(entry) for entry in listed]

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            body = response.json()
        except ValueError:
            body = None
        raise _refusal(body, response.status_code)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Errors of the network and of the form, in our words."""
        try:
            yield
        except httpx.TransportError as error:
            raise ServerError(
                "DP680", f"no answer from {self._base}: {error or type(error).__name__}"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError) as error:
            raise ServerError(
                "DP682", f"{self._base} does not answer as an OpenAI-compatible server does ({error})"
            ) from None


class _Gathered:
    """What the chunks of one answer add up to."""

    def __init__(self) -> None:
        self._texts = 0
        self._finish = "stop"
        self._usage: dict[str, Any] = {}
        self._drafted: Drafted | None = None
        self._times: list[float] = []

    def take(self, chunk: dict[str, Any]) -> Said:
        self._usage = chunk.get("usage") or self._usage
        speculative = chunk.get("speculative") or {}
        if "steps" in speculative:
            fields = ("steps", "drafted", "accepted", "acceptance_length")
            self._drafted = Drafted(*(speculative[name] for name in fields))
        choices = chunk.get("choices") or [{}]
        choice = choices[0]
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta") or {}
        text, thoughts = delta.get("content") or "", delta.get("reasoning_content") or ""
        if text or thoughts:
            self._texts += 1
            self._times.append(time.perf_counter())
        pieces = [
            TextPiece(piece["text"], bool(piece["drafted"])) for piece in speculative.get("pieces") or ()
        ]
        if "".join(piece.text for piece in pieces) != text:  # marks of thoughts and tools are not shown
            pieces = [TextPiece(text, False)] if text else []
        return Said(pieces, thoughts)

    def note(self, seed: int | None) -> str:
        count = int(self._usage.get("completion_tokens") or self._texts)
        # The first chunk ends the wait for the prompt; its own tokens are not timed.
        span = self._times[-1] - self._times[0] if len(self._times) > 1 else 0.0
        return note(count, self._finish, (count - 1) / span if span > 0 else 0.0, self._drafted, seed)


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to its end mark."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"expected a JSON object, got {data[:40]!r}")
        yield event
    raise ValueError("the stream stopped without its end mark")


def _refusal(body: Any, status: int) -> ServerError:
    """The server's error: under its own code, where that is one of ours."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ServerError("DP681", f"the server answered with status {status} and no explanation")
    message = " ".join(str(error.get("message") or "no message").split())
    code = str(error.get("code") or "")
    try:
        return ServerError(explanation(code).code, message)
    except KeyError:
        return ServerError("DP681", f"the server refused the request (status {status}): {message}")
