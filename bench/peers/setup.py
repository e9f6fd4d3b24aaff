"""Downloads, builds and converts what the peers need; what is there already stays.

    python -m bench.peers.setup [--dir DIR] [PEER ...]

Each peer gets a directory of its own, with a virtual environment where it needs one. Some
9 GB of disk, and half an hour on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers import llama_cpp, onnx, openvino, vllm
from bench.peers.directory import (
    DEFAULT_DIRECTORY,
    PeersDirectory,
    SetupError,
    make_once,
    say,
)
from espalier.runtime.hub.source import resolve_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of a build")
    parser.add_argument("peers", nargs="*", metavar="PEER", help="by default all")
    args = parser.parse_args()
    directory, gguf = PeersDirectory(args.dir.resolve()), resolve_model("smollm2").path
    steps: dict[str, Callable[[], None]] = {
        "llama.cpp": lambda: llama_cpp.set_up(directory, gguf, args.jobs),
        "openvino": lambda: openvino.set_up(directory),
        "vllm": lambda: vllm.set_up(directory),
        "onnx": lambda: onnx.set_up(directory),
    }
    unknown = set(args.peers) - set(steps)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(steps)}")
    make_once(directory.model, lambda target: _export(gguf, target))
    failed: list[str] = []
    for name in args.peers or steps:
        say(f"{name}:")
        try:
            steps[name]()
        except SetupError as error:
            say(f"{name} failed: {error}")
            failed.append(name)
    if failed:
        sys.exit(f"not set up: {', '.join(failed)}")


def _export(gguf: Path, target: Path) -> None:
    from bench.peers.export import export_gguf  # here, because transformers takes seconds

    say(f"writing {gguf.name} in float32")
    export_gguf(gguf, target)


if __name__ == "__main__":
    main()
