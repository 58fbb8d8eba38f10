"""`draftproof chat`: a conversation on the terminal, with a model of this process or with a server."""

from __future__ import annotations

import os
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
from draftproof.errors import ServerError

if TYPE_CHECKING:
    from draftproof.cli.chat_speakers import Speaker

MODEL = "smollm2-135m"
KEY_VARIABLE = "DRAFTPROOF_API_KEY"
_LOCAL_ONLY = "--url leaves this to the server: "


@coded
def chat(
    model: Annotated[
        str | None,
        typer.Option(
            help=f"Known name, folder, or hub id ({MODEL}); with --url the name the server gives it."
        ),
    ] = None,
    drafter: DrafterName = "auto",
    url: Annotated[
        str | None, typer.Option(help="Talk to this OpenAI-compatible server instead, http://host:port.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help=f"Variable that holds the server's API key; {KEY_VARIABLE} where set.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of each answer.")] = 1024,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep this many tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens under this share of the best.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the answers, with any drafter or none.")] = None,
    dtype: Dtype = "auto",
    executor: Executor = "auto",
    block_size: BlockSizeAtMost = None,
    draft_mode: DraftModeName = "auto",
    lossless: Lossless = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of conversation and answer.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    debug: Debug = False,
) -> None:
    """Talk with a model. Ctrl-C stops an answer, /help lists the commands, /quit or Ctrl-D ends.

    Standard output carries the answers alone. Without a terminal, each line of standard input is one message.
    """
    local = {
        "--drafter": drafter != "auto",
        "--dtype": dtype != "auto",
        "--executor": executor != "auto",
        "--block-size": block_size is not None,
        "--draft-mode": draft_mode != "auto",
        "--lossless": lossless != "auto",
        "--max-model-len": max_model_len is not None,
        "--trust-remote-code": trust_remote_code,
    }
    given = [name for name, is_given in local.items() if is_given]
    if url is not None and given:
        raise typer.BadParameter(_LOCAL_ONLY + ", ".join(given))
    if url is None and api_key_env is not None:
        raise typer.BadParameter("--api-key-env needs --url")

    from draftproof.cli.chat_loop import Conversation
    from draftproof.cli.chat_speakers import Wishes
    from draftproof.sampling import SamplingParams

    wishes = Wishes(max_tokens, temperature, top_p, top_k, min_p, seed)
    SamplingParams(**wishes.sampling)  # what is wrong with an option is better said before a model is loaded
    speaker: Speaker
    if url is not None:
        speaker = _remote(url, model, api_key_env)
    else:
        from draftproof.cli.chat_speakers import Local
        from draftproof.engine import LLM

        hide_loading_bars()
        name = model or MODEL
        llm = LLM(
            model=name,
            drafter=drafter_source(drafter, name),
            dtype=dtype,
            block_size=block_size,
            draft_mode=draft_mode,
            lossless=lossless,
            max_model_len=max_model_len,
            executor=executor,
            trust_remote_code=trust_remote_code,
        )
        speaker = Local(llm, name)
    Conversation(speaker, wishes, system).run()


def _remote(url: str, model: str | None, api_key_env: str | None) -> Speaker:
    from draftproof.cli.chat_remote import Remote

    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url must begin with http:// or https://, got {url!r}")
    key = os.environ.get(api_key_env or KEY_VARIABLE, "").strip()
    if api_key_env is not None and not key:
        raise ServerError("DP683", f"the environment variable {api_key_env} is not set or empty")
    return Remote(url, model, key or None)
