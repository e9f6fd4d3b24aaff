"""Replaces each character of a language by a spelling of it, such as an escape or its bytes.

The spellings are a prefix code, one for each character, so every operation but the complement
goes through. A complement would also have what spells nothing: it is taken within the
spellings.
"""

from __future__ import annotations

from collections.abc import Callable

from .charset import CharSet
from .construct import TEXT, alt, both, chain, negated, repeat
from .errors import NotPrintable
from .nodes import Alt, Automaton, Both, Chars, Epsilon, Negated, Regex, Repeat, Seq


def rewritten(
    regex: Regex, spell: Callable[[CharSet], Regex], spelled_text: Regex, unchanged: CharSet
) -> Regex:
    """`regex` with the characters of each set spelled by `spell`.

    spelled_text: the spelling of all texts.
    unchanged: the characters that are spelled as themselves; an automaton may use no others.
    """
    return _Rewriter(spell, spelled_text, unchanged).rewrite(regex)


class _Rewriter:
    """Remembers what it rewrote: terms share their parts."""

    def __init__(
        self, spell: Callable[[CharSet], Regex], spelled_text: Regex, unchanged: CharSet
    ) -> None:
        self._spell = spell
        self._spelled_text = spelled_text
        self._unchanged = unchanged
        self._done: dict[Regex, Regex] = {TEXT: spelled_text}

    def rewrite(self, regex: Regex) -> Regex:
        found = self._done.get(regex)
        if found is None:
            found = self._done[regex] = self._rewrite(regex)
        return found

    def _rewrite(self, regex: Regex) -> Regex:
        match regex:
            case Chars(charset=charset):
                return self._spell(charset)
            case Epsilon():
                return regex
            case Seq():
                return self._rewrite_seq(regex)
            case Alt(members=members):
                return alt(*[self.rewrite(member) for member in members])
            case Repeat(body=body, lo=lo, hi=hi):
                return repeat(self.rewrite(body), lo, hi)
            case Both(members=members):
                return both(*[self.rewrite(member) for member in members])
            case Negated(body=body):
                return both(negated(self.rewrite(body)), self._spelled_text)
            case Automaton(dfa=dfa):
                if any(s - self._unchanged for row in dfa.transitions for s, _ in row):
                    raise NotPrintable("an automaton over characters that are spelled otherwise")
                return regex
            case _:
                raise AssertionError(regex)

    def _rewrite_seq(self, regex: Regex) -> Regex:
        links: list[Regex] = []
        while isinstance(regex, Seq):
            links.append(self.rewrite(regex.first))
            regex = regex.rest
        result = self.rewrite(regex)
        for link in reversed(links):
            result = chain(link, result)
        return result
