"""A soak: servers of several settings one after the other, each under fire, then held to account.

start ─ probes ─ crowd and kills ─ (last round: crowd alone) ─ quiet ─ books ─ SIGTERM ─ gone
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak.calls import NATIVE, PROBES, Call, Json
from bench.soak.chaos import Chaos
from bench.soak.clients import Crowd
from bench.soak.hostile import MAX_BODY_BYTES
from bench.soak.ledger import Ledger
from bench.soak.processes import Slope, Watch, open_files
from bench.soak.server import Failed, Server
from bench.soak.tiny_model import CONTEXT_LEN, write_tiny_model
from bench.soak.wire import ask, get, posted

NUM_CLIENTS = 20
_LAST_STREAMS = 12
_TELL_S = 10.0
_FILES = 4  # that a process may open at any time, as those of a request for its state
_SETTLING = 0.2  # of the calm half: what was started last fills its caches first
_POOL_TOKENS = 1280
_COMMON = (
    *("--max-total-tokens", str(_POOL_TOKENS), "--max-running-requests", "12"),
    *("--max-step-tokens", "96", "--chunked-prefill-size", "64", "--new-token-reserve", "0.1"),
    *("--max-body-bytes", str(MAX_BODY_BYTES), "--max-queued-requests", "40"),
    *("--grammar-compile-deadline", "3", "--drain-timeout", "1", "--watchdog-timeout", "60"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One round: how the server is started ({temporary}: its directory for temporary files), and
    its share of the time."""

    name: str
    flags: tuple[str, ...]
    share: float


SETTINGS: Sequence[Setting] = (
    Setting(
        "priority, size",
        ("--schedule-policy", "priority", "--preemption-gap", "2")
        + ("--radix-eviction-policy", "size", "--slo-itl", "0.05"),
        0.2,
    ),
    Setting(
        "program, lfu, fair shares, events",
        ("--schedule-policy", "program", "--radix-eviction-policy", "lfu")
        + ("--fair-share", "paying=3,*=1", "--slo-ttft", "10")
        + ("--kv-events", "ipc://{temporary}/events"),
        0.2,
    ),
    Setting("lpm, lru", ("--schedule-policy", "lpm", "--max-passes", "4"), 0.6),
)
"""The last one also has the calm half in which memory must not grow."""


@dataclass(slots=True)
class Result:
    """What a soak has found. `stats` are the last scheduler's."""

    ledger: Ledger
    slopes: list[Slope] = field(default_factory=list[Slope])
    stats: dict[str, Any] = field(default_factory=dict[str, Any])


