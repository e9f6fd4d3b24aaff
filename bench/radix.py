"""The radix cache against the usual design, and against sglang's own: cost of each operation.

    python -m bench.radix --trace-dir DIR --json bench/out/radix.json --plot bench/out/radix.png
    python -m bench.radix --trace-dir DIR --peer-dir WHEEL     (an unpacked sglang wheel)

DIR holds mooncake_conversation_trace.jsonl and mooncake_synthetic_trace.jsonl (Mooncake, FAST'25
release); without it only the random tree is measured. All work is cut into as many pieces as
there are rounds, and each piece goes to one contender after the other (A B A B ...). Ratios are
medians over the pieces, of two times for the same piece; the collector of cycles is off.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.plots import Curve, log_plot
from bench.radix_contenders import Contender, Ours, Usual
from bench.radix_costs import eviction_rows, request_rows
from bench.radix_peer import Sglang, load_peer
from bench.radix_works import NODE_LEN, Trace, random_tree, read_trace
from bench.report import Row, publish, spread

TRACES = ("conversation", "synthetic")
_OUTPUT_LEN = 256
_BULK = 1000
"""Tokens of an eviction as admission asks for them."""
_TARGETS_FROM = 100_000
"""Leaves from which on an eviction is to be so much cheaper than in the usual design."""

MakeContenders = Callable[[int], list[Contender]]


def trace_rows(trace: Trace, make: MakeContenders, rounds: int) -> list[Row]:
    outputs = np.random.default_rng(0).integers(0, 50_000, _OUTPUT_LEN, dtype=np.int32)
    room = trace.num_tokens + _OUTPUT_LEN * len(trace.prompts)
    contenders = make(room)
    rows = request_rows(trace.name, contenders, trace.prompts, outputs, rounds)
    each = max(1, min(20, len(trace.prompts) // (2 * rounds)))  # the others evict whole leaves
    calls = {contender.name: each for contender in contenders}
    return [*rows, *eviction_rows(trace.name, contenders, _BULK, rounds, calls)[0]]


def tree_rows(num_leaves: int, make: MakeContenders, rounds: int) -> list[Row]:
    paths = random_tree(num_leaves)
    contenders = make(NODE_LEN * len(paths))
    name = f"tree of {num_leaves:,} leaves"
    rows = request_rows(name, contenders, paths, np.empty(0, np.int32), rounds)
    calls = {c.name: _calls(c, num_leaves) for c in contenders}
    one, bulk = (100.0, 3.0) if num_leaves >= _TARGETS_FROM else (None, None)
    rows += eviction_rows(f"{name} (a node)", contenders, NODE_LEN, rounds, calls, one)[0]
    calls = dict.fromkeys(calls, 2 if num_leaves >= 1000 else 1)
    return [*rows, *eviction_rows(name, contenders, _BULK, rounds, calls, bulk)[0]]


def _calls(contender: Contender, num_leaves: int) -> int:
    """So few that the tree keeps its size, and fewer where each call walks the tree."""
    return max(1, min(200, num_leaves // 50)) if isinstance(contender, Ours) else 2


def growth_rows(sizes: Sequence[int], rounds: int, plot: Path | None) -> list[Row]:
    """The cost of evicting one node, by the number of leaves that it is chosen from."""
    points: dict[str, list[tuple[float, float]]] = {Ours.name: [], Usual.name: []}
    rows: list[Row] = []
    for size in sizes:
        for name, seconds in _node_costs(size, rounds).items():
            micros = [1e6 * value for value in seconds]
            points[name].append((size, median(micros)))
            note = f"{spread(micros)}; {NODE_LEN} tokens a call"
            title = f"evict a node of {size:,} leaves: {name}"
            rows.append(Row(title, median(micros), "us", better="lower", note=note))
    first, last = points[Ours.name][0][1], points[Ours.name][-1][1]
    law: list[tuple[float, float]] = [(size, first * log(size) / log(sizes[0])) for size in sizes]
    rows.append(_growth_row(sizes[0], sizes[-1], last / first))
    if plot is not None:
        curves = [Curve(name, points[name]) for name in points]
        title = "Cost of evicting one node"
        log_plot(plot, title, "leaves", "us a call", [*curves, Curve("~ log n", law)])
    return rows


def _node_costs(num_leaves: int, rounds: int) -> dict[str, list[float]]:
    gc.collect()
    paths = random_tree(num_leaves)
    contenders: list[Contender] = [Ours(NODE_LEN * len(paths)), Usual(NODE_LEN * len(paths))]
    for contender in contenders:
        for path in paths:
            key = contender.key_of(path)
            contender.live(key, key)
    calls = {contender.name: _calls(contender, num_leaves) for contender in contenders}
    return eviction_rows("", contenders, NODE_LEN, rounds, calls)[1]


def _growth_row(low: int, high: int, growth: float) -> Row:
    law = log(high) / log(low)
    return Row(
        f"growth of our cost from {low:,} to {high:,} leaves",
        growth,
        "x",
        better="lower",
        target=1.5 * law,
        note=f"log n grows {law:.2f} times, the root of n {(high / low) ** 0.5:.1f}; "
        "the target allows log n half as much again, for caches missed",
    )


def memory_row(trace: Trace, num_slots: int) -> Row:
    """What a full cache takes beside the KV, as tracemalloc counts it (numpy tells it too)."""
    gc.collect()
    tracemalloc.start()
    ours = Ours(num_slots)
    for prompt in trace.prompts:
        if len(prompt) <= num_slots:
            ours.live(prompt, prompt)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    cached = ours.cache.num_cached
    nodes = sum(1 for _ in ours.cache.tree.nodes())
    return Row(
        f"{trace.name}: memory outside the KV, a cached token",
        held / cached,
        "bytes",
        better="lower",
        target=24.0,
        note=f"tracemalloc; {cached:,} of {num_slots:,} slots cached in {nodes:,} nodes",
    )


def contenders_of(peer: Any) -> MakeContenders:
    """Ours, the usual design, and sglang's if its module is there."""

    def make(num_slots: int) -> list[Contender]:
        gc.collect()
        contenders: list[Contender] = [Ours(num_slots), Usual(num_slots)]
        return contenders if peer is None else [*contenders, Sglang(peer, num_slots)]

    return make


