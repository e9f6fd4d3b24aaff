"""Masks of many requests at once, in one piece of memory: a call an engine, not one a request.

Knows both engines, and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .guide import Guide
from .llguidance_engine import LlguidanceMatcher
from .token_masks import Bitmask
from .xgrammar_engine import XgrammarMatcher


def fill_masks(guides: Sequence[Guide], lefts: Sequence[int], num_words: int) -> list[Bitmask]:
    """The mask of each, as `Guide.fill` gives it: ceil(vocab_width / 32) words.

    Not to be written to: guides keep them.
    """
    masks = [guide.known_mask(left) for guide, left in zip(guides, lefts, strict=True)]
    unknown = [index for index, mask in enumerate(masks) if mask is None]
    rows = np.empty((len(unknown), num_words), np.int32)
    xgrammar: list[tuple[int, XgrammarMatcher]] = []
    llguidance: list[tuple[int, LlguidanceMatcher]] = []
    for place, index in enumerate(unknown):
        match guides[index].matcher:
            case XgrammarMatcher() as matcher:
                xgrammar.append((place, matcher))
            case LlguidanceMatcher() as matcher:
                llguidance.append((place, matcher))
            case other:
                other.fill(rows[place])
    if xgrammar:
        XgrammarMatcher.fill_all(xgrammar, rows)
    if llguidance:
        LlguidanceMatcher.fill_all(llguidance, rows)
    for row, index in zip(rows, unknown, strict=True):
        guides[index].take_mask(row, lefts[index])
        masks[index] = row
    return [mask for mask in masks if mask is not None]
