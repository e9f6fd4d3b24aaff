"""The device's thread: work in order, and idle work only while there is no other."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from time import sleep

import pytest

from espalier.runtime.runner.device_thread import DeviceThread

_WAIT_S = 30.0


class Idle:
    """Idle work in pieces; calls are counted, and `stopped` is set by the one that ends it."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces
        self.calls = 0
        self.stopped = threading.Event()

    def __call__(self) -> bool:
        self.calls += 1
        if self.left == 0:
            self.stopped.set()
            return False
        self.left -= 1
        return True


def test_idle_work_is_done_to_its_end_and_then_no_more() -> None:
    idle = Idle(5)
    device = DeviceThread(idle)
    assert idle.stopped.wait(_WAIT_S)
    sleep(0.1)
    assert idle.calls == 6
    device.close()
    assert idle.calls == 6


def test_after_other_work_there_may_be_more() -> None:
    idle = Idle(0)
    device = DeviceThread(idle)
    assert idle.stopped.wait(_WAIT_S)
    idle.stopped.clear()
    idle.left = 3
    assert device.submit(lambda: 7).result(_WAIT_S) == 7
    assert idle.stopped.wait(_WAIT_S)
    assert idle.left == 0
    device.close()


def test_work_goes_first_and_keeps_its_order() -> None:
    done: list[int] = []
    idle = Idle(1_000_000)
    device = DeviceThread(idle)
    while idle.calls < 3:
        sleep(0.001)
    gate: Future[None] = Future()
    first = device.submit(lambda: (idle.calls, gate.result(_WAIT_S))[0])
    work = [device.submit(lambda i=i: done.append(i)) for i in range(50)]  # type: ignore[misc]
    calls_at_the_end = device.submit(lambda: idle.calls)  # before it is idle again
    gate.set_result(None)
    for future in work:
        future.result(_WAIT_S)
    assert done == list(range(50))
    assert calls_at_the_end.result(_WAIT_S) == first.result(_WAIT_S)
    device.close()  # whatever idle work there still is


def test_idle_work_that_fails_takes_nobody_along(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def fail() -> bool:
        failed.set()
        raise MemoryError("no page is left")

    with caplog.at_level(logging.ERROR):
        device = DeviceThread(fail)
        assert failed.wait(_WAIT_S)
        assert device.submit(lambda: 1).result(_WAIT_S) == 1
    assert "idle work failed" in caplog.text
    failed.clear()
    assert not failed.wait(0.1)
    device.close()
