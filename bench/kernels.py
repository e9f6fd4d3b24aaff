"""The native kernels against the machine's ceilings: decode, prefill, batch, memory.

Part of `python -m bench.step`. A decode step can't be faster than its weights and its keys and
values are read; a prefill not faster than its products are computed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from bench.ceilings import Ceilings
from bench.prompts import prompt
from bench.report import Row, median_row
from espalier.kernels.plan import Plan
from espalier.kernels.pool import Pool
from espalier.runtime.config import EngineConfig, ServerConfig, WeightDtype
from espalier.runtime.engine import Engine
from espalier.runtime.loading import Model, load_model
from espalier.runtime.models.packed import is_packed
from espalier.runtime.processes.launcher import Launcher
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.runner.kv_pool import KVPool
from espalier.runtime.sampling.params import SamplingParams

DTYPES: tuple[WeightDtype, ...] = ("q4", "int8", "float32")
DECODE = (16, 96)  # tokens in, out
PREFILL_LEN = 1024
BATCH = (16, 134, 64)
MIB = 1 << 20
_REST_S = 0.5


def measured_ceilings() -> Ceilings:
    return Ceilings.measure(len(os.sched_getaffinity(0)))


class NativeClock:
    """Counts the seconds within native calls while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._kept = (Plan.run_prepared, Pool.sample)

    def __enter__(self) -> NativeClock:
        run, sample = self._kept
        Plan.run_prepared = self._timed(run)  # type: ignore[method-assign]
        Pool.sample = self._timed(sample)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Plan.run_prepared, Pool.sample = self._kept  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: object) -> None:
            start = perf_counter()
            call(*args)
            self.seconds += perf_counter() - start

        return timed


def weight_nbytes(model: Model) -> int:
    """What a decode step reads: all matrices, the head once."""
    assert is_packed(model.weights)
    layers = model.weights.layers
    matrices = [w for y in layers for w in (y.qkv_ED, y.out_DE, y.gate_up_GD, y.down_DF)]
    return sum(matrix.nbytes for matrix in [*matrices, model.weights.head_VD])


def prefill_flops(model: Model, num_tokens: int) -> float:
    """Multiplications and additions of the layers' products and of attention."""
    config = model.config
    assert is_packed(model.weights)
    layers = model.weights.layers
    matrices = [w for y in layers for w in (y.qkv_ED, y.out_DE, y.gate_up_GD, y.down_DF)]
    weights = sum(matrix.num_inputs * matrix.num_outputs for matrix in matrices)
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * pairs
    return 2 * weights * num_tokens + attention


def _rest(engine: Engine) -> None:
    """An empty cache, and time for the device to touch memory that it will need."""
    engine.flush_cache()
    sleep(_REST_S)


async def _generate(engine: Engine, ids: list[int], new: int) -> tuple[float, float]:
    """Seconds to the first token, and from there to the last."""
    sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
    start, first = perf_counter(), 0.0
    async for _ in engine.generate(GenerateCall(input_ids=ids, sampling=sampling)):
        first = first or perf_counter()
    return first - start, perf_counter() - first


def decode_rows(engine: Engine, model: Model, dtype: WeightDtype, rounds: int) -> list[Row]:
    length, new = DECODE
    kv_nbytes = KVPool.bytes_per_slot(model.config, "float32") * (length + new / 2)
    before = measured_ceilings()
    rates: list[float] = []
    shares: list[float] = []
    for index in range(rounds + 1):
        _rest(engine)
        with NativeClock() as clock:
            ttft_s, decode_s = asyncio.run(_generate(engine, prompt(engine, length, index), new))
        if index:  # the first round warms up
            rates.append((new - 1) / decode_s)
            shares.append(1 - clock.seconds / (ttft_s + decode_s))
    ceilings = before.higher(measured_ceilings())
    floor = ceilings.read_gb_s * 1e9 / (weight_nbytes(model) + kv_nbytes)
    name = f"decode, 1 stream, {dtype}"
    return [
        median_row(name, rates, "tok/s", f"the floor is {floor:.0f}"),
        Row(f"{name}: ceiling of reads", ceilings.read_gb_s, "GB/s"),
        Row(
            f"{name}: of the floor",
            median(rates) / floor,
            "x",
            target=0.6 if dtype != "float32" else None,
            peer="reads of weights and KV",
        ),
        Row(
            f"{name}: outside native calls",
            median(shares),
            "of a step",
            better="lower",
            target=0.1,
        ),
    ]


def prefill_rows(engine: Engine, model: Model, dtype: WeightDtype, rounds: int) -> list[Row]:
    before = measured_ceilings()
    times: list[float] = []
    for index in range(rounds + 1):
        _rest(engine)
        ids = prompt(engine, PREFILL_LEN, 50 + index)
        ttft_s, _ = asyncio.run(_generate(engine, ids, 1))
        if index:
            times.append(ttft_s)
    ceilings = before.higher(measured_ceilings())
    flops = prefill_flops(model, PREFILL_LEN)
    rates = [flops / seconds / 1e9 for seconds in times]
    speeds = [PREFILL_LEN / seconds for seconds in times]
    name = f"prefill, {PREFILL_LEN:,} tokens, {dtype}"
    rows = [
        median_row(name, speeds, "tok/s"),
        median_row(f"{name}: products", rates, "GOP/s"),
    ]
    if dtype == "float32":
        share = median(rates) / ceilings.fma_gflop_s
        rows.append(Row(f"{name}: ceiling of FMA", ceilings.fma_gflop_s, "GFLOP/s"))
        rows.append(Row(f"{name}: of the FMA ceiling", share, "x", target=0.75))
    return rows


def batch_rows(engine: Engine, dtype: WeightDtype, rounds: int) -> list[Row]:
    count, length, new = BATCH

    async def together(prompts: list[list[int]]) -> None:
        await asyncio.gather(*(_generate(engine, ids, new) for ids in prompts))

    rates: list[float] = []
    for index in range(rounds):
        _rest(engine)
        prompts = [prompt(engine, length, 1000 * (index + 1) + i) for i in range(count)]
        start = perf_counter()
        asyncio.run(together(prompts))
        rates.append(count * new / (perf_counter() - start))
    return [median_row(f"batch {count}, {length} in, {new} out, {dtype}", rates, "tok/s")]


def memory_row() -> Row:
    """Of a scheduler process that serves, beside what its weights and its KV pool take."""
    pool_tokens = 4096
    model = load_model(EngineConfig())
    pool_nbytes = KVPool.bytes_per_slot(model.config, "float32") * pool_tokens
    config = ServerConfig.of(port=0, kv_pool_tokens=pool_tokens)
    with Launcher(config) as server:
        status = Path(f"/proc/{server.pids['scheduler']}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    assert peak is not None, status
    more = int(peak[1]) * 1024 - weight_nbytes(model) - pool_nbytes
    return Row(
        "peak RSS of the scheduler process beyond weights and KV pool",
        more / MIB,
        "MiB",
        better="lower",
        target=250.0,
        note=f"weights {weight_nbytes(model) / MIB:.0f}, pool {pool_nbytes / MIB:.0f} MiB",
    )


def kernel_rows(rounds: int) -> list[Row]:
    """All figures of the native kernels."""
    rows = measured_ceilings().rows()
    for dtype in DTYPES:
        model = load_model(EngineConfig(dtype=dtype))
        with Engine(dtype=dtype) as engine:
            rows += decode_rows(engine, model, dtype, rounds)
            rows += prefill_rows(engine, model, dtype, rounds)
            rows += batch_rows(engine, dtype, rounds)
    return [*rows, memory_row()]
