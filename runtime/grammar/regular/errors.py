"""What can go wrong with a regular language; knows nothing of requests."""

from __future__ import annotations


class TooLarge(Exception):
    """An answer would take more work or space than the caller allows."""


class NotPrintable(Exception):
    """A language can't be written in the notation that was asked for."""


class PatternError(Exception):
    """A pattern is malformed, or asks for what no regular language here can express."""

    def __init__(self, position: int, trouble: str) -> None:
        super().__init__(f"at position {position + 1}: {trouble}")
        self.position = position  # index of the character at fault
        self.trouble = trouble
