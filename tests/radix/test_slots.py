"""The slot ledger: contiguous runs, exact counts, and no slot given back twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.radix.slots import SlotPool, SlotState
from espalier.radix.types import IntArray


def slots(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int32)


def test_a_fresh_pool_hands_out_low_contiguous_runs() -> None:
    pool = SlotPool(8)
    assert pool.alloc(3).tolist() == [0, 1, 2]
    assert pool.alloc(2).tolist() == [3, 4]
    assert pool.alloc(0).tolist() == []
    assert pool.alloc(3).dtype == np.int32


def test_freed_slots_come_back_sorted_into_one_run() -> None:
    pool = SlotPool(8)
    taken = pool.alloc(6)
    pool.free(taken[[5, 1, 3]])
    pool.free(taken[[4, 0, 2]])
    assert pool.alloc(8).tolist() == list(range(8))


def test_slots_of_one_state_are_counted_and_listed() -> None:
    pool = SlotPool(4)
    taken = pool.alloc(3)
    pool.move(taken[:2], SlotState.IN_USE, SlotState.CACHED)
    pool.move(taken[:1], SlotState.CACHED, SlotState.PENDING)
    assert [pool.count(state) for state in SlotState] == [1, 1, 1, 1]
    assert [pool.members(state).tolist() for state in SlotState] == [[3], [2], [1], [0]]


def test_a_double_free_is_caught() -> None:
    pool = SlotPool(4)
    taken = pool.alloc(2)
    pool.free(taken)
    with pytest.raises(AssertionError, match="not IN_USE"):
        pool.free(taken[:1])


def test_a_slot_named_twice_in_one_call_is_caught() -> None:
    pool = SlotPool(4)
    pool.alloc(2)
    with pytest.raises(AssertionError, match="twice"):
        pool.free(slots(1, 0, 1))


def test_a_slot_that_nobody_took_cannot_be_freed() -> None:
    with pytest.raises(AssertionError, match="not IN_USE"):
        SlotPool(4).free(slots(2))


def test_more_than_the_free_slots_cannot_be_taken() -> None:
    pool = SlotPool(4)
    pool.alloc(3)
    with pytest.raises(AssertionError):
        pool.alloc(2)


def test_the_callers_array_may_change_after_it_is_freed() -> None:
    pool = SlotPool(2)
    taken = pool.alloc(2)
    pool.free(taken)
    taken[:] = 7
    assert pool.alloc(2).tolist() == [0, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_no_slot_is_ever_in_two_hands(actions: list[tuple[bool, int]]) -> None:
    pool = SlotPool(20)
    held: list[IntArray] = []
    for take, n in actions:
        if take and n <= pool.count(SlotState.FREE):
            held.append(pool.alloc(n))
            assert (np.diff(held[-1]) > 0).all()
        elif not take and held:
            pool.free(held.pop(n % len(held)))
        in_use = [slot for run in held for slot in run.tolist()]
        free = pool.supply().tolist()
        assert sorted(in_use + free) == list(range(20))
        assert pool.count(SlotState.IN_USE) == len(in_use)
        assert pool.count(SlotState.FREE) == len(free)
