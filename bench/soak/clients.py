"""The crowd: clients that ask, leave, read slowly, abort, flush, attack; each is one coroutine.

Every exchange is bounded in time, and tells the ledger how it ended.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from bench.soak.answers import LOST, Outcome, Wrong, outcome
from bench.soak.calls import Call, Caller
from bench.soak.hostile import attack
from bench.soak.ledger import Ledger
from bench.soak.wire import Broken, Connection, Reply, ask, connected, get, posted

DEADLINE_S = 60.0
"""Of any one exchange: nothing that a client asks here takes a healthy server so long."""
_SLOW_WINDOW = 131_072  # below one segment of the loopback, TCP itself would crawl


@dataclass(slots=True)
class Crowd:
    """Clients of one server; `stopping` asks them to go home after what they are doing."""

    address: tuple[str, int]
    ledger: Ledger
    seed: int
    stopping: asyncio.Event

    async def run(self, num_clients: int) -> None:
        """Until `stopping`."""
        names = [f"c{self.seed}-{index}" for index in range(num_clients)]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._client(name))
            for work in (self._abort, self._flush, self._look):
                group.create_task(self._again(work, random.Random(f"{work.__name__} {self.seed}")))

    async def _client(self, name: str) -> None:
        rng = random.Random(name)
        caller = Caller(rng, name)
        while not self.stopping.is_set():
            kind = rng.random()
            if kind < 0.68:
                await self.settled(caller.call())
            elif kind < 0.84:
                await self._bounded("a client that leaves", self._leave(caller.call(), rng))
            elif kind < 0.87:
                await self._bounded("a slow reader", self._read_slowly(caller.long_stream(), rng))
            else:
                await self._bounded("an attack", self._attack(rng))
            await asyncio.sleep(rng.expovariate(1 / 0.02))

    async def _again(
        self, work: Callable[[random.Random], Coroutine[None, None, float]], rng: random.Random
    ) -> None:
        """Do `work` until `stopping`, each time after as many seconds as it says."""
        while not self.stopping.is_set():
            pause_s = await self._bounded(work.__name__, work(rng)) or 0.5
            await asyncio.sleep(pause_s)

    async def _bounded(self, what: str, work: Coroutine[None, None, float | None]) -> float | None:
        """The result of `work`; None if the server cut it off, which must have a reason."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await work
        except TimeoutError:
            self.ledger.wrong(f"{what}: nothing within {DEADLINE_S:g} s")
        except Broken as error:
            if not self.ledger.was_out(start, "tokenizer"):
                self.ledger.wrong(f"{what}: {error}")
        return None

    # -- asking ------------------------------------------------------------------------------

    async def settled(self, call: Call) -> None:
        """Send `call`, read all of the answer, and hold it to the protocol."""
        start = time.monotonic()
        with self.ledger.open(call):
            try:
                async with asyncio.timeout(DEADLINE_S), connected(self.address) as connection:
                    await connection.send(posted(call.path, call.body))
                    end = await outcome(call, connection)
            except TimeoutError:
                self.ledger.wrong(f"no end within {DEADLINE_S:g} s: {call}")
            except Wrong as error:
                self.ledger.wrong(f"{error}: {call}")
            except Broken as error:
                self.ledger.settle(call, Outcome("broken", str(error)), start)
            else:
                self.ledger.settle(call, end, start)
                if end.kind not in ("done", "aborted"):
                    await asyncio.sleep(0.5)

    async def _leave(self, call: Call, rng: random.Random) -> None:
        """Disconnect after a while: within the answer, or before its first byte; or close only
        the sending half, which ends the request as well."""
        self.ledger.counts["disconnects"] += 1
        with self.ledger.open(call):
            async with connected(self.address) as connection:
                await connection.send(posted(call.path, call.body))
                if rng.random() < 0.2:
                    await connection.close_sending()
                elif rng.random() < 0.5 and call.is_stream:
                    await _read_some(connection, rng.randint(1, 12))
                else:
                    await asyncio.sleep(rng.expovariate(1 / 0.05))

    async def _read_slowly(self, call: Call, rng: random.Random) -> None:
        """Stop reading a stream of large events for a time; then read on, or leave."""
        self.ledger.counts["slow readers"] += 1
        start = time.monotonic()
        with self.ledger.open(call):
            async with connected(self.address, window=_SLOW_WINDOW) as connection:
                await connection.send(posted(call.path, call.body))
                await asyncio.sleep(rng.uniform(0.5, 4.0))
                if rng.random() < 0.5:
                    return
                try:
                    end = await outcome(call, connection)
                except Wrong as error:
                    self.ledger.wrong(f"{error}: {call}")
                else:
                    self.ledger.settle(call, end, start)

    async def _attack(self, rng: random.Random) -> None:
        chosen = attack(rng)
        self.ledger.counts["attacks"] += 1
        start = time.monotonic()
        async with connected(self.address) as connection:
            try:
                await connection.send(chosen.data)
                if chosen.unfinished:
                    await asyncio.sleep(rng.uniform(0.0, 2.0))
                    return
                reply = await connection.reply()
            except Broken:
                if not chosen.may_be_cut_off:
                    raise
                self.ledger.counts["attacks cut off"] += 1
                return
        if chosen.is_answered_by(reply):
            return
        is_lost = reply.status == 503 or LOST.search(reply.text) is not None  # within a stream
        is_excused = is_lost and self.ledger.was_out(start)
        if not is_excused and not _is_refused(reply):
            self.ledger.wrong(f"{chosen.name}: {reply.status} {reply.text[:300]}")

    # -- meddling ----------------------------------------------------------------------------

    async def _abort(self, rng: random.Random) -> float:
        """Abort one that is open, perhaps twice; one that has ended; one that never was."""
        ledger, kind = self.ledger, rng.random()
        if kind < 0.7 and ledger.open_rids:
            rid = rng.choice(list(ledger.open_rids))
            ledger.aborted_rids.add(rid)
        elif kind < 0.85 and ledger.ended_rids:
            rid = rng.choice(ledger.ended_rids)
        else:
            rid = "never-was"
        for _ in range(rng.randint(1, 2)):
            reply = await ask(self.address, posted("/abort_request", {"rid": rid}))
            ledger.counts["aborts asked"] += 1
            if reply.status != 200 or (
                rid == "never-was" and json.loads(reply.body)["num_aborted"]
            ):
                ledger.wrong(f"abort of {rid}: {reply.status} {reply.text[:300]}")
        return rng.expovariate(1 / 0.3)

    async def _flush(self, rng: random.Random) -> float:
        start = time.monotonic()
        reply = await ask(self.address, posted("/flush_cache", {}))
        self.ledger.counts["flushes"] += 1
        if reply.status != 200 and not (reply.status == 503 and self.ledger.was_out(start)):
            self.ledger.wrong(f"flush: {reply.status} {reply.text[:300]}")
        return rng.uniform(0.5, 4.0)

    async def _look(self, rng: random.Random) -> float:
        """The routes that tell of the server: /health must always be good."""
        start = time.monotonic()
        for path in ("/health", "/metrics", "/server_info", "/v1/models"):
            reply = await get(self.address, path)
            is_excused = path != "/health" and reply.status == 503 and self.ledger.was_out(start)
            if reply.status != 200 and not is_excused:
                self.ledger.wrong(f"{path}: {reply.status} {reply.text[:300]}")
        return rng.uniform(0.2, 1.0)


async def _read_some(connection: Connection, num_parts: int) -> None:
    if await connection.status() == 200:
        async for _ in connection.parts():
            num_parts -= 1
            if num_parts <= 0:
                return


def _is_refused(reply: Reply) -> bool:
    """Too much is asked of the server, for now."""
    return reply.status == 429 or reply.status == 503 and "queue is full" in reply.text
