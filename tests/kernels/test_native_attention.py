"""Native attention against the reference, and bit for bit against itself in other schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier.kernels import reference
from espalier.kernels.arena import Arena
from espalier.kernels.native import why_unavailable
from espalier.kernels.ops import AttentionRows, Heads
from espalier.kernels.packing import PackedLinear, allocate_packed, write_rows
from espalier.kernels.recorder import Recorder
from tests.native_kernels import needs_native

if TYPE_CHECKING or why_unavailable() is None:
    from espalier.kernels.plan import DeviceMemory, Plan, TableEntry
    from espalier.kernels.pool import Pool, instruction_sets

pytestmark = needs_native
ISAS = instruction_sets() if why_unavailable() is None else ()
FASTEST = ISAS[0] if ISAS else ""
KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)
NUM_SLOTS = 2000
NOWHERE = 2**31 - 1  # in the slot table where a row has no position


@dataclass(frozen=True, eq=False)
class Row:
    """New tokens of a request: `slots_P` ends with theirs, and `qkv_TE` is theirs alone."""

    slots_P: npt.NDArray[np.int32]
    qkv_TE: Tensor

    @property
    def start(self) -> int:
        return len(self.slots_P) - len(self.qkv_TE)

    def part(self, begin: int, end: int) -> Row:
        """New tokens [begin, end) of the row, after those before them."""
        return Row(self.slots_P[: self.start + end], self.qkv_TE[begin:end])


@dataclass(frozen=True, eq=False)
class KV:
    """One layer's pool; slots that hold nothing are NaN, or have a scale that is."""

    keys_SKd: Tensor
    values_SKd: Tensor
    key_scales_SK: Tensor | None
    value_scales_SK: Tensor | None

    @classmethod
    def empty(cls, heads: Heads, dtype: torch.dtype) -> KV:
        shape = (NUM_SLOTS, heads.num_kv_heads, heads.head_dim)
        if dtype != torch.int8:
            keys, values = (torch.full(shape, math.nan).to(dtype) for _ in range(2))
            return cls(keys, values, None, None)
        keys, values = (torch.full(shape, 77, dtype=dtype) for _ in range(2))
        return cls(keys, values, *(torch.full(shape[:2], math.nan) for _ in range(2)))

    def moved(self, to_S: Tensor) -> KV:
        """The same with the content of slot s in slot `to_S[s]`."""

        def move(held: Tensor) -> Tensor:
            return torch.empty_like(held).index_copy_(0, to_S, held)

        scales = (self.key_scales_SK, self.value_scales_SK)
        return KV(
            move(self.keys_SKd),
            move(self.values_SKd),
            *(None if held is None else move(held) for held in scales),
        )

    def clone(self) -> KV:
        return self.moved(torch.arange(NUM_SLOTS))

    def exact(self) -> tuple[Tensor, Tensor]:
        """Keys and values as what is stored says, in float64."""
        keys, values = self.keys_SKd.double(), self.values_SKd.double()
        if self.key_scales_SK is not None and self.value_scales_SK is not None:
            keys = keys * self.key_scales_SK[..., None]
            values = values * self.value_scales_SK[..., None]
        return keys, values


@dataclass(frozen=True, eq=False)
class Case:
    heads: Heads
    rows: list[Row]
    kv: KV  # before the step
    cos_Pc: Tensor
    sin_Pc: Tensor

    def with_rows(self, *rows: Row) -> Case:
        return replace(self, rows=list(rows))


@cache
def threads(isa: str, num_threads: int) -> Pool:
    return Pool.start(num_threads, isa)


def run_attention(case: Case, kv: KV, isa: str = FASTEST, num_threads: int = 1) -> list[Tensor]:
    """The outputs of each row; what is new goes to `kv`."""
    qkv_TE = torch.cat([row.qkv_TE for row in case.rows])
    packed = allocate_packed(Arena(), "f32", *qkv_TE.shape)
    write_rows(packed, 0, qkv_TE)
    recorder = Recorder(case.heads)
    out = recorder.attention(recorder.embed(PackedLinear((packed,), "float32")), layer=0)
    slots_RP = torch.full((len(case.rows), len(case.cos_Pc)), NOWHERE, dtype=torch.int32)
    memory = DeviceMemory(
        ids_RP=torch.zeros_like(slots_RP),
        slots_RP=slots_RP,
        k_pool_LSKd=kv.keys_SKd[None],
        v_pool_LSKd=kv.values_SKd[None],
        k_scales_LSK=None if kv.key_scales_SK is None else kv.key_scales_SK[None],
        v_scales_LSK=None if kv.value_scales_SK is None else kv.value_scales_SK[None],
        cos_Pc=case.cos_Pc,
        sin_Pc=case.sin_Pc,
    )
    pool = threads(isa, num_threads)
    plan = Plan(recorder, pool, memory, max_tokens=len(qkv_TE), max_selected=1, keep=[out])
    writes: list[TableEntry] = []
    first, rows_N3 = 0, np.empty((len(case.rows), 3), np.int32)
    for index, row in enumerate(case.rows):
        length = len(row.qkv_TE)
        slots_RP[index, : len(row.slots_P)] = torch.as_tensor(row.slots_P)
        ids = np.arange(first, first + length, dtype=np.int32)
        writes.append(TableEntry(index, row.start, ids, row.slots_P[row.start :]))
        rows_N3[index] = index, row.start, length
        first += length
    plan.run(writes, rows_N3, np.empty(0, np.int32))
    outputs = plan.tensor(out).clone()
    return [outputs[entry.ids[0] : entry.ids[-1] + 1] for entry in writes]


