"""What bench/schemas reports: totals and times as rows, keywords side by side as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from rich.table import Table

from bench.report import Row
from bench.schemas.counting import Outcome, Tally

OURS = "espalier"
MIN_RIGHT_PAIRS = 1080
MIN_RIGHT_SCHEMAS = 96.0
_CELL = (
    Outcome.RIGHT,
    Outcome.ACCEPTED_INVALID,
    Outcome.REFUSED_VALID,
    Outcome.NOT_COMPILED,
    Outcome.LATE,
)
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}

Tallies = Mapping[str, Tally]
"""Contender -> its outcomes for one kind of data."""


def pair_rows(tallies: Tallies, *, is_whole: bool) -> Iterator[Row]:
    """Of the test suite: (schema, instance) pairs."""
    for outcome in _CELL:
        for name, tally in tallies.items():
            yield Row(
                f"suite pairs {outcome.value}: {name}",
                tally.total[outcome],
                "pairs",
                "higher" if outcome is Outcome.RIGHT else "lower",
                target=_pair_target(outcome, is_whole) if name == OURS else None,
                note=f"of {tally.total.total():,}",
            )


def _pair_target(outcome: Outcome, is_whole: bool) -> float | None:
    if outcome is Outcome.ACCEPTED_INVALID:
        return 0
    return MIN_RIGHT_PAIRS if outcome is Outcome.RIGHT and is_whole else None


def schema_rows(tallies: Tallies, *, is_whole: bool) -> Iterator[Row]:
    """Of schemas met in the wild: those of which all instances are right, and the others."""
    for outcome in _CELL:
        is_right = outcome is Outcome.RIGHT
        for name, tally in tallies.items():
            num, count = tally.total.total(), tally.total[outcome]
            target = 0.0 if outcome is Outcome.ACCEPTED_INVALID else None
            if is_right and is_whole:
                target = MIN_RIGHT_SCHEMAS
            yield Row(
                f"real schemas {'all ' if is_right else ''}{outcome.value}: {name}",
                100 * count / num if is_right else count,
                "%" if is_right else "schemas",
                "higher" if is_right else "lower",
                target=target if name == OURS else None,
                note=f"{count:,} of {num:,}",
            )


def keyword_rows(kind: str, tallies: Tallies) -> Iterator[Row]:
    """One row for each keyword and contender; the note has what is not right."""
    for keyword in _keywords(tallies):
        for name, tally in tallies.items():
            counts = tally.by_keyword[keyword]
            others = (f"{counts[each]} {each.value}" for each in _CELL[1:] if counts[each])
            title = f"{kind}, {keyword}: {name}"
            note = ", ".join([f"of {counts.total()}", *others])
            yield Row(title, counts[Outcome.RIGHT], "right", note=note)


def keyword_table(title: str, tallies: Tallies) -> Table:
    """Cells: right / accepted invalid / refused valid / not compiled / over the deadline."""
    table = Table(title=f"{title}: {' / '.join(outcome.value for outcome in _CELL)}")
    table.add_column("keyword")
    table.add_column("n", justify="right")
    for name in tallies:
        table.add_column(name, justify="right")
    for keyword in _keywords(tallies):
        counts = [tally.by_keyword[keyword] for tally in tallies.values()]
        table.add_row(keyword, str(counts[0].total()), *map(_cell, counts))
    table.add_section()
    totals = [tally.total for tally in tallies.values()]
    table.add_row("all", str(totals[0].total()), *map(_cell, totals))
    return table


def _keywords(tallies: Tallies) -> list[str]:
    return sorted({keyword for tally in tallies.values() for keyword in tally.by_keyword})


def _cell(counts: Counter[Outcome]) -> str:
    return " / ".join(str(counts[outcome]) for outcome in _CELL)


def time_rows(compile_s: Mapping[str, Mapping[str, float]]) -> Iterator[Row]:
    """Of what each contender compiled; ratios are over what both of two did.

    `compile_s` is contender -> group -> seconds.
    """
    for name, times in compile_s.items():
        for percentile, value in _percentiles(list(times.values())).items():
            title = f"compile {percentile}: {name}"
            note = f"{len(times):,} schemas, vocabulary of 256 bytes"
            yield Row(title, 1000 * value, "ms", "lower", note=note)
    ours = compile_s.get(OURS, {})
    for name, times in compile_s.items():
        both = ours.keys() & times.keys()
        if name == OURS or not both:
            continue
        mine = _percentiles([ours[group] for group in both])
        theirs = _percentiles([times[group] for group in both])
        for percentile in _PERCENTILES:
            ratio = theirs[percentile] / mine[percentile]
            title, note = f"compile {percentile}: {name} / {OURS}", f"{len(both):,} schemas"
            yield Row(title, ratio, "x", peer=name, note=note)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {name: float(np.percentile(seconds, q)) for name, q in _PERCENTILES.items()}
