"""Espalier and its peers on the same works, over HTTP with one client, in one interleaved run.

    make peers        (sets the peers up, once)
    python -m bench.peers --json bench/out/peers.json
    python -m bench.peers --work decode --only "espalier q4" "llama.cpp Q4_0"
    python -m bench.peers --check        (a greedy continuation of each, nothing measured)

All servers are up at the same time, at rest but for one: each round of a work asks one after
the other (A B A B ...) with the same prompts, which are new in each round. Two threads each.
Medians and their ranges; ratios are of medians of this run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from bench.ceilings import Ceilings
from bench.peers import llama_cpp, onnx, openvino, ours, vllm
from bench.peers.check import continuation
from bench.peers.contender import Contender
from bench.peers.directory import DEFAULT_DIRECTORY, PeersDirectory, say
from bench.peers.rounds import figure_rows, run_work
from bench.peers.server import DidNotStart, Server, idle_share
from bench.peers.works import WORKS
from bench.report import Row, publish
from espalier.runtime.hub.source import resolve_model

_REST_S = 3.0
_SETTLE_S = 2.0  # vLLM's threads spin for more than one


def main() -> None:
    args = _arguments()
    signal.signal(signal.SIGTERM, _leave)  # so that the servers are ended
    directory = PeersDirectory(args.dir.resolve())
    chosen = _chosen(_all_contenders(directory, args.threads), args.only)
    servers = [Server(contender, directory.logs, args.start_limit) for contender in chosen]
    if args.check:
        sys.exit(0 if _check(servers, directory) else 1)
    rows = Ceilings.measure(args.threads).rows()
    try:
        with ExitStack() as stack:
            up: list[Server] = []
            for server in servers:
                row = _start(server, stack)
                rows.append(row)
                if row.met != "no":
                    up.append(server)
            rows.append(_rest_row(up))
            for name in args.work or WORKS:
                results = run_work(name, up, rounds=args.rounds, seed=args.seed, settle_s=_SETTLE_S)
                rows += figure_rows(name, results)
    finally:  # cut off: what is finished is worth its time
        publish("peers", rows, args.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY, help="where the peers are")
    parser.add_argument("--work", action="append", choices=list(WORKS), help="by default all")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders, or engines")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each work")
    parser.add_argument("--threads", type=int, default=2, help="of each contender")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--start-limit", type=float, default=600, help="seconds to come up")
    parser.add_argument("--check", action="store_true", help="only show what each generates")
    return parser.parse_args()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _all_contenders(directory: PeersDirectory, threads: int) -> list[Contender]:
    gguf = resolve_model("smollm2").path
    return [
        *ours.contenders(threads),
        *llama_cpp.contenders(directory, gguf, threads),
        *openvino.contenders(directory, threads),
        *onnx.contenders(directory, threads),
        *vllm.contenders(directory, threads),
    ]


def _chosen(contenders: list[Contender], only: list[str] | None) -> list[Contender]:
    """By name or engine; without `only` all but the one that is no precision of its own."""
    if only is None:
        return [contender for contender in contenders if contender.name != ours.DEFAULT]
    known = {name for contender in contenders for name in (contender.name, contender.engine)}
    unknown = [name for name in only if name not in known]
    if unknown:
        sys.exit(f"no contender {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [c for c in contenders if c.name in only or c.engine in only]


def _start(server: Server, stack: ExitStack) -> Row:
    """Start it. Its row is met only if it came up: nobody is left out in silence."""
    say(f"starting {server.name}")
    begin = time.monotonic()
    try:
        stack.enter_context(server)
    except DidNotStart as error:
        say(f"{server.name}: {error}")
        return Row(f"{server.name}: came up", 0, "", target=1, note=str(error))
    return Row(f"{server.name}: up after", time.monotonic() - begin, "s", better="lower")


def _rest_row(servers: list[Server]) -> Row:
    """What those at rest may take away from the one that is measured."""
    shares = idle_share(servers, _REST_S)
    note = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share > 0.005)
    total = sum(shares.values()) * 100
    return Row("all at rest: CPU", total, "% of a core", better="lower", target=5, note=note)


def _check(servers: list[Server], directory: PeersDirectory) -> bool:
    """Whether each came up and continued a prompt. They run one after the other."""
    good = True
    for server in servers:
        try:
            with server:
                text = continuation(server.endpoint, directory.model / "tokenizer.json")
                say(f"{server.name}: {text!r}")
        except (DidNotStart, RuntimeError, OSError) as error:
            say(f"{server.name}: {error}")
            good = False
    return good


if __name__ == "__main__":
    main()
