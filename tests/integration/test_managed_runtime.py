"""`Runtime`: processes that belong to a program and end with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import espalier as esp
from tests.integration.servers import OPTIONS, is_alive, seconds_until

pytestmark = pytest.mark.timeout(120, method="thread")


@esp.function
def endless(s: esp.ProgramState) -> None:
    s += "Once" + esp.gen("x", max_tokens=2000, ignore_eos=True)


def test_it_outlives_its_scheduler_and_leaves_no_process() -> None:
    with esp.Runtime("smollm2", **OPTIONS) as runtime:
        pids = runtime.pids
        run = endless.run(backend=runtime, stream=True)
        next(run.text_iter("x"))
        os.kill(pids["scheduler"], signal.SIGKILL)
        assert isinstance(run.error(), esp.RequestFailed)
        # It waits for the new scheduler instead of failing.
        [again] = runtime.complete("Once", esp.SamplingParams(max_new_tokens=4, ignore_eos=True))
        assert len(again.ids) == 4
        pids |= runtime.pids
        run = endless.run(backend=runtime, stream=True)
        next(run.text_iter("x"))
    assert isinstance(run.error(), esp.EngineClosed)
    runtime.close()
    assert len(pids) >= 3
    seconds_until(lambda: not any(map(is_alive, pids.values())))


def test_one_that_can_t_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(esp.InvalidRequest, match="colour"):
        esp.Runtime(colour="green")
    with pytest.raises(esp.ModelError):
        esp.Runtime(str(tmp_path))
