"""A grammar in llguidance's dialect of Lark; knows nothing of matching."""

from __future__ import annotations

import json
import re

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import Regex, lark_terminals

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^"{}\[\]:,]+')


def lark_of(grammar: Grammar) -> str:
    """Its text; the root is `start`. Raises `NotPrintable` for a terminal that Lark can't say."""
    return _Printer(grammar).text()


class _Printer:
    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._terminals: dict[Regex, str] = {}
        self._definitions: list[str] = []

    def text(self) -> str:
        rules = [f"start: {self._grammar.root}"]
        for name, expr in self._grammar.rules.items():
            rules.append(f"{name}: {self._alternatives(expr)}")
        return "\n".join([*rules, *self._definitions, ""])

    def _alternatives(self, expr: Expr) -> str:
        if isinstance(expr, Choice):
            return " | ".join(map(self._inside, expr.options))
        return self._inside(expr)

    def _inside(self, expr: Expr) -> str:
        match expr:
            case Text(text):
                return _quoted(text)
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
        name = self._terminals.get(language)
        if name is None:
            name = self._terminals[language] = f"T{len(self._terminals)}"
            self._definitions += lark_terminals(language, name)
        return name


def _times(lo: int, hi: int | None) -> str:
    if hi is None:
        return {0: "*", 1: "+"}.get(lo, f"{{{lo},}}")
    return "?" if (lo, hi) == (0, 1) else f"{{{lo},{hi}}}"


def _quoted(text: str) -> str:
    """Literals, one for each token of JSON: JSON's escapes are read as in Lark.

    llguidance cuts its input into lexemes before it parses, the longest first. Where a literal
    stands beside a lexeme, the two have to end at the same places.
    """
    return " ".join(json.dumps(part, ensure_ascii=False) for part in _JSON_TOKEN.findall(text))
