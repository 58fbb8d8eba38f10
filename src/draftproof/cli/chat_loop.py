"""The conversation of `draftproof chat`: reads messages and commands, shows answers as they come."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from draftproof.cli.chat_speakers import Messages, Said, Speaker, Wishes
from draftproof.cli.exits import _print_error
from draftproof.cli.show import Screen
from draftproof.engine import TextPiece
from draftproof.errors import DraftproofError, ServerError

HELP = """\
  /reset           forget the conversation; the system message stays
  /system [TEXT]   set the system message, from the next message on; without a text, none
  /seed [N|none]   fix the seed of each answer; none draws one each time
  /draft N|auto|off   draft at most N tokens a step; as the engine was started; never
  /save FILE       write the conversation to a file, as JSON
  /help            this list
  /quit            end; so does Ctrl-D
  A line that ends in \\ goes on in the next one; // begins a message that starts with a slash. Ctrl-C stops an answer."""


class Page(Screen):
    """Standard output for answers, in the colours of `generate`; standard error for everything else."""

    def __init__(self) -> None:
        super().__init__()
        self._aside = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def pieces(self, pieces: list[TextPiece]) -> None:
        """Show a part of an answer."""
        self._print(pieces)

    def end(self) -> None:
        """End an answer."""
        sys.stdout.write("\n")
        sys.stdout.flush()

    def thoughts(self, text: str) -> None:
        """Show a part of what the model thinks."""
        self.aside(text, end="")

    def aside(self, text: str, end: str = "\n") -> None:
        """Say something that is not of the conversation."""
        self._aside.print(text.translate(SIGNS), style="dim", end=end)

    def legend(self) -> None:
        """What the colours mean."""
        if self._coloured:
            self._legend()


SIGNS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
"""Control characters of a model or server -> signs that show them."""


@dataclass
class Answer:
    """What has come of an answer so far; its note comes with its end."""

    text: str = ""
    thinking: bool = False
    note: str | None = None


