"""What can still become a text of a language: all beginnings of its texts."""

from __future__ import annotations

from collections.abc import Sequence

from .construct import EPSILON, alt, repeat, seq
from .nodes import Alt, Chars, Epsilon, Regex, Repeat, Seq, parts


def prefixes(regex: Regex) -> Regex:
    """Every beginning of every text of a plain expression, the whole texts and none included."""
    match regex:
        case Epsilon():
            return EPSILON
        case Chars():
            return alt(EPSILON, regex)
        case Seq():
            return _of_chain(tuple(parts(regex)))
        case Alt(members=members):
            return alt(*map(prefixes, members))
        case Repeat(body=body, hi=hi):
            return seq(repeat(body, 0, None if hi is None else hi - 1), prefixes(body))
        case _:
            raise AssertionError(f"{regex} is not plain")


def _of_chain(links: Sequence[Regex]) -> Regex:
    """By halves, so that neither size nor depth grows with the square of the length."""
    if len(links) == 1:
        return prefixes(links[0])
    middle = len(links) // 2
    return alt(_of_chain(links[:middle]), seq(*links[:middle], _of_chain(links[middle:])))