def split(case: Case, row: Row) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the row's new tokens, with rotated queries and keys."""
    heads, positions = case.heads, slice(row.start, len(row.slots_P))
    qkv = row.qkv_TE.view(len(row.qkv_TE), -1, heads.head_dim)
    q, kv = qkv[:, : heads.num_heads], qkv[:, heads.num_heads :]
    k, v = kv.chunk(2, dim=1)
    cos, sin = case.cos_Pc[positions].repeat(1, 2), case.sin_Pc[positions].repeat(1, 2)
    return reference.apply_rope(q, cos, sin), reference.apply_rope(k, cos, sin), v


def check_against_reference(case: Case, kv: KV, outputs: list[Tensor]) -> None:
    """`kv` is the pool after the step: attention to what it holds is exact but for rounding."""
    keys_SKd, values_SKd = kv.exact()
    for row, output in zip(case.rows, outputs, strict=True):
        slots = torch.as_tensor(row.slots_P, dtype=torch.int64)[None]
        rows = AttentionRows.of(slots, [0], [row.start], [len(row.qkv_TE)])
        expected = reference.paged_extend_attention(
            split(case, row)[0].double(), keys_SKd, values_SKd, rows, case.heads.scale
        ).flatten(1)
        errors = (output - expected).abs().amax(1)
        assert (errors <= 1e-5 * expected.abs().amax(1)).all(), errors.max()


def assert_same_bits(actual: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32)), (a - b).abs().max()


# -- cases -----------------------------------------------------------------------------------

RowSizes = tuple[bool, int, int]  # begins with the shared prefix; cached beyond it; new tokens
row_sizes: st.SearchStrategy[RowSizes] = st.tuples(
    st.booleans(),
    st.sampled_from([0, 1, 5, 63, 64, 65, 130]),
    st.sampled_from([1, 1, 1, 2, 5, 17, 70]),
)


