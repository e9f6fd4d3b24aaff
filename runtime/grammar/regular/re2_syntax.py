"""ECMA-262 patterns for RE2, which matches in linear time but has no lookaheads.

Lookaheads at the start of the text become conditions of their own, which a text must meet or
must not. Where they stand elsewhere the pattern is not printable; `matches` with the pattern's
`search_language` decides it all the same, in more time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import NotPrintable
from .nodes import Alt, Regex, Repeat, parts
from .pattern import has_lookahead
from .pattern_syntax import (
    Alternation,
    Anchor,
    Concatenation,
    Lookahead,
    Node,
    Quantified,
    parse_pattern,
)
from .printing import Notation, in_braces, printed
from .rust_syntax import char_class, escaped

_MAX_COUNT = 1000  # of one repetition, and of nested ones multiplied: RE2's own limit


@dataclass(frozen=True, slots=True)
class Found:
    """The text has a match of the RE2 source."""

    source: str

    def holds(self, text: str, search: Callable[[str, str], object]) -> bool:
        """`search(source, text)` finds the first match, or None: `re2.search`."""
        return search(self.source, text) is not None


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition

    def holds(self, text: str, search: Callable[[str, str], object]) -> bool:
        return not self.condition.holds(text, search)


@dataclass(frozen=True, slots=True)
class AllOf:
    conditions: tuple[Condition, ...]

    def holds(self, text: str, search: Callable[[str, str], object]) -> bool:
        return all(condition.holds(text, search) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class AnyOf:
    conditions: tuple[Condition, ...]

    def holds(self, text: str, search: Callable[[str, str], object]) -> bool:
        return any(condition.holds(text, search) for condition in self.conditions)


Condition = Found | Not | AllOf | AnyOf


def search_pattern(pattern: str) -> Condition:
    """The condition that a text has a match of the ECMA-262 pattern."""
    return _condition(parse_pattern(pattern))


def re2_source(regex: Regex) -> str:
    """RE2's pattern for a plain expression; it matches just the texts of the language."""
    return _source(regex)


def _condition(node: Node) -> Condition:
    if not has_lookahead(node):
        return Found(_source(node))
    match node:
        case Alternation(options=options):
            return AnyOf(tuple(_condition(option) for option in options))
        case Concatenation(items=(Anchor(is_end=False) as start, *items)):
            aheads = _leading_lookaheads(items)
            if aheads:
                conditions = [_looks_ahead(start, ahead) for ahead in aheads]
                rest = Concatenation((start, *items[len(aheads) :]))
                return AllOf((*conditions, _condition(rest)))
        case _:
            pass
    raise NotPrintable("a lookahead that is not at the start of the text")


def _leading_lookaheads(items: Sequence[Node]) -> list[Lookahead]:
    aheads: list[Lookahead] = []
    for item in items:
        if not isinstance(item, Lookahead):
            break
        aheads.append(item)
    return aheads


def _looks_ahead(start: Anchor, ahead: Lookahead) -> Condition:
    condition = _condition(Concatenation((start, ahead.body)))
    return Not(condition) if ahead.is_negative else condition


def _source(node: Node) -> str:
    match node:
        case Regex():
            if _product(node) > _MAX_COUNT:
                raise NotPrintable(f"counts that multiply to more than {_MAX_COUNT}")
            return printed(node, _RE2)
        case Anchor(is_end=is_end):
            return "\\z" if is_end else "\\A"
        case Concatenation(items=items):
            return "".join(f"(?:{_source(item)})" for item in items)
        case Alternation(options=options):
            return "|".join(f"(?:{_source(option)})" for option in options)
        case Quantified(body=body, lo=lo, hi=hi):
            return _counted(f"(?:{_source(body)})", lo, hi)
        case Lookahead():
            raise AssertionError(node)


def _product(regex: Regex) -> int:
    """The greatest product of nested counts."""
    match regex:
        case Repeat(body=body, lo=lo, hi=hi):
            return max(lo, hi or 0, 1) * _product(body)
        case Alt(members=members):
            return max(map(_product, members))
        case _:
            links = tuple(parts(regex))
            return max(map(_product, links)) if len(links) > 1 else 1


def _counted(body: str, lo: int, hi: int | None) -> str:
    if max(lo, hi or 0) > _MAX_COUNT:
        raise NotPrintable(f"a count of more than {_MAX_COUNT}")
    return body + in_braces(lo, hi)


_RE2 = Notation(
    chars=char_class,
    literal=escaped,
    counted=_counted,
    empty="(?:)",
    joint="",
    bar="|",
    brackets=("(?:", ")"),
)
