"""Costs of a radix cache's operations, one contender after the other, as rows of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from bench.radix_contenders import Contender, Ours, Usual
from bench.report import Row, spread
from espalier.radix import IntArray

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class Keys:
    """A request's ids as one contender takes them."""

    prompt: Any
    whole: Any


def in_turn(
    contenders: list[Contender],
    pieces: Sequence[Piece],
    work: Callable[[Contender, Piece], int],
) -> dict[str, list[float]]:
    """Seconds by contender and piece, for each of the things that `work` says it has done."""
    costs: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for piece in pieces:
        for contender in contenders:
            start = perf_counter()
            count = work(contender, piece)
            costs[contender.name].append((perf_counter() - start) / count)
    return costs


def cost_rows(
    name: str, costs: dict[str, list[float]], target: float | None = None, note: str = ""
) -> list[Row]:
    """One row a contender, and one for how much less ours costs than each other's."""
    ours = costs[Ours.name]
    rows: list[Row] = []
    for contender, seconds in costs.items():
        micros = [1e6 * value for value in seconds]
        about = "; ".join(filter(None, [spread(micros), note]))
        rows.append(Row(f"{name}: {contender}", median(micros), "us", better="lower", note=about))
    for contender in costs.keys() - {Ours.name}:
        ratios = [theirs / mine for theirs, mine in zip(costs[contender], ours, strict=True)]
        goal = target if contender == Usual.name else None
        rows.append(
            Row(
                f"{name}: {contender} / ours",
                median(ratios),
                "x",
                target=goal,
                peer=contender,
                note=spread(ratios),
            )
        )
    return rows


def pieces_of(count: int, rounds: int) -> list[range]:
    """[0, count) in `rounds` consecutive pieces, none of them empty."""
    rounds = min(rounds, count)
    return [range(count * i // rounds, count * (i + 1) // rounds) for i in range(rounds)]


def request_rows(
    name: str,
    contenders: list[Contender],
    prompts: list[IntArray],
    outputs: IntArray,
    rounds: int,
) -> list[Row]:
    """Requests come one by one into an empty cache; then all of them are matched once more."""
    wholes = [np.concatenate([prompt, outputs]) for prompt in prompts]
    keys = {
        contender.name: [
            Keys(contender.key_of(prompt), contender.key_of(whole))
            for prompt, whole in zip(prompts, wholes, strict=True)
        ]
        for contender in contenders
    }

    def live(contender: Contender, piece: range) -> int:
        for index in piece:
            contender.live(keys[contender.name][index].prompt, keys[contender.name][index].whole)
        return len(piece)

    def match(contender: Contender, piece: range) -> int:
        for index in piece:
            contender.match(keys[contender.name][index].whole)
        return len(piece)

    def lock(contender: Contender, piece: range) -> int:
        paths = piece[:50]
        for index in paths:
            contender.lock_and_unlock(keys[contender.name][index].whole, 20)
        return 20 * len(paths)

    pieces = pieces_of(len(prompts), rounds)
    mean_len = sum(map(len, wholes)) // len(wholes)
    about = f"{len(prompts):,} requests of {mean_len:,} tokens"
    return [
        *cost_rows(
            f"{name}: match + insert, a request", in_turn(contenders, pieces, live), 3.0, about
        ),
        *cost_rows(f"{name}: match, all cached", in_turn(contenders, pieces, match), None, about),
        *cost_rows(f"{name}: lock + unlock", in_turn(contenders, pieces, lock)),
    ]


def eviction_rows(
    name: str,
    contenders: list[Contender],
    num_tokens: int,
    rounds: int,
    calls: dict[str, int],
    target: float | None = None,
) -> tuple[list[Row], dict[str, list[float]]]:
    """Evictions of `num_tokens` a call, so many calls a round for each contender."""

    def evict(contender: Contender, _round: int) -> int:
        for _ in range(calls[contender.name]):
            contender.evict(num_tokens)
        return calls[contender.name]

    costs = in_turn(contenders, range(rounds), evict)
    note = ", ".join(f"{name} {count}" for name, count in calls.items())
    title = f"{name}: evict {num_tokens:,} tokens a call"
    return cost_rows(title, costs, target, f"calls a round: {note}"), costs
