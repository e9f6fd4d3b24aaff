"""Scheduler process, zygote and workers: how compilers are forked, asked, and stopped.

    scheduler process ── orders, reports ── zygote        one packet each way a message
          └──────────── jobs, answers ───── worker        frames; one job at a time

The zygote has the grammar engines in memory and never computes; workers are forked from it.
"""

from __future__ import annotations

import msgspec

from ..grammar.vocabulary import Vocabulary
from ..messages import Constraint, EngineName
from .wire import Wire


class ZygoteSettings(msgspec.Struct, frozen=True):
    """What a zygote finds on its standard input. It inherits `control`, a socket of packets.

    A worker may take `max_job_bytes` of memory for one job.
    """

    vocabulary: Vocabulary
    control: int
    parent_pid: int
    max_job_bytes: int


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Make the worker with this number; the packet brings its end of a stream."""

    worker: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Kill the worker; it may have ended already."""

    worker: int


class Demote(msgspec.Struct, frozen=True, tag=True):
    """Let the worker have only what nobody else wants of the processors, from now on."""

    worker: int


Order = Fork | Kill | Demote


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engines are in memory; workers can be forked."""


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A worker has ended; `status` is an exit status, or minus the number of a signal."""

    worker: int
    status: int


Report = Ready | Exited


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Answered by an `Artefact`."""

    constraint: Constraint


class Check(msgspec.Struct, frozen=True, tag=True):
    """Whether `text` is of this schema; answered by `Checked`."""

    schema: str
    text: str


Job = Compile | Check


class Begun(msgspec.Struct, frozen=True, tag=True):
    """The worker has the job; the answer follows."""


class Artefact(msgspec.Struct, frozen=True, tag=True):
    """A compiled constraint on its way to the process that matches with it.

    payload: a grammar as text that the engine is known to build, and soon; or, if it
    is_serialized, what xgrammar has built. is_json: control characters can't occur in the output.
    has_free_keys: its objects
    have keys that the schema does not name. notes: how the grammar is narrower than what was
    asked for, and what of it is not enforced, if it is not `is_whole`. min_tokens: a budget that
    is enough, the stop token included; 0 if none is known. closing: the grammar that the output
    is closed by (`grammar.wire`), empty if there is none; growth: how much one token may lengthen
    its shortest ending, in tokens. named_ids: tokens that may come although they are control
    tokens: a structural tag names them.
    """

    engine: EngineName
    payload: bytes
    is_json: bool
    is_serialized: bool = False
    has_free_keys: bool = False
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    min_tokens: int = 0
    growth: float = 0.0
    closing: bytes = b""
    named_ids: tuple[int, ...] = ()


class Checked(msgspec.Struct, frozen=True, tag=True):
    """A `validation.Verdict`."""

    valid: bool | None
    trouble: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The job is at fault: `InvalidRequest` with this text and parameter."""

    message: str
    param: str | None


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """The job takes more memory than it may have."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The worker failed over the job, by its own fault."""

    message: str


Answer = Artefact | Checked | Refused | OutOfMemory | Broken

SETTINGS: Wire[ZygoteSettings] = Wire(ZygoteSettings)
ORDERS: Wire[Order] = Wire(Order)
REPORTS: Wire[Report] = Wire(Report)
JOBS: Wire[Job] = Wire(Job)
ANSWERS: Wire[Begun | Answer] = Wire(Begun | Answer)
