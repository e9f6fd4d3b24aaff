"""Holds the loaded model and forks scheduler processes, so that a new one is there at once.

Importing torch, reading the weights and loading the grammar engines takes seconds; a fork shares
it all, page for page, as nobody writes to it. The server itself stays on one thread, never
computes, and has no sockets: a forked process finds nothing in a state that it can't use.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import traceback
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

import torch

from ..errors import EspalierError
from ..ipc.fork_server import FORK, Exited, Forked, ForkReport, Loaded, encode
from ..loading import Model, load_model
from .child import Settings, begin_child
from .line import report_failure

if TYPE_CHECKING:
    from ..grammar.engines import Engines


class ForkServer:
    """At most one scheduler process at a time."""

    def __init__(
        self, settings: Settings, model: Model, engines: Engines, num_threads: int
    ) -> None:
        self._settings = settings
        self._model = model
        self._engines = engines
        self._num_threads = num_threads
        self._child = 0
        self._child_fd = -1

    def run(self) -> None:
        """Fork when asked, tell how it ended, until the input ends."""
        stdin = sys.stdin.fileno()
        while True:
            watched = [stdin] if self._child == 0 else [stdin, self._child_fd]
            ready, _, _ = select.select(watched, [], [])
            if self._child and self._child_fd in ready:
                self._reap()
            if stdin in ready:
                asked = os.read(stdin, 4096)
                if not asked:
                    break
                assert asked == FORK and self._child == 0, (asked, self._child)
                self._fork()
        if self._child:  # it was told to stop by the launcher, or the launcher is gone
            self._reap()

    def _fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os._exit(self._be_scheduler(parent))
        self._child, self._child_fd = pid, os.pidfd_open(pid)

    def _be_scheduler(self, parent: int) -> int:
        """The forked process, from here to its end; its exit status."""
        try:
            report(self._settings.fd, Forked(os.getpid()))  # before it says anything itself
            os.close(self._settings.fd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            begin_child("scheduler", self._settings.config, parent)
            torch.set_num_threads(self._num_threads)
            from .scheduler import run_scheduler

            run_scheduler(self._settings, self._model, self._engines)
        except EspalierError as error:
            report_failure(self._settings.directory, str(error))
            return 1
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            sys.stderr.flush()
        return 0

    def _reap(self) -> None:
        pid, status = os.waitpid(self._child, 0)
        os.close(self._child_fd)
        self._child, self._child_fd = 0, -1
        report(self._settings.fd, Exited(pid, os.waitstatus_to_exitcode(status)))


def report(fd: int, message: ForkReport) -> None:
    os.write(fd, encode(message))


def run(settings: Settings) -> None:
    """Load the model, then fork as asked. Raises `ModelError`."""
    # What else a scheduler imports takes as long as the weights: both at once, on two cores.
    importing = Thread(target=import_module, args=(f"{__package__}.scheduler",))
    importing.start()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    try:
        model = load_model(settings.config.engine)
    finally:
        importing.join()
    from ..assembly import grammar_engines

    engines = grammar_engines(model.tokenizer, model.config.vocab_size)
    engines.warm_up()
    gc.freeze()  # else a collection in a forked process would touch, and so copy, every page
    report(settings.fd, Loaded())
    ForkServer(settings, model, engines, num_threads).run()
