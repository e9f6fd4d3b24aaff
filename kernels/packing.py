"""Weight matrices as the native linear kernels read them; knows no model and no file.

A matrix of N outputs and K inputs is cut into panels of 16 outputs, so that a vector register
holds one input's weights to neighbouring outputs. Outputs that the last panel lacks are zeros.
Little-endian, without gaps; p counts panels, o outputs of one panel, k inputs:

    f32   data[p][k][o] float32
    bf16  data[p][k][o] bfloat16

The other formats have groups g of 32 inputs with their own scales; a last group that K does not
fill is padded, and meets inputs that are zeros. They hold the bytes of GGUF's blocks in another
order, and nothing is quantised anew:

    q8    data[p][g] = { f16 d[16]; i8 q[16][16][2] }              GGUF's Q8_0
          q[j][o][e] is input 32 g + 2 j + e; its weight is d[o] * q
    q4_1  data[p][g] = { f16 d[16]; f16 m[16]; u8 q[4][16][4] }    GGUF's Q4_1
          q[j][o][e] has input 32 g + 4 j + e in its low half, the one 16 further in its high
          half; the weight is d[o] * q + m[o]
    q4_0  data[p][g] = { f16 d[16]; u8 q[4][16][4] }               GGUF's Q4_0
          halves as above; the weight is d[o] * (q - 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor
from torch.nn.functional import pad

from .arena import Arena

PANEL = 16
GROUP = 32

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FloatFormat = Literal["f32", "bf16"]
BlockFormat = Literal["q8", "q4_0", "q4_1"]
Format = Literal[FloatFormat, BlockFormat]
Activations = Literal["float32", "quantized"]

_DTYPES: dict[FloatFormat, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16}
GGUF_TYPES: dict[BlockFormat, GGMLQuantizationType] = {
    "q8": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
    "q4_1": GGMLQuantizationType.Q4_1,
}
_NUM_SCALES: dict[BlockFormat, int] = {"q8": 1, "q4_0": 1, "q4_1": 2}
_WORDS: dict[BlockFormat, type[np.integer[Any]]] = {
    "q8": np.uint16,
    "q4_0": np.uint32,
    "q4_1": np.uint32,
}


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    """One matrix; `data` is a contiguous vector of uint8, aligned to 64 bytes."""

    format: Format
    num_outputs: int
    num_inputs: int
    data: Tensor

    @property
    def num_panels(self) -> int:
        return _ceil_div(self.num_outputs, PANEL)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A projection: matrices over the same inputs, whose outputs follow each other.

    With `activations` "quantized" the kernel may round the inputs of matrices that are in
    blocks to 8 bits; with "float32" it multiplies exact weights by the inputs as they are.
    """

    matrices: tuple[PackedMatrix, ...]
    activations: Activations

    def __post_init__(self) -> None:
        widths = {matrix.num_inputs for matrix in self.matrices}
        assert len(widths) == 1, f"matrices of {sorted(widths)} inputs in one projection"

    @property
    def num_inputs(self) -> int:
        return self.matrices[0].num_inputs

    @property
    def num_outputs(self) -> int:
        return sum(matrix.num_outputs for matrix in self.matrices)

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)


def packed_nbytes(format: Format, num_outputs: int, num_inputs: int) -> int:
    """The size of a packed matrix."""
    num_rows = _ceil_div(num_outputs, PANEL) * PANEL
    if format == "f32" or format == "bf16":
        return num_rows * num_inputs * _DTYPES[format].itemsize
    return num_rows * _ceil_div(num_inputs, GROUP) * block_nbytes(format)


def block_nbytes(format: BlockFormat) -> int:
    """Bytes of one GGUF block: 32 weights of one output."""
    return GGML_QUANT_SIZES[GGUF_TYPES[format]][1]


def allocate_packed(
    arena: Arena, format: Format, num_outputs: int, num_inputs: int
) -> PackedMatrix:
    """A matrix of zeros, to be written by blocks of rows."""
    data = arena.take(packed_nbytes(format, num_outputs, num_inputs))
    return PackedMatrix(format, num_outputs, num_inputs, data)


def write_rows(matrix: PackedMatrix, start: int, rows_RK: Tensor) -> None:
    """Enter rows `start ..` of a matrix, floats of any type, one row for each output.

    They are rounded to the nearest even for bf16, and quantised as the `gguf` library does it
    for formats of blocks. Rows come by whole panels: `start` is a multiple of 16, and so is
    their number unless they are the last.
    """
    assert rows_RK.shape[1] == matrix.num_inputs, (rows_RK.shape, matrix.num_inputs)
    if matrix.format == "f32" or matrix.format == "bf16":
        dtype = _DTYPES[matrix.format]
        word = torch.int32 if dtype.itemsize == 4 else torch.int16
        rows_PoK = _panels(matrix, start, rows_RK.to(dtype).view(word))
        data_PKo = matrix.data.view(word).view(matrix.num_panels, -1, PANEL).numpy()
        np.copyto(_at(data_PKo, start, rows_PoK), rows_PoK.swapaxes(1, 2))
    else:
        write_blocks(matrix, start, _quantized(matrix.format, rows_RK))


