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
        productive = _productive(self.rules)
        if self.root not in productive:
            return None
        kept: dict[str, Expr] = {}
        todo = [self.root]
        while todo:
            name = todo.pop()
            if name not in kept:
                kept[name] = _kept(self.rules[name], productive)
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


def _productive(rules: Mapping[str, Expr]) -> set[str]:
    """Names of the rules that derive some text: when one is found, its callers are asked again."""
    callers: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for called in set(calls(expr)):
            callers.setdefault(called, []).append(name)
    found: set[str] = set()
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name not in found and _derives(rules[name], found):
            found.add(name)
            todo += callers.get(name, ())
    return found


def _derives(expr: Expr, productive: set[str]) -> bool:
    match expr:
        case Text():
            return True
        case Lexeme(language):
            return not is_empty(language)
        case Call(rule):
            return rule in productive
        case Sequence(parts):
            return all(_derives(part, productive) for part in parts)
        case Choice(options):
            return any(_derives(option, productive) for option in options)
        case Repeat(body, lo, _):
            return lo == 0 or _derives(body, productive)


def _kept(expr: Expr, productive: set[str]) -> Expr:
    """`expr`, which derives something, without the parts that do not."""
    match expr:
        case Sequence(parts):
            return sequence(*(_kept(part, productive) for part in parts))
        case Choice(options):
            kept = (o for o in options if _derives(o, productive))
            return choice(*(_kept(option, productive) for option in kept))
        case Repeat(body, lo, hi):
            if not _derives(body, productive):
                return EMPTY
            return repeat(_kept(body, productive), lo, hi)
        case _:
            return expr
