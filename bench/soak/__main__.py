"""Mixed traffic, kills and hostile input against real servers with tiny pools, for a time.

    python -m bench.soak --seconds 600 --json bench/out/soak.json

Ends with status 1 if anything was wrong; each thing is printed when it is found and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from bench.report import publish
from bench.soak.figures import rows, shortcomings
from bench.soak.rounds import Soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600.0, help="of traffic, all rounds")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is chosen")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is ended
    start = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        result = asyncio.run(Soak(args.seconds, args.seed, Path(directory), tell).run())
    publish("soak", rows(result), args.json)
    wrongs = shortcomings(result)
    for wrong in wrongs:
        print(f"wrong: {wrong}", file=sys.stderr)
    return 1 if wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