def write_blocks(matrix: PackedMatrix, start: int, blocks_RGB: Tensor) -> None:
    """Enter rows `start ..`, by whole panels, as GGUF's blocks: uint8 of [R, K / 32, bytes]."""
    assert matrix.format != "f32" and matrix.format != "bf16", matrix.format
    # Copied by numpy, on this thread: torch would wake others for thousands of small copies.
    blocks_PoGB = _panels(matrix, start, blocks_RGB)
    groups_PGB = _at(_groups(matrix), start, blocks_PoGB)
    assert blocks_PoGB.shape[2] == groups_PGB.shape[1], (blocks_RGB.shape, matrix.num_inputs)
    num_scales = _NUM_SCALES[matrix.format]
    for index in range(num_scales):
        scale_PoG = blocks_PoGB[..., 2 * index : 2 * index + 2].view(np.float16)[..., 0]
        np.copyto(_scale(groups_PGB, index), scale_PoG.swapaxes(1, 2))
    words_PoGj = blocks_PoGB[..., 2 * num_scales :].view(_WORDS[matrix.format])
    np.copyto(_words(groups_PGB, matrix.format), words_PoGj.transpose(0, 2, 3, 1))


def unpack(matrix: PackedMatrix) -> Tensor:
    """The weights as float32, [N, K]: what every kernel computes with, rounded like GGUF's."""
    if matrix.format == "f32" or matrix.format == "bf16":
        data_PKo = matrix.data.view(_DTYPES[matrix.format]).view(matrix.num_panels, -1, PANEL)
        return data_PKo.transpose(1, 2).flatten(0, 1)[: matrix.num_outputs].float()
    groups_PGB = _groups(matrix)
    words_PoGj = np.ascontiguousarray(_words(groups_PGB, matrix.format).transpose(0, 3, 1, 2))
    scales = [
        _scale(groups_PGB, index).swapaxes(1, 2)[..., None].astype(np.float32)
        for index in range(_NUM_SCALES[matrix.format])
    ]
    weights_PoGi = _dequantized(matrix.format, words_PoGj.view(np.uint8), scales)
    weights_NK = torch.frombuffer(weights_PoGi, dtype=torch.float32)
    return weights_NK.view(matrix.num_panels * PANEL, -1)[: matrix.num_outputs, : matrix.num_inputs]


def _dequantized(format: BlockFormat, quants_PoGB: Bytes, scales_PoG1: list[Floats]) -> Floats:
    if format == "q8":
        return scales_PoG1[0] * quants_PoGB.view(np.int8).astype(np.float32)
    halves = (quants_PoGB & np.uint8(15), quants_PoGB >> np.uint8(4))
    quants_PoGi = np.concatenate(halves, axis=-1).astype(np.float32)
    if format == "q4_0":
        quants_PoGi -= 8
        return scales_PoG1[0] * quants_PoGi
    return scales_PoG1[0] * quants_PoGi + scales_PoG1[1]


def _quantized(format: BlockFormat, rows_RK: Tensor) -> Tensor:
    num_rows, num_inputs = rows_RK.shape
    padded_RK = pad(rows_RK.float(), (0, -num_inputs % GROUP)).numpy()
    blocks = cast(Bytes, quantize(padded_RK, GGUF_TYPES[format]))
    flat = torch.frombuffer(blocks, dtype=torch.uint8)
    return flat.view(num_rows, -1, block_nbytes(format))


def _panels(matrix: PackedMatrix, start: int, rows: Tensor) -> Array:
    """Whole panels of rows, [P, 16, ...], filled up with zeros where the matrix ends."""
    stop = start + len(rows)
    assert start % PANEL == 0 and stop <= matrix.num_outputs, (start, stop, matrix.num_outputs)
    assert stop % PANEL == 0 or stop == matrix.num_outputs, (start, stop, matrix.num_outputs)
    if len(rows) % PANEL:
        missing = rows.new_zeros(-len(rows) % PANEL, *rows.shape[1:])
        rows = torch.cat((rows, missing))
    return rows.view(-1, PANEL, *rows.shape[1:]).numpy()


def _at(panels: Array, start: int, rows: Array) -> Array:
    """The panels of a matrix that rows `start ..` fill."""
    first = start // PANEL
    return panels[first : first + len(rows)]


def _groups(matrix: PackedMatrix) -> Bytes:
    """[P, G, bytes of one group of a panel], not copied."""
    num_groups = _ceil_div(matrix.num_inputs, GROUP)
    return cast(Bytes, matrix.data.view(matrix.num_panels, num_groups, -1).numpy())


def _scale(groups_PGB: Bytes, index: int) -> npt.NDArray[np.float16]:
    """A view of scale number `index` of each output, [P, G, 16]."""
    nbytes = 2 * PANEL
    return groups_PGB[..., index * nbytes : (index + 1) * nbytes].view(np.float16)


def _words(groups_PGB: Bytes, format: BlockFormat) -> Array:
    """A view of the quants by what an output has in a row `q[j]`: [P, G, j, 16]."""
    quants_PGB = groups_PGB[..., _NUM_SCALES[format] * 2 * PANEL :]
    words = quants_PGB.view(_WORDS[format])
    return words.reshape(*groups_PGB.shape[:2], -1, PANEL)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
