"""A grammar in llguidance's dialect of Lark; knows nothing of matching."""

from __future__ import annotations

import json

from .cfg import Call, Choice, Expr, Grammar, Lexeme, Repeat, Sequence, Text
from .regular import NotPrintable, Regex, char_class, lark_terminals, minimized, to_dfa


def lark_of(grammar: Grammar) -> str:
    """Its text; the root is `start`. Raises `TooLarge` for a terminal with too many states."""
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
            name = f"T{len(self._terminals)}"
            try:
                self._definitions += lark_terminals(language, name)
            except NotPrintable:
                name = self._automaton(language, f"a{len(self._terminals)}")
            self._terminals[language] = name
        return name

    def _automaton(self, language: Regex, name: str) -> str:
        """One rule for each state; the name of the first one."""
        dfa = minimized(to_dfa(language))
        for state, row in enumerate(dfa.transitions):
            options = [f"/{char_class(charset)}/ {name}_{target}" for charset, target in row]
            options += ['""'] * (state in dfa.accepting)
            self._definitions.append(f"{name}_{state}: {' | '.join(options)}")
        return f"{name}_0"


def _times(lo: int, hi: int | None) -> str:
    if hi is None:
        return {0: "*", 1: "+"}.get(lo, f"{{{lo},}}")
    return "?" if (lo, hi) == (0, 1) else f"{{{lo},{hi}}}"


def _quoted(text: str) -> str:
    """A literal: JSON's escapes are read as in Lark."""
    return json.dumps(text, ensure_ascii=False)
