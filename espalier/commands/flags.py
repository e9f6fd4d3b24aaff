"""Command line flags that derive from the configuration classes; each field has one."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from espalier.runtime.config import ServerConfig
from espalier.runtime.errors import EspalierError, InvalidRequest
from espalier.runtime.options import Option, options_of

_VALUES = {int: "N", float: "X", str: "TEXT"}


class UsageError(EspalierError):
    """The command line is wrong: the message names the flag; exit status 2."""


def add_config_flags(
    parser: argparse.ArgumentParser, config_class: type, *, positional: str | None = None
) -> None:
    """Add a group of flags for `config_class` and for each class nested in it.

    The field `positional` is no flag, but an argument. What is not given leaves no attribute,
    so that defaults are the classes' own.
    """
    for owner, options in groupby(options_of(config_class), attrgetter("owner")):
        title = owner.__name__.removesuffix("Config").lower()
        group = parser.add_argument_group(title, owner.__doc__)
        for option in options:
            if option.name == positional:
                parser.add_argument(option.name, nargs="?", **_declaration(option))
            else:
                group.add_argument(option.flag, dest=option.name, **_declaration(option))


def given_options(arguments: argparse.Namespace, config_class: type) -> dict[str, object]:
    """The options of `config_class` that the command line has, by field name."""
    given = vars(arguments)
    return {o.name: given[o.name] for o in options_of(config_class) if o.name in given}


def config_from(arguments: argparse.Namespace) -> ServerConfig:
    """The configuration that the command line asks for. Raises `UsageError`."""
    with flags_named(ServerConfig):
        return ServerConfig.of(**given_options(arguments, ServerConfig))


@contextmanager
def flags_named(config_class: type) -> Generator[None]:
    """Errors of the fields of `config_class` become `UsageError`s of their flags."""
    try:
        yield
    except InvalidRequest as error:
        flags = {option.name: option.flag for option in options_of(config_class)}
        if error.param not in flags:
            raise
        raise UsageError(f"{flags[error.param]}: {error}") from error


def _declaration(option: Option) -> dict[str, Any]:
    """What `add_argument` is to know of an option."""
    text = option.text.help.replace("%", "%%")
    if option.kind is bool:
        constant = {"action": "store_const", "const": not option.default}
        help_ = f"don't {text}" if option.default else text
        return {**constant, "default": argparse.SUPPRESS, "help": help_}
    default = option.text.unset if option.default is None else option.default
    value = option.text.value or _VALUES[option.kind]
    return {
        "type": option.kind,
        "choices": option.choices or None,
        "metavar": None if option.choices else value.upper(),
        "default": argparse.SUPPRESS,
        "help": f"{text} (default: {default})",
    }
