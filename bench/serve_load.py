"""A server under load: clients that come and go, some of which are rude, against `draftproof serve` on this machine.

    python bench/serve_load.py --prompts dev.jsonl --drafter FOLDER --clients 64 --seconds 180
    python bench/serve_load.py --base-url http://127.0.0.1:8000 ...      # a server that runs already

Four measurements, one after another:

1. the offline engine on the prompts, as many at once as there are clients (with --base-url left out),
2. the server with polite clients on the same prompts: tokens a second of all together, and of a second of engine CPU time,
3. the server with `--rude` of the requests left in the middle and `--malformed` of them nonsense: statuses, memory of the
   process from a third of the time on, and what is still in use afterwards,
4. the same text from the busy server as alone.

Exit status 1 where an answer is a 5xx other than 429/503, memory grows by more than 5%, or something is left running.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Answer:
    """What came back.

    Attributes:
        status: of HTTP; 0 where the connection broke.
        tokens: completion tokens by the server's count.
        text: of the answer.
        first_s, total_s: seconds to the first piece of text and to the end.
    """

    status: int = 0
    tokens: int = 0
    text: str = ""
    first_s: float = 0.0
    total_s: float = 0.0


@dataclass
class Tally:
    """Over many answers."""

    answers: list[Answer] = field(default_factory=list)
    left: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def statuses(self) -> dict[int, int]:
        return dict(sorted(Counter(answer.status for answer in self.answers).items()))

    def median(self, name: str) -> float:
        found = [getattr(answer, name) for answer in self.answers if answer.status == 200]
        return statistics.median(found) if found else 0.0


async def ask(host: str, port: int, body: bytes, leave_after: float | None = None) -> Answer:
    """One streamed chat completion over a connection of its own, by hand: a client library would cost more than the server."""
    answer, start = Answer(), time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        await writer.drain()
        reading = _read(reader, answer, start)
        await (reading if leave_after is None else asyncio.wait_for(reading, leave_after))
    except (asyncio.TimeoutError, ConnectionError):
        pass
    finally:
        answer.total_s = time.perf_counter() - start
        writer.close()
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer, start: float) -> None:
    line = await reader.readline()
    answer.status = int(line.split()[1]) if line.startswith(b"HTTP/") else 0
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        for choice in chunk.get("choices", ()):
            if text := choice["delta"].get("content"):
                answer.first_s = answer.first_s or time.perf_counter() - start
                answer.text += text
        if usage := chunk.get("usage"):
            answer.tokens = usage["completion_tokens"]


def request(model: str, prompt: str, tokens: int, **more: object) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_completion_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return json.dumps(body).encode()


MALFORMED: tuple[Callable[[str], bytes], ...] = (
    lambda model: b"{",
    lambda model: b"\xff\xfe",
    lambda model: request(model, "x", -1),
    lambda model: request("no such model", "x", 8),
    lambda model: request(model, "x", 8, temperature="hot"),
    lambda model: request(model, "x", 8, response_format={"type": "json_schema"}),
    lambda model: request(model, "x", 8, no_such_field=1),
    lambda model: request(model, "x" * 100_000, 8),
)


async def polite(host: str, port: int, bodies: list[bytes], clients: int) -> Tally:
    """All bodies, `clients` at a time; answers in the order of the bodies."""
    tally, queue, start = Tally([Answer() for _ in bodies]), iter(range(len(bodies))), time.perf_counter()

    async def client() -> None:
        for number in queue:
            tally.answers[number] = await ask(host, port, bodies[number])

    await asyncio.gather(*(client() for _ in range(clients)))
    tally.seconds = time.perf_counter() - start
    return tally


async def rude(
    options: argparse.Namespace, host: str, port: int, bodies: list[bytes], watch: Callable[[], None]
) -> Tally:
    """Clients that ask for `options.seconds`, leave in the middle, and talk nonsense."""
    tally, end, start = Tally(), time.perf_counter() + options.seconds, time.perf_counter()

    async def client(number: int) -> None:
        luck = random.Random(number)
        while time.perf_counter() < end:
            if luck.random() < options.malformed:
                tally.answers.append(await ask(host, port, luck.choice(MALFORMED)(options.name)))
                continue
            leave = luck.random() < options.rude
            answer = await ask(host, port, luck.choice(bodies), luck.uniform(0.0, 4.0) if leave else None)
            if leave and answer.tokens == 0:
                tally.left += 1
            else:
                tally.answers.append(answer)

    async def watcher() -> None:
        while time.perf_counter() < end:
            watch()
            await asyncio.sleep(2.0)

    await asyncio.gather(watcher(), *(client(number) for number in range(options.clients)))
    tally.seconds = time.perf_counter() - start
    return tally


async def get(host: str, port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode(errors="replace")
    writer.close()
    return text


def gauge(text: str, name: str) -> float:
    """A metric's value, summed over its labels, whatever stands before the name."""
    found = re.findall(rf"^[\w:]*{name}(?:\{{[^}}]*\}})? ([-+0-9.e]+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else float("nan")


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) * 1024 if found else 0


def engine_cpu(pid: int) -> float:
    """CPU seconds of all threads of a process but its first, in which the event loop runs."""
    seconds = 0.0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if thread.name != str(pid):
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / TICK
    return seconds


