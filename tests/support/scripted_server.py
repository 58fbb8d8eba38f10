"""A server that says what its script says, slowly: for what a sound engine cannot be made to do on demand.

It speaks the streaming form of the real one. What it does is chosen by a word in the prompt:

- ``refuse``: status 429 with a coded error; ``locked``: 401 unless the key is ``right``
- ``fail``: an error in the middle of the stream; ``cut``: the stream ends without a word
- ``differ``: another token at index 7 when nothing is drafted
- ``undrafted``: nothing is drafted, whatever is asked for
- ``think``: thoughts come before the text
- ``long``: 400 tokens; ``html``: markup that would run if a page took it for its own
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from draftproof.server.routes.playground import router

SENTENCE = "Water drops bend the light , each colour by its own angle , and so a bow appears ."
WORDS = SENTENCE.split()
PAUSE = 0.02
MODEL = "scripted-model"


@dataclass
class Seen:
    """What came in, and how it went."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    """Clients that went away before the end."""


def error(code: str, message: str) -> dict[str, Any]:
    kind = {"DP604": "rate_limit_error"}.get(code, "invalid_request_error")
    body = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": {**body, "explanation": f"/api/errors/{code}"}}


def scripted_app(owner: str = "draftproof") -> FastAPI:
    """The app; ``app.state.seen`` holds a `Seen`. `owner` is what it says of its model."""
    app = FastAPI()
    app.include_router(router)
    app.state.seen = Seen()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": owner}]}

    @app.get("/api/errors/{code}")
    def explain(code: str) -> dict[str, Any]:
        words = {
            "meaning": "As many requests wait as may wait.",
            "fix": "Wait a little.",
            "triggers": ["Load."],
        }
        return {"code": code, **words, "before": "curl ...", "after": "sleep 2; curl ..."}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        app.state.seen.requests.append({**body, "_key": request.headers.get("authorization")})
        prompt = body["messages"][-1]["content"]
        if "refuse" in prompt:
            refused = error("DP604", "the queue is full (64 waiting)")
            return JSONResponse(refused, status_code=429, headers={"Retry-After": "2"})
        if "locked" in prompt and request.headers.get("authorization") != "Bearer right":
            return JSONResponse(error("DP601", "the API key is missing or wrong"), status_code=401)
        if not body.get("stream"):
            return JSONResponse({"choices": [{"message": {"content": " ".join(WORDS)}}]})
        return StreamingResponse(
            watched(script(body, prompt), app.state.seen), media_type="text/event-stream"
        )

    return app


async def watched(lines: AsyncIterator[dict[str, Any] | str], seen: Seen) -> AsyncIterator[str]:
    done = False
    try:
        async for line in lines:
            yield f"data: {line if isinstance(line, str) else json.dumps(line)}\n\n"
        done = True
    finally:
        seen.left += not done


async def script(body: dict[str, Any], prompt: str) -> AsyncIterator[dict[str, Any] | str]:
    drafting = body.get("speculative", {}).get("draft_length", "auto") != 0 and "undrafted" not in prompt
    most = body.get("max_completion_tokens") or 400
    words = (WORDS * 40)[: 400 if "long" in prompt else len(WORDS)][:most]
    tokens = [1000 + WORDS.index(word) for word in words]
    if "differ" in prompt and not drafting:
        words[7:8], tokens[7:8] = ["hue"], [999]
    if "html" in prompt:
        words[3] = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    yield chunk({"role": "assistant", "content": ""})
    if "think" in prompt:
        yield chunk({"reasoning_content": "Light, water. "}, pieces=[piece("<think>", False)])
    at = steps = accepted = 0
    while at < len(words):
        step = 3 if drafting and at else 1
        some = words[at : at + step]
        pieces = [piece(word + " ", index < len(some) - 1) for index, word in enumerate(some)]
        accepted += len(some) - 1
        steps += at > 0
        await asyncio.sleep(PAUSE)
        if at > 8 and "fail" in prompt:
            yield error("DP451", "a step failed")
            return
        if at > 8 and "cut" in prompt:
            return
        yield chunk(
            {"content": "".join(p["text"] for p in pieces)}, pieces=pieces, token_ids=tokens[at : at + step]
        )
        at += step
    yield chunk({}, finish="length" if len(words) == most else "stop")
    last = chunk({})
    last["choices"] = []
    last["usage"] = {"prompt_tokens": 9, "completion_tokens": len(words), "total_tokens": 9 + len(words)}
    drafted = 4 * steps if drafting else 0
    length = (len(words) - 1) / steps if steps else 0.0
    last["speculative"] = {
        "steps": steps,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_length": length,
    }
    yield last
    yield "[DONE]"


def piece(text: str, drafted: bool) -> dict[str, Any]:
    return {"text": text, "drafted": drafted}


def chunk(
    delta: dict[str, Any],
    finish: str | None = None,
    pieces: list[dict[str, Any]] | None = None,
    token_ids: list[int] | None = None,
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    if token_ids is not None:
        choice["token_ids"] = token_ids
    whole: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL}
    whole["choices"] = [choice]
    if pieces is not None:
        whole["speculative"] = {"pieces": pieces}
    return whole
