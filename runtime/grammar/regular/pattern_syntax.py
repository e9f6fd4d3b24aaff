"""Reads ECMA-262 patterns into trees; knows what they are made of, not what they match.

Whatever has no assertion inside becomes a `Regex` at once; the tree holds what remains. The
dialect is that of the `u` flag, with the leniences of Annex B that schemas rely on: a brace
that is no quantifier and a hyphen beside a class are literal, punctuation may be escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from .charset import MAX_CODE_POINT, CharSet
from .construct import EPSILON, alt, char, chars, repeat, seq
from .errors import PatternError
from .nodes import Regex
from .unicode_classes import LINE_ENDS, SHORTHANDS, property_class

MAX_PATTERN_CHARS = 32 << 10
MAX_DEPTH = 50  # of groups
MAX_COUNT = 2**31 - 1

_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_HEX = frozenset("0123456789abcdefABCDEF")
_HIGH, _LOW = range(0xD800, 0xDC00), range(0xDC00, 0xE000)


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^`, or `$` if `is_end`."""

    is_end: bool


@dataclass(frozen=True, slots=True)
class Lookahead:
    body: Node
    is_negative: bool
    position: int


@dataclass(frozen=True, slots=True)
class Concatenation:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    body: Node
    lo: int
    hi: int | None
    position: int


Node = Regex | Anchor | Lookahead | Concatenation | Alternation | Quantified

_ANY_BUT_LINE_ENDS = chars(LINE_ENDS.complement())


