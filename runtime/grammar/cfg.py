"""Context-free grammars over text whose terminals are regular languages; knows no engine.

The one form between what callers ask for and the engines: printed for each, and walked by the
closer. A grammar has no rule that derives nothing once it went through `pruned`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .regular import Regex, is_empty


@dataclass(frozen=True, slots=True)
class Text:
    """This text, not empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Lexeme:
    """Any text of a regular language, read as one token of the language: what follows one never
    begins with a character that could continue it."""

    language: Regex


@dataclass(frozen=True, slots=True)
class Call:
    """What the rule of this name derives."""

    rule: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Of none of them: nothing can be derived."""

    options: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """At least `lo` times, at most `hi` times; None: without end."""

    body: Expr
    lo: int
    hi: int | None


Expr = Text | Lexeme | Call | Sequence | Choice | Repeat

EMPTY = Sequence(())
NEVER = Choice(())


@dataclass(frozen=True, slots=True)
class Grammar:
    rules: Mapping[str, Expr]
    root: str

    def pruned(self) -> Grammar | None:
        """Without what derives nothing and what is not reached; None if the root is that."""
        pruning = _Pruning(self.rules)
        if self.root not in pruning.productive:
            return None
        kept: dict[str, Expr] = {}
        todo = [self.root]
        while todo:
            name = todo.pop()
            if name not in kept:
                kept[name] = pruning.kept(self.rules[name])
                todo += calls(kept[name])
        return Grammar(kept, self.root)


def sequence(*parts: Expr) -> Expr:
    """With neighbouring texts joined, and sequences inside it taken apart."""
    flat: list[Expr] = []
    for part in parts:
        for item in part.parts if isinstance(part, Sequence) else (part,):
            if item == NEVER:
                return NEVER
            if isinstance(item, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + item.text)
            else:
                flat.append(item)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def choice(*options: Expr) -> Expr:
    """Without repetitions and without choices inside it."""
    flat: dict[Expr, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Choice) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Choice(tuple(flat))


def repeat(body: Expr, lo: int, hi: int | None) -> Expr:
    if hi == 0 or (body == NEVER and lo == 0):
        return EMPTY
    if hi is not None and hi < lo:
        return NEVER
    return body if lo == hi == 1 or body == NEVER else Repeat(body, lo, hi)


def calls(expr: Expr) -> Iterator[str]:
    """Names of the rules that are called in it."""
    todo = [expr]
    while todo:
        match todo.pop():
            case Call(rule):
                yield rule
            case Sequence(parts) | Choice(parts):
                todo += parts
            case Repeat(body, _, _):
                todo.append(body)
            case _:
                pass


def lexemes(grammar: Grammar) -> Iterator[Regex]:
    """All languages of terminals, some more than once."""
    todo = list(grammar.rules.values())
    while todo:
        match todo.pop():
            case Lexeme(language):
                yield language
            case Sequence(parts) | Choice(parts):
                todo += parts
            case Repeat(body, _, _):
                todo.append(body)
            case _:
                pass


class _Pruning:
    """`productive`: names of the rules that derive some text."""

    def __init__(self, rules: Mapping[str, Expr]) -> None:
        self._empty: dict[Regex, bool] = {}
        self.productive: set[str] = set()
        callers: dict[str, list[str]] = {}
        for name, expr in rules.items():
            for called in set(calls(expr)):
                callers.setdefault(called, []).append(name)
        todo = list(rules)
        while todo:  # when one is found to be, its callers are asked again
            name = todo.pop()
            if name not in self.productive and self._derives(rules[name]):
                self.productive.add(name)
                todo += callers.get(name, ())

    def _derives(self, expr: Expr) -> bool:
        match expr:
            case Text():
                return True
            case Lexeme(language):
                if language not in self._empty:
                    self._empty[language] = is_empty(language)
                return not self._empty[language]
            case Call(rule):
                return rule in self.productive
            case Sequence(parts):
                return all(map(self._derives, parts))
            case Choice(options):
                return any(map(self._derives, options))
            case Repeat(body, lo, _):
                return lo == 0 or self._derives(body)

    def kept(self, expr: Expr) -> Expr:
        """`expr`, which derives something, without the parts that do not."""
        match expr:
            case Sequence(parts):
                return sequence(*map(self.kept, parts))
            case Choice(options):
                return choice(*map(self.kept, filter(self._derives, options)))
            case Repeat(body, lo, hi):
                return repeat(self.kept(body), lo, hi) if self._derives(body) else EMPTY
            case _:
                return expr
