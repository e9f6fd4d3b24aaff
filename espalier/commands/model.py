"""What `generate` and `chat` share: where the model runs, and how its tokens are chosen."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from espalier.frontend_lang import Expr, gen
from espalier.runtime.config import EngineConfig
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.options import options_of
from espalier.runtime.programs.executor import ProgramHost

from .flags import UsageError, add_config_flags, flags_named, given_options

_SAMPLING = ("max_tokens", "temperature", "top_p", "seed", "stop")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("remote", "Use a runtime that `espalier serve` has started.")
    group.add_argument("--url", metavar="URL", help="where it is; then no model is loaded here")
    group.add_argument("--api-key", metavar="KEY", help="what it asks for")
    add_config_flags(parser, EngineConfig)


@contextmanager
def opened_model(arguments: argparse.Namespace) -> Generator[ProgramHost]:
    """What programs are to run on: a runtime elsewhere, or an engine in this process."""
    options = given_options(arguments, EngineConfig)
    if arguments.url is not None:
        _refuse_engine_flags(options)
        # Here and below: the command line is checked before anything slow is imported.
        from espalier.frontend_lang.backends.endpoint import RuntimeEndpoint

        with RuntimeEndpoint(arguments.url, api_key=arguments.api_key) as endpoint:
            yield endpoint
        return
    if arguments.api_key is not None:
        raise UsageError("--api-key: only with --url")
    with flags_named(EngineConfig):
        model = EngineConfig.of(**options).model
    options.pop("model", None)
    with Console(stderr=True).status(f"loading {model}"):
        from espalier.runtime.engine import Engine

        engine = Engine(model, **options)
    with engine:
        yield engine


def _refuse_engine_flags(options: dict[str, object]) -> None:
    for option in options_of(EngineConfig):
        if option.name in options:
            raise UsageError(f"{option.flag}: not with --url, whose runtime has its own model")


def add_sampling_flags(
    parser: argparse.ArgumentParser, *, max_tokens: int, temperature: float
) -> None:
    """The last two are what the command does where they are not given."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="TOKENS",
        help=f"the longest output (default: {max_tokens})",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help=f"0 takes the likeliest token each time (default: {temperature:g})",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="SHARE",
        help="keep the likeliest tokens, up to this probability (default: 1, all)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same output")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this; may be repeated"
    )


def sampling_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling arguments that were given, as `gen` takes them."""
    given = {name: getattr(arguments, name) for name in _SAMPLING}
    return {name: value for name, value in given.items() if value is not None}


def asked(name: str, **arguments: Any) -> Expr:
    """`gen`, whose complaints are about flags of the same names."""
    try:
        return gen(name, **arguments)
    except InvalidRequest as error:
        flag = f"--{error.param.replace('_', '-')}: " if error.param else ""
        raise UsageError(f"{flag}{error}") from error
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