def bench_rows(options: argparse.Namespace) -> list[Row]:
    peer_dir: Path | None = options.peer_dir
    trace_dir: Path | None = options.trace_dir
    rounds: int = options.rounds
    make = contenders_of(None if peer_dir is None else load_peer(peer_dir))
    rows: list[Row] = []
    if trace_dir is not None:
        for name in TRACES:
            file = trace_dir / f"mooncake_{name}_trace.jsonl"
            trace = read_trace(file, options.trace_tokens)
            rows += trace_rows(trace, make, rounds)
            if name == "conversation":
                rows.append(memory_row(trace, options.trace_tokens // 2))
    rows += tree_rows(options.leaves, make, rounds)
    sizes = [round(options.leaves * 10 ** (-step / 2)) for step in (4, 3, 2, 1, 0)]
    return [*rows, *growth_rows(sizes, rounds, options.plot)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw cost against leaves")
    parser.add_argument("--trace-dir", type=Path, metavar="DIR", help="where the traces lie")
    parser.add_argument("--trace-tokens", type=int, default=2_000_000, help="of each trace")
    parser.add_argument("--leaves", type=int, default=100_000, help="of the random tree")
    parser.add_argument("--rounds", type=int, default=5, help="pieces that the work is cut into")
    parser.add_argument("--peer-dir", type=Path, metavar="DIR", help="an unpacked sglang wheel")
    args = parser.parse_args(argv)
    gc.disable()
    try:
        rows = bench_rows(args)
    finally:
        gc.enable()
    publish("radix", rows, args.json)


if __name__ == "__main__":
    main()
