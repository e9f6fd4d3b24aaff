"""Control tokens: how they are spelled, and where a text spells them; encodes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that text cannot spell unless its author may.

    With `lstrip` it swallows white space in front of it, with `rstrip` behind it.
    """

    id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


class ControlTokens:
    """The control tokens of one vocabulary, by spelling."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._by_text = {token.text: token for token in tokens}
        longest_first = sorted(self._by_text, key=len, reverse=True)
        spellings = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._spelling = re.compile(spellings)
        self._first_char = re.compile(f"(?=(?:{spellings})).", re.DOTALL)
        self._max_len = max(map(len, self._by_text), default=0)
        self._beginnings = {text[:i] for text in self._by_text for i in range(1, len(text))}
        self._endings = {text[i:] for text in self._by_text for i in range(1, len(text))}

    @property
    def texts(self) -> Iterable[str]:
        return self._by_text.keys()

    def split(self, text: str) -> Iterator[str | ControlToken]:
        """The control tokens that `text` spells and the non-empty stretches between them.

        Leftmost first and, at one place, the longest.
        """
        end = 0
        for match in self._spelling.finditer(text):
            if match.start() > end:
                yield text[end : match.start()]
            yield self._by_text[match.group()]
            end = match.end()
        if end < len(text):
            yield text[end:]

    def break_up(self, text: str, mark: str) -> str:
        """`text` with `mark` after the first character of every spelling in it.

        Overlapping ones too. No control token may be a single character.
        """
        return self._first_char.sub(lambda match: match.group() + mark, text)

    def disarm(self, text: str, mark: str) -> str:
        """`text` broken up, and marked where what is put around it could complete a spelling.

        That is at a start that ends a spelling, at an end that begins one, and before a text
        that is the middle of one. White space stays at the outside, for templates that trim.
        """
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        before, after = text[:start], text[start + len(core) :]
        left = mark if self._may_end(core) or self._is_inside(core) else ""
        right = mark if self._may_begin(core) else ""
        return f"{before}{left}{self.break_up(core, mark)}{right}{after}"

    def _may_end(self, core: str) -> bool:
        return any(core[:i] in self._endings for i in range(1, self._max_len))

    def _may_begin(self, core: str) -> bool:
        return any(core[-i:] in self._beginnings for i in range(1, self._max_len))

    def _is_inside(self, core: str) -> bool:
        return len(core) < self._max_len and any(core in text for text in self._by_text)
