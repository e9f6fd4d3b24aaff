"""Grammars as bytes, from the process that made one to the one that closes by it.

Terms of languages are written once each, below those that use them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import Regex, from_terms, to_terms


def encode_grammar(grammar: Grammar) -> bytes:
    terms: list[Any] = []
    numbers: dict[Regex, int] = {}
    rules = {name: _plain(expr, terms, numbers) for name, expr in grammar.rules.items()}
    return msgspec.msgpack.encode([terms, rules, grammar.root])


def decode_grammar(data: bytes) -> Grammar:
    """Of what `encode_grammar` gave."""
    terms, rules, root = msgspec.msgpack.decode(data)
    regexes = from_terms(terms)
    return Grammar({name: _expr(plain, regexes) for name, plain in rules.items()}, root)


def _plain(expr: Expr, terms: list[Any], numbers: dict[Regex, int]) -> Any:
    match expr:
        case Text(text):
            return text
        case Lexeme(language):
            return to_terms(language, terms, numbers)
        case Call(rule):
            return ["call", rule]
        case Sequence(parts):
            return ["sequence", *(_plain(part, terms, numbers) for part in parts)]
        case Choice(options):
            return ["choice", *(_plain(option, terms, numbers) for option in options)]
        case Repeat(body, lo, hi):
            return ["repeat", _plain(body, terms, numbers), lo, hi]


def _expr(plain: Any, regexes: list[Regex]) -> Expr:
    match plain:
        case str():
            return Text(plain)
        case int():
            return Lexeme(regexes[plain])
        case ["call", rule]:
            return Call(rule)
        case ["sequence", *parts]:
            return Sequence(tuple(_expr(part, regexes) for part in parts))
        case ["choice", *options]:
            return Choice(tuple(_expr(option, regexes) for option in options))
        case ["repeat", body, lo, hi]:
            return Repeat(_expr(body, regexes), lo, hi)
        case _:
            raise AssertionError(plain)
