"""The `espalier` command: finds the command that is called, and prints its errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from espalier.commands.flags import UsageError
from espalier.runtime.errors import EspalierError

_COMMANDS = {  # each is a module of `espalier.commands`
    "serve": "serve a model over HTTP",
    "generate": "continue a prompt",
    "chat": "talk with a model in the terminal",
    "pull": "fetch a model into the cache directory",
}
_EXIT_ERROR = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for errors, 2 for usage, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser(argv[:1]).parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except EspalierError as error:
        print(f"espalier: error: {error}", file=sys.stderr)
        return _EXIT_USAGE if isinstance(error, UsageError) else _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return status


def _parser(called: Sequence[str]) -> argparse.ArgumentParser:
    """Only the called command is imported and has arguments; the others are names."""
    parser = argparse.ArgumentParser(prog="espalier", description="Run generation programs.")
    parser.add_argument("--version", action="version", version=f"espalier {version('espalier-lm')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name in called:
            module = import_module(f"espalier.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser
