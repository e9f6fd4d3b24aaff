"""What a plan refuses: all that its native code would read or write beyond its memory for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from espalier.kernels.arena import Arena
from espalier.kernels.native import why_unavailable
from espalier.kernels.ops import Heads
from espalier.kernels.packing import PackedLinear, PackedMatrix, allocate_packed, write_rows
from espalier.kernels.recorder import Buffer, Recorder

if why_unavailable() is not None:
    pytest.skip(f"the native kernels were not built: {why_unavailable()}", allow_module_level=True)

from espalier.kernels.plan import MAX_MATRICES, DeviceMemory, Ints, Plan, TableEntry
from espalier.kernels.pool import Pool

ARENA = Arena()
POOL = Pool.start(1)
HEADS = Heads(1, 1, 2)
CONTEXT, WIDTH, TOKENS = 64, 16, 8


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def matrix(num_outputs: int) -> PackedMatrix:
    packed = allocate_packed(ARENA, "f32", num_outputs, WIDTH)
    write_rows(packed, 0, torch.eye(num_outputs, WIDTH))
    return packed


def linear(*sizes: int) -> PackedLinear:
    return PackedLinear(tuple(map(matrix, sizes)), "float32")


def memory(heads: Heads = HEADS) -> DeviceMemory:
    ids, slots = torch.zeros((2, 2, CONTEXT), dtype=torch.int32)
    shape = (2, 1, CONTEXT, heads.num_kv_heads, heads.head_dim)
    k_pool, v_pool = torch.zeros(shape, dtype=torch.float32)
    angles = torch.zeros((CONTEXT, heads.head_dim // 2), dtype=torch.float32)
    return DeviceMemory(ids, slots, k_pool, v_pool, None, None, angles, angles)


def plan(recorder: Recorder, *keep: Buffer) -> Plan:
    return Plan(
        recorder,
        POOL,
        memory(recorder.heads),
        max_tokens=TOKENS,
        max_selected=TOKENS,
        keep=keep,
    )


@pytest.mark.parametrize("row", [(0, 2**31 - 1, 1), (0, 2**31 - 3, 8), (0, 60, 5), (2, 0, 1)])
def test_rows_beyond_the_tables_are_refused(row: tuple[int, int, int]) -> None:
    """The first two end at 2**31 and later: as int32, before the table's end."""
    recorder = Recorder(HEADS)
    recorder.embed(linear(32))
    with pytest.raises(AssertionError):
        plan(recorder).prepare([], np.array([row], np.int32), ints())


@pytest.mark.parametrize("heads", [Heads(3, 2, 2), Heads(1, 2, 2), Heads(1, 0, 2)])
def test_query_heads_that_share_no_kv_heads_evenly_are_refused(heads: Heads) -> None:
    recorder = Recorder(heads)
    recorder.embed(linear(32))
    with pytest.raises(AssertionError):
        plan(recorder)


def test_a_matrix_shorter_than_it_says_is_refused() -> None:
    recorder = Recorder(HEADS)
    recorder.embed(PackedLinear((replace(matrix(32), num_outputs=1 << 20),), "float32"))
    with pytest.raises(AssertionError):
        plan(recorder)


def test_embeddings_in_two_matrices_are_refused() -> None:
    recorder = Recorder(HEADS)
    recorder.embed(linear(16, 16))
    with pytest.raises(AssertionError, match="one matrix"):
        plan(recorder)


def test_more_matrices_than_a_team_has_phases_are_refused() -> None:
    recorder = Recorder(HEADS)
    x = recorder.embed(linear(32))
    recorder.linear(x, linear(*[2] * MAX_MATRICES))
    plan(recorder)
    recorder.linear(x, linear(*[2] * (MAX_MATRICES + 1)))
    with pytest.raises(AssertionError):
        plan(recorder)


def test_what_is_selected_is_not_selected_again() -> None:
    recorder = Recorder(HEADS)
    recorder.select(recorder.select(recorder.embed(linear(32))))
    with pytest.raises(AssertionError, match="is selected"):
        plan(recorder)


def test_what_is_selected_does_not_attend() -> None:
    recorder = Recorder(HEADS)
    qkv = recorder.linear(recorder.embed(linear(32)), linear(6))
    recorder.attention(recorder.select(qkv), 0)
    with pytest.raises(AssertionError, match="all tokens"):
        plan(recorder)


def test_buffers_are_float32_whatever_torchs_default_is() -> None:
    recorder = Recorder(HEADS)
    x = recorder.embed(linear(32))
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert plan(recorder, x).tensor(x).dtype == torch.float32
    finally:
        torch.set_default_dtype(default)


def test_hidden_states_can_be_read_out_again() -> None:
    """Also where the read-out has buffers of their shape, which could take their place."""
    recorder = Recorder(HEADS)
    hidden = recorder.embed(linear(16))
    doubled = recorder.select(hidden)
    for _ in range(2):
        doubled = recorder.linear(doubled, linear(WIDTH), residual_TE=doubled)
    computing = plan(recorder, doubled)
    step = computing.prepare(
        [TableEntry(0, 0, ints(3, 5, 7), ints(0, 1, 2))], np.array([(0, 0, 3)], np.int32), ints(0)
    )
    computing.run_prepared(step)
    for token, token_id in enumerate((3, 5, 7)):
        computing.read_out(step, ints(token))
        expected = 4 * torch.eye(WIDTH)[token_id]
        assert torch.equal(computing.tensor(doubled)[0], expected)