class Conversation:
    """A conversation with one speaker.

    Args:
        speaker: who answers.
        wishes: how; changed by commands.
        system: system message.
    """

    def __init__(self, speaker: Speaker, wishes: Wishes, system: str | None) -> None:
        self._speaker, self._wishes, self._system = speaker, wishes, system
        self._turns: Messages = []
        self._page = Page()
        self._at_terminal = sys.stdin.isatty()

    def run(self) -> None:
        """Talk until the input ends or /quit comes.

        Raises:
            DraftproofError: an answer failed, where nobody is at the terminal to ask something else.
        """
        if self._at_terminal:
            self._greet()
        while (line := self._read()) is not None:
            if not line.strip():
                continue
            try:
                if line.startswith("/") and not line.startswith("//"):
                    if not self._command(line):
                        return
                else:
                    self._ask(line[1:] if line.startswith("//") else line)
            except DraftproofError as error:
                if not self._at_terminal:
                    raise
                _print_error(error)

    def _greet(self) -> None:
        with contextlib.suppress(ImportError):  # gives `input` a line that can be edited, and a history
            import readline  # noqa: F401
        self._page.aside(f"{self._speaker.name} · /help lists the commands, Ctrl-D ends")
        self._page.legend()

    def _read(self) -> str | None:
        """The next message, which may take several lines; None when there is none."""
        lines: list[str] = []
        while True:
            try:
                line = self._line("... " if lines else "> ")
            except KeyboardInterrupt:
                self._page.aside("\n(Ctrl-D or /quit ends)")
                lines = []
                continue
            if line is None:
                if self._at_terminal:
                    self._page.aside("")
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _line(self, prompt: str) -> str | None:
        if self._at_terminal:
            try:
                return input(prompt)
            except EOFError:
                return None
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def _ask(self, text: str) -> None:
        question = {"role": "user", "content": text}
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        answer = Answer()
        try:
            self._show(self._speaker.answer([*system, *self._turns, question], self._wishes), answer)
        finally:
            if answer.text or answer.note is not None:
                self._page.end()
        if self._at_terminal:
            self._page.aside("(stopped)" if answer.note is None else answer.note)
        elif answer.note is None:  # nobody is there to ask for anything else
            raise KeyboardInterrupt
        if answer.text or answer.note is not None:
            self._turns += [question, {"role": "assistant", "content": answer.text}]

    def _show(self, parts: Generator[Said, None, None], answer: Answer) -> None:
        """Show an answer as it comes, until its end or Ctrl-C."""
        with _stops(at_once=self._speaker.waits_for_itself) as stopped, contextlib.closing(parts):
            try:
                for part in parts:
                    self._part(part, answer)
                    if stopped():
                        return
            except KeyboardInterrupt:
                return

    def _part(self, part: Said, answer: Answer) -> None:
        if part.thoughts:
            self._page.thoughts(part.thoughts)
            answer.thinking = True
        if part.pieces:
            if answer.thinking:
                self._page.aside("")
                answer.thinking = False
            answer.text += "".join(piece.text for piece in part.pieces)
            self._page.pieces(part.pieces)
        if part.note is not None:
            answer.note = part.note

    def _command(self, line: str) -> bool:
        """Carry out a command. Returns whether the conversation goes on."""
        name, _, rest = line[1:].partition(" ")
        if name in ("quit", "exit"):
            return False
        commands: dict[str, Callable[[str], str]] = {
            "help": lambda _: HELP,
            "reset": self._reset,
            "system": self._set_system,
            "seed": self._set_seed,
            "draft": self._set_draft,
            "save": self._save,
        }
        command = commands.get(name)
        self._page.aside(
            f"there is no /{name}; /help lists the commands" if command is None else command(rest.strip())
        )
        return True

    def _reset(self, _: str) -> str:
        self._turns = []
        return "the conversation is forgotten"

    def _set_system(self, text: str) -> str:
        self._system = text or None
        return "system message set" if text else "no system message"

    def _set_seed(self, text: str) -> str:
        if text and text != "none":
            try:
                seed = int(text)
            except ValueError:
                return f"a seed is a whole number or none, got {text}"
            if not -(2**63) <= seed < 2**63:
                return f"a seed has 64 bits, got {text}"
            self._wishes.seed = seed
        elif text:
            self._wishes.seed = None
        return "a seed is drawn for each answer" if self._wishes.seed is None else f"seed {self._wishes.seed}"

    def _set_draft(self, text: str) -> str:
        if self._speaker.drafts is not None:
            return f"nothing to choose: {self._speaker.drafts}"
        if text == "auto":
            self._wishes.draft_length = "auto"
        elif text in ("off", "0"):
            self._wishes.draft_length = 0
        elif text.isdecimal():
            self._wishes.draft_length = int(text)
        elif text:
            return f"/draft takes a number of tokens, auto or off, got {text}"
        words = {None: "auto", "auto": "auto", 0: "off"}
        length = self._wishes.draft_length
        return f"drafting: {words.get(length, f'up to {length} tokens a step')}"

    def _save(self, name: str) -> str:
        if not name:
            return "/save needs the name of a file"
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        wishes = {**self._wishes.sampling, "draft_length": self._wishes.draft_length}
        document = {"model": self._speaker.name, "settings": wishes, "messages": [*system, *self._turns]}
        try:
            with open(name, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=2, ensure_ascii=False)
                file.write("\n")
        except OSError as error:
            raise ServerError("DP684", f"cannot write {name}: {error.strerror or error}") from None
        return f"{len(self._turns)} messages saved to {name}"


@contextlib.contextmanager
def _stops(at_once: bool) -> Iterator[Callable[[], bool]]:
    """While it lasts, Ctrl-C only asks for an end, and a second one insists; with `at_once` the first one does.

    A model of this process is better not cut into in the middle of a step: it goes on living in the next answer.
    """
    asked = threading.Event()

    def hear(_: int, __: FrameType | None) -> None:
        if at_once or asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, hear)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
