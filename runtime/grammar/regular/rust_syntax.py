"""Languages in the syntax of Rust's `regex` crate, and as terminals of llguidance's Lark.

The text is safe between the slashes of a Lark regex: no slash, no line end, ASCII alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from .charset import MAX_CODE_POINT, CharSet
from .construct import NOTHING
from .dfa import Dfa
from .errors import NotPrintable
from .nodes import Alt, Both, Negated, Regex, Repeat, Seq, parts
from .printing import Notation, in_braces, printed

# Means itself in and out of a class, in Rust, RE2 and between slashes.
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _,:;=@%'!")


def rust_regex(regex: Regex) -> str:
    """`regex` for the `regex` crate, to be matched against a whole text; plain ones only."""
    return printed(regex, _RUST)


def escaped(text: str) -> str:
    return "".join(char if char in _SAFE else f"\\x{{{ord(char):X}}}" for char in text)


def char_class(charset: CharSet) -> str:
    """A class in brackets, of what it has or of what it lacks, whichever is shorter.

    Such a complement is of all characters, as ours are: no text that the engines see has
    surrogates.
    """
    if not charset:
        return f"[^\\x{{0}}-\\x{{{MAX_CODE_POINT:X}}}]"
    lacking = charset.complement()
    if lacking and len(lacking.ranges) < len(charset.ranges):
        return f"[^{_spans(lacking)}]"
    return f"[{_spans(charset)}]"


def _spans(charset: CharSet) -> str:
    return "".join(
        escaped(chr(first)) + (f"-{escaped(chr(last))}" if last > first else "")
        for first, last in charset.ranges
    )


def _counted(body: str, lo: int, hi: int | None) -> str:
    return body + in_braces(lo, hi)


_RUST = Notation(
    chars=char_class,
    literal=escaped,
    counted=_counted,
    empty="(?:)",
    joint="",
    bar="|",
    brackets=("(?:", ")"),
)


def lark_terminals(regex: Regex, name: str) -> list[str]:
    """Definitions of the terminal `name`, one a line: `&` and `~` stand between terminals, so
    parts have names of their own. `name` is upper case."""
    if regex is NOTHING:
        raise NotPrintable("the empty language")
    terminals = _Terminals(name)
    terminals.define(name, regex)
    return terminals.lines


def lark_rules(dfa: Dfa, name: str) -> list[str]:
    """Rules of which `name`, in lower case, is the language of the automaton; the others are
    `name_<state>`. For automata that no terminal can express."""
    if not dfa.accepting:
        raise NotPrintable("the empty language")
    names = [name if state == 0 else f"{name}_{state}" for state in range(len(dfa.transitions))]
    rules: list[str] = []
    for state, transitions in enumerate(dfa.transitions):
        options = [f"/{char_class(charset)}/ {names[target]}" for charset, target in transitions]
        if state in dfa.accepting:
            options.append('""')
        rules.append(f"{names[state]}: {' | '.join(options)}")
    return rules


class _Terminals:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[Regex, str] = {}
        self.lines: list[str] = []

    def define(self, name: str, regex: Regex) -> None:
        self.lines.append(f"{name}: {self._expression(regex)}")

    def _expression(self, regex: Regex) -> str:
        if regex.is_plain:
            return f"/{rust_regex(regex)}/"
        match regex:
            case Seq():
                return " ".join(self._named(part) for part in parts(regex))
            case Alt(members=members):
                return " | ".join(self._named_all(members))
            case Both(members=members):
                return " & ".join(self._named_all(members))
            case Negated(body=body):
                return f"~{self._named(body)}"
            case Repeat(body=body, lo=lo, hi=hi):
                return f"{self._named(body)}{in_braces(lo, hi)}"
            case _:
                raise NotPrintable("an automaton")

    def _named_all(self, members: Sequence[Regex]) -> list[str]:
        return [self._named(member) for member in members]

    def _named(self, regex: Regex) -> str:
        name = self._names.get(regex)
        if name is None:
            name = self._names[regex] = f"{self._prefix}_{len(self._names) + 1}"
            self.define(name, regex)
        return name
