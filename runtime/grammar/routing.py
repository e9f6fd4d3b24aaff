"""Which engine a grammar goes to, and in whose notation. Compiles nothing.

xgrammar prepares masks when it compiles, so its masks are the fastest; but there are terminals
for which a single mask takes up to 0.6 s, and grammars that take seconds to compile. Those go to
llguidance, which prepares nothing. llguidance in turn can't read automata in a lexeme.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..messages import EngineName
from .cfg import Choice, Expr, Grammar, Repeat, Sequence, Text, lexemes
from .ebnf import ebnf_of
from .lark import lark_of
from .regular import NotPrintable, Regex, TooLarge, literal, width
from .regular import parts as links
from .schema.grammar import FREE_STRING

_QUOTE = literal('"')
_MAX_LENGTH = 64
_MAX_TEXT = 4_000
"""Characters of literal text in a grammar that xgrammar compiles in some tens of ms."""


def notations(grammar: Grammar) -> Iterator[tuple[EngineName, str]]:
    """Engines to try, the better one first, each with the grammar as it reads it."""
    order: list[EngineName] = ["xgrammar", "llguidance"]
    if not _is_for_xgrammar(grammar):
        order.reverse()
    for engine in order:
        try:
            yield engine, ebnf_of(grammar) if engine == "xgrammar" else lark_of(grammar)
        except (NotPrintable, TooLarge):
            continue


def _is_for_xgrammar(grammar: Grammar) -> bool:
    return all(map(_is_prepared, lexemes(grammar))) and _num_characters(grammar) <= _MAX_TEXT


def _is_prepared(language: Regex) -> bool:
    """Of few states, so that there are few masks: free strings, and numbers."""
    if language is FREE_STRING:
        return True
    _, most = width(language)
    is_short = most is not None and most <= _MAX_LENGTH
    return is_short and language.is_plain and next(links(language)) is not _QUOTE


def _num_characters(grammar: Grammar) -> int:
    todo: list[Expr] = list(grammar.rules.values())
    count = 0
    while todo:
        match todo.pop():
            case Text(text):
                count += len(text)
            case Sequence(parts) | Choice(parts):
                todo += parts
            case Repeat(body, _, _):
                todo.append(body)
            case _:
                pass
    return count
