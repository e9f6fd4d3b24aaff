"""A worker, from its fork to its end: jobs in, answers out, one at a time.

It may be killed at any moment, and may crash: it owns nothing but its memory.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import traceback
from contextlib import suppress
from pathlib import Path

from ..errors import InvalidRequest
from ..ipc.compiling import (
    ANSWERS,
    JOBS,
    Answer,
    Begun,
    Broken,
    Check,
    Checked,
    Compile,
    Job,
    OutOfMemory,
    Refused,
)
from ..ipc.frames import receive_frame, send_frame
from .compile_job import compile_constraint
from .engines import Engines
from .validation import validate_json

_BEGUN = ANSWERS.encode(Begun())


def serve(connection: socket.socket, engines: Engines, max_job_bytes: int) -> None:
    """Answer jobs until the connection ends."""
    _die_easily()
    with suppress(ConnectionError):  # nobody waits for the answer any more
        while (frame := receive_frame(connection)) is not None:
            send_frame(connection, _BEGUN)
            send_frame(connection, _answer(JOBS.decode(frame), engines, max_job_bytes))


def _answer(job: Job, engines: Engines, max_job_bytes: int) -> bytes:
    _limit_memory(_mapped_bytes() + max_job_bytes)
    try:
        return ANSWERS.encode(_work(job, engines))
    except InvalidRequest as error:
        answer: Answer = Refused(str(error), error.param)
    except MemoryError:
        answer = OutOfMemory()
    except BaseException as error:  # a panic of Rust code is no Exception
        traceback.print_exc()
        answer = Broken(f"{type(error).__name__}: {error}")
    return ANSWERS.encode(answer)


def _work(job: Job, engines: Engines) -> Answer:
    match job:
        case Compile(constraint):
            return compile_constraint(constraint, engines)
        case Check(schema, text):
            verdict = validate_json(schema, text)
            return Checked(verdict.valid, verdict.trouble)


def _die_easily() -> None:
    """Leave no core file; where the machine runs out of memory, be what the kernel kills; at a
    crash end at once: the handlers that libraries install allocate, and may hang."""
    for fatal in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT):
        signal.signal(fatal, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text("1000")


def _mapped_bytes() -> int:
    """The size of the address space, which is what can be limited."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(max_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        max_bytes = min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, hard))
