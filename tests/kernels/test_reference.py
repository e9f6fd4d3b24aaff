"""Each reference op against an oracle that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama import modeling_llama

from espalier.kernels import reference
from espalier.kernels.ops import AttentionRows

Rotary = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
sizes = st.integers(1, 70)
seeds = st.integers(0, 2**31 - 1)


def normals(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.as_tensor(rng.standard_normal(shape), dtype=torch.float32)


def close(
    actual: Tensor, expected: Tensor | npt.NDArray[np.float64], tolerance: float = 2e-5
) -> None:
    torch.testing.assert_close(
        actual.double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance
    )


@given(sizes, sizes, sizes, seeds)
@settings(max_examples=25, deadline=None)
def test_rows_and_products(num_tokens: int, width: int, out: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, weight = normals(rng, 50, width), normals(rng, out, width)
    ids = torch.as_tensor(rng.integers(0, 50, num_tokens))
    x = reference.embed(ids, table)
    assert torch.equal(x, torch.stack([table[int(i)] for i in ids]))
    expected = x.double().numpy() @ weight.double().numpy().T
    close(reference.linear(x, weight), expected, 1e-4)


@given(sizes, sizes, st.sampled_from([1e-6, 1e-5, 1e-2]), seeds)
@settings(max_examples=25, deadline=None)
def test_rms_norm(num_tokens: int, width: int, eps: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight = normals(rng, num_tokens, width) * 3, normals(rng, width)
    x64 = x.double().numpy()
    scale = 1 / np.sqrt(np.mean(x64**2, axis=-1, keepdims=True) + eps)
    close(reference.rms_norm(x, weight, eps), x64 * scale * weight.double().numpy())


def test_rms_norm_squares_bfloat16_in_float32() -> None:
    x = torch.full((1, 1000), 3.0, dtype=torch.bfloat16)
    x[0, 0] = 300.0
    normed = reference.rms_norm(x, torch.ones(1000, dtype=torch.bfloat16), 1e-5)
    assert normed.dtype == torch.bfloat16
    expected = 3.0 / math.sqrt((999 * 9 + 90_000) / 1000)
    assert normed[0, 1].item() == pytest.approx(expected, rel=2**-8)


@given(sizes, st.integers(1, 4), st.sampled_from([2, 6, 64]), seeds)
@settings(max_examples=25, deadline=None)
def test_rope_is_hugging_face_s(num_tokens: int, heads: int, head_dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = normals(rng, num_tokens, heads, head_dim)
    positions = torch.as_tensor(rng.integers(0, 8192, (num_tokens, 1))).float()
    angles = positions / 10_000 ** (torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    heads_first = x.transpose(0, 1)[None]
    theirs: Rotary = vars(modeling_llama)["apply_rotary_pos_emb"]
    rotated = theirs(heads_first, heads_first, cos[None], sin[None])
    close(reference.apply_rope(x, cos, sin), rotated[0][0].transpose(0, 1))


@given(sizes, sizes, seeds)
@settings(max_examples=25, deadline=None)
def test_silu_mul(num_tokens: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    both = normals(rng, num_tokens, 2 * width) * 4
    gate, up = np.split(both.double().numpy(), 2, axis=1)
    close(reference.silu_mul(both), gate / (1 + np.exp(-gate)) * up)


def test_write_kv_touches_the_given_slots_alone() -> None:
    k_pool, v_pool = torch.zeros(10, 2, 4), torch.zeros(10, 2, 4)
    rng = np.random.default_rng(0)
    k, v = normals(rng, 3, 2, 4), normals(rng, 3, 2, 4)
    slots = torch.tensor([7, 0, 4])
    reference.write_kv(k_pool, v_pool, slots, k, v)
    for pool, values in ((k_pool, k), (v_pool, v)):
        assert torch.equal(pool[slots], values)
        untouched = [1, 2, 3, 5, 6, 8, 9]
        assert torch.count_nonzero(pool[untouched]) == 0


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of a slot table and the positions of their new tokens."""

    table: Tensor
    table_rows: list[int]
    starts: list[int]
    lengths: list[int]

    @property
    def rows(self) -> AttentionRows:
        return AttentionRows.of(self.table, self.table_rows, self.starts, self.lengths)


