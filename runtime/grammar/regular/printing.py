"""Writes plain expressions out, with as few brackets as a notation needs; knows no notation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .charset import CharSet
from .errors import NotPrintable
from .nodes import Alt, Chars, Epsilon, Regex, Repeat, Seq, parts

MAX_PRINTED_CHARS = 1 << 20  # a small term with shared parts can be long when written out

_ATOM, _SEQUENCE, _CHOICE = range(3)  # how tightly a text holds together


@dataclass(frozen=True, slots=True)
class Notation:
    """chars: one of a set that is not empty. literal: a text of one character or more.
    counted: `lo` to `hi` times what the text, an atom, stands for.
    """

    chars: Callable[[CharSet], str]
    literal: Callable[[str], str]
    counted: Callable[[str, int, int | None], str]
    empty: str
    joint: str
    bar: str
    brackets: tuple[str, str]


def printed(regex: Regex, notation: Notation) -> str:
    """The expression in the notation; `NotPrintable` if it is not plain, or too long."""
    if not regex.is_plain:
        raise NotPrintable("an intersection, a complement or an automaton")
    return _Printer(notation).text(regex, _CHOICE)


def in_braces(lo: int, hi: int | None) -> str:
    """The shortest quantifier of these counts, where quantifiers are `*`, `+`, `?` and braces."""
    match lo, hi:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{lo},}}"
        case _:
            return f"{{{lo}}}" if lo == hi else f"{{{lo},{hi}}}"


class _Printer:
    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._done: dict[Regex, tuple[str, int]] = {}

    def text(self, regex: Regex, loosest: int) -> str:
        """`regex` in a place that takes a text of this looseness without brackets."""
        found = self._done.get(regex)
        if found is None:
            found = self._print(regex)
            if len(found[0]) > MAX_PRINTED_CHARS:
                raise NotPrintable(f"more than {MAX_PRINTED_CHARS} characters")
            self._done[regex] = found
        text, looseness = found
        opening, closing = self._notation.brackets
        return text if looseness <= loosest else f"{opening}{text}{closing}"

    def _print(self, regex: Regex) -> tuple[str, int]:
        match regex:
            case Chars(charset=charset):
                return self._chars(charset), _ATOM
            case Epsilon():
                return self._notation.empty, _ATOM
            case Seq():
                return self._sequence(regex), _SEQUENCE
            case Alt(members=members):
                options = [self.text(member, _CHOICE) for member in members]
                return self._notation.bar.join(options), _CHOICE
            case Repeat(body=body, lo=lo, hi=hi):
                return self._notation.counted(self.text(body, _ATOM), lo, hi), _SEQUENCE
            case _:
                raise AssertionError(regex)

    def _chars(self, charset: CharSet) -> str:
        if charset.size == 1:
            return self._notation.literal(chr(charset.ranges[0][0]))
        return self._notation.chars(charset)

    def _sequence(self, regex: Regex) -> str:
        pieces: list[str] = []
        run = ""
        length = 0
        for link in parts(regex):
            if isinstance(link, Chars) and link.charset.size == 1:
                run += chr(link.charset.ranges[0][0])
                continue
            if run:
                pieces.append(self._notation.literal(run))
                run = ""
            pieces.append(self.text(link, _SEQUENCE))
            length += len(pieces[-1])
            if length > MAX_PRINTED_CHARS:
                raise NotPrintable(f"more than {MAX_PRINTED_CHARS} characters")
        if run:
            pieces.append(self._notation.literal(run))
        return self._notation.joint.join(pieces)
