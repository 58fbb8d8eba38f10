"""Explanations of DP680 to DP689: what can happen to `draftproof chat` between it and a server or a file."""

from __future__ import annotations

from draftproof.errors.explanation import Explanation

EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        code="DP680",
        name="chat-server-unreachable",
        title="No server answers at the address given with --url.",
        meaning=(
            "The chat could not open a connection, or the server stopped in the middle of one. Nothing was asked of "
            "a model, or the answer is not whole."
        ),
        triggers=(
            "The server has not been started, or is still loading its model.",
            "A wrong host or port, or https where the server speaks http.",
            "A firewall or proxy between the two machines.",
        ),
        fix="Start the server, or correct the address. `curl http://HOST:PORT/health` shows whether anything answers there.",
        before="draftproof chat --url http://localhost:8001",
        after="draftproof serve smollm2-135m --port 8001   # in another terminal, until it says that it is ready\n"
        "draftproof chat --url http://localhost:8001",
        prevention="Wait for /ready to answer 200 before sending anything, in scripts too.",
    ),
    Explanation(
        code="DP681",
        name="chat-server-refused",
        title="The server refused the request.",
        meaning=(
            "The server was reached and answered with an error of its own; its status and words are in the message. It is "
            "not an error of draftproof's catalog, or it would be shown under its own code."
        ),
        triggers=(
            "A missing or wrong API key (status 401 or 403).",
            "A model name that the server does not offer (404).",
            "A request beyond the server's limits (400, 413, 429).",
        ),
        fix="Do what the server's message says. For a key, name the variable that holds it with --api-key-env.",
        before="draftproof chat --url https://models.example.com",
        after="export EXAMPLE_KEY=...\n"
        "draftproof chat --url https://models.example.com --api-key-env EXAMPLE_KEY",
        prevention="Try the key and the model's name once with a short question before a long session.",
    ),
    Explanation(
        code="DP682",
        name="chat-server-not-understood",
        title="What came from the server is not an OpenAI-style answer.",
        meaning=(
            "Something answers at the address, but not in the form of OpenAI's chat API: no list of models, or a "
            "stream that is not made of JSON events or stops without its end mark."
        ),
        triggers=(
            "The address of a web page, or of another kind of server.",
            "A path that belongs to the API left out or given twice.",
            "A proxy that cuts long answers off, or answers with a page of its own.",
        ),
        fix="Give the address of the server alone, or up to and including /v1.",
        before="draftproof chat --url http://localhost:8000/docs",
        after="draftproof chat --url http://localhost:8000",
        prevention="Behind a proxy, switch response buffering off and raise its read timeout for /v1.",
    ),
    Explanation(
        code="DP683",
        name="chat-key-variable-empty",
        title="The environment variable named for the API key is not set.",
        meaning=(
            "`--api-key-env` names a variable, and there is none of that name or it is empty. The chat does not go on "
            "without a key where one was asked for."
        ),
        triggers=(
            "A misspelt name.",
            "A variable set in another shell, or set without `export`.",
            "The key itself given in place of a variable's name.",
        ),
        fix="Set and export the variable, or give the name of the one that holds the key.",
        before="draftproof chat --url http://localhost:8000 --api-key-env MY_KEY",
        after="export MY_KEY=...\ndraftproof chat --url http://localhost:8000 --api-key-env MY_KEY",
        prevention="Keep the key in one variable that your shell's start-up file or secret store exports.",
    ),
    Explanation(
        code="DP684",
        name="chat-not-saved",
        title="The conversation could not be written to the file.",
        meaning="`/save` could not create or write the file. The conversation itself is untouched and goes on.",
        triggers=(
            "A folder that does not exist or may not be written to.",
            "The name of a folder in place of a file's.",
            "A full disk.",
        ),
        fix="Save under a name in a folder that exists and is yours.",
        before="/save no-such-folder/talk.json",
        after="/save talk.json",
        prevention="Save to the folder you started in, and move the file later.",
    ),
)
