"""Bounds on the number of characters, worked into a language where it has room for them.

An intersection is exact but dear: no notation but Lark can write it. Most patterns that stand
beside a length have one part that varies, and its counts can take the bounds.
"""

from __future__ import annotations

from .construct import ANY_CHAR, NOTHING, alt, both, repeat, seq
from .nodes import Alt, Chars, Epsilon, Regex, Repeat, Seq, parts

Width = tuple[int, int | None]  # least and greatest length; None: no greatest


def width(regex: Regex) -> Width:
    """Bounds of the lengths of its strings; exact where `regex.is_plain`, and not `NOTHING`."""
    match regex:
        case Chars():
            return 1, 1
        case Epsilon():
            return 0, 0
        case Seq():
            widths = [width(part) for part in parts(regex)]
            return sum(lo for lo, _ in widths), _total([hi for _, hi in widths])
        case Alt(members=members):
            widths = [width(member) for member in members]
            tops = [hi for _, hi in widths]
            return min(lo for lo, _ in widths), _greatest(tops)
        case Repeat(body=body, lo=lo, hi=hi):
            least, most = width(body)
            return least * lo, None if most is None or hi is None else most * hi
        case _:
            return 0, None


def _total(tops: list[int | None]) -> int | None:
    known = [top for top in tops if top is not None]
    return sum(known) if len(known) == len(tops) else None


def _greatest(tops: list[int | None]) -> int | None:
    known = [top for top in tops if top is not None]
    return max(known) if len(known) == len(tops) else None


def with_length(regex: Regex, lo: int, hi: int | None) -> Regex:
    """The strings of `regex` that have `lo` to `hi` characters. Exact; plain if it can be."""
    if regex is NOTHING or (hi is not None and hi < lo):
        return NOTHING
    least, most = width(regex)
    if lo <= least and (hi is None or (most is not None and most <= hi)):
        return regex
    if (hi is not None and hi < least) or (most is not None and most < lo):
        return NOTHING
    match regex:
        case Alt(members=members):
            return alt(*(with_length(member, lo, hi) for member in members))
        case Repeat(body=body) if (fixed := _fixed(body)) is not None:
            return _recounted(regex, fixed, lo, hi)
        case Seq():
            return _in_the_varying_part(regex, lo, hi)
        case _:
            return _intersected(regex, lo, hi)


def _fixed(regex: Regex) -> int | None:
    least, most = width(regex)
    return least if least == most and regex.is_plain else None


def _recounted(regex: Repeat, each: int, lo: int, hi: int | None) -> Regex:
    least = max(regex.lo, -(-lo // each))
    most = regex.hi
    if hi is not None:
        most = hi // each if most is None else min(most, hi // each)
    return NOTHING if most is not None and most < least else repeat(regex.body, least, most)


def _in_the_varying_part(regex: Regex, lo: int, hi: int | None) -> Regex:
    links = list(parts(regex))
    varying = [index for index, link in enumerate(links) if _fixed(link) is None]
    if len(varying) != 1:
        return _intersected(regex, lo, hi)
    index = varying[0]
    others = sum(width(link)[0] for i, link in enumerate(links) if i != index)
    links[index] = with_length(
        links[index], max(lo - others, 0), None if hi is None else hi - others
    )
    return seq(*links)


def _intersected(regex: Regex, lo: int, hi: int | None) -> Regex:
    return both(regex, repeat(ANY_CHAR, lo, hi))
