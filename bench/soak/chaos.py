"""What is done to the server's processes: killed and stopped, by their ids, one after the other."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import ExitStack, suppress

from bench.soak.calls import NATIVE, PROBES
from bench.soak.ledger import Ledger
from bench.soak.processes import pid_of
from bench.soak.server import Failed, Server
from bench.soak.wire import Broken, ask, posted

RECOVERY_S = 60.0
"""From a kill until requests are served again, at the most; on a busy machine."""
_POLL_S = 0.05
_STOP_S = 1.0
_VICTIMS = ("scheduler", "detokenizer", "scheduler", "detokenizer", "tokenizer", "fork_server")


class Chaos:
    """Kills and stops one server's processes until it is cancelled or time is up."""

    def __init__(self, server: Server, ledger: Ledger, rng: random.Random) -> None:
        self._server, self._ledger, self._rng = server, ledger, rng

    async def run(self, until: float) -> None:
        """Until `until` of the monotonic clock; all processes serve again then.

        Raises `Failed` if a killed process is not replaced.
        """
        turn = sum(count for name, count in self._ledger.counts.items() if name.startswith("kill"))
        while time.monotonic() < until:
            victim = _VICTIMS[turn % len(_VICTIMS)]
            if self._rng.random() < 0.3:
                await self._stop_for_a_while(self._rng.choice(_VICTIMS))
            victims = {victim, self._rng.choice(_VICTIMS)} if turn % 5 == 4 else {victim}
            await self._kill(sorted(victims))
            turn += 1
            await asyncio.sleep(
                min(self._rng.uniform(1.0, 4.0), max(0.0, until - time.monotonic()))
            )

    async def _kill(self, victims: list[str]) -> None:
        with ExitStack() as outages:
            for role in victims:
                pid = await self._pid(role)
                outages.enter_context(self._ledger.outage(role))
                with suppress(ProcessLookupError):  # it died with another one
                    os.kill(pid, signal.SIGKILL)
                self._ledger.counts[f"kills {role}"] += 1
            start = time.monotonic()
            while not await self._serves():
                if time.monotonic() - start > RECOVERY_S or not self._server.is_running:
                    raise Failed(f"no recovery from the death of {', '.join(victims)}")
                await asyncio.sleep(_POLL_S)

    async def _serves(self) -> bool:
        """A request that goes through all processes is served: they are of one epoch."""
        try:
            async with asyncio.timeout(RECOVERY_S):
                reply = await ask(self._server.address, posted(NATIVE, PROBES[0]))
        except (Broken, TimeoutError):
            return False
        return reply.status == 200

    async def _stop_for_a_while(self, role: str) -> None:
        """As a debugger or a busy machine does. Nothing may be lost by it."""
        pid = await self._pid(role)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_STOP_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._ledger.counts["stops"] += 1

    async def _pid(self, role: str) -> int:
        deadline = time.monotonic() + RECOVERY_S
        while (pid := pid_of(self._server.temporary, role)) is None:
            if time.monotonic() > deadline:
                raise Failed(f"there is not one {role} process")
            await asyncio.sleep(_POLL_S)
        return pid
