"""Linear operations of the native kernels: against exact products, and bit for bit against
themselves however they are batched and whoever computes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier.kernels import reference
from espalier.kernels.arena import Arena
from espalier.kernels.native import why_unavailable
from espalier.kernels.ops import Heads, Norm
from espalier.kernels.packing import (
    Activations,
    Format,
    PackedLinear,
    PackedMatrix,
    allocate_packed,
    unpack,
    write_rows,
)
from espalier.kernels.recorder import Buffer, Recorder

if why_unavailable() is not None:
    pytest.skip(f"the native kernels were not built: {why_unavailable()}", allow_module_level=True)

from espalier.kernels.plan import DeviceMemory, Plan
from espalier.kernels.pool import Pool, instruction_sets

FORMATS: tuple[Format, ...] = ("f32", "bf16", "q8", "q4_0", "q4_1")
HEADS = Heads(1, 1, 2)  # no operation here attends
MAX_TOKENS = 200
POOLS = {isa: [Pool.start(threads, isa) for threads in (1, 2, 3)] for isa in instruction_sets()}

seeds = st.integers(0, 2**31 - 1)
isas = st.sampled_from(instruction_sets())


@dataclass(frozen=True, slots=True)
class Case:
    """A projection of some matrices with everything that can be fused into it."""

    weight: PackedLinear
    norm: Norm | None
    bias: Tensor | None
    swiglu: bool

    def expected(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs in float64, and how large the numbers are of which they are made up."""
        if self.norm is not None:
            x = reference.rms_norm(x, self.norm.weight_D, self.norm.eps)
        outputs: list[Tensor] = []
        sizes: list[Tensor] = []
        for matrix in self.weight.matrices:
            seen = x if self.weight.activations == "float32" else rounded(x, matrix.format)
            weights = unpack(matrix).double()
            outputs.append(seen.double() @ weights.T)
            sizes.append(seen.double().abs() @ (weights.abs().T + offsets(matrix).T))
        y, size = torch.cat(outputs, dim=-1), torch.cat(sizes, dim=-1)
        if self.swiglu:
            (gate, up), (gate_size, up_size) = y.chunk(2, dim=-1), size.chunk(2, dim=-1)
            y, size = F.silu(gate) * up, gate_size * up.abs() + gate.abs() * up_size
        for addend in (self.bias, residual):
            if addend is not None:
                y, size = y + addend, size + addend.abs()
        return y, size


def rounded(x: Tensor, format: Format) -> Tensor:
    """Rows as the integers that they are multiplied as stand for."""
    if format == "q8":
        return on_grid(x, 32767)
    if format in ("f32", "bf16"):
        return x
    groups = F.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    return on_grid(groups, 127).flatten(1)[:, : x.shape[1]]


def on_grid(x: Tensor, steps: int) -> Tensor:
    """Rounded to multiples of a fraction of the largest number in the last axis."""
    scale = x.abs().amax(dim=-1, keepdim=True) / steps
    return torch.round(x * torch.where(scale > 0, 1 / scale, 0)) * scale


def offsets(matrix: PackedMatrix) -> Tensor:
    """What 4-bit weights are made up of besides: they may be small differences."""
    weights = unpack(matrix).double().abs()
    if not matrix.format.startswith("q4"):
        return torch.zeros_like(weights)
    return weights.amax(dim=1, keepdim=True).expand_as(weights)


def packed(rng: np.random.Generator, format: Format, outputs: int, inputs: int) -> PackedMatrix:
    matrix = allocate_packed(Arena(), format, outputs, inputs)
    rows = torch.as_tensor(rng.standard_normal((outputs, inputs)), dtype=torch.float32)
    if format == "q4_0":  # the library quantises to it like to the others
        rows = rows.clamp(-2, 2)
    write_rows(matrix, 0, rows)
    return matrix


def run(case: Case, x: Tensor, residual: Tensor | None, pool: Pool) -> Tensor:
    """The projection of the rows `x`, by a plan of its own.

    Its rows are the embeddings of as many tokens, so a step of that many tokens computes it.
    """
    table = packed_rows(x)
    recorder = Recorder(HEADS)
    loaded = recorder.embed(table)
    added: Buffer | None = None
    if residual is not None:
        added = recorder.embed(packed_rows(residual))
    if case.swiglu:
        out = recorder.swiglu(loaded, case.weight, norm=case.norm)
    else:
        out = recorder.linear(
            loaded, case.weight, norm=case.norm, bias_E=case.bias, residual_TE=added
        )
    tables = torch.zeros((1, MAX_TOKENS), dtype=torch.int32)
    pool_LSKd = torch.zeros((1, 1, HEADS.num_kv_heads, HEADS.head_dim))
    rotation = torch.zeros((MAX_TOKENS, 1))
    memory = DeviceMemory(
        tables.clone(), tables, pool_LSKd, pool_LSKd.clone(), None, None, rotation, rotation
    )
    plan = Plan(recorder, pool, memory, max_tokens=MAX_TOKENS, max_selected=1, keep=(out,))
    memory.ids_RP[0, : len(x)] = torch.arange(len(x))
    plan.run([], np.array([[0, 0, len(x)]], np.int32), np.empty(0, np.int32))
    return plan.tensor(out)[: len(x)].clone()


