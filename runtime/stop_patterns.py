"""Patterns that end an output: where they match a text, and what may still become a match.

    bytes so far   │ ....................... │ at most WINDOW_BYTES │ new │
                                             └─ a match lies in here ─┘

Works on the bytes of UTF-8, by RE2: in time linear in the window, whatever the pattern. Knows no
tokens and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from .errors import InvalidRequest
from .grammar.regular import NotPrintable, PatternError, Regex, TooLarge, is_empty, prefixes
from .grammar.regular.pattern_syntax import parse_pattern
from .grammar.regular.re2_syntax import re2_source

MAX_PATTERNS = 16
MAX_PATTERN_BYTES = 256
WINDOW_BYTES = 1024
"""Of the text before the newest: so long is a match at most, and so far is text held back."""

_MAX_STEPS = 5_000  # of the RE2 programs of all patterns together
_MAX_RE2_BYTES = 4 << 20  # of memory for one program and its automaton


@dataclass(frozen=True, slots=True)
class Match:
    """Half-open, in bytes."""

    start: int
    end: int


class StopPatterns:
    """`InvalidRequest`, naming `stop_regex`, for what is none that can be looked for."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._matchers = [_matcher(index, pattern) for index, pattern in enumerate(patterns)]
        if sum(matcher.num_steps for matcher in self._matchers) > _MAX_STEPS:
            raise _refusal("the patterns are too large when their counts are written out")

    def first(self, text: bytes) -> Match | None:
        """Of all matches the one that ends first, and of those the one that begins first."""
        found = [match for matcher in self._matchers if (match := matcher.first(text))]
        return min(found, key=lambda match: (match.end, match.start), default=None)

    def num_open(self, text: bytes) -> int:
        """How many bytes at the end of the text lie in a match, or may come to."""
        num_torn = _num_torn(text)
        whole = text[: len(text) - num_torn]
        start = min(matcher.open_start(whole) for matcher in self._matchers)
        return len(text) - start


class StopSearch:
    """Looks for the first match in a text that comes piece by piece, of `num_bytes` so far."""

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._tail = b""
        self.num_bytes = 0

    def push(self, new: bytes) -> tuple[Match, bytes] | None:
        """The match that ends in `new`, where it is in all that was pushed, and its bytes.

        After one there is no more to push.
        """
        window = self._tail + new
        start = self.num_bytes - len(self._tail)
        self.num_bytes += len(new)
        self._tail = window[-WINDOW_BYTES:]
        match = self._patterns.first(window) if new else None
        if match is None:
            return None
        return Match(start + match.start, start + match.end), window[match.start : match.end]


@lru_cache(maxsize=64)
def stop_patterns(patterns: tuple[str, ...]) -> StopPatterns:
    """Those of a request, shared by its choices."""
    return StopPatterns(patterns)


class _Matcher:
    """One pattern, as three searches."""

    def __init__(self, language: Regex) -> None:
        source = re2_source(language)
        self._anywhere = _compiled(source)
        self._at_end = _compiled(rf"(?:{source})\z")
        self._open = _compiled(rf"(?:{re2_source(prefixes(language))})\z")
        programs = (self._anywhere, self._at_end, self._open)
        self.num_steps: int = sum(program.programsize for program in programs)

    def first(self, text: bytes) -> Match | None:
        found = self._anywhere.search(text)
        if found is None:
            return None
        low, high = 0, found.end()  # no match ends by low; one does by high
        while high - low > 1:
            middle = (low + high) // 2
            if self._anywhere.search(text[:middle]) is None:
                low = middle
            else:
                high = middle
        return Match(self._at_end.search(text[:high]).start(), high)

    def open_start(self, text: bytes) -> int:
        """Where the earliest match begins, or what may become one; the end if there is none."""
        found = self._anywhere.search(text)
        begun: int = self._open.search(text).start()
        return begun if found is None else min(begun, found.start())


def _matcher(index: int, pattern: str) -> _Matcher:
    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_PATTERN_BYTES:
        raise _refusal(f"a pattern may have at most {MAX_PATTERN_BYTES} bytes")
    try:
        node = parse_pattern(pattern)
        if not isinstance(node, Regex):
            raise _refusal(f"pattern {index}: ^, $ and lookaheads are not supported")
        if is_empty(node):
            raise _refusal(f"pattern {index}: no text at all matches")
        if node.nullable:
            raise _refusal(f"pattern {index}: it matches the empty text")
        return _Matcher(node)
    except (PatternError, NotPrintable, TooLarge) as error:
        raise _refusal(f"pattern {index}: {error}") from None


def _compiled(source: str) -> Any:
    re2 = import_module("re2")  # it has no types
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_RE2_BYTES
    try:
        return re2.compile(source.encode(), options)
    except re2.error as error:
        raise NotPrintable(f"RE2: {error}") from None


def _num_torn(text: bytes) -> int:
    """How many of the last bytes begin a character that is not whole yet."""
    for count in range(1, min(3, len(text)) + 1):
        byte = text[-count]
        if byte & 0xC0 != 0x80:
            length = 1 + (byte >= 0xC2) + (byte >= 0xE0) + (byte >= 0xF0)
            return count if count < length else 0
    return 0


def _refusal(trouble: str) -> InvalidRequest:
    return InvalidRequest(f"stop_regex: {trouble}", param="stop_regex")
