"""Hidden states and logits of the native kernels, bit for bit: a token's do not depend on the
batch it is computed in, its chunk, its slots, the threads, or whose cache it reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from espalier.kernels.native import why_unavailable
from espalier.kernels.packing import PackedLinear
from espalier.runtime.config import KVStorage, WeightDtype
from espalier.runtime.models.config import ModelConfig, RopeConfig
from espalier.runtime.models.llama import LlamaModel
from espalier.runtime.models.packed import pack_weights
from espalier.runtime.models.weights import LlamaWeights
from espalier.runtime.runner.kv_pool import KVPool
from tests.fakes import tiny_weights

if why_unavailable() is not None:
    pytest.skip(f"the native kernels were not built: {why_unavailable()}", allow_module_level=True)

from espalier.kernels.plan import TableEntry
from espalier.kernels.pool import Pool
from espalier.runtime.runner.native_backend import NativeBackend

CONTEXT_LEN, NUM_SLOTS, MAX_STEP = 640, 4096, 512
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10_000.0),
    max_position=CONTEXT_LEN,
    tie_word_embeddings=True,
)
DENSE = tiny_weights(CONFIG)
WEIGHTS: dict[WeightDtype, LlamaWeights[PackedLinear]] = {
    dtype: pack_weights(DENSE, CONFIG, dtype) for dtype in ("float32", "bfloat16", "int8", "q4")
}
KINDS: list[tuple[WeightDtype, KVStorage]] = [
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("int8", "float32"),
    ("int8", "int8"),
    ("q4", "float32"),
    ("q4", "bfloat16"),
]


@dataclass(frozen=True, slots=True)
class Computed:
    """Of every token that a sequence had computed for itself."""

    hidden_TD: Tensor
    logits_TV: Tensor


class Device:
    """One backend with random slots for its rows."""

    def __init__(
        self, kind: tuple[WeightDtype, KVStorage], num_threads: int, rng: np.random.Generator
    ) -> None:
        dtype, storage = kind
        self._backend = NativeBackend(
            LlamaModel(CONFIG, WEIGHTS[dtype]),
            KVPool(CONFIG, NUM_SLOTS, storage),
            Pool.start(num_threads),
            num_rows=64,
            context_len=CONTEXT_LEN,
            max_step_tokens=MAX_STEP,
        )
        self._slots = iter(rng.permutation(NUM_SLOTS).astype(np.int32))

    def slots(self, count: int) -> list[np.int32]:
        return [next(self._slots) for _ in range(count)]

    def run(
        self, writes: list[TableEntry], rows: list[tuple[int, int, int]]
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of all tokens of a step."""
        plan = self._backend.plan
        num_tokens = sum(length for _, _, length in rows)
        step = plan.prepare(writes, np.array(rows, np.int32), np.empty(0, np.int32))
        plan.run_prepared(step)
        hidden = plan.tensor(self._backend.hidden)[:num_tokens].clone()
        logits: list[Tensor] = []
        for start in range(0, num_tokens, 64):
            tokens = np.arange(start, min(start + 64, num_tokens), dtype=np.int32)
            plan.read_out(step, tokens)
            logits.append(plan.tensor(self._backend.logits)[: len(tokens)].clone())
        return hidden, torch.cat(logits)


