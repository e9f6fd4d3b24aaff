"""Which engine a grammar goes to, and in whose notation. Compiles nothing.

xgrammar prepares masks when it compiles, so its masks are the fastest; but there are terminals
for which a single mask takes up to 0.6 s, and grammars that take seconds to compile. Those go to
llguidance, which prepares nothing. llguidance in turn can't read automata in a lexeme, and can't
match with thousands of alternatives, which to xgrammar are one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..messages import EngineName
from .cfg import Choice, Expr, Grammar, Repeat, Sequence, lexemes
from .ebnf import ebnf_of
from .lark import lark_of
from .regular import NotPrintable, Regex, TooLarge, literal, width
from .regular import parts as links
from .schema.grammar import FREE_STRING

MAX_EBNF = 3_000
"""Characters of a notation that xgrammar compiles in about 10 ms, if its terminals are simple."""

_QUOTE = literal('"')
_MAX_LENGTH = 64
_MAX_OPTIONS = 1_000
"""Of one choice; llguidance fails to match where more than 2,000 things may come next."""


def notations(grammar: Grammar) -> Iterator[tuple[EngineName, str]]:
    """Engines to try, the better one first, each with the grammar as it reads it."""
    soon = _soon(grammar)
    if soon is not None:
        yield "xgrammar", soon
    if (lark := _printed(lark_of, grammar)) is not None:
        yield "llguidance", lark
    if soon is None and (ebnf := _printed(ebnf_of, grammar)) is not None:
        yield "xgrammar", ebnf


def _soon(grammar: Grammar) -> str | None:
    """For xgrammar, if it compiles that soon, or llguidance could not match with it."""
    is_wide = _most_options(grammar) > _MAX_OPTIONS
    is_simple = all(map(_is_simple, lexemes(grammar)))
    ebnf = _printed(ebnf_of, grammar) if is_simple or is_wide else None
    return ebnf if ebnf is None or is_wide or len(ebnf) <= MAX_EBNF else None


def _most_options(grammar: Grammar) -> int:
    """Of a choice in it."""
    todo: list[Expr] = list(grammar.rules.values())
    most = 0
    while todo:
        match todo.pop():
            case Choice(options):
                most = max(most, len(options))
                todo += options
            case Sequence(parts):
                todo += parts
            case Repeat(body, _, _):
                todo.append(body)
            case _:
                pass
    return most


def _printed(printer: Callable[[Grammar], str], grammar: Grammar) -> str | None:
    try:
        return printer(grammar)
    except (NotPrintable, TooLarge):
        return None


def _is_simple(language: Regex) -> bool:
    """Of few states, so that there are few masks: free strings, and numbers."""
    if language is FREE_STRING:
        return True
    _, most = width(language)
    is_short = most is not None and most <= _MAX_LENGTH
    return is_short and language.is_plain and next(links(language)) is not _QUOTE
