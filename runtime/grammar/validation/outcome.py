"""What validating comes to: a verdict for callers; within, a violation or something undecidable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """`valid` is None where it can't be decided; `trouble` says what is wrong, or why not."""

    valid: bool | None
    trouble: str


class Violation(Exception):
    """The text breaks the schema: at `path` (innermost step first), by what the message says."""

    def __init__(self, trouble: str) -> None:
        super().__init__(trouble)
        self.trouble = trouble
        self.path: list[str] = []

    def __str__(self) -> str:
        steps = (step.replace("~", "~0").replace("/", "~1") for step in reversed(self.path))
        pointer = "".join(f"/{step}" for step in steps)
        return f"{pointer}: {self.trouble}" if pointer else self.trouble


class Uncheckable(Exception):
    """It can't be decided whether the text satisfies the schema; the message says why."""


class Misshapen(Uncheckable):
    """A keyword's argument is not of the kind that it must be; the message says which."""
