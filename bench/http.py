"""HTTP against the engine in this process, on the same work; and how long recovery takes.

Part of `python -m bench.step --http`. Both sides are up all the time and are measured in turn
(A B A B ...); the idle one takes no CPU.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.http_client import Connection, Served
from bench.prompts import prompt
from bench.report import Row, median_row, spread
from espalier.runtime.config import ServerConfig
from espalier.runtime.engine import Engine
from espalier.runtime.processes.launcher import Launcher
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

STREAMS, PROMPT_LEN, NEW = 16, 134, 64
TTFT_REQUESTS = 16


def cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a process have taken so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def body(ids: list[int], new: int) -> dict[str, object]:
    sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    return {
        "input_ids": ids,
        "sampling_params": sampling,
        "stream": True,
        "incremental_streaming_output": True,
    }


async def engine_stream(engine: Engine, ids: list[int], new: int) -> float:
    """Seconds to the first token of a request that is read to its end."""
    sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
    start, ttft_s = perf_counter(), 0.0
    async for _ in engine.generate(GenerateCall(input_ids=ids, sampling=sampling)):
        ttft_s = ttft_s or perf_counter() - start
    return ttft_s


async def engine_batch(engine: Engine, prompts: list[list[int]]) -> float:
    start = perf_counter()
    await asyncio.gather(*(engine_stream(engine, ids, NEW) for ids in prompts))
    return perf_counter() - start


async def http_stream(url: str, ids: list[int], new: int) -> Served:
    async with Connection(url) as connection:
        return await connection.stream("/generate", body(ids, new))


async def http_batch(url: str, prompts: list[list[int]]) -> float:
    """Seconds for all of them, each on a connection that is there already."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(url)) for _ in prompts]
        start = perf_counter()
        await asyncio.gather(
            *(
                connection.stream("/generate", body(ids, NEW))
                for connection, ids in zip(connections, prompts, strict=True)
            )
        )
        return perf_counter() - start


def http_rows(engine: Engine, rounds: int) -> list[Row]:
    """All figures of the HTTP side, each against `engine`."""
    start = perf_counter()
    with Launcher(ServerConfig(port=0)) as server:
        ready = Row(
            "processes: ready after", perf_counter() - start, "s", better="lower", target=10.0
        )
        return [
            ready,
            *throughput(engine, server, rounds),
            *ttft(engine, server, rounds),
            *recovery(server, rounds),
        ]


def throughput(engine: Engine, server: Launcher, rounds: int) -> list[Row]:
    ours: list[float] = []
    direct: list[float] = []
    text_cpu: list[float] = []
    for index in range(rounds + 1):  # the first round warms both up
        prompts = [prompt(engine, PROMPT_LEN, 100 * index + i) for i in range(STREAMS)]
        direct_s = asyncio.run(engine_batch(engine, prompts))
        pids = [server.pids[name] for name in ("tokenizer", "detokenizer")]
        before = sum(map(cpu_seconds, pids))
        http_s = asyncio.run(http_batch(server.url, prompts))
        cpu_s = sum(map(cpu_seconds, pids)) - before
        if index:
            ours.append(STREAMS * NEW / http_s)
            direct.append(STREAMS * NEW / direct_s)
            text_cpu.append(cpu_s / (STREAMS * NEW) * 1e6)
    name = f"batch {STREAMS}, {PROMPT_LEN} in, {NEW} out"
    return [
        median_row(f"{name}: HTTP", ours, "tok/s"),
        median_row(f"{name}: in process", direct, "tok/s"),
        Row(
            f"{name}: ratio",
            median(ours) / median(direct),
            "x",
            target=0.97,
            peer="in process",
        ),
        Row(
            "tokenizer + detokenizer CPU per output token",
            median(text_cpu),
            "us",
            better="lower",
            target=100.0,
            note=spread(text_cpu),
        ),
    ]


def ttft(engine: Engine, server: Launcher, rounds: int) -> list[Row]:
    """One request at a time, 16 tokens in; the difference of the medians is what HTTP adds."""
    ours: list[float] = []
    direct: list[float] = []
    for index in range(rounds * TTFT_REQUESTS + 1):
        ids = prompt(engine, 16, 20_000 + index)
        direct_s = asyncio.run(engine_stream(engine, ids, 1))
        served = asyncio.run(http_stream(server.url, ids, 1))
        if index:
            ours.append(served.ttft_s * 1e3)
            direct.append(direct_s * 1e3)
    return [
        median_row("TTFT, 16 tokens in: HTTP", ours, "ms"),
        median_row("TTFT, 16 tokens in: in process", direct, "ms"),
        Row(
            "TTFT that HTTP adds",
            median(ours) - median(direct),
            "ms",
            better="lower",
            target=3.0,
            peer="in process",
        ),
    ]


def recovery(server: Launcher, rounds: int) -> list[Row]:
    """From the death of each process to the first token of a request that is sent again."""
    rows: list[Row] = []
    for name in ("scheduler", "detokenizer", "tokenizer"):
        seconds: list[float] = []
        for _ in range(rounds):
            start = perf_counter()
            os.kill(server.pids[name], signal.SIGKILL)
            asyncio.run(_first_token_again(server.url))
            seconds.append(perf_counter() - start)
        rows.append(
            Row(
                f"killed {name}: served again after",
                median(seconds),
                "s",
                better="lower",
                target=5.0,
                note=spread(seconds),
            )
        )
    return rows


async def _first_token_again(url: str) -> None:
    while True:
        try:
            await http_stream(url, [1000, 1001], 1)
        except (OSError, RuntimeError):  # refused, or broken off
            await asyncio.sleep(0.02)
        else:
            return
