"""What the target answered, as token ids: the text a drafter learns from, in a file that survives being killed.

The file is JSON Lines. Besides answers it may hold, in lines of their own, what the file is about (the first line) and the
prompts that the target has made up.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from draftproof.errors import RequestError

_ABOUT, _MADE_UP = "draftproof_responses", "made_up_prompt"
_VERSION = 1


@dataclass(frozen=True)
class Response:
    """A prompt and the target's own answer.

    Attributes:
        prompt_ids: tokens of the prompt, chat template applied; at least one.
        output_ids: tokens of the answer, the end token included where it came; at least one.
        temperature: it was sampled at; 0 is greedy.
        group: kind of text, for figures by group.
        key: names prompt and variant, the same in every run; "" where unknown.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    temperature: float = 0.0
    group: str = ""
    key: str = ""


@dataclass(frozen=True)
class AboutResponses:
    """How the answers of a file came about; one file holds answers of one kind.

    Attributes:
        target: the name of the target.
        checksum: of the target's sizes and embedding; models made from one another may share these, and differ by name.
        max_tokens: most tokens of an answer.
        temperature, top_p: of the sampled answers.
        seed: of all of them.
    """

    target: str
    checksum: str
    max_tokens: int
    temperature: float
    top_p: float | None
    seed: int


@dataclass(frozen=True)
class MadeUpPrompt:
    """What the target wrote when asked for a user's turn.

    Attributes:
        number: which try it was, from 0.
        text: "" where nothing usable came.
    """

    number: int
    text: str


