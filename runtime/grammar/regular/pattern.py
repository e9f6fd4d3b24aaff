"""ECMA-262 patterns as regular languages: which texts have a match, or are one.

An anchor holds at one place only, so what a part matches is told apart by the ends of the text
that it asks to stand at. A lookahead constrains all the text that remains; a pattern that has
one is resolved from its end to its start, over the language of that remainder.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from .construct import (
    EPSILON,
    NOTHING,
    SOME_TEXT,
    TEXT,
    alt,
    both,
    chain,
    negated,
    nonempty,
    repeat,
    seq,
)
from .errors import PatternError
from .nodes import Chars, Regex
from .pattern_syntax import (
    Alternation,
    Anchor,
    Concatenation,
    Lookahead,
    Node,
    Quantified,
    parse_pattern,
)

_START, _END = 1, 2
_MAX_UNROLLED = 4  # rounds of a repetition with a lookahead inside

# What a part matches, by what it asks of its place: [0] nothing, [_START] that the text starts
# before it, [_END] that the text ends after it, [_START | _END] both.
_Variants = tuple[Regex, Regex, Regex, Regex]
_EMPTY: _Variants = (EPSILON, NOTHING, NOTHING, NOTHING)


class _Remainder(NamedTuple):
    """The language of the text from a place on, where the text starts there or before it."""

    at_start: Regex
    inside: Regex


def search_language(pattern: str) -> Regex:
    """All texts in which the pattern has a match: JSON Schema's `pattern`."""
    node = parse_pattern(pattern)
    if has_lookahead(node):
        found = _remainder(node, _Remainder(TEXT, TEXT))
        if found.at_start is found.inside:
            return seq(TEXT, found.inside)
        return alt(found.at_start, seq(SOME_TEXT, found.inside))
    free, at_start, at_end, whole = _variants(node)
    if free.nullable:
        return TEXT
    return alt(seq(TEXT, free, TEXT), seq(at_start, TEXT), seq(TEXT, at_end), whole)


def whole_language(pattern: str) -> Regex:
    """All texts that the pattern matches from their start to their end."""
    node = parse_pattern(pattern)
    if has_lookahead(node):
        return _remainder(node, _Remainder(EPSILON, EPSILON)).at_start
    return alt(*_variants(node))


def has_lookahead(node: Node) -> bool:
    match node:
        case Lookahead():
            return True
        case Concatenation(items=nodes) | Alternation(options=nodes):
            return any(has_lookahead(child) for child in nodes)
        case Quantified(body=body):
            return has_lookahead(body)
        case _:
            return False


def _variants(node: Node) -> _Variants:
    match node:
        case Regex():
            return node, NOTHING, NOTHING, NOTHING
        case Anchor(is_end=is_end):
            return _at(_END if is_end else _START, EPSILON)
        case Concatenation(items=items):
            result = _EMPTY
            for item in reversed(items):
                result = _one_after_other(_variants(item), result)
            return result
        case Alternation(options=options):
            return _any_of(*(_variants(option) for option in options))
        case Quantified(body=body, lo=lo, hi=hi):
            return _repeated(_variants(body), lo, hi)
        case Lookahead(position=position):
            _refuse_lookahead(position)


def _at(place: int, regex: Regex) -> _Variants:
    slots = [NOTHING, NOTHING, NOTHING, NOTHING]
    slots[place] = regex
    return slots[0], slots[1], slots[2], slots[3]


def _any_of(*options: _Variants) -> _Variants:
    return (
        alt(*(option[0] for option in options)),
        alt(*(option[1] for option in options)),
        alt(*(option[2] for option in options)),
        alt(*(option[3] for option in options)),
    )


def _one_after_other(left: _Variants, right: _Variants) -> _Variants:
    """Where the right asks for the start, the left is empty; and the other way round."""
    options: list[_Variants] = [_at(0, NOTHING)]
    for left_place, head in enumerate(left):
        for right_place, tail in enumerate(right):
            if head is NOTHING or tail is NOTHING:
                continue
            before = _only_empty(head) if right_place & _START else head
            after = _only_empty(tail) if left_place & _END else tail
            options.append(_at(left_place | right_place, seq(before, after)))
    return _any_of(*options)


def _only_empty(regex: Regex) -> Regex:
    return EPSILON if regex.nullable else NOTHING


