"""A grammar in xgrammar's EBNF, where that is fast; knows nothing of matching.

xgrammar prepares masks for each state of a rule. What its masks are slow for, by measurement
(a repeated choice with escapes in it: up to 0.6 s for one mask), is not printed.
"""

from __future__ import annotations

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import (
    NotPrintable,
    Regex,
    ebnf_expression,
    ebnf_rules,
    minimized,
    to_dfa,
)
from .schema.grammar import FREE_STRING

MAX_STATES = 2_000
"""Of one terminal that is written out state by state."""

_FREE_STRING_RULES = r"""
string ::= "\"" string_rest
string_rest ::= "\"" | [^"\\\x00-\x1f] string_rest | "\\" escape string_rest
escape ::= ["\\/bfnrt] | "u" unit
unit ::= [0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex | high "\\u" low
high ::= [dD] [89abAB] hex hex
low ::= [dD] [c-fC-F] hex hex
hex ::= [0-9a-fA-F]
"""


def ebnf_of(grammar: Grammar) -> str:
    """Its text; the root is `root`. Raises `NotPrintable` where it would be slow."""
    return _Printer().text(grammar)


class _Printer:
    def __init__(self) -> None:
        self._automata: dict[Regex, str] = {}
        self._definitions: list[str] = []

    def text(self, grammar: Grammar) -> str:
        rules = [f"root ::= {grammar.root}"]
        for name, expr in grammar.rules.items():
            rules.append(f"{name} ::= {self._alternatives(expr)}")
        return "\n".join([*rules, *self._definitions]) + _FREE_STRING_RULES

    def _alternatives(self, expr: Expr) -> str:
        if isinstance(expr, Choice):
            return " | ".join(map(self._inside, expr.options))
        return self._inside(expr)

    def _inside(self, expr: Expr) -> str:
        match expr:
            case Text(text):
                return '"' + "".join(map(_literal, text)) + '"'
            case Lexeme(language):
                return self._terminal(language)
            case Call(rule):
                return rule
            case Sequence(parts):
                return " ".join(map(self._inside, parts)) if parts else '""'
            case Choice():
                return f"({self._alternatives(expr)})"
            case Repeat(body, lo, hi):
                return f"({self._alternatives(body)}){_times(lo, hi)}"

    def _terminal(self, language: Regex) -> str:
        if language is FREE_STRING:
            return "string"
        if language.is_plain:
            return f"({ebnf_expression(language)})"
        name = self._automata.get(language)
        if name is None:
            name = self._automata[language] = f"automaton_{len(self._automata)}"
            dfa = minimized(to_dfa(language))
            if len(dfa.transitions) > MAX_STATES:
                raise NotPrintable(f"an automaton of {len(dfa.transitions)} states")
            self._definitions += ebnf_rules(dfa, name)
        return name


def _times(lo: int, hi: int | None) -> str:
    if hi is None:
        return {0: "*", 1: "+"}.get(lo, f"{{{lo},}}")
    return "?" if (lo, hi) == (0, 1) else f"{{{lo},{hi}}}"


def _literal(char: str) -> str:
    return (
        char
        if char.isascii() and (char.isalnum() or char in " ,:{}[]_-")
        else (f"\\U{ord(char):08x}")
    )
