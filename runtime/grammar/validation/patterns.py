"""ECMA-262 patterns on RE2, which takes time linear in the text whatever the pattern."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from .outcome import Uncheckable

_LINE_ENDS = r"\n\r\x{2028}\x{2029}"
_SPACE = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1f!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}"
    r"\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_HEX = frozenset("0123456789abcdefABCDEF")
_LONG_CATEGORIES = {
    "Letter": "L",
    "Lowercase_Letter": "Ll",
    "Uppercase_Letter": "Lu",
    "Mark": "M",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Separator": "Z",
    "Space_Separator": "Zs",
}


def found_in(pattern: str, text: str) -> bool:
    """Whether the text has a match somewhere; `Uncheckable` for what RE2 can't express."""
    return _compiled(_translated(pattern)).search(text) is not None


def matches(source: str, text: str) -> bool:
    """Whether the whole text matches a pattern in RE2's own syntax."""
    return _compiled(source).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Any:
    re2 = import_module("re2")  # it has no types
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(source, options)
    except re2.error as error:
        raise Uncheckable(f"the pattern can't be matched in linear time: {error}") from None


@lru_cache(maxsize=1024)
def _translated(pattern: str) -> str:
    return _Translation(pattern).source


class _Translation:
    """One pattern (ECMA-262 with the flag `u`), read from left to right and rewritten."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        parts: list[str] = []
        while self._at < len(pattern):
            parts.append(self._next())
        self.source = "".join(parts)

    def _take(self, text: str) -> bool:
        """Step over `text`, if it comes next."""
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _char(self) -> str:
        """Step over one character."""
        if self._at == len(self._pattern):
            raise self._refusal("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _until(self, end: str) -> str:
        """Step over what comes before `end`, and over that."""
        close = self._pattern.find(end, self._at)
        if close < 0:
            raise self._refusal(f"{end!r} is missing")
        found = self._pattern[self._at : close]
        self._at = close + 1
        return found

    def _refusal(self, trouble: str) -> Uncheckable:
        return Uncheckable(f"the pattern {self._pattern!r:.100} can't be matched: {trouble}")

    def _next(self) -> str:
        match char := self._char():
            case "^":
                return r"\A"
            case "$":
                return r"\z"
            case ".":
                return f"[^{_LINE_ENDS}]"
            case "\\":
                return self._escape(in_class=False)
            case "[":
                return self._class()
            case "(":
                return self._group()
            case "{":
                return self._quantifier()
            case "]" | "}":
                return f"\\{char}"
            case _:
                return char

    def _quantifier(self) -> str:
        """A brace, and what follows if it is a quantifier; else it stands for itself."""
        close = self._pattern.find("}", self._at)
        least, comma, most = self._pattern[self._at : max(close, self._at)].partition(",")
        if not _is_number(least) or not (_is_number(most) or not most):
            return r"\{"
        self._at = close + 1
        return f"{{{least}{comma}{most}}}"

    def _group(self) -> str:
        if not self._take("?"):
            return "("
        if self._take(":"):
            return "(?:"
        if self._take("<") and self._pattern[self._at : self._at + 1] not in ("=", "!", ""):
            self._until(">")
            return "("
        raise self._refusal("look-around, or a group of a kind that is not known")

    def _class(self) -> str:
        is_negated = self._take("^")
        parts: list[str] = []
        while not self._take("]"):
            char = self._char()
            if char == "\\":
                parts.append(self._escape(in_class=True))
            else:
                parts.append(f"\\{char}" if char in "[^" else char)
        if not parts:  # nothing, or anything
            is_negated, parts = not is_negated, [r"\x00-\x{10ffff}"]
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"

    def _escape(self, *, in_class: bool) -> str:
        char = self._char()
        if char in "sS":
            ranges = _SPACE if char == "s" else _NO_SPACE
            return ranges if in_class else f"[{ranges}]"
        if char in "dDwWtnvfr" or (char in "bB" and not in_class):
            return f"\\{char}"
        if char == "b":
            return r"\x08"
        if char == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return r"\x00"
        if char == "c":
            letter = self._char()
            if letter.isascii() and letter.isalpha():
                return f"\\x{ord(letter) % 32:02x}"
        if char in "xu":
            return f"\\x{{{self._code_point(char):x}}}"
        if char in "pP" and self._take("{"):
            name = self._until("}").rpartition("=")[2]
            return f"\\{char}{{{_LONG_CATEGORIES.get(name, name)}}}"
        if char.isalnum():
            raise self._refusal(f"the escape \\{char} is not known")
        return char if char == "_" or not char.isascii() else f"\\{char}"

    def _code_point(self, kind: str) -> int:
        if kind == "u" and self._take("{"):
            return self._number(self._until("}"))
        code = self._number(self._digits(2 if kind == "x" else 4))
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._number(self._digits(4))
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        if 0xD800 <= code < 0xE000:
            raise self._refusal("half of a surrogate pair")
        return code

    def _digits(self, num: int) -> str:
        return "".join(self._char() for _ in range(num))

    def _number(self, digits: str) -> int:
        if not digits or not _HEX.issuperset(digits) or len(digits) > 6:
            raise self._refusal(f"{digits!r} is not a hexadecimal number")
        return int(digits, 16)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
