"""`espalier serve`: starts a runtime, tells how it goes, and ends it when told to."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console

from espalier.runtime.config import ServerConfig
from espalier.runtime.processes.launcher import Launcher

from .flags import add_config_flags, config_from

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_flags(parser, ServerConfig, positional="model")


def run(arguments: argparse.Namespace) -> int:
    config = config_from(arguments)
    serve(Launcher(config), config, Console(stderr=True, soft_wrap=True, highlight=False))
    return 0


class Runtime(Protocol):
    """What is served: a `Launcher`, described there."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def close(self, drain_s: float | None = None) -> None: ...


class StopAsked(KeyboardInterrupt):
    """Raised in the main thread by each of the first two stop signals."""


def serve(runtime: Runtime, config: ServerConfig, notices: Console) -> None:
    """Run until a signal, or until the runtime ends; nothing of it is left then.

    A signal while it serves begins a drain, a second one cuts that short. While it starts,
    the first one ends it.
    """
    with _signals_raise_stop_asked() as ignore_signals:
        try:
            _start(runtime, config, notices)
            try:
                runtime.wait()
            except StopAsked:
                notices.print(
                    f"espalier: draining up to {config.drain_timeout_s:g} s; again to stop now"
                )
                _drain(runtime)
        except StopAsked:
            notices.print("espalier: stopping now")
        finally:
            ignore_signals()
            runtime.close(0)


def _start(runtime: Runtime, config: ServerConfig, notices: Console) -> None:
    name = config.served_model_name or config.engine.model
    began = time.monotonic()
    if not notices.is_terminal:
        notices.print(f"espalier: starting {name}", markup=False)
    with notices.status(f"starting {name}"):
        runtime.start()
    took = time.monotonic() - began
    notices.print(
        f"espalier: serving {name} at {runtime.url} (ready in {took:.1f} s)", markup=False
    )
    notices.print(_first_request(runtime.url, config), markup=False)


def _first_request(url: str, config: ServerConfig) -> str:
    key = "" if config.api_key is None else ' -H "Authorization: Bearer $API_KEY"'
    body = '{"text": "Once upon a time"}'
    return f"try: curl {url}/generate{key} -H 'Content-Type: application/json' -d '{body}'"


def _drain(runtime: Runtime) -> None:
    """In another thread, so that this one is free to be told to stop; it is not waited for
    then, as the caller closes at once."""
    ThreadPoolExecutor(1).submit(runtime.close).result()


@contextmanager
def _signals_raise_stop_asked() -> Generator[Callable[[], None]]:
    """Gives what ends that: from then on, and after the second, they are ignored."""
    num_left = 2

    def ask(number: int, frame: object) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left >= 0:
            raise StopAsked

    def ignore() -> None:
        nonlocal num_left
        num_left = 0

    before = {number: signal.signal(number, ask) for number in _STOP_SIGNALS}
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
