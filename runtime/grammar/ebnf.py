"""A grammar in xgrammar's EBNF, where that is fast; knows nothing of matching.

xgrammar prepares masks for each state of a rule. What its masks are slow for, by measurement
(a repeated choice with escapes in it: up to 0.6 s for one mask), is not printed.
"""

from __future__ import annotations

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import Regex, ebnf_expression
from .schema.grammar import FREE_STRING

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
    rules = [f"root ::= {grammar.root}"]
    rules += [f"{name} ::= {_alternatives(expr)}" for name, expr in grammar.rules.items()]
    return "\n".join(rules) + _FREE_STRING_RULES


def _alternatives(expr: Expr) -> str:
    if isinstance(expr, Choice):
        return " | ".join(map(_inside, expr.options))
    return _inside(expr)


def _inside(expr: Expr) -> str:
    match expr:
        case Text(text):
            return '"' + "".join(map(_literal, text)) + '"'
        case Lexeme(language):
            return _terminal(language)
        case Call(rule):
            return rule
        case Sequence(parts):
            return " ".join(map(_inside, parts)) if parts else '""'
        case Choice():
            return f"({_alternatives(expr)})"
        case Repeat(body, lo, hi):
            return f"({_alternatives(body)}){_times(lo, hi)}"


def _terminal(language: Regex) -> str:
    if language is FREE_STRING:
        return "string"
    return f"({ebnf_expression(language)})"


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