def packed_rows(rows: Tensor) -> PackedLinear:
    table = allocate_packed(Arena(), "f32", *rows.shape)
    write_rows(table, 0, rows)
    return PackedLinear((table,), "float32")


@st.composite
def cases(draw: st.DrawFn, activations: Activations) -> tuple[Case, Tensor, Tensor | None]:
    rng = np.random.default_rng(draw(seeds))

    def normals(*shape: int) -> Tensor:
        return torch.as_tensor(rng.standard_normal(shape), dtype=torch.float32)

    inputs = draw(st.integers(1, 90))
    swiglu = draw(st.booleans())
    num_matrices = 2 if swiglu else draw(st.integers(1, 3))
    formats: list[Format] = [draw(st.sampled_from(FORMATS)) for _ in range(num_matrices)]
    if activations == "float32" and set(formats) - {"f32", "bf16"}:
        inputs = 32 * draw(st.integers(1, 20))  # blocks of GGUF files are always whole
    outputs = draw(st.integers(1, 70))
    sizes = [outputs if swiglu else draw(st.integers(1, 70)) for _ in formats]
    matrices = tuple(packed(rng, f, n, inputs) for f, n in zip(formats, sizes, strict=True))
    weight = PackedLinear(matrices, activations)
    norm = Norm(normals(inputs), 1e-5) if draw(st.booleans()) else None
    bias = normals(weight.num_outputs) if not swiglu and draw(st.booleans()) else None
    num_rows = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 13, 97, 130]))
    has_residual = not swiglu and draw(st.booleans())
    residual = normals(num_rows, weight.num_outputs) if has_residual else None
    return Case(weight, norm, bias, swiglu), normals(num_rows, inputs) * 3, residual


@given(cases("float32"), isas)
@settings(max_examples=150, deadline=None)
def test_float_activations(drawn: tuple[Case, Tensor, Tensor | None], isa: str) -> None:
    """Also for weights in blocks: they are multiplied as exactly what they stand for."""
    case, x, residual = drawn
    expected, size = case.expected(x, residual)
    actual = run(case, x, residual, POOLS[isa][1])
    assert ((actual - expected).abs() <= 1e-6 * size).all()


@given(cases("quantized"), isas)
@settings(max_examples=150, deadline=None)
def test_quantized_activations(drawn: tuple[Case, Tensor, Tensor | None], isa: str) -> None:
    """Rows are rounded to 8 bits in groups of 32 for 4-bit weights, to 16 bits for 8-bit ones;
    their products with the weights are exact."""
    case, x, residual = drawn
    case = replace(case, norm=None)  # its last bit may decide where a number is rounded to
    expected, size = case.expected(x, residual)
    actual = run(case, x, residual, POOLS[isa][1])
    assert ((actual - expected).abs() <= 1e-6 * size).all()


@given(cases("quantized"), isas)
@settings(max_examples=30, deadline=None)
def test_normalised_rows_are_quantized(drawn: tuple[Case, Tensor, Tensor | None], isa: str) -> None:
    case, x, residual = drawn
    case = replace(case, norm=Norm(torch.ones(x.shape[1]), 1e-5))
    expected, size = case.expected(x, residual)
    actual = run(case, x, residual, POOLS[isa][1])
    assert ((actual - expected).abs() <= 2e-2 * size.amax()).all()


@given(st.one_of(cases("float32"), cases("quantized")), isas, st.data())
@settings(max_examples=150, deadline=None)
def test_a_row_does_not_depend_on_its_batch(
    drawn: tuple[Case, Tensor, Tensor | None], isa: str, data: st.DataObject
) -> None:
    case, x, residual = drawn
    whole = run(case, x, residual, POOLS[isa][0])
    for pool in POOLS[isa][1:]:
        assert torch.equal(run(case, x, residual, pool), whole)
    start = data.draw(st.integers(0, len(x) - 1))
    stop = data.draw(st.integers(start + 1, len(x)))
    part = None if residual is None else residual[start:stop]
    assert torch.equal(run(case, x[start:stop], part, POOLS[isa][1]), whole[start:stop])


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_and_stays_in_its_row(
    isa: str, format: Format, value: float
) -> None:
    """Integers know no NaN: the scales of their rows carry it."""
    rng = np.random.default_rng(0)
    case = Case(PackedLinear((packed(rng, format, 40, 64),), "quantized"), None, None, swiglu=False)
    x = torch.as_tensor(rng.standard_normal((5, 64)), dtype=torch.float32)
    clean = run(case, x, None, POOLS[isa][1])
    x[2, 37] = value
    got = run(case, x, None, POOLS[isa][1])
    assert not got[2].isfinite().any()
    others = [0, 1, 3, 4]
    assert torch.equal(got[others], clean[others])
