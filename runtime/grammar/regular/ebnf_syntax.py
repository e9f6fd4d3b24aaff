"""Languages in xgrammar's EBNF: plain ones as expressions, automata as right-linear rules."""

from __future__ import annotations

from .charset import CharSet
from .construct import NOTHING
from .dfa import Dfa
from .errors import NotPrintable
from .nodes import Regex
from .printing import Notation, in_braces, printed

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ")


def ebnf_expression(regex: Regex) -> str:
    """`regex` as the right side of a rule; plain ones only."""
    if regex is NOTHING:
        raise NotPrintable("the empty language")
    return printed(regex, _EBNF)


def ebnf_rules(dfa: Dfa, name: str) -> list[str]:
    """Rules of which `name` is the language of the automaton; the others are `name_<state>`."""
    if not dfa.accepting:
        raise NotPrintable("the empty language")
    names = [name if state == 0 else f"{name}_{state}" for state in range(len(dfa.transitions))]
    rules: list[str] = []
    for state, transitions in enumerate(dfa.transitions):
        options = [f"{_chars(charset)} {names[target]}" for charset, target in transitions]
        if state in dfa.accepting:
            options.append('""')
        rules.append(f"{names[state]} ::= {' | '.join(options)}")
    return rules


def _escaped(text: str) -> str:
    return "".join(
        char if char in _SAFE else f"\\u{ord(char):04x}" if char <= "\uffff" else _long(char)
        for char in text
    )


def _long(char: str) -> str:
    return f"\\U{ord(char):08x}"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _chars(charset: CharSet) -> str:
    lacking = charset.complement()
    if lacking and len(lacking.ranges) < len(charset.ranges):
        return f"[^{_spans(lacking)}]"
    return f"[{_spans(charset)}]"


def _spans(charset: CharSet) -> str:
    return "".join(
        _escaped(chr(first)) + (f"-{_escaped(chr(last))}" if last > first else "")
        for first, last in charset.ranges
    )


def _counted(body: str, lo: int, hi: int | None) -> str:
    return body + in_braces(lo, hi)


_EBNF = Notation(
    chars=_chars,
    literal=_quoted,
    counted=_counted,
    empty='""',
    joint=" ",
    bar=" | ",
    brackets=("(", ")"),
)