def expected_attention(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, spans: Spans, scale: float
) -> Tensor:
    """torch's own attention in float64, one row at a time, with an explicit mask."""
    outputs: list[Tensor] = []
    first = 0
    for table_row, start, length in zip(spans.table_rows, spans.starts, spans.lengths, strict=True):
        slots = spans.table[table_row, : start + length].long()
        queries = torch.arange(start, start + length)[:, None]
        mask = torch.arange(start + length)[None] <= queries
        row_q = q[first : first + length].double().transpose(0, 1)[None]
        keys, values = (pool[slots].double().transpose(0, 1)[None] for pool in (k_pool, v_pool))
        o = F.scaled_dot_product_attention(
            row_q, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        outputs.append(o[0].transpose(0, 1))
        first += length
    return torch.cat(outputs)


@given(
    rows=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=5),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([1, 7, 16, 64]),
    table_dtype=st.sampled_from([torch.int32, torch.int64]),
    scattered=st.booleans(),
    seed=seeds,
)
@settings(max_examples=60, deadline=None)
def test_paged_extend_attention(
    rows: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    table_dtype: torch.dtype,
    scattered: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    num_slots = sum(start + length for start, length in rows) + 17
    order = torch.as_tensor(rng.permutation(num_slots) if scattered else np.arange(num_slots))
    table = torch.zeros(len(rows) + 2, 200, dtype=table_dtype)
    table_rows = [int(row) for row in rng.permutation(len(rows) + 2)[: len(rows)]]
    used = 0
    for table_row, (start, length) in zip(table_rows, rows, strict=True):
        table[table_row, : start + length] = order[used : used + start + length]
        used += start + length
    num_tokens = sum(length for _, length in rows)
    q = normals(rng, num_tokens, kv_heads * group, head_dim)
    k_pool, v_pool = (normals(rng, num_slots, kv_heads, head_dim) for _ in range(2))
    spans = Spans(table, table_rows, [s for s, _ in rows], [n for _, n in rows])
    scale = head_dim**-0.5
    before = q.clone(), k_pool.clone(), v_pool.clone()
    actual = reference.paged_extend_attention(q, k_pool, v_pool, spans.rows, scale)
    close(actual, expected_attention(q, k_pool, v_pool, spans, scale))
    assert all(torch.equal(*pair) for pair in zip(before, (q, k_pool, v_pool), strict=True))


@pytest.mark.parametrize("length", [255, 256, 257, 600])
def test_attention_of_many_queries(length: int) -> None:
    rng = np.random.default_rng(length)
    start, num_slots = 33, 700
    table = torch.as_tensor(rng.permutation(num_slots))[None]
    q, k_pool, v_pool = (normals(rng, n, h, 8) for n, h in ((length, 6), (700, 2), (700, 2)))
    spans = Spans(table, [0], [start], [length])
    actual = reference.paged_extend_attention(q, k_pool, v_pool, spans.rows, 0.3)
    close(actual, expected_attention(q, k_pool, v_pool, spans, 0.3))


def test_rows_may_share_slots_and_ends_that_look_like_a_run_are_not_one() -> None:
    rng = np.random.default_rng(0)
    table = torch.tensor([[3, 5, 4, 6], [3, 4, 5, 6], [6, 5, 4, 3]])
    q, k_pool, v_pool = normals(rng, 6, 2, 4), normals(rng, 9, 1, 4), normals(rng, 9, 1, 4)
    spans = Spans(table, [0, 1, 2], [2, 2, 2], [2, 2, 2])
    assert [isinstance(slots, slice) for slots in spans.rows.slots] == [False, True, False]
    actual = reference.paged_extend_attention(q, k_pool, v_pool, spans.rows, 0.5)
    close(actual, expected_attention(q, k_pool, v_pool, spans, 0.5))


def test_attention_refuses_rows_that_do_not_cover_the_queries() -> None:
    pool = torch.zeros(4, 1, 2)
    rows = AttentionRows.of(torch.arange(4)[None], [0], [0], [2])
    with pytest.raises(AssertionError, match="2 tokens, q holds 3"):
        reference.paged_extend_attention(torch.zeros(3, 1, 2), pool, pool, rows, 1.0)


@given(st.integers(1, 130), st.integers(0, 3), st.integers(0, 2), seeds)
@settings(max_examples=50, deadline=None)
def test_apply_bitmask(vocabulary: int, num_rows: int, spare_words: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (num_rows, vocabulary) if num_rows else (vocabulary,)
    words = (vocabulary + 31) // 32 + spare_words
    mask = rng.integers(-(2**31), 2**31, (*shape[:-1], words), dtype=np.int32)
    logits = rng.normal(size=shape).astype(np.float32)
    expected = logits.copy()
    for index in np.ndindex(*shape):
        word = int(mask[(*index[:-1], index[-1] // 32)])
        if not word >> index[-1] % 32 & 1:
            expected[index] = -np.inf
    actual = torch.tensor(logits)
    reference.apply_bitmask(actual, torch.tensor(mask))
    np.testing.assert_array_equal(actual.numpy(), expected)
