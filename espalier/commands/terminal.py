"""A chat's lines in and answers out; knows nothing of models."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from rich.console import Console

from .flags import UsageError


class Terminal:
    """Reads lines from standard input and writes what the chat has to say."""

    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._answers = Console()
        self._notes = Console(stderr=True)
        if self.is_interactive:
            with suppress(ImportError):  # where there is one, `input` edits lines
                import_module("readline")

    def ask(self) -> str | None:
        """The user's next line, None at the end."""
        while True:
            try:
                return input("> " if self.is_interactive else "").strip()
            except EOFError:
                if self.is_interactive:
                    self._answers.out("")  # ends the prompt's line
                return None
            except KeyboardInterrupt:
                self.end_answer("/exit or Ctrl-D leaves")
            except UnicodeDecodeError as error:
                raise UsageError(f"the input is not text in UTF-8: {error}") from error

    def write(self, piece: str) -> None:
        """A piece of an answer."""
        self._answers.out(piece, end="", highlight=False)

    def end_answer(self, note: str) -> None:
        self._answers.out("")
        self.note(note)

    def note(self, text: str) -> None:
        self._notes.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