def response_key(prompt_ids: Sequence[int], variant: str) -> str:
    """Sixteen hexadecimal digits for a prompt and a way of answering it, the same everywhere.

    Keys are evenly spread, so the first few in order of their keys are a fair sample of all.
    """
    said = json.dumps([list(prompt_ids), variant], separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def read_responses(path: Path) -> list[Response]:
    """The answers of a file: in order of their keys where all have one, else as they stand.

    A last line that a kill has cut short is left out. Of lines with the same key the first counts.

    Args:
        path: JSON Lines: ``prompt_ids``, ``output_ids``, and optionally ``temperature``, ``group``, ``key``.

    Raises:
        RequestError: DP501, the file cannot be read, a line is no answer (the message says which), or there is none.
    """
    responses: list[Response] = []
    keys: set[str] = set()
    for entry in _entries(path):
        if not isinstance(entry, Response) or (entry.key and entry.key in keys):
            continue
        keys.add(entry.key)
        responses.append(entry)
    if not responses:
        raise RequestError("DP501", f"{path}: expected an answer a line, got none")
    return in_order(responses)


def in_order(responses: Iterable[Response]) -> list[Response]:
    """Sorted by key where every one has a key, so that the order tells nothing of how a run went; else as they are."""
    listed = list(responses)
    return sorted(listed, key=lambda one: one.key) if all(one.key for one in listed) else listed


def within_budget(responses: Sequence[Response], tokens: int | None) -> list[Response]:
    """The shortest run of first answers that has so many response tokens; all of them when None."""
    if tokens is None:
        return list(responses)
    kept, left = [], tokens
    for response in responses:
        if left <= 0:
            break
        kept.append(response)
        left -= len(response.output_ids)
    return kept


def check_vocabulary(responses: Iterable[Response], vocab_size: int, name: str) -> None:
    """Whether answers can be the target's.

    Raises:
        RequestError: DP502, a token id is not in its vocabulary: they were made with another tokenizer.
    """
    for number, response in enumerate(responses):
        largest = max(*response.prompt_ids, *response.output_ids)
        if largest >= vocab_size:
            raise RequestError(
                "DP502",
                f"answer {number} holds token {largest}, and {name} has {vocab_size}: these are another model's answers",
            )


class ResponseFile:
    """Answers on their way to disk: only ever appended to, in lines, and picked up again after a kill.

    Opening cuts off a half-written last line. `add` keeps lines in memory until `flush`, which returns when the disk has them.

    Args:
        path: the file; made, with its folder, when it is not there.
        about: what it holds; checked against what the file says of itself. None: whatever it says.

    Raises:
        RequestError: DP501, a line of it is broken, or it cannot be written; DP503, it holds something else.
    """

    def __init__(self, path: Path, about: AboutResponses | None = None) -> None:
        self.path = path
        self._responses: dict[str, Response] = {}
        self._made_up: dict[int, MadeUpPrompt] = {}
        self._pending: list[str] = []
        self.about: AboutResponses | None = None
        if path.exists():
            _cut_half_line(path)
            for entry in _entries(path):
                self._take(entry)
        if self.about is None and not self._responses:
            self.about = about
            if about is not None:
                self._pending.append(_line({_ABOUT: _VERSION, **asdict(about)}))
        if about is not None:
            self._check(about)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RequestError("DP501", f"cannot write {path}: {error.strerror}") from error

    def _take(self, entry: Response | MadeUpPrompt | AboutResponses) -> None:
        if isinstance(entry, Response):
            if not entry.key:
                raise RequestError("DP503", f"{self.path} holds answers without a key: give a new file")
            self._responses.setdefault(entry.key, entry)
        elif isinstance(entry, MadeUpPrompt):
            self._made_up.setdefault(entry.number, entry)
        else:
            self.about = entry

    def _check(self, about: AboutResponses) -> None:
        if self.about is None:
            raise RequestError(
                "DP503", f"{self.path} does not say which target gave its answers: give a new file"
            )
        mine, theirs = asdict(about), asdict(self.about)
        other = [name for name in mine if name != "target" and mine[name] != theirs[name]]
        # The same model may lie in another place.
        if "checksum" in other or Path(about.target).name != Path(self.about.target).name:
            raise RequestError(
                "DP503",
                f"{self.path} holds answers of {self.about.target}, not of {about.target}: give a new file",
            )
        if other:
            said = ", ".join(f"{name} {theirs[name]} (asked for: {mine[name]})" for name in other)
            raise RequestError("DP503", f"{self.path} holds answers with {said}: give a new file")

    def __len__(self) -> int:
        return len(self._responses)

    def done_keys(self) -> set[str]:
        """Keys of the answers there are."""
        return set(self._responses)

    def responses(self) -> list[Response]:
        """All answers, in order of their keys."""
        return in_order(self._responses.values())

    def made_up(self) -> list[MadeUpPrompt]:
        """What the target made up so far, in order of number."""
        return [self._made_up[number] for number in sorted(self._made_up)]

    def add(self, response: Response) -> None:
        """Take in an answer with a key. One whose key is there already is left out."""
        if not response.key:
            raise ValueError("a response in a file needs a key")
        if response.key not in self._responses:
            self._responses[response.key] = response
            self._pending.append(_line(asdict(response)))

    def add_made_up(self, prompt: MadeUpPrompt) -> None:
        """Take in a prompt of the target's own. One whose number is there already is left out."""
        if prompt.number not in self._made_up:
            self._made_up[prompt.number] = prompt
            self._pending.append(_line({_MADE_UP: prompt.number, "text": prompt.text}))

    @property
    def pending(self) -> int:
        """Lines that are not on disk yet."""
        return len(self._pending)

    def flush(self) -> None:
        """Have the disk hold all there is."""
        if not self._pending:
            return
        self._file.write("".join(self._pending))
        self._pending = []
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and let go of the file."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> ResponseFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def _cut_half_line(path: Path) -> None:
    """Shorten the file to its last whole line."""
    try:
        with path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            whole = _end_of_last_line(file, size)
            if whole < size:
                file.truncate(whole)
    except OSError as error:
        raise RequestError("DP501", f"cannot write {path}: {error.strerror}") from error


def _end_of_last_line(file: Any, size: int) -> int:
    """Offset behind the last newline; 0 where there is none."""
    step, end = 1 << 16, size
    while end > 0:
        start = max(0, end - step)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0


def _entries(path: Path) -> Iterator[Response | MadeUpPrompt | AboutResponses]:
    """What the lines say; a broken last line without a newline is what a kill leaves behind, and is passed over."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield _entry(json.loads(line))
                except (ValueError, RecursionError, TypeError, KeyError) as error:
                    if not line.endswith(b"\n"):
                        return
                    raise RequestError(
                        "DP501",
                        f"{path}, line {number}: expected an object with token ids under 'prompt_ids' and 'output_ids', "
                        f"got {line[:40].decode(errors='replace').strip()!r}",
                    ) from error
    except OSError as error:
        raise RequestError("DP501", f"cannot read {path}: {error.strerror}") from error


def _entry(row: Any) -> Response | MadeUpPrompt | AboutResponses:
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if _ABOUT in row:
        if row.pop(_ABOUT) != _VERSION:
            raise ValueError("another version")
        return AboutResponses(**row)
    if _MADE_UP in row:
        return MadeUpPrompt(int(row[_MADE_UP]), str(row["text"]))
    temperature = row.get("temperature")
    return Response(
        _token_ids(row["prompt_ids"]),
        _token_ids(row["output_ids"]),
        0.0 if temperature is None else float(temperature),
        str(row.get("group") or ""),
        str(row.get("key") or ""),
    )


def _token_ids(ids: Any) -> tuple[int, ...]:
    whole = isinstance(ids, list) and ids and all(type(token) is int and token >= 0 for token in ids)
    if not whole:
        raise ValueError("not a list of token ids")
    return tuple(ids)
