"""Endings whose keys do not repeat, where a grammar leaves keys free; knows no budget."""

from __future__ import annotations

from functools import lru_cache

from .closing_costs import Costs
from .keys import Keys
from .regular import Regex, TooLarge, alt, both, literal, negated, seq, shortest
from .walk import Thread

_MAX_DERIVATIVES = 20_000


def ending_without_repeats(costs: Costs, thread: Thread, keys: Keys) -> list[bytes] | None:
    """The texts of the shortest ending, with another key in place of each that is there already;
    None if none is known."""
    texts: list[bytes] = []
    for terminal in costs.terminals(thread):
        text = costs.text_of(terminal)
        moved = None if text is None else _moved(keys, text)
        if moved is None and isinstance(terminal, Regex):
            text = _other_text(terminal, keys)
            moved = None if text is None else _moved(keys, text)
        if moved is None or text is None:
            return None
        keys = moved
        texts.append(text)
    return texts


def _moved(keys: Keys, text: bytes) -> Keys | None:
    """None if a key repeats."""
    moved = keys.copy()
    moved.advance(text)
    return None if moved.has_repeated else moved


def _other_text(terminal: Regex, keys: Keys) -> bytes | None:
    """The shortest that is none of the keys; `terminal` is one key, or what is left of one."""
    return _shortest_but(terminal, frozenset(keys.barred()), keys.string is not None)


@lru_cache(maxsize=4096)
def _shortest_but(terminal: Regex, rests: frozenset[bytes], is_begun: bool) -> bytes | None:
    quote = literal('"')
    opening = () if is_begun else (quote,)
    barred = alt(*(seq(*opening, literal(rest.decode("latin-1")), quote) for rest in rests))
    try:
        text = shortest(both(terminal, negated(barred)), _MAX_DERIVATIVES)
    except TooLarge:
        return None
    return None if text is None else text.encode("latin-1")