def build(
    seed: int, heads: Heads, dtype: torch.dtype, prefix_len: int, sizes: list[RowSizes]
) -> Case:
    """Rows on scattered slots; their cached tokens hold the KV of a step of their own."""
    rng = np.random.default_rng(seed)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    slots = iter(rng.permutation(NUM_SLOTS).astype(np.int32).tolist())

    def take(length: int) -> npt.NDArray[np.int32]:
        return np.array([next(slots) for _ in range(length)], np.int32)

    def tokens(length: int) -> Tensor:
        return torch.as_tensor(rng.standard_normal((length, width)), dtype=torch.float32)

    prefix = Row(take(prefix_len), tokens(prefix_len))
    rows: list[Row] = []
    cached = [prefix] if prefix_len else []
    for is_sharing, cached_len, new_len in sizes:
        begin = prefix.slots_P[: prefix_len if is_sharing else 0]
        history = np.concatenate((begin, take(cached_len)))
        rows.append(Row(np.concatenate((history, take(new_len))), tokens(new_len)))
        if cached_len:
            cached.append(Row(history, tokens(cached_len)))
    angles = torch.as_tensor(
        rng.uniform(0, 6, (max(len(row.slots_P) for row in rows), heads.head_dim // 2))
    )
    angles = torch.cat((angles, angles.new_zeros(prefix_len, angles.shape[1]))).float()
    case = Case(heads, rows, KV.empty(heads, dtype), angles.cos(), angles.sin())
    for row in cached:
        run_attention(case.with_rows(row), case.kv)
    return case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_kv_heads = draw(st.integers(1, 3))
    group = draw(st.sampled_from([1, 2, 3, 4, 7]))
    head_dim = draw(st.sampled_from([2, 6, 8, 16, 64, 80, 128, 256]))
    return build(
        draw(st.integers(0, 2**31 - 1)),
        Heads(num_kv_heads * group, num_kv_heads, head_dim),
        draw(st.sampled_from(KV_DTYPES)),
        draw(st.sampled_from([0, 64, 100, 130, 200])),
        draw(st.lists(row_sizes, min_size=1, max_size=5)),
    )


# -- against the reference -------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_is_what_the_reference_says(isa: str, case: Case) -> None:
    kv = case.kv.clone()
    check_against_reference(case, kv, run_attention(case, kv, isa, num_threads=2))


@pytest.mark.parametrize("heads", [Heads(71, 1, 64), Heads(130, 1, 16), Heads(8, 8, 32)], ids=str)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_any_number_of_queries_share_a_key(heads: Heads, num_threads: int) -> None:
    case = build(1, heads, torch.float32, 128, [(True, 70, 1), (True, 2, 3), (False, 200, 40)])
    kv = case.kv.clone()
    check_against_reference(case, kv, run_attention(case, kv, num_threads=num_threads))


@pytest.mark.parametrize("isa", ISAS)
@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_the_pool_gets_rotated_keys_and_values(isa: str, case: Case) -> None:
    kv = case.kv.clone()
    run_attention(case, kv, isa)
    for row in case.rows:
        slots = torch.as_tensor(row.slots_P[row.start :], dtype=torch.int64)
        _, keys, values = split(case, row)
        for new, stored, scales in (
            (keys, kv.keys_SKd[slots], kv.key_scales_SK),
            (values, kv.values_SKd[slots], kv.value_scales_SK),
        ):
            if scales is None:
                assert torch.equal(stored, new.to(stored.dtype))
            else:
                steps = scales[slots][..., None]
                torch.testing.assert_close(steps, new.abs().amax(2, keepdim=True) / 127)
                assert ((stored * steps - new).abs() <= 0.501 * steps).all()
    new_slots = torch.as_tensor(np.concatenate([r.slots_P[r.start :] for r in case.rows]))
    untouched = torch.ones(NUM_SLOTS, dtype=torch.bool).index_fill_(0, new_slots.long(), False)
    for now, before in ((kv.keys_SKd, case.kv.keys_SKd), (kv.values_SKd, case.kv.values_SKd)):
        assert torch.equal(now[untouched].view(torch.uint8), before[untouched].view(torch.uint8))


# -- bit for bit -----------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@given(case=cases())
@settings(max_examples=12, deadline=None)
def test_threads_do_not_change_a_bit(isa: str, case: Case) -> None:
    expected = run_attention(case, case.kv.clone(), isa)
    for num_threads in (2, 3, 5):  # one row alone is split between them, many are not
        assert_same_bits(run_attention(case, case.kv.clone(), isa, num_threads), expected)


@pytest.mark.parametrize("isa", ISAS)
@given(case=cases(), data=st.data())
@settings(max_examples=12, deadline=None)
def test_company_chunks_and_slots_do_not_change_a_bit(
    isa: str, case: Case, data: st.DataObject
) -> None:
    expected = run_attention(case, case.kv.clone(), isa, num_threads=2)
    to_S = torch.as_tensor(np.random.default_rng(len(case.rows)).permutation(NUM_SLOTS))
    kv = case.kv.moved(to_S)
    for row, outputs in zip(case.rows, expected, strict=True):
        elsewhere = replace(row, slots_P=to_S[row.slots_P].numpy().astype(np.int32))
        begin = 0
        while begin < len(row.qkv_TE):
            end = min(begin + data.draw(st.sampled_from([1, 2, 7, 30])), len(row.qkv_TE))
            part = case.with_rows(elsewhere.part(begin, end))
            num_threads = data.draw(st.sampled_from([1, 2]))
            assert_same_bits(run_attention(part, kv, isa, num_threads), [outputs[begin:end]])
            begin = end


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_may_read_what_the_same_step_writes(dtype: torch.dtype, num_threads: int) -> None:
    case = build(2, Heads(6, 2, 32), dtype, 0, [(False, 0, 150)])
    (whole,) = case.rows
    kv = case.kv.clone()
    (expected,) = run_attention(case, kv)
    together = case.with_rows(whole.part(0, 128), whole.part(128, 149), whole.part(149, 150))
    outputs = run_attention(together, case.kv.clone(), num_threads=num_threads)
    assert_same_bits([torch.cat(outputs)], [expected])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_nan_stays_with_those_who_see_it(isa: str, num_threads: int, dtype: torch.dtype) -> None:
    """A token that is not finite spoils itself and its row's later tokens, nobody else."""
    sizes = [(True, 70, 1), (True, 20, 20), (False, 0, 70), (True, 0, 1)]
    case = build(3, Heads(6, 2, 64), dtype, 130, sizes)
    expected = run_attention(case, case.kv.clone(), isa)
    for bad in (math.nan, math.inf):
        rows = [replace(row, qkv_TE=row.qkv_TE.clone()) for row in case.rows]
        rows[1].qkv_TE[4] = bad
        rows[2].qkv_TE[66] = bad
        outputs = run_attention(case.with_rows(*rows), case.kv.clone(), isa, num_threads)
        finite = [slice(0, 1), slice(0, 4), slice(0, 66), slice(0, 1)]
        assert_same_bits(
            [output[part] for output, part in zip(outputs, finite, strict=True)],
            [output[part] for output, part in zip(expected, finite, strict=True)],
        )
        assert outputs[1][4:].isnan().all() and outputs[2][66:].isnan().all()


def test_int8_of_nothing_is_nothing() -> None:
    heads = Heads(2, 1, 16)
    row = Row(np.arange(3, dtype=np.int32), torch.zeros(3, 4 * 16))
    case = Case(heads, [row], KV.empty(heads, torch.int8), torch.ones(3, 8), torch.zeros(3, 8))
    (output,) = run_attention(case, case.kv)
    assert torch.equal(output, torch.zeros(3, 32))
