"""Packed matrices: every byte where the layout says, every weight what GGUF makes of it."""

from __future__ import annotations

from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from espalier.kernels.arena import Arena
from espalier.kernels.packing import (
    GGUF_TYPES,
    GROUP,
    PANEL,
    BlockFormat,
    Format,
    PackedLinear,
    PackedMatrix,
    allocate_packed,
    block_nbytes,
    packed_nbytes,
    unpack,
    write_blocks,
    write_rows,
)

_BLOCK_FORMATS: tuple[BlockFormat, ...] = get_args(BlockFormat)
_FORMATS: tuple[Format, ...] = ("f32", "bf16", *_BLOCK_FORMATS)

_Q8 = np.dtype([("d", "<f2", 16), ("q", "i1", (16, 16, 2))])
_Q4_0 = np.dtype([("d", "<f2", 16), ("q", "u1", (4, 16, 4))])
_Q4_1 = np.dtype([("d", "<f2", 16), ("m", "<f2", 16), ("q", "u1", (4, 16, 4))])


def _random(num_outputs: int, num_inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(seed))


def _random_blocks(format: BlockFormat, num_outputs: int, num_groups: int, seed: int) -> Tensor:
    """Blocks with any quants, and scales that no rounding spares."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_outputs, num_groups, block_nbytes(format))
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    num_scales = 2 if format == "q4_1" else 1
    scales = torch.randn(*shape[:2], num_scales, generator=generator).half()
    blocks[..., : 2 * num_scales] = scales.view(torch.uint8)
    return blocks


def _gguf_weights(format: BlockFormat, blocks: Tensor) -> Tensor:
    rows = blocks.flatten(1).numpy()
    return torch.tensor(cast("npt.NDArray[np.float32]", dequantize(rows, GGUF_TYPES[format])))


def _pack(format: Format, rows: Tensor) -> PackedMatrix:
    matrix = allocate_packed(Arena(), format, *rows.shape)
    write_rows(matrix, 0, rows)
    return matrix


sizes = st.integers(1, 70)
seeds = st.integers(0, 2**31)


@given(sizes, sizes, seeds)
def test_floats_come_back_exactly(num_outputs: int, num_inputs: int, seed: int) -> None:
    rows = _random(num_outputs, num_inputs, seed)
    assert torch.equal(unpack(_pack("f32", rows)), rows)
    assert torch.equal(unpack(_pack("bf16", rows)), rows.bfloat16().float())
    assert torch.equal(unpack(_pack("bf16", rows.bfloat16())), rows.bfloat16().float())


@pytest.mark.parametrize("format", _BLOCK_FORMATS)
@given(num_outputs=sizes, num_groups=st.integers(1, 5), seed=seeds)
def test_blocks_are_what_gguf_makes_of_them(
    format: BlockFormat, num_outputs: int, num_groups: int, seed: int
) -> None:
    blocks = _random_blocks(format, num_outputs, num_groups, seed)
    matrix = allocate_packed(Arena(), format, num_outputs, num_groups * GROUP)
    write_blocks(matrix, 0, blocks)
    assert torch.equal(unpack(matrix), _gguf_weights(format, blocks))


@pytest.mark.parametrize("format", _BLOCK_FORMATS)
@given(num_outputs=sizes, num_inputs=sizes, seed=seeds)
def test_floats_are_quantised_as_gguf_does(
    format: BlockFormat, num_outputs: int, num_inputs: int, seed: int
) -> None:
    rows = _random(num_outputs, num_inputs, seed)
    padded = np.pad(rows.numpy(), ((0, 0), (0, -num_inputs % GROUP)))
    stored = cast("npt.NDArray[np.uint8]", quantize(padded, GGUF_TYPES[format]))
    expected = cast("npt.NDArray[np.float32]", dequantize(stored, GGUF_TYPES[format]))
    found = unpack(_pack(format, rows))
    assert torch.equal(found, torch.tensor(expected[:, :num_inputs]))


@pytest.mark.parametrize("format", _FORMATS)
@given(st.data())
def test_blocks_of_rows_make_the_whole(format: Format, data: st.DataObject) -> None:
    num_outputs, num_inputs = data.draw(sizes), data.draw(sizes)
    rows = _random(num_outputs, num_inputs)
    matrix = allocate_packed(Arena(), format, num_outputs, num_inputs)
    starts = range(0, num_outputs, data.draw(st.integers(1, 3)) * PANEL)
    for start in data.draw(st.permutations(starts)):
        write_rows(matrix, start, rows[start : start + starts.step])
    assert torch.equal(matrix.data, _pack(format, rows).data)


def test_the_layout_of_floats() -> None:
    rows = _random(21, 5)
    for format, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        data = _pack(cast("Format", format), rows).data.view(dtype).view(2, 5, 16)
        for output, k in np.ndindex(32, 5):
            expected = rows[output, k].to(dtype) if output < 21 else torch.zeros((), dtype=dtype)
            assert data[output // 16, k, output % 16] == expected


@pytest.mark.parametrize(("format", "layout"), [("q8", _Q8), ("q4_0", _Q4_0), ("q4_1", _Q4_1)])
def test_the_layout_of_groups(format: BlockFormat, layout: np.dtype[Any]) -> None:
    """Each weight, found by the formulas of the module's text in the packed bytes."""
    num_outputs, num_groups = 21, 3
    blocks = _random_blocks(format, num_outputs, num_groups, 3)
    matrix = allocate_packed(Arena(), format, num_outputs, num_groups * GROUP)
    write_blocks(matrix, 0, blocks)
    packed = matrix.data.numpy().view(layout).reshape(2, num_groups)
    expected = _gguf_weights(format, blocks)
    for output, k in np.ndindex(num_outputs, num_groups * GROUP):
        group, o = packed[output // 16, k // 32], output % 16
        assert _weight(format, group, o, k % 32) == float(expected[output, k]), (output, k)
    missing = packed[1, :]
    for name in layout.names or ():
        values = np.moveaxis(missing[name], -1 if name != "q" else 2, 0)
        assert not values[num_outputs - 16 :].any(), name


def _weight(format: BlockFormat, group: Any, o: int, i: int) -> float:
    d = np.float32(group["d"][o])
    if format == "q8":
        return float(d * np.float32(group["q"][i // 2][o][i % 2]))
    octet = int(group["q"][i % 16 // 4][o][i % 4])
    quant = octet & 15 if i < 16 else octet >> 4
    if format == "q4_0":
        return float(d * np.float32(quant - 8))
    return float(d * np.float32(quant) + np.float32(group["m"][o]))


def test_sizes() -> None:
    assert packed_nbytes("f32", 17, 5) == 2 * 5 * 16 * 4
    assert packed_nbytes("bf16", 16, 5) == 5 * 16 * 2
    assert packed_nbytes("q8", 17, 33) == 2 * 2 * 544
    assert packed_nbytes("q4_1", 1, 32) == 320
    assert packed_nbytes("q4_0", 1, 32) == 288
    matrix = _pack("q4_0", _random(33, 40))
    assert (matrix.num_panels, matrix.nbytes) == (3, 3 * 2 * 288)
    assert matrix.data.data_ptr() % 64 == 0


def test_a_projection_of_several_matrices() -> None:
    linear = PackedLinear((_pack("f32", _random(20, 40)), _pack("q8", _random(3, 40))), "float32")
    assert (linear.num_inputs, linear.num_outputs) == (40, 23)
    assert linear.nbytes == 2 * 40 * 16 * 4 + 2 * 544
    with pytest.raises(AssertionError, match=r"\[40, 41\]"):
        PackedLinear((_pack("f32", _random(20, 40)), _pack("f32", _random(3, 41))), "float32")


@pytest.mark.parametrize(
    ("start", "num_rows"), [(8, 16), (0, 15), (16, 32)], ids=["off panels", "part", "beyond"]
)
def test_rows_that_are_not_whole_panels_are_bugs(start: int, num_rows: int) -> None:
    matrix = allocate_packed(Arena(), "f32", 40, 4)
    with pytest.raises(AssertionError):
        write_rows(matrix, start, torch.ones(num_rows, 4))