OFFLINE = """
import json, resource, sys, time
from draftproof import LLM, SamplingParams
asked = json.load(sys.stdin)
llm = LLM(asked["model"], asked["drafter"], max_num_seqs=asked["clients"])
params = SamplingParams(temperature=0.0, max_tokens=asked["tokens"], ignore_eos=True)
chats = [[{"role": "user", "content": prompt}] for prompt in asked["prompts"]]
llm.chat(chats[:8], params)
def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
start, before = time.perf_counter(), cpu()
results = llm.chat(chats, params)
seconds, spent, tokens = time.perf_counter() - start, cpu() - before, sum(len(result.token_ids) for result in results)
print(json.dumps({"tokens": tokens, "seconds": seconds, "cpu": spent}))
"""


def offline(options: argparse.Namespace, prompts: list[str]) -> dict[str, float]:
    """The same prompts through `LLM.chat` in a process of its own."""
    asked = {
        "model": options.model,
        "drafter": options.drafter,
        "clients": options.clients,
        "tokens": options.tokens,
        "prompts": prompts,
    }
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def start_server(options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """`draftproof serve`, ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "draftproof.cli", "serve", options.model, "--port", str(port)]
    command += ["--drafter", options.drafter] if options.drafter else []
    command += ["--max-num-seqs", str(options.clients), *options.serve.split()]
    log = open(options.log, "wb")  # noqa: SIM115 - it outlives this function with the process
    server = subprocess.Popen(command, stdout=log, stderr=log)
    return server, f"http://127.0.0.1:{port}"


async def until_ready(host: str, port: int, server: subprocess.Popen[bytes] | None) -> None:
    for _ in range(600):
        if server is not None and server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}; see its log")
        try:
            if " 200 " in (await get(host, port, "/ready")).splitlines()[0]:
                return
        except (ConnectionError, IndexError):
            pass
        await asyncio.sleep(0.5)
    raise SystemExit("the server is not ready after five minutes")


async def measure(options: argparse.Namespace, server: subprocess.Popen[bytes] | None, url: str) -> bool:
    console, parts = Console(), urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    await until_ready(host, port, server)
    pid = server.pid if server is not None else options.pid
    options.name = json.loads((await get(host, port, "/v1/models")).split("\r\n\r\n", 1)[1])["data"][0]["id"]
    prompts = read_prompts(options)
    bodies = [request(options.name, prompt, options.tokens) for prompt in prompts]
    await polite(host, port, bodies[:8], 8)  # warm
    alone = [await ask(host, port, body) for body in bodies[:6]]

    before = engine_cpu(pid) if pid else 0.0
    steady = await polite(host, port, bodies, options.clients)
    spent = (engine_cpu(pid) - before) if pid else float("nan")
    console.print(
        f"server: {steady.tokens / steady.seconds:.1f} tokens/s, {steady.tokens / spent:.1f} a second of engine CPU, "
        f"first token after {steady.median('first_s'):.2f} s, statuses {steady.statuses}"
    )
    same = [one.text for one in alone] == [one.text for one in steady.answers[: len(alone)]]
    console.print(f"texts under load equal to those alone: {same}")

    sizes: list[int] = []
    gone = await rude(options, host, port, bodies, lambda: sizes.append(resident(pid) if pid else 0))
    await asyncio.sleep(2.0)
    after = await get(host, port, "/metrics")
    running, waiting = gauge(after, "num_requests_running"), gauge(after, "num_requests_waiting")
    warm, late = max(sizes[: max(1, len(sizes) // 3)]), max(sizes[-max(1, len(sizes) // 3) :])
    growth = late / warm - 1.0 if warm else 0.0
    bad = sum(count for status, count in gone.statuses.items() if status >= 500 and status != 503)
    broken = gone.statuses.get(0, 0)
    console.print(
        f"rude: {gone.statuses}, {gone.left} left in the middle, {gone.tokens / gone.seconds:.1f} tokens/s, "
        f"memory {warm >> 20} to {late >> 20} MiB ({growth:+.1%}), still running {running:.0f}, waiting {waiting:.0f}"
    )
    again = [await ask(host, port, body) for body in bodies[:6]]
    still = [one.text for one in again] == [one.text for one in alone]
    console.print(f"texts afterwards equal to those before: {still}")
    ok = not bad and not broken and growth <= 0.05 and running == waiting == 0 and same and still
    console.print("held" if ok else "did NOT hold")
    return ok


def read_prompts(options: argparse.Namespace) -> list[str]:
    lines = [json.loads(line) for line in options.prompts.read_text("utf-8").splitlines() if line.strip()]
    texts = [line["prompt"] for line in lines if "prompt" in line]
    return [texts[number % len(texts)] for number in range(options.requests)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default=None)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256, help="of polite clients")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=180.0, help="of rude clients")
    parser.add_argument("--rude", type=float, default=0.2)
    parser.add_argument("--malformed", type=float, default=0.05)
    parser.add_argument("--serve", default="", help="more options for `draftproof serve`")
    parser.add_argument("--log", type=Path, default=Path("serve.log"))
    parser.add_argument("--base-url", default=None)
    parser.add_argument("--pid", type=int, default=None, help="of the server at --base-url")
    options = parser.parse_args()
    if options.base_url is not None:
        sys.exit(not asyncio.run(measure(options, None, options.base_url)))
    alone = offline(options, read_prompts(options))
    rate, each = alone["tokens"] / alone["seconds"], alone["tokens"] / alone["cpu"]
    Console().print(f"offline engine: {rate:.1f} tokens/s, {each:.1f} a second of CPU")
    server, url = start_server(options)
    try:
        ok = asyncio.run(measure(options, server, url))
    finally:
        server.terminate()
        server.wait(60)
    sys.exit(not ok)


if __name__ == "__main__":
    main()
