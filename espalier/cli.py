"""The `espalier` command: reads arguments, shows progress and errors; decides nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from espalier.runtime.errors import EspalierError
from espalier.runtime.hub.catalog import CATALOG, default_cache_dir
from espalier.runtime.hub.pull import pull

_EXIT_ERROR = 1
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for errors, 2 for usage, 130 for Ctrl-C."""
    arguments = _parser().parse_args(argv)
    try:
        _pull(arguments.name, arguments.cache_dir)
    except EspalierError as error:
        print(f"espalier: error: {error}", file=sys.stderr)
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="espalier", description="Run generation programs.")
    parser.add_argument("--version", action="version", version=f"espalier {version('espalier-lm')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    pull_parser = commands.add_parser("pull", help="fetch a model into the cache directory")
    pull_parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(sorted(CATALOG))}")
    pull_parser.add_argument(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        metavar="DIR",
        help="where models are kept (default: %(default)s)",
    )
    return parser


def _pull(name: str, cache_dir: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{name}: verify", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {stage}", completed=done, total=total or None)

        path = pull(name, cache_dir=cache_dir, progress=show)
    print(path)
