"""The sampler of sampler.py on native kernels; knows how rows cross the border, not how a
token is chosen.

ROW, RESULT and TOP are the structs of kernels/csrc/sampling.h, field by field. They are packed
with `struct`: a decode step waits for this, and numpy's records cost several times as much.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from array import array
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..messages import TokenLogprob
from .params import SamplingParams
from .sampler import NO_TOKEN, NOT_FINITE, IntArray, Sampled, SampleRow

if TYPE_CHECKING:  # there is no such module without the extension
    from espalier.kernels.pool import Pool

logger = logging.getLogger(__name__)

ROW = Struct(
    "@"
    "PqPqPq"  # prompt, output and banned ids, each with its count
    "PPq"  # bias ids, biases, their count
    "P"  # bitmask
    "QQQ"  # seed, choice, position
    "ddd"  # temperature, top_p, min_p
    "fff"  # repetition, frequency and presence penalty
    "iii"  # top_k, num_top, first_top
)
RESULT = Struct("@iid")  # token id, failure, log-probability
TOP = Struct("@iid")  # token id, unused, log-probability

_NO_IDS = (0, 0)
_WORD = 2**64 - 1
# A row that asks for nothing but the most likely token.
_PLAIN = ROW.pack(*(0,) * 13, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, -1, -1, 0)
# By the numbers of the C++ enum Failure.
_FAILURES = (None, NOT_FINITE, NO_TOKEN, "sampling failed: a token id is not in the vocabulary")


class NativeSampler:
    """`sample` and `logprobs_of` of the torch sampler, for float32 logits on the CPU."""

    def __init__(self, kernels: Pool) -> None:
        self._kernels = kernels
        self._plain = _Memory(_PLAIN * 64)
        self._results = _Memory(bytes(RESULT.size * 64))

    def sample(self, logits_SV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """One token for each row of `logits_SV`, which is not changed."""
        _check(logits_SV, len(rows))
        if not rows:
            return []
        if RESULT.size * len(rows) > len(self._results.content):
            self._plain = _Memory(_PLAIN * (2 * len(rows)))
            self._results = _Memory(bytes(RESULT.size * (2 * len(rows))))
        batch = None
        if not all(map(_is_plain, rows)):
            batch = _Batch(rows, logits_SV.shape[1])
        self._kernels.sample(
            logits_SV.data_ptr(),
            logits_SV.stride(0),
            logits_SV.shape[1],
            len(rows),
            self._plain.address if batch is None else batch.records.address,
            self._results.address,
            0 if batch is None else batch.tops.address,
        )
        results = self._results.unpack(RESULT, len(rows))
        if batch is not None:
            return batch.sampled(results)
        return [Sampled(token_id, None, (), _FAILURES[code]) for token_id, code, _ in results]

    def logprobs_of(
        self, logits_TV: Tensor, targets: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        """For each row, the log-softmax of its target id and of the `num_top` most likely ids.

        Of equally likely ids the lower comes first. Of logits that are not finite there is no
        `top`, and the log-probability is NaN.
        """
        _check(logits_TV, len(targets))
        num_rows, vocab_size = logits_TV.shape
        assert all(0 <= target < vocab_size for target in targets), (targets, vocab_size)
        num_top = min(num_top, vocab_size)
        ids, logprobs = array("i", targets), array("d", bytes(8 * num_rows))
        tops = _Memory(bytes(TOP.size * num_rows * num_top))
        self._kernels.find_logprobs(
            logits_TV.data_ptr(),
            logits_TV.stride(0),
            vocab_size,
            num_rows,
            ids.buffer_info()[0],
            num_top,
            logprobs.buffer_info()[0],
            tops.address,
        )
        pairs = _pairs(tops.unpack(TOP, num_rows * num_top))
        return [
            TokenLogprob(
                target,
                logprob,
                pairs[num_top * index : num_top * (index + 1)] if logprob == logprob else (),
            )
            for index, (target, logprob) in enumerate(zip(targets, logprobs, strict=True))
        ]


class _Batch:
    """The records of rows of any kind; keeps alive what their addresses point to."""

    def __init__(self, rows: Sequence[SampleRow], vocab_size: int) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self._first_tops = list(accumulate(map(self._num_top, rows), initial=0))
        self._kept: list[array[int] | array[float]] = []
        self._failed: dict[int, str] = {}
        self.records = _Memory(b"".join(map(self._record_alone, range(len(rows)), rows)))
        self.tops = _Memory(bytes(TOP.size * self._first_tops[-1]))

    def sampled(self, results: list[tuple[int, int, float]]) -> list[Sampled]:
        found: list[Sampled] = []
        pairs = _pairs(self.tops.unpack(TOP, self._first_tops[-1]))
        for index, (token_id, code, logprob) in enumerate(results):
            failure = self._failed.get(index, _FAILURES[code])
            if failure is not None:
                found.append(Sampled(-1, None, (), failure))
            elif self._rows[index].num_top is None:
                found.append(Sampled(token_id))
            else:
                first, end = self._first_tops[index : index + 2]
                found.append(Sampled(token_id, logprob, pairs[first:end]))
        return found

    def _num_top(self, row: SampleRow) -> int:
        return min(row.num_top or 0, self._vocab_size)

    def _record_alone(self, index: int, row: SampleRow) -> bytes:
        """Whatever goes wrong with a row is that row's failure, never the step's."""
        try:
            return self._record(row, self._first_tops[index])
        except Exception as error:
            logger.exception("sampling failed: %s", row)
            self._failed[index] = f"sampling failed: {error}"
            return _PLAIN

    def _record(self, row: SampleRow, first_top: int) -> bytes:
        params = row.params
        prompt_ids, output_ids = _NO_IDS, _NO_IDS
        if _has_penalties(params):
            prompt_ids, output_ids = self._seen(row.prompt_ids), self._seen(row.output_ids)
        return ROW.pack(
            *prompt_ids,
            *output_ids,
            *(self._keep(_banned_ids(row.banned)) if row.banned else _NO_IDS),
            self._keep(array("i", params.logit_bias))[0] if params.logit_bias else 0,
            *(self._keep(array("f", params.logit_bias.values())) if params.logit_bias else _NO_IDS),
            0 if row.bitmask is None else self._bitmask(row.bitmask),
            row.seed & _WORD,
            row.choice & _WORD,
            row.position & _WORD,
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
            params.top_k,
            -1 if row.num_top is None else self._num_top(row),
            first_top,
        )

    def _seen(self, ids: IntArray | None) -> tuple[int, int]:
        assert ids is not None, "penalties need the ids"
        return self._keep(array("i", ids.astype(np.int32).tobytes()))

    def _bitmask(self, bitmask: IntArray) -> int:
        assert 32 * len(bitmask) >= self._vocab_size, (len(bitmask), self._vocab_size)
        return self._keep(array("i", bitmask.astype(np.int32, copy=False).tobytes()))[0]

    def _keep(self, values: array[int] | array[float]) -> tuple[int, int]:
        """Its address and length; it then lives as long as the batch."""
        self._kept.append(values)
        return values.buffer_info()


class _Memory:
    """Bytes that stay where they are, for native code to read and write."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.content)) if content else 0

    def unpack(self, layout: Struct, count: int) -> list[tuple[int, int, float]]:
        """The first `count` records of RESULT or TOP."""
        return list(layout.iter_unpack(memoryview(self.content)[: layout.size * count]))


def _is_plain(row: SampleRow) -> bool:
    params = row.params
    return (
        params.temperature == 0
        and row.bitmask is None
        and row.num_top is None
        and not row.banned
        and not params.logit_bias
        and not _has_penalties(params)
    )


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


@functools.lru_cache(maxsize=64)
def _banned_ids(banned: tuple[int, ...]) -> array[int]:
    """Kept for the next steps: where the model has more ids than the tokenizer, hundreds are
    banned in every row."""
    return array("i", banned)


def _pairs(tops: list[tuple[int, int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple((token_id, logprob) for token_id, _, logprob in tops)


def _check(logits: Tensor, num_rows: int) -> None:
    num_columns, last_stride = logits.shape[1], logits.stride()[1]
    assert logits.dtype == torch.float32 and logits.is_cpu, (logits.dtype, logits.device)
    assert logits.shape == (num_rows, num_columns), (logits.shape, num_rows)
    assert num_columns > 0 or num_rows == 0, "a vocabulary of nothing"
    assert last_stride == 1 or num_rows == 0 or num_columns == 1, logits.stride()
