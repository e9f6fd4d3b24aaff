"""`espalier pull`: fetches a model of the catalogue, with a progress bar."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from espalier.runtime.hub.catalog import CATALOG, default_cache_dir
from espalier.runtime.hub.pull import pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(sorted(CATALOG))}")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        metavar="DIR",
        help="where models are kept (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the path of the model."""
    name: str = arguments.name
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{name}: verify", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {stage}", completed=done, total=total or None)

        path = pull(name, cache_dir=arguments.cache_dir, progress=show)
    print(path)
    return 0