class Soak:
    """`seconds` of traffic over all rounds, from one seed; files go below `directory`."""

    def __init__(
        self, seconds: float, seed: int, directory: Path, tell: Callable[[str], None]
    ) -> None:
        self._seconds, self._seed, self._directory, self._tell = seconds, seed, directory, tell
        self._result = Result(Ledger())
        self._ledger = self._result.ledger

    async def run(self) -> Result:
        model = write_tiny_model(self._directory / "tiny.gguf")
        for index, setting in enumerate(SETTINGS):
            server = Server(model, [*_COMMON, *setting.flags], self._directory / str(index))
            self._tell(f"round {index + 1}: {setting.name}")
            if not await self._went_through(server, setting, index):
                break
        return self._result

    async def _went_through(self, server: Server, setting: Setting, index: int) -> bool:
        """A whole round; False if it had to be given up."""
        went_through = True
        try:
            await self._round(server, setting, index)
        except* Failed as failures:
            went_through = False
            for failure in failures.exceptions:
                self._ledger.wrong(f"{setting.name}: {failure}: {server.log()[-4000:]}")
        return went_through

    async def _round(self, server: Server, setting: Setting, index: int) -> None:
        rng = random.Random(f"{self._seed} {index}")
        watch = Watch(server.temporary)
        async with server:
            watching = asyncio.create_task(watch.run())
            try:
                crowd = Crowd(server.address, self._ledger, rng.getrandbits(32), asyncio.Event())
                await self._ask_probes(crowd)
                files = open_files(server.temporary)
                await self._fire(server, crowd, watch, setting, rng)
                await self._audit(server)
                await self._compare_files(server, files)
                await self._end(server, crowd)
            finally:
                watching.cancel()
        self._read_log(server)

    async def _ask_probes(self, crowd: Crowd) -> None:
        """What they give when nothing else runs."""
        for number, probe in enumerate(PROBES):
            call = Call(NATIVE, probe, 1, CONTEXT_LEN, f"probe-{number}", probe=number)
            await crowd.settled(call)

    async def _fire(
        self, server: Server, crowd: Crowd, watch: Watch, setting: Setting, rng: random.Random
    ) -> None:
        """Crowd and chaos; in the last round, where memory is measured, first both and then,
        for as long, the crowd alone."""
        length_s = setting.share * self._seconds
        is_last = setting is SETTINGS[-1]
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell_progress(watch))
            group.create_task(crowd.run(NUM_CLIENTS))
            until = time.monotonic() + (length_s / 2 if is_last else length_s)
            await Chaos(server, self._ledger, rng).run(until)
            if is_last:
                await asyncio.sleep(length_s / 2 * _SETTLING)
                calm_from = time.monotonic()
                await asyncio.sleep(length_s / 2 * (1 - _SETTLING))
                self._result.slopes = watch.slopes(since=calm_from)
            crowd.stopping.set()
            telling.cancel()

    async def _tell_progress(self, watch: Watch) -> None:
        while True:
            self._tell(self._progress(watch))
            await asyncio.sleep(_TELL_S)

    def _progress(self, watch: Watch) -> str:
        latest = {sample.role: sample for sample in watch.samples[-6:]}
        memory = ", ".join(f"{role} {sample.rss_mib:.0f}" for role, sample in latest.items())
        counts = self._ledger.counts
        kills = sum(count for name, count in counts.items() if name.startswith("kills"))
        return (
            f"done {counts['requests done']}, aborted {counts['requests aborted']}, "
            f"lost {counts['requests lost']}, kills {kills}, wrong {counts['wrong']}; MiB: {memory}"
        )

    # -- the account -------------------------------------------------------------------------

    async def _audit(self, server: Server) -> None:
        """Nobody asks any more: the pool must be whole."""
        state = await self._quiet(server)
        stats = self._result.stats = state["internal_states"][0]
        pool = stats["pool_tokens"]
        books = {
            "free + cached": stats["free_tokens"] + stats["tree_tokens"],
            "free + unused": stats["free_tokens"]
            + stats["evictable_tokens"]
            + stats["yieldable_tokens"],
        }
        await ask(server.address, posted("/flush_cache", {}))
        after = (await self._quiet(server))["internal_states"][0]
        books["free after a flush"] = after["free_tokens"]
        for name, found in books.items():
            if found != pool:
                self._ledger.wrong(f"{name}: {found} of {pool}: {stats}, flushed: {after}")
        for bug in ("num_failed_steps", "num_rebuilds"):
            if after[bug]:
                self._ledger.wrong(f"{bug}: {after[bug]}")
        health = await get(server.address, "/health")
        if json.loads(health.body) != {"status": "ok"}:
            self._ledger.wrong(f"/health: {health.text}")

    async def _compare_files(self, server: Server, before: dict[str, int]) -> None:
        """At rest, no process has more files and sockets open than it had when it was new."""
        deadline = time.monotonic() + 10.0
        while True:
            now = open_files(server.temporary)
            more = {role for role, count in now.items() if count > before.get(role, 0) + _FILES}
            if not more:
                return
            if time.monotonic() > deadline:
                return self._ledger.wrong(f"open files of {more}: {now}, before {before}")
            await asyncio.sleep(0.2)

    async def _quiet(self, server: Server) -> dict[str, Any]:
        """The server's state when nothing runs, waits or is open; as it is after a minute."""
        deadline = time.monotonic() + 60.0
        while True:
            state = await server.state()
            if state is not None:
                stats = state["internal_states"][0]
                busy = stats["num_running"] + stats["num_waiting"] + stats["num_compiling"]
                if busy == state["num_open_requests"] == 0:
                    return state
            if time.monotonic() > deadline:
                raise Failed(f"not quiet after a minute: {state}")
            await asyncio.sleep(0.1)

    async def _end(self, server: Server, crowd: Crowd) -> None:
        """SIGTERM with streams open: each gets its end, and nothing of the server is left."""
        sampling = {"max_new_tokens": 400, "ignore_eos": True}
        body: Json = {"text": "z" * 50, "sampling_params": sampling, "stream": True}
        self._ledger.is_ending = True
        async with asyncio.TaskGroup() as group:
            for index in range(_LAST_STREAMS):
                call = Call(NATIVE, body, 1, CONTEXT_LEN, f"last-{index}")
                group.create_task(crowd.settled(call))
            await asyncio.sleep(0)  # they begin
            while not await self._are_all_open(server):
                await asyncio.sleep(0.01)
            status = await server.stop()
        self._ledger.is_ending = False
        if status != 0:
            self._ledger.wrong(f"the server ended with {status}")
        self._ledger.wrongs += [f"left over: {what}" for what in server.leftovers()]

    async def _are_all_open(self, server: Server) -> bool:
        """Whether each request that has not ended has reached the server."""
        state = await server.state()
        return state is not None and state["num_open_requests"] >= len(self._ledger.open_rids)

    def _read_log(self, server: Server) -> None:
        """Killed processes are reported there; exceptions are nobody's doing."""
        log = server.log()
        if "Traceback" in log:
            self._ledger.wrong(
                f"an exception was logged: {log[log.index('Traceback') - 500 :][:6000]}"
            )
