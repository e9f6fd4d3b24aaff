"""The books of a soak: what came of every request, what was done to the server, what is wrong.

A request may be lost only while a process was being replaced; all else is written down as wrong.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.soak.answers import Outcome
from bench.soak.calls import Call

_MAX_WRONGS = 200


@dataclass(slots=True)
class Outage:
    """A process was killed at `start`, and served again from `end` on; `role` names it."""

    role: str
    start: float
    end: float = float("inf")


@dataclass(slots=True)
class Ledger:
    """Times are of `time.monotonic`."""

    counts: Counter[str] = field(default_factory=Counter[str])
    wrongs: list[str] = field(default_factory=list[str])
    outages: list[Outage] = field(default_factory=list[Outage])
    open_rids: dict[str, Call] = field(default_factory=dict[str, Call])
    ended_rids: list[str] = field(default_factory=list[str])
    aborted_rids: set[str] = field(default_factory=set[str])
    probes: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """The ids of each probe, from the first time that it was asked."""
    is_ending: bool = False
    """The server is told to stop: it may abort what is open, and refuse what comes."""

    def wrong(self, what: str) -> None:
        self.counts["wrong"] += 1
        if len(self.wrongs) < _MAX_WRONGS:
            self.wrongs.append(what)
            print(f"{time.strftime('%X')} wrong: {what}", file=sys.stderr, flush=True)

    @contextmanager
    def outage(self, role: str) -> Generator[None]:
        """`role`'s process is killed and replaced inside."""
        outage = Outage(role, time.monotonic())
        self.outages.append(outage)
        yield
        outage.end = time.monotonic()

    @contextmanager
    def open(self, call: Call) -> Generator[None]:
        """`call` is under way inside."""
        self.open_rids[call.rid] = call
        try:
            yield
        finally:
            del self.open_rids[call.rid]
            self.aborted_rids.discard(call.rid)
            self.ended_rids = [*self.ended_rids[-50:], call.rid]

    def was_out(self, start: float, *roles: str) -> bool:
        """Whether one of the processes (none given: any) was being replaced since `start`."""
        return any(
            outage.end >= start and (not roles or outage.role in roles) for outage in self.outages
        )

    def settle(self, call: Call, outcome: Outcome, start: float) -> None:
        """The request that was sent at `start` has ended."""
        self.counts[f"requests {outcome.kind}"] += 1
        excuses = {
            "lost": self.was_out(start),
            "broken": self.was_out(start, "tokenizer"),
            "aborted": call.rid in self.aborted_rids or self.is_ending,
            "refused": self.is_ending or "shutting down" not in outcome.why,
        }
        if not excuses.get(outcome.kind, True):
            self.wrong(f"{outcome.kind} for no reason ({outcome.why}): {call}")
        if outcome.kind == "done" and call.probe is not None:
            known = self.probes.setdefault(call.probe, outcome.ids)
            self.counts["probes compared"] += 1
            if known != outcome.ids:
                self.wrong(f"probe {call.probe} gave {outcome.ids}, not {known}: {call}")
