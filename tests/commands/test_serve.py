"""`espalier serve` against a runtime that records what it is told; signals are real."""

from __future__ import annotations

import io
import re
import signal
import threading
from collections.abc import Callable

import pytest
from rich.console import Console

from espalier.commands.serve import serve
from espalier.runtime.config import ServerConfig
from espalier.runtime.errors import LaunchError

pytestmark = pytest.mark.timeout(20, method="thread")


class RecordedRuntime:
    """`on_start`, `on_wait` and `on_drain` happen in the calls; `told` is the log of these."""

    url = "http://127.0.0.1:30000"

    def __init__(self, **events: Callable[[], None]) -> None:
        self.told: list[str] = []
        self._events = events
        self.cut_short = threading.Event()

    def start(self) -> None:
        self._tell("start")

    def wait(self, timeout_s: float | None = None) -> bool:
        self._tell("wait")
        return True

    def close(self, drain_s: float | None = None) -> None:
        if drain_s is None:
            self._tell("drain")
        else:
            self.told.append(f"close {drain_s:g}")
            self.cut_short.set()

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self._events.get(f"on_{what}", lambda: None)()


def _interrupt() -> None:
    """What Ctrl-C does, from whatever thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def _serve(runtime: RecordedRuntime, config: ServerConfig | None = None) -> str:
    stream = io.StringIO()
    notices = Console(file=stream, soft_wrap=True, highlight=False)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        serve(runtime, config or ServerConfig(), notices)
    finally:
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert after == before
    return stream.getvalue()


def test_it_says_where_it_serves_and_how_to_begin() -> None:
    text = _serve(RecordedRuntime())
    assert text.startswith("espalier: starting smollm2\n")
    line = r"^espalier: serving smollm2 at http://127\.0\.0\.1:30000 \(ready in \d+\.\d s\)$"
    assert re.search(line, text, re.MULTILINE)
    assert "curl http://127.0.0.1:30000/generate -H 'Content-Type: application/json' -d" in text
    assert "Authorization" not in text


def test_the_first_request_has_the_key_but_does_not_show_it() -> None:
    text = _serve(RecordedRuntime(), ServerConfig(api_key="secret", served_model_name="mine"))
    assert 'generate -H "Authorization: Bearer $API_KEY" -H' in text
    assert "secret" not in text
    assert "serving mine at" in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_begins_a_drain(number: signal.Signals) -> None:
    runtime = RecordedRuntime(on_wait=lambda: signal.raise_signal(number))
    text = _serve(runtime, ServerConfig(drain_timeout_s=2.5))
    assert runtime.told == ["start", "wait", "drain", "close 0"]
    assert text.endswith("espalier: draining up to 2.5 s; again to stop now\n")


def test_a_second_signal_cuts_the_drain_short() -> None:
    def drain() -> None:
        while not runtime.cut_short.wait(0.05):
            _interrupt()  # one that comes just before a lock is waited for is not noticed

    runtime = RecordedRuntime(on_wait=_interrupt, on_drain=drain)
    text = _serve(runtime)
    assert runtime.told == ["start", "wait", "drain", "close 0"]
    assert text.endswith("again to stop now\nespalier: stopping now\n")


def test_a_signal_while_it_starts_ends_it_without_a_drain() -> None:
    runtime = RecordedRuntime(on_start=_interrupt)
    assert _serve(runtime).endswith("espalier: starting smollm2\nespalier: stopping now\n")
    assert runtime.told == ["start", "close 0"]


class InterruptedAtTheEnd(RecordedRuntime):
    def close(self, drain_s: float | None = None) -> None:
        if drain_s == 0:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        super().close(drain_s)


def test_signals_after_the_second_change_nothing() -> None:
    def drain() -> None:
        while not runtime.cut_short.wait(0.05):
            _interrupt()  # one that comes just before a lock is waited for is not noticed

    runtime = InterruptedAtTheEnd(on_wait=_interrupt, on_drain=drain)
    _serve(runtime)
    assert runtime.told == ["start", "wait", "drain", "close 0"]


@pytest.mark.parametrize("events", [{}, {"on_start": _interrupt}])
def test_nothing_interrupts_the_last_close(events: dict[str, Callable[[], None]]) -> None:
    """It takes a moment, and what it leaves behind nobody would end."""
    runtime = InterruptedAtTheEnd(**events)
    _serve(runtime)
    assert runtime.told[-1] == "close 0"


@pytest.mark.parametrize("moment", ["on_start", "on_wait"])
def test_a_runtime_that_gives_up_is_closed_and_its_error_raised(moment: str) -> None:
    def give_up() -> None:
        raise LaunchError("the scheduler died 3 times")

    runtime = RecordedRuntime(**{moment: give_up})
    with pytest.raises(LaunchError, match="died 3 times"):
        _serve(runtime)
    assert runtime.told[-1] == "close 0"


def test_an_error_of_the_drain_is_raised() -> None:
    def fail() -> None:
        raise LaunchError("a process does not end")

    with pytest.raises(LaunchError, match="does not end"):
        _serve(RecordedRuntime(on_wait=_interrupt, on_drain=fail))
