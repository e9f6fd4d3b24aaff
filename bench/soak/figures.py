"""A soak's result as the rows of a report, and what of it is not as it must be."""

from __future__ import annotations

from bench.report import Row
from bench.soak.processes import Slope
from bench.soak.rounds import Result

_GROWTH_MIB = 6.0
_MIB_PER_MIN = 1.0
_PASSING = {"compiler"}  # replaced after some jobs: its memory is not the server's
_PROCESSES = {"launcher", "tokenizer", "detokenizer", "fork_server", "scheduler", "zygote"}


def rows(result: Result) -> list[Row]:
    """Counts first, then memory."""
    counts = result.ledger.counts
    table = [Row(name, counts[name], "") for name in sorted(counts) if name != "wrong"]
    for name in ("num_forward_passes", "num_retractions", "num_evicted_tokens"):
        table.append(Row(f"last scheduler: {name}", result.stats.get(name, 0), ""))
    wrongs = len(shortcomings(result))
    table.append(Row("what was wrong", wrongs, "", better="lower", target=0))
    for slope in sorted(result.slopes, key=lambda slope: slope.role):
        note = f"{slope.grown_mib:+.1f} MiB in {slope.window_s:.0f} s to {slope.last_mib:.0f}"
        table.append(
            Row(
                f"resident memory: {slope.role}",
                slope.mib_per_min,
                "MiB/min",
                better="lower",
                target=allowed(slope),
                note=note,
            )
        )
    return table


def allowed(slope: Slope) -> float:
    """The steepest slope that is no leak, in MiB/min.

    Allocators settle within some MiB, which a short window makes steep.
    """
    return _MIB_PER_MIN + _GROWTH_MIB / (slope.window_s / 60)


def shortcomings(result: Result) -> list[str]:
    """All that was wrong."""
    wrongs = list(result.ledger.wrongs)
    for slope in result.slopes:
        if slope.role not in _PASSING and slope.mib_per_min > allowed(slope):
            wrongs.append(f"memory grows: {slope}")
    if (found := {slope.role for slope in result.slopes} - _PASSING) != _PROCESSES:
        wrongs.append(f"memory was measured of {sorted(found)}")
    for name in ("num_retractions", "num_evicted_tokens"):
        if not result.stats.get(name):
            wrongs.append(f"{name} is 0: the pool was not tiny enough for this traffic")
    return wrongs