def compute(
    device: Device, sequences: list[list[int]], chunks: list[int], shared_len: int = 0
) -> list[Computed]:
    """All sequences at once, in rows of the given chunk lengths (the last one goes on).

    The first `shared_len` tokens of all are the same; only the first sequence computes them,
    in the steps in which the others already read them.
    """
    slots = [device.slots(len(sequence)) for sequence in sequences]
    for other in slots[1:]:
        other[:shared_len] = slots[0][:shared_len]
    writes = [
        TableEntry(row, 0, np.array(sequence, np.int32), np.array(row_slots, np.int32))
        for row, (sequence, row_slots) in enumerate(zip(sequences, slots, strict=True))
    ]
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in sequences]
    done = [0 if row == 0 else shared_len for row in range(len(sequences))]
    turn = 0
    while any(at < len(sequence) for at, sequence in zip(done, sequences, strict=True)):
        rows: list[tuple[int, int, int]] = []
        left = MAX_STEP
        for row, sequence in enumerate(sequences):
            length = min(chunks[(turn + row) % len(chunks)], len(sequence) - done[row], left)
            if row and done[0] + (rows[0][2] if rows and rows[0][0] == 0 else 0) < shared_len:
                continue  # what it would read is not computed by this step either
            if length > 0:
                rows.append((row, done[row], length))
                left -= length
        hidden, logits = device.run(writes, rows)
        writes = []
        first = 0
        for row, _, length in rows:
            found[row].append((hidden[first : first + length], logits[first : first + length]))
            done[row] += length
            first += length
        turn += 1
    return [
        Computed(torch.cat([h for h, _ in parts]), torch.cat([x for _, x in parts]))
        for parts in found
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_bits_depend_on_the_sequence_alone(
    kind: tuple[WeightDtype, KVStorage], data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31 - 1)))
    count = data.draw(st.sampled_from([1, 2, 3, 8, 17, 64]))
    longest = min(600, 3500 // count)
    shared_len = data.draw(st.sampled_from([0, min(70, longest - 1), longest - 1]))
    trunk = rng.integers(0, 300, shared_len).tolist()
    sequences: list[list[int]] = [
        trunk + rng.integers(0, 300, rng.integers(1, longest - shared_len + 1)).tolist()
        for _ in range(count)
    ]
    chunks = data.draw(st.lists(st.sampled_from([1, 2, 7, 64, 100, 512]), min_size=1, max_size=4))
    device = Device(kind, data.draw(st.integers(1, 3)), rng)
    together = compute(device, sequences, chunks, shared_len)
    whole = data.draw(st.integers(0, count - 1))
    (alone,) = compute(Device(kind, 2, rng), [sequences[whole]], [512])
    start = 0 if whole == 0 else shared_len
    assert torch.equal(together[whole].hidden_TD, alone.hidden_TD[start:])
    assert torch.equal(together[whole].logits_TV, alone.logits_TV[start:])
    assert alone.logits_TV.isfinite().all()


def test_rows_of_mixed_lengths_share_a_tile_and_part_after_it() -> None:
    """The order in which they attend to the second tile is not that of the first."""
    rng = np.random.default_rng(5)
    trunk = rng.integers(0, 300, 64).tolist()
    for _ in range(10):
        branches = [rng.integers(0, 300, 64).tolist() for _ in range(3)]
        sequences: list[list[int]] = [
            trunk + branches[i % 3] + rng.integers(0, 300, rng.integers(1, 9)).tolist()
            for i in range(45)
        ]
        device = Device(KINDS[0], 3, rng)
        slots = _slots_of_a_tree(device, sequences)
        lengths = [len(sequence) - 128 for sequence in sequences]
        trunks = [(row, 0, 128) for row in range(3)]
        writes = [
            TableEntry(row, 0, np.array(sequence, np.int32), np.array(own, np.int32))
            for row, (sequence, own) in enumerate(zip(sequences, slots, strict=True))
        ]
        device.run(writes, trunks)
        together, _ = device.run([], [(row, 128, n) for row, n in enumerate(lengths)])
        alone = [device.run([], [(row, 128, n)])[0] for row, n in enumerate(lengths)]
        assert torch.equal(together, torch.cat(alone))


def _slots_of_a_tree(device: Device, sequences: list[list[int]]) -> list[list[np.int32]]:
    """One trunk of 64 positions, three branches of 64, and the rest for each alone."""
    trunk = device.slots(64)
    branches = [device.slots(64) for _ in range(3)]
    return [
        trunk + branches[i % 3] + device.slots(len(sequence) - 128)
        for i, sequence in enumerate(sequences)
    ]
