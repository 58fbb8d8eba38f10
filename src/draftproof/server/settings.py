"""What the operator of a server decides."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from draftproof.errors import ServerError

MIB = 1 << 20
KEY_VARIABLE = "DRAFTPROOF_API_KEYS"
"""Environment variable with API keys, separated by commas or white space."""


@dataclass(frozen=True)
class ServerSettings:
    """How a server behaves. Values are checked when the object is made.

    Attributes:
        host, port: where it listens.
        served_model_names: names that requests may use for the model; the first is reported. Empty: the model's own.
        api_keys: bearer keys, any of which is let in; empty: everybody is.
        metrics_need_key: ask for a key at `/metrics`, too.
        max_body_bytes: longest body of a request.
        body_timeout_s: seconds for a body to come whole; 0: as long as it takes.
        max_queue: requests that may wait for a place in the batch before further ones are sent away with 429.
        max_concurrent_per_key: requests that one key may have under way; None: any number. Without keys all callers count as one.
        max_choices: most outputs of one HTTP request.
        request_timeout_s: after which a request is ended; None: never.
        keep_alive_s: seconds after which a stream that has nothing to say sends a comment, so that nothing on its way takes the
            connection for dead; 0: never.
        grace_s: how long running requests may go on once the server is asked to end.
        cors_origins: web origins whose pages may call the API; ``"*"`` for all.
        root_path: path at which a proxy shows the server.
        log_prompts: write the bodies of requests into the log.
        access_log: write a line about each request.
        playground: serve the chat page at `/`.
        otlp_traces_endpoint: URL of an OpenTelemetry collector; None: no traces.
        tool_format, reasoning_format: by name, instead of what the chat template looks like.

    Raises:
        ServerError: DP610, a value is out of range; DP612, an API key cannot be sent in a header.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    metrics_need_key: bool = False
    max_body_bytes: int = 8 * MIB
    body_timeout_s: float = 60.0
    max_queue: int = 256
    max_concurrent_per_key: int | None = None
    max_choices: int = 128
    request_timeout_s: float | None = None
    keep_alive_s: float = 15.0
    grace_s: float = 30.0
    cors_origins: tuple[str, ...] = ()
    root_path: str = ""
    log_prompts: bool = False
    access_log: bool = True
    playground: bool = True
    otlp_traces_endpoint: str | None = None
    tool_format: str | None = None
    reasoning_format: str | None = None

    def __post_init__(self) -> None:
        _within("port", self.port, 0, 65535)
        _within("max_body_bytes", self.max_body_bytes, 1024)
        _within("max_queue", self.max_queue, 0)
        _within("max_choices", self.max_choices, 1)
        _within("grace_s", self.grace_s, 0)
        _within("keep_alive_s", self.keep_alive_s, 0)
        _within("body_timeout_s", self.body_timeout_s, 0)
        if self.max_concurrent_per_key is not None:
            _within("max_concurrent_per_key", self.max_concurrent_per_key, 1)
        if self.request_timeout_s is not None:
            _within("request_timeout_s", self.request_timeout_s, 0.001)
        if any(not isinstance(name, str) or not name.strip() for name in self.served_model_names):
            raise ServerError("DP610", "served_model_names must hold texts that are not empty")
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                # The key itself stays out of the message: messages end up in logs.
                raise ServerError("DP612", "an API key must be printable ASCII text without spaces")
        if self.root_path and not self.root_path.startswith("/"):
            raise ServerError("DP610", f"root_path must begin with '/', got {self.root_path!r}")


def _within(name: str, value: float, least: float, most: float = math.inf) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most:
        end = "up" if most == math.inf else f"to {most:g}"
        raise ServerError("DP610", f"{name} must be a number from {least:g} {end}, got {value!r}")


def read_keys(file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """API keys from a file (one a line; empty lines and those that begin with # are left out) and the environment.

    Raises:
        ServerError: DP612, the file cannot be read or holds no key, or the variable is there and empty.
    """
    keys: list[str] = []
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ServerError("DP612", f"the API key file {file} cannot be read: {reason}") from error
        keys += [line for line in lines if line and not line.startswith("#")]
        # An empty file must not mean that everybody may come in.
        if not keys:
            raise ServerError("DP612", f"the API key file {file} holds no key")
    if KEY_VARIABLE in environment:
        given = environment[KEY_VARIABLE].replace(",", " ").split()
        if not given:
            raise ServerError(
                "DP612", f"{KEY_VARIABLE} is set but holds no key; unset it to let everybody in"
            )
        keys += given
    return tuple(dict.fromkeys(keys))