def _repeated(body: _Variants, lo: int, hi: int | None) -> _Variants:
    """Rounds that match nothing at an end of the text may stand for any that are missing."""
    free, at_start, at_end, whole = body
    if free.nullable:
        lo = 0
    options = [_rounds(body, lo, hi)]
    if at_start.nullable:
        options.append(_moved(_rounds(body, 0, hi), _START))
    if at_end.nullable:
        options.append(_moved(_rounds(body, 0, hi), _END))
    if whole.nullable:
        options.append(_at(_START | _END, EPSILON))
    return _any_of(*options)


def _rounds(body: _Variants, lo: int, hi: int | None) -> _Variants:
    """Only the first and the last of several rounds can be at an end of the text."""
    options: list[_Variants] = []
    if lo == 0:
        options.append(_EMPTY)
    if lo <= 1 and hi != 0:
        options.append(body)
    if hi is None or hi >= 2:
        between = repeat(body[0], max(lo - 2, 0), None if hi is None else hi - 2)
        middle = (between, NOTHING, NOTHING, NOTHING)
        options.append(_one_after_other(body, _one_after_other(middle, body)))
    return _any_of(*options)


def _moved(variants: _Variants, place: int) -> _Variants:
    """The same, asking for `place` in any case."""
    return _any_of(*(_at(place | index, regex) for index, regex in enumerate(variants)))


def _remainder(node: Node, rest: _Remainder) -> _Remainder:
    """The text from a place on that begins with a match of the node, after which `rest` is."""
    if not has_lookahead(node):
        return _followed(_variants(node), rest)
    match node:
        case Lookahead(body=body, is_negative=is_negative):
            ahead = _remainder(body, _Remainder(TEXT, TEXT))
            if is_negative:
                ahead = _Remainder(negated(ahead.at_start), negated(ahead.inside))
            return _Remainder(both(ahead.at_start, rest.at_start), both(ahead.inside, rest.inside))
        case Concatenation(items=items):
            for item in reversed(items):
                rest = _remainder(item, rest)
            return rest
        case Alternation(options=options):
            return _either(*(_remainder(option, rest) for option in options))
        case Quantified():
            return _repeated_remainder(node, rest)
        case _:
            raise AssertionError(node)


def _followed(variants: _Variants, rest: _Remainder) -> _Remainder:
    free, at_start, at_end, whole = variants
    inside = alt(seq(free, rest.inside), seq(at_end, _only_empty(rest.inside)))
    if rest.at_start is rest.inside and at_start is NOTHING and whole is NOTHING:
        return _Remainder(inside, inside)
    starting, ending = alt(free, at_start), alt(at_end, whole)
    return _Remainder(
        alt(
            seq(nonempty(starting), rest.inside),
            rest.at_start if starting.nullable else NOTHING,
            seq(nonempty(ending), _only_empty(rest.inside)),
            _only_empty(rest.at_start) if ending.nullable else NOTHING,
        ),
        inside,
    )


def _either(*options: _Remainder) -> _Remainder:
    return _Remainder(
        alt(*(option.at_start for option in options)), alt(*(option.inside for option in options))
    )


def _repeated_remainder(node: Quantified, rest: _Remainder) -> _Remainder:
    if node.hi is not None and node.hi <= _MAX_UNROLLED:
        result = rest
        for _ in range(node.hi - node.lo):
            result = _either(rest, _remainder(node.body, result))
        for _ in range(node.lo):
            result = _remainder(node.body, result)
        return result
    return _guarded_chars(node, rest)


def _guarded_chars(node: Quantified, rest: _Remainder) -> _Remainder:
    """`(?:(?!x).)*$`: characters to the end of the text, each of which a lookahead allows."""
    ends_text = rest.at_start is EPSILON and rest.inside is EPSILON
    match node.body:
        case Concatenation(items=(*guards, Chars() as one)) if ends_text and node.hi is None:
            guard = Concatenation(tuple(guards))
        case _:
            _refuse_lookahead(node.position)
    allowed = _remainder(guard, _Remainder(TEXT, TEXT))
    if node.lo > 1 or allowed.at_start is not allowed.inside:
        _refuse_lookahead(node.position)
    refused = both(negated(allowed.inside), SOME_TEXT)
    text = both(repeat(one, node.lo), negated(chain(repeat(one), refused)))
    return _Remainder(text, text)


def _refuse_lookahead(position: int) -> NoReturn:
    raise PatternError(position, "a lookahead is not supported inside this repetition")
