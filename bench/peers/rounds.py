"""Runs a work on contenders in turn, round by round, and makes rows of what it took down."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from random import Random
from statistics import median

from bench.peers.comparisons import COMPARISONS, ratio_row
from bench.peers.directory import say
from bench.peers.server import Server
from bench.peers.works import WORKS
from bench.report import Row, spread


@dataclass(slots=True)
class Results:
    """figures: each figure's values by contender, in the order of the rounds.
    failures: why a contender is not among them.
    """

    figures: dict[str, dict[str, list[float]]] = field(
        default_factory=dict[str, dict[str, list[float]]]
    )
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        for by_contender in self.figures.values():
            by_contender.pop(name, None)


def run_work(
    name: str, servers: list[Server], *, rounds: int, seed: int, settle_s: float
) -> Results:
    """A B A B ...: in each round every contender has the same prompts, new ones.

    Threads of the one before may spin a little longer: each begins `settle_s` after it.
    """
    work, results = WORKS[name], Results()
    able = [server for server in servers if server.contender.can(name)]
    results.figures |= {figure: {} for figure in work.figures}
    for index in range(-work.num_warm_ups, rounds):
        for server in able:
            if server.name in results.failures:
                continue
            time.sleep(settle_s)
            try:
                figures = work.measure(server.endpoint, Random(f"{seed} {name} {index}"))
            except (OSError, RuntimeError) as error:
                results.fail(server.name, f"{type(error).__name__}: {error}")
                say(f"{name}: {server.name} failed: {error}")
                continue
            which = f"round {index + 1} of {rounds}" if index >= 0 else "warm-up"
            shown = [f"{value:.3g} {work.figures[figure]}" for figure, value in figures.items()]
            say(f"{name}, {which}: {server.name} {', '.join(shown).rstrip()}")
            if index >= 0:
                for figure, value in figures.items():
                    results.figures[figure].setdefault(server.name, []).append(value)
    return results


def figure_rows(name: str, results: Results) -> list[Row]:
    """Each contender's figure, then the ratios that have a target."""
    work = WORKS[name]
    rows: list[Row] = []
    for figure, samples in results.figures.items():
        for contender, values in samples.items():
            name_of = f"{figure}: {contender}"
            rows.append(
                Row(name_of, median(values), work.figures[figure], work.better, note=spread(values))
            )
        for contender, reason in results.failures.items():
            rows.append(Row(f"{figure}: {contender} served", 0, "", target=1, note=reason))
        ratios = [
            ratio_row(comparison, samples, work.better)
            for comparison in COMPARISONS
            if comparison.figure == figure
        ]
        rows += [row for row in ratios if row is not None]
    return rows
