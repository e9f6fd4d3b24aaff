"""Regular expressions as immutable terms of which no two equal ones exist.

Terms are made by `construct` alone, which normalises them; they compare by identity. Every
algorithm walks a `Seq` in a loop, so that depth is that of the nesting, never of the length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import final
from weakref import WeakValueDictionary

from .charset import CharSet
from .dfa import Dfa


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Regex:
    """A set of strings. Symbols are code points, or bytes after `utf8_bytes`.

    nullable: whether the empty string is in the set.
    is_plain: no `Both`, `Negated` or `Automaton` inside; then only `NOTHING` is empty.
    digest: a structural hash, the same in every process: members are sorted by it.
    """

    nullable: bool
    is_plain: bool
    digest: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chars(Regex):
    """One symbol of the set."""

    charset: CharSet


@final
@dataclass(frozen=True, slots=True, eq=False)
class Epsilon(Regex):
    """The empty string alone."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Seq(Regex):
    """`first`, then `rest`, which is most often a `Seq` itself."""

    first: Regex
    rest: Regex


@final
@dataclass(frozen=True, slots=True, eq=False)
class Alt(Regex):
    """Any of two or more members, none of which is an `Alt`; at most one is a `Chars`."""

    members: tuple[Regex, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Repeat(Regex):
    """`lo` to `hi` times the body; no upper bound where `hi` is None."""

    body: Regex
    lo: int
    hi: int | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Both(Regex):
    """What all of two or more members have in common."""

    members: tuple[Regex, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Negated(Regex):
    """Every string that the body does not have."""

    body: Regex


@final
@dataclass(frozen=True, slots=True, eq=False)
class Automaton(Regex):
    """What the automaton accepts from the state on, which can reach an end."""

    dfa: Dfa
    state: int


def parts(regex: Regex) -> Iterator[Regex]:
    """The links of a chain of `Seq`, or the term itself."""
    while isinstance(regex, Seq):
        yield regex.first
        regex = regex.rest
    yield regex


# All terms that are in use. This is what makes equal terms identical, so there is one for the
# whole process; it holds nothing that nobody else holds.
_terms: WeakValueDictionary[Hashable, Regex] = WeakValueDictionary()
_lock = Lock()


def interned(key: Hashable, make: Callable[[], Regex]) -> Regex:
    """The one term of this key, made if there is none."""
    with _lock:
        term = _terms.get(key)
        if term is None:
            term = _terms[key] = make()
        return term