def parse_pattern(pattern: str) -> Node:
    """The tree of the pattern; `PatternError` if it is malformed, or not supported here."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(
            MAX_PATTERN_CHARS, f"{len(pattern)} characters, {MAX_PATTERN_CHARS} are allowed"
        )
    parser = _Parser(pattern)
    node = parser.alternation(depth=0)
    if parser.index < len(pattern):
        parser.fail("unmatched ')'")
    return node


class _Parser:
    """Recursive descent; `index` is that of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.index = 0

    def fail(self, trouble: str, position: int | None = None) -> NoReturn:
        raise PatternError(self.index if position is None else position, trouble)

    def alternation(self, depth: int) -> Node:
        options = [self._concatenation(depth)]
        while self._took("|"):
            options.append(self._concatenation(depth))
        return _alternation(options)

    def _concatenation(self, depth: int) -> Node:
        items: list[Node] = []
        while self.index < len(self._pattern) and self._pattern[self.index] not in "|)":
            items.append(self._term(depth))
        return _concatenation(items)

    def _term(self, depth: int) -> Node:
        position = self.index
        atom = self._atom(depth)
        counts = self._quantifier()
        if counts is None:
            return atom
        if self._pattern.startswith(("^", "$", "(?=", "(?!"), position):
            self.fail("an assertion can't be repeated", position)
        if isinstance(atom, Regex):
            return repeat(atom, *counts)
        return Quantified(atom, *counts, position)

    def _atom(self, depth: int) -> Node:
        symbol = self._pattern[self.index]
        if symbol in "*+?" or (symbol == "{" and self._braces() is not None):
            self.fail("nothing to repeat")
        self.index += 1
        match symbol:
            case "(":
                return self._group(depth)
            case "[":
                return chars(self._class())
            case ".":
                return _ANY_BUT_LINE_ENDS
            case "^" | "$":
                return Anchor(is_end=symbol == "$")
            case "\\":
                return chars(self._escape(in_class=False))
            case _:
                return char(self._code(ord(symbol), self.index - 1))

    def _group(self, depth: int) -> Node:
        position = self.index - 1
        if depth == MAX_DEPTH:
            self.fail(f"groups nested more than {MAX_DEPTH} deep", position)
        is_negative: bool | None = None
        if self._took("?"):
            if self._took("=") or self._took("!"):
                is_negative = self._pattern[self.index - 1] == "!"
            elif self._took("<"):
                self._group_name(position)
            elif not self._took(":"):
                self.fail("flags and other extensions of groups are not supported", position)
        body = self.alternation(depth + 1)
        if not self._took(")"):
            self.fail("missing ')'", position)
        return body if is_negative is None else Lookahead(body, is_negative, position)

    def _group_name(self, position: int) -> None:
        if self._pattern[self.index : self.index + 1] in ("=", "!"):
            self.fail("look-behind is not supported", position)
        end = self._pattern.find(">", self.index)
        name = self._pattern[self.index : max(end, self.index)]
        if not name.replace("$", "_").isidentifier():
            self.fail("a group's name is malformed", position)
        self.index = end + 1

    def _quantifier(self) -> tuple[int, int | None] | None:
        symbol = self._pattern[self.index : self.index + 1]
        counts = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(symbol)
        if counts is not None:
            self.index += 1
        elif symbol == "{" and (braces := self._braces()) is not None:
            lo, hi, end = braces
            if hi is not None and hi < lo:
                self.fail("the counts of a quantifier are out of order")
            if max(lo, hi or 0) > MAX_COUNT:
                self.fail(f"a count is more than {MAX_COUNT}")
            counts, self.index = (lo, hi), end
        else:
            return None
        self._took("?")  # lazy: the same language
        return counts

    def _braces(self) -> tuple[int, int | None, int] | None:
        """The counts of the quantifier {n}, {n,} or {n,m} here, and where it ends."""
        end = self._pattern.find("}", self.index, self.index + 64)
        low, comma, high = self._pattern[self.index + 1 : max(end, self.index)].partition(",")
        if end < 0 or not _is_number(low) or not (high == "" or _is_number(high)):
            return None
        hi = int(high) if high else None if comma else int(low)
        return int(low), hi, end + 1

    def _class(self) -> CharSet:
        """The class whose bracket has just been read."""
        position = self.index - 1
        is_negated = self._took("^")
        found: list[tuple[int, int]] = []
        while not self._took("]"):
            if self.index >= len(self._pattern):
                self.fail("missing ']'", position)
            found.extend(self._class_item())
        charset = CharSet(found)
        return charset.complement() if is_negated else charset

    def _class_item(self) -> tuple[tuple[int, int], ...]:
        """One character, escape or range; a hyphen beside an escape of many is literal."""
        position = self.index
        first = self._class_atom()
        if self._pattern[self.index : self.index + 1] != "-" or (
            self._pattern[self.index + 1 : self.index + 2] in ("]", "")
        ):
            return first.ranges
        self.index += 1
        last = self._class_atom()
        if first.size != 1 or last.size != 1:
            return first.ranges + last.ranges + ((ord("-"), ord("-")),)
        low, high = first.ranges[0][0], last.ranges[0][0]
        if high < low:
            self.fail("a range of a class is out of order", position)
        return ((low, high),)

    def _class_atom(self) -> CharSet:
        symbol = self._pattern[self.index]
        self.index += 1
        if symbol == "\\":
            return self._escape(in_class=True)
        return self._one(self._code(ord(symbol), self.index - 1))

    def _escape(self, in_class: bool) -> CharSet:
        """What the escape whose backslash has just been read stands for."""
        position = self.index - 1
        symbol = self._pattern[self.index : self.index + 1]
        self.index += 1
        if symbol in SHORTHANDS and symbol:
            return SHORTHANDS[symbol]
        if symbol in ("p", "P"):
            return self._property(is_negated=symbol == "P", position=position)
        if symbol == "b" and in_class:
            return self._one(0x08)
        if symbol in ("b", "B"):
            self.fail("word boundaries are not supported", position)
        if symbol in "123456789k" and symbol:
            self.fail("back-references are not supported", position)
        return self._one(self._escaped_code(symbol, position))

    def _escaped_code(self, symbol: str, position: int) -> int:
        if symbol in _CONTROLS:
            return _CONTROLS[symbol]
        if symbol == "0" and not self._pattern[self.index : self.index + 1].isdecimal():
            return 0
        if symbol == "c":
            letter = self._pattern[self.index : self.index + 1]
            if letter.isascii() and letter.isalpha():
                self.index += 1
                return ord(letter) % 32
        elif symbol == "x":
            return self._hex(2, position)
        elif symbol == "u":
            return self._code(self._unicode(position), position)
        elif symbol and not symbol.isalnum():
            return self._code(ord(symbol), position)
        self.fail(f"the escape {self._pattern[position : self.index]} is not supported", position)

    def _unicode(self, position: int) -> int:
        if not self._took("{"):
            high = self._hex(4, position)
            if high in _HIGH and self._pattern.startswith("\\u", self.index):
                self.index += 2
                low = self._hex(4, position)
                if low not in _LOW:
                    self.fail("half a surrogate pair is no character", position)
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
            return high
        end = self._pattern.find("}", self.index)
        digits = self._pattern[self.index : max(end, self.index)]
        if not digits or not _HEX.issuperset(digits) or int(digits, 16) > MAX_CODE_POINT:
            self.fail("a code point is malformed", position)
        self.index = end + 1
        return int(digits, 16)

    def _hex(self, num_digits: int, position: int) -> int:
        digits = self._pattern[self.index : self.index + num_digits]
        if len(digits) < num_digits or not _HEX.issuperset(digits):
            self.fail(f"an escape needs {num_digits} hexadecimal digits", position)
        self.index += num_digits
        return int(digits, 16)

    def _property(self, is_negated: bool, position: int) -> CharSet:
        end = self._pattern.find("}", self.index)
        if not self._took("{") or end < 0:
            self.fail("a property needs a name in braces", position)
        name = self._pattern[self.index : end]
        charset = property_class(name)
        if charset is None:
            self.fail(f"the property {name!r:.100} is not supported", position)
        self.index = end + 1
        return charset.complement() if is_negated else charset

    def _code(self, code: int, position: int) -> int:
        if code in _HIGH or code in _LOW:
            self.fail("half a surrogate pair is no character", position)
        return code

    def _one(self, code: int) -> CharSet:
        return CharSet(((code, code),))

    def _took(self, symbol: str) -> bool:
        if self._pattern.startswith(symbol, self.index):
            self.index += 1
            return True
        return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _alternation(options: list[Node]) -> Node:
    plain = [option for option in options if isinstance(option, Regex)]
    others: list[Node] = [option for option in options if not isinstance(option, Regex)]
    if not others:
        return alt(*plain)
    merged = (alt(*plain), *others) if plain else tuple(others)
    return merged[0] if len(merged) == 1 else Alternation(merged)


def _concatenation(items: list[Node]) -> Node:
    """Groups opened, neighbours without assertions joined."""
    opened: list[Node] = []
    for item in items:
        opened.extend(item.items if isinstance(item, Concatenation) else (item,))
    joined: list[Node] = []
    run: list[Regex] = []
    for item in opened:
        if isinstance(item, Regex):
            run.append(item)
        else:
            if run:
                joined.append(seq(*run))
            joined.append(item)
            run = []
    if run or not joined:
        joined.append(seq(*run) if run else EPSILON)
    return joined[0] if len(joined) == 1 else Concatenation(tuple(joined))
