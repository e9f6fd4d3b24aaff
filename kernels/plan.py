"""A recorded forward pass with its buffers, ready to be run by one native call a step.

All that crosses the border to the extension is checked here: shapes when the plan is built,
positions, slots and sizes when a step is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import _cpu
from .ops import Heads
from .packing import GROUP, PackedLinear, PackedMatrix, packed_nbytes
from .pool import Pool
from .recorder import Attention, Buffer, Embed, Linear, Recorded, Recorder, Select, reads

Ints = npt.NDArray[np.int32]

_FORMATS = {"f32": 0, "bf16": 1, "q8": 2, "q4_0": 3, "q4_1": 4}  # enum Format
_KV_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # enum KVFormat
MAX_HEAD_DIM = 256
MAX_MATRICES = 8  # of one operation: Pool::max_phases


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """What a plan reads and writes besides its own buffers.

    Tables are int32, by table row and position. Pools are float32, bfloat16 or int8; int8 comes
    with float32 scales for each slot and head. Half rotations: cosines and sines of the first
    d / 2 channels at each position.
    """

    ids_RP: Tensor
    slots_RP: Tensor
    k_pool_LSKd: Tensor
    v_pool_LSKd: Tensor
    k_scales_LSK: Tensor | None
    v_scales_LSK: Tensor | None
    cos_Pc: Tensor
    sin_Pc: Tensor

    def check(self, heads: Heads) -> None:
        num_layers, num_slots = self.k_pool_LSKd.shape[:2]
        pool = (num_layers, num_slots, heads.num_kv_heads, heads.head_dim)
        kv_dtype = self.k_pool_LSKd.dtype
        assert kv_dtype in _KV_FORMATS, kv_dtype
        _check(self.ids_RP, torch.int32, tuple(self.slots_RP.shape))
        _check(self.slots_RP, torch.int32, tuple(self.slots_RP.shape))
        _check(self.k_pool_LSKd, kv_dtype, pool)
        _check(self.v_pool_LSKd, kv_dtype, pool)
        for scales in (self.k_scales_LSK, self.v_scales_LSK):
            assert (scales is not None) == (kv_dtype == torch.int8), kv_dtype
            if scales is not None:
                _check(scales, torch.float32, pool[:3])
        for table in (self.cos_Pc, self.sin_Pc):
            assert len(table) >= self.slots_RP.shape[1], "positions without a rotation"
            _check(table, torch.float32, (len(table), heads.head_dim // 2))
        assert 1 < heads.head_dim <= MAX_HEAD_DIM and heads.head_dim % 2 == 0, heads
        assert 0 < heads.num_kv_heads <= heads.num_heads, heads
        assert heads.num_heads % heads.num_kv_heads == 0, heads


@dataclass(frozen=True, slots=True, eq=False)
class TableEntry:
    """New entries of a table row from position `start` on: ids, and slots."""

    table_row: int
    start: int
    ids: Ints
    slots: Ints


class Plan:
    """A forward pass over at most `max_tokens` tokens, of which `max_selected` are read out."""

    def __init__(
        self,
        recorder: Recorder,
        pool: Pool,
        memory: DeviceMemory,
        *,
        max_tokens: int,
        max_selected: int,
        keep: Sequence[Buffer],
    ) -> None:
        """`keep`: the buffers that `tensor` may be asked for."""
        memory.check(recorder.heads)
        self._pool = pool  # its threads must outlive the plan
        self._ops = tuple(recorder.ops)  # and so must the weights
        self._memory = memory
        self._heads = recorder.heads
        self._num_rows, self._context_len = memory.slots_RP.shape
        self._num_slots = memory.k_pool_LSKd.shape[1]
        self._max_tokens = max_tokens
        self._max_selected = max_selected
        heads = recorder.heads
        self._handle = _cpu.new_plan(
            pool.isa,
            pool.handle,
            memory.ids_RP.data_ptr(),
            memory.slots_RP.data_ptr(),
            self._context_len,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
        )
        self._places = self._allocate(keep)
        self._vocab_size = next(op.weight.num_outputs for op in self._ops if isinstance(op, Embed))
        for op in self._ops:
            self._add(op)

    def tensor(self, buffer: Buffer) -> Tensor:
        """What a kept buffer holds; rows past those of the last step are stale."""
        return self._places[buffer]

    def run(self, writes: Iterable[TableEntry], rows_N3: Ints, selected: Ints) -> None:
        """Enter what a step knows anew, compute its rows and read out the selected tokens.

        `rows_N3`: table row, start and number of new tokens of each row. `selected`: numbers of
        tokens of the step, which are counted in the order of the rows.
        """
        self.run_prepared(self.prepare(writes, rows_N3, selected))

    def prepare(self, writes: Iterable[TableEntry], rows_N3: Ints, selected: Ints) -> PreparedStep:
        """Check a step, so that `run_prepared` need not; may be called while another one runs."""
        table_rows, starts, lengths = rows_N3.T
        assert (table_rows >= 0).all() and (table_rows < self._num_rows).all(), rows_N3
        assert (starts >= 0).all() and (lengths >= 1).all(), rows_N3
        # Not `starts + lengths`, which may be too large for int32.
        assert (starts <= self._context_len - lengths).all(), (rows_N3, self._context_len)
        num_tokens = int(lengths.sum())
        assert num_tokens <= self._max_tokens, (num_tokens, self._max_tokens)
        words = [self._words(write) for write in writes]
        return PreparedStep(
            np.concatenate(words) if words else np.empty(0, np.int32),
            np.ascontiguousarray(rows_N3, np.int32),
            self._selection(selected, num_tokens),
            num_tokens,
        )

    def run_prepared(self, step: PreparedStep) -> None:
        """One native call; other Python threads go on meanwhile."""
        _cpu.run(
            self._handle,
            step.words.ctypes.data,
            len(step.words),
            step.rows_N3.ctypes.data,
            len(step.rows_N3),
            step.selected.ctypes.data,
            len(step.selected),
        )

    def read_out(self, step: PreparedStep, selected: Ints) -> None:
        """Read out other tokens of the step that was run last."""
        selected = self._selection(selected, step.num_tokens)
        _cpu.read_out(self._handle, selected.ctypes.data, len(selected))

    def _words(self, write: TableEntry) -> Ints:
        """A table entry as the extension takes it."""
        ids, slots = write.ids, write.slots
        assert 0 <= write.table_row < self._num_rows and write.start >= 0, write
        assert write.start + max(len(ids), len(slots)) <= self._context_len, write
        if len(ids):
            assert ids.min() >= 0 and ids.max() < self._vocab_size, write
        if len(slots):
            assert slots.min() >= 0 and slots.max() < self._num_slots, write
        head = (write.table_row, write.start, len(ids), len(slots))
        return np.concatenate((head, ids, slots), dtype=np.int32)

    def _selection(self, selected: Ints, num_tokens: int) -> Ints:
        assert len(selected) <= self._max_selected, (len(selected), self._max_selected)
        if len(selected):
            assert selected.min() >= 0 and selected.max() < num_tokens, (selected, num_tokens)
        return np.ascontiguousarray(selected, np.int32)

    # -- building ------------------------------------------------------------------------

    def _allocate(self, keep: Sequence[Buffer]) -> dict[Buffer, Tensor]:
        """Memory for every buffer; it is taken again after the last operation that reads it, but
        not that of the hidden states, which are read out more than once."""
        last_use = {buffer: index for index, op in enumerate(self._ops) for buffer in reads(op)}
        hidden = [op.x for op in self._ops if isinstance(op, Select)]
        last_use |= dict.fromkeys((*keep, *hidden), len(self._ops))
        free: list[Tensor] = []
        places: dict[Buffer, Tensor] = {}
        for index, op in enumerate(self._ops):
            num_rows = self._max_selected if op.out.selected else self._max_tokens
            shape = (num_rows, op.out.width)
            fitting = [place for place in free if place.shape == shape]
            if fitting:
                free = [place for place in free if place is not fitting[0]]
            places[op.out] = fitting[0] if fitting else torch.zeros(shape, dtype=torch.float32)
            free += [places[buffer] for buffer in reads(op) if last_use[buffer] == index]
        return places

    def _add(self, op: Recorded) -> None:
        out = self._places[op.out].data_ptr()
        match op:
            case Embed(weight=weight):
                assert len(weight.matrices) == 1, "embeddings are rows of one matrix"
                _cpu.add_embed(self._handle, _matrices(weight), out)
            case Linear():
                self._add_linear(op, out)
            case Attention():
                self._add_attention(op, out)
            case Select(x=x):
                assert not x.selected, "selected from what is selected"
                _cpu.add_select(self._handle, self._places[x].data_ptr(), out, x.width)

    def _add_linear(self, op: Linear, out: int) -> None:
        weight, x = op.weight, op.x
        assert x.width == weight.num_inputs, (x.width, weight.num_inputs)
        assert len(weight.matrices) <= MAX_MATRICES, len(weight.matrices)
        if weight.activations == "float32":
            in_blocks = any(m.format not in ("f32", "bf16") for m in weight.matrices)
            assert not in_blocks or x.width % GROUP == 0, f"{x.width} inputs in blocks of {GROUP}"
        if op.norm is not None:
            _check(op.norm.weight_D, torch.float32, (x.width,))
        if op.bias is not None:
            _check(op.bias, torch.float32, (op.out.width,))
        if op.residual is not None:
            assert op.residual.width == op.out.width, (op.residual.width, op.out.width)
            assert op.residual.selected == op.out.selected
        if op.swiglu:
            assert {m.num_outputs for m in weight.matrices} == {op.out.width}, op.out.width
        _cpu.add_linear(
            self._handle,
            _matrices(weight),
            self._places[x].data_ptr(),
            out,
            0 if op.norm is None else op.norm.weight_D.data_ptr(),
            0 if op.bias is None else op.bias.data_ptr(),
            0 if op.residual is None else self._places[op.residual].data_ptr(),
            0.0 if op.norm is None else op.norm.eps,
            op.swiglu,
            weight.activations == "quantized",
            x.selected,
            self._max_selected if x.selected else self._max_tokens,
        )

    def _add_attention(self, op: Attention, out: int) -> None:
        heads, memory = self._heads, self._memory
        expected = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        assert op.qkv.width == expected, (op.qkv.width, expected)
        assert not op.qkv.selected, "all tokens attend"
        assert 0 <= op.layer < len(memory.k_pool_LSKd), op.layer
        scales = (memory.k_scales_LSK, memory.v_scales_LSK)
        _cpu.add_attention(
            self._handle,
            self._places[op.qkv].data_ptr(),
            out,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            heads.scale,
            memory.cos_Pc.data_ptr(),
            memory.sin_Pc.data_ptr(),
            _KV_FORMATS[memory.k_pool_LSKd.dtype],
            memory.k_pool_LSKd[op.layer].data_ptr(),
            memory.v_pool_LSKd[op.layer].data_ptr(),
            *(0 if s is None else s[op.layer].data_ptr() for s in scales),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStep:
    """A step as the extension takes it."""

    words: Ints
    rows_N3: Ints
    selected: Ints
    num_tokens: int


def _matrices(weight: PackedLinear) -> tuple[_cpu.Matrix, ...]:
    return tuple(_matrix(matrix) for matrix in weight.matrices)


def _matrix(matrix: PackedMatrix) -> _cpu.Matrix:
    data = matrix.data
    assert data.is_contiguous() and data.data_ptr() % 64 == 0, "packed weights are aligned"
    nbytes = packed_nbytes(matrix.format, matrix.num_outputs, matrix.num_inputs)
    assert data.nbytes == nbytes, (data.nbytes, nbytes)
    return _FORMATS[matrix.format], data.data_ptr(), matrix.num_outputs, matrix.num_inputs


def _check(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert tensor.dtype == dtype and tuple(tensor.shape) == shape, (tensor.dtype, tensor.shape)
    assert tensor.is_contiguous() and tensor.device.type == "cpu", (
        "native kernels need plain memory"
    )
