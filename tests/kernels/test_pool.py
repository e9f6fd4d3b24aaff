"""Where the threads of a pool run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("espalier.kernels._cpu", reason="built without a compiler")
from espalier.kernels.pool import MAX_CPUS, Pool
from espalier.runtime.sampling.native import NativeSampler
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.sampling.sampler import SampleRow

CPUS = sorted(os.sched_getaffinity(0))

needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")


def threads() -> dict[int, set[int]]:
    """The CPUs that each thread of this process may use, by its id."""
    return {
        int(task.name): set(os.sched_getaffinity(int(task.name)))
        for task in Path("/proc/self/task").iterdir()
    }


def in_thread(work: Callable[[], None]) -> None:
    """On a thread of its own, which may be put anywhere."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


def sample(pool: Pool) -> None:
    row = SampleRow(params=SamplingParams(temperature=0.0), seed=0, choice=0, position=0)
    NativeSampler(pool).sample(torch.zeros(64, 4096), [row] * 64)


@needs_two
def test_threads_with_cpus_stay_on_them() -> None:
    before = threads().keys()
    pool = Pool.start(2, cpus=CPUS[:2])
    found: list[set[int]] = []

    def work() -> None:
        sample(pool)
        mine = threading.get_native_id()
        now = threads()
        found.append(now[mine])
        found.extend(cpus for tid, cpus in now.items() if tid not in before and tid != mine)

    in_thread(work)
    assert found[0] == {CPUS[0]} and {CPUS[1]} in found[1:], found
    assert set(os.sched_getaffinity(0)) == set(CPUS), "nobody else is moved"


def test_threads_without_cpus_may_go_anywhere() -> None:
    before = threads().keys()
    pool = Pool.start(2)

    def work() -> None:
        sample(pool)
        new = {tid: cpus for tid, cpus in threads().items() if tid not in before}
        assert len(new) >= 2 and all(cpus == set(CPUS) for cpus in new.values())

    in_thread(work)


@needs_two
def test_a_thread_that_computes_for_another_pool_goes_where_that_one_has_it() -> None:
    found: list[set[int]] = []

    def work() -> None:
        for cpus in (CPUS[:2], CPUS[1::-1]):
            sample(Pool.start(2, cpus=cpus))
            found.append(set(os.sched_getaffinity(threading.get_native_id())))

    in_thread(work)
    assert found == [{CPUS[0]}, {CPUS[1]}]


def test_cpus_that_cannot_be_had_are_no_error() -> None:
    in_thread(lambda: sample(Pool.start(2, cpus=[MAX_CPUS - 2, MAX_CPUS - 1])))


@pytest.mark.parametrize("cpus", [[0], [0, 1, 2], [-1, 0], [0, MAX_CPUS]])
def test_each_thread_needs_a_cpu_that_can_be_named(cpus: list[int]) -> None:
    with pytest.raises(AssertionError):
        Pool.start(2, cpus=cpus)
