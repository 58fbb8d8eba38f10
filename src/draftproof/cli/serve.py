"""`draftproof serve`: options in, a server until a signal ends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.exits import Debug, coded
from draftproof.cli.generate import drafter_source, hide_loading_bars
from draftproof.cli.options import (
    BlockSizeAtMost,
    DrafterName,
    DraftModeName,
    Dtype,
    Executor,
    Lossless,
    TrustRemoteCode,
)
from draftproof.errors import RequestError, ServerError

if TYPE_CHECKING:
    from draftproof.server.settings import ServerSettings

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@coded
def serve(
    model: Annotated[str, typer.Argument(help="Known name, folder, or hub id.")] = "smollm2-135m",
    drafter: DrafterName = "auto",
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name the model answers to; may be repeated, the first is used in answers."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="API keys, one a line; $DRAFTPROOF_API_KEYS adds to them.")
    ] = None,
    max_body: Annotated[str, typer.Option(help="Longest body of a request: bytes, or with k, m, g.")] = "8m",
    body_timeout: Annotated[
        float, typer.Option(help="Seconds for a body to come whole; 0: no limit.")
    ] = 60.0,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused with 429.")] = 256,
    max_concurrent_per_key: Annotated[
        int | None, typer.Option(help="Requests of one API key at once.")
    ] = None,
    max_choices: Annotated[int, typer.Option(help="Outputs of one request: prompts times n.")] = 128,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds for a request, waiting included; 0: no limit.")
    ] = 600.0,
    keep_alive: Annotated[
        float, typer.Option(help="Seconds of silence after which a stream sends a comment; 0: never.")
    ] = 15.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that running requests have after SIGTERM or Ctrl-C.")
    ] = 30.0,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may call the server; * for all; may be repeated."),
    ] = None,
    root_path: Annotated[str, typer.Option(help="Path under which a proxy shows the server.")] = "",
    no_playground: Annotated[bool, typer.Option("--no-playground", help="No page at /.")] = False,
    metrics_need_key: Annotated[
        bool, typer.Option("--metrics-need-key", help="/metrics asks for an API key, too.")
    ] = False,
    tool_format: Annotated[
        str | None, typer.Option(help="How the model calls tools; else found out.")
    ] = None,
    reasoning_format: Annotated[
        str | None, typer.Option(help="How the model marks thoughts; else found out.")
    ] = None,
    otlp_traces_endpoint: Annotated[
        str | None, typer.Option(help="OpenTelemetry collector (OTLP over HTTP) that takes traces.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write the bodies of requests into the log.")
    ] = False,
    no_access_log: Annotated[bool, typer.Option("--no-access-log", help="No line for each request.")] = False,
    dtype: Dtype = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: Executor = "auto",
    block_size: BlockSizeAtMost = None,
    draft_mode: DraftModeName = "auto",
    lossless: Lossless = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of prompt and output.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Outputs decoded at once.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Prompt and draft tokens per step.")] = 512,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="Memory for keys and values: bytes, or with k, m, g.")
    ] = None,
    no_prefix_caching: Annotated[
        bool, typer.Option("--no-prefix-caching", help="Compute every prompt anew.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Hub revision of the model.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """Serve a model over OpenAI's API. The address is printed when requests are taken; the log goes to standard error."""
    from draftproof.server.settings import ServerSettings, read_keys

    if log_level not in ("debug", "info", "warning", "error"):
        raise ServerError("DP610", f"log_level must be debug, info, warning or error, got {log_level!r}")
    # Whatever can be wrong is found before the model is loaded, which takes longest.
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_names=tuple(served_model_name or ()),
        api_keys=read_keys(api_key_file),
        max_body_bytes=_bytes("max_body", max_body),
        body_timeout_s=body_timeout,
        max_queue=max_queue,
        max_concurrent_per_key=max_concurrent_per_key,
        request_timeout_s=request_timeout or None,
        keep_alive_s=keep_alive,
        grace_s=grace,
        cors_origins=tuple(cors_origin or ()),
        log_prompts=log_prompts,
        access_log=not no_access_log,
        root_path=root_path,
        playground=not no_playground,
        metrics_need_key=metrics_need_key,
        otlp_traces_endpoint=otlp_traces_endpoint,
        tool_format=tool_format,
        reasoning_format=reasoning_format,
        max_choices=max_choices,
    )
    memory = None if kv_cache_memory is None else _bytes("kv_cache_memory", kv_cache_memory)

    from draftproof.engine import LLM, AsyncEngine
    from draftproof.server.app import create_app
    from draftproof.server.lifecycle import address_of, open_port, run_server
    from draftproof.server.logs import write_logs

    bound = open_port(host, port)
    try:
        write_logs(log_level)
        hide_loading_bars()
        llm = LLM(
            model=model,
            drafter=drafter_source(drafter, model),
            dtype=dtype,
            block_size=block_size,
            draft_mode=draft_mode,
            lossless=lossless,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_memory=memory,
            prefix_caching=not no_prefix_caching,
            device=device,
            executor=executor,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        engine = AsyncEngine(llm)
        app = create_app(engine, settings)
    except BaseException:
        bound.close()
        raise
    name = app.state.server.model_name
    drafting = llm.drafter.name if llm.drafter is not None else "no drafter"

    def announce() -> None:
        typer.echo(f"serving {name} ({drafting}) at {address_of(bound)}")
        _warn(settings)

    status = run_server(app, engine, settings, bound, announce)
    if status:
        raise typer.Exit(status)


def _warn(settings: ServerSettings) -> None:
    if not settings.api_keys and settings.host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo("warning: no API keys: whoever reaches this address may use the model", err=True)


def _bytes(name: str, text: str) -> int:
    """``"8m"`` -> 8 MiB."""
    number, unit = text.strip().lower(), ""
    if number and number[-1] in "kmg":
        number, unit = number[:-1], number[-1]
    if not number.isdecimal() or not number.isascii() or not int(number):
        kind = ServerError if name == "max_body" else RequestError
        code = "DP610" if name == "max_body" else "DP441"
        raise kind(code, f"{name} must be bytes, or a number with k, m or g, got {text!r}")
    return int(number) * _UNITS[unit]
