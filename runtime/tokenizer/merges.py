"""Checks BPE merges against their vocabulary; knows no file format."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ..errors import ModelError

Merge = tuple[str, str]


def checked_merges(
    path: Path, merges: Iterable[str | Merge], vocabulary: Collection[str]
) -> list[Merge]:
    """The merges as pairs, each given as one or as "first second".

    Raises `ModelError` unless both halves and the result are in the vocabulary: the library
    that does the BPE would panic.
    """
    pairs: list[Merge] = []
    for merge in merges:
        first, second = _split(merge) if isinstance(merge, str) else merge
        for token in (first, second, first + second):
            if token not in vocabulary:
                raise ModelError(f"{path}: merge {merge!r}: {token!r} is not in the vocabulary")
        pairs.append((first, second))
    return pairs


def _split(merge: str) -> Merge:
    first, _, second = merge.partition(" ")
    return first, second
