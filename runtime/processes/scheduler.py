"""The scheduler process: the scheduler's loop, and a thread that reads its mailboxes."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from functools import partial

from ..assembly import assemble, compile_limits
from ..grammar.birth import fork_zygote
from ..grammar.engines import Engines
from ..grammar.service import GrammarService
from ..ipc import to_detokenizer, to_scheduler, to_subscribers, to_tokenizer
from ..ipc.orders import NewEpoch, Order, Ping, Stop
from ..ipc.sockets import Broadcast
from ..ipc.to_detokenizer import TokenBatch
from ..ipc.to_launcher import Pong, Ready
from ..ipc.to_tokenizer import CacheFlushed, StatsReport
from ..loading import Model
from ..messages import TokenOutput
from ..scheduler.control import ReportStats, Shutdown
from ..scheduler.link import SchedulerLink
from ..scheduler.tree_journal import TreeJournal
from .child import Settings
from .line import Line

logger = logging.getLogger(__name__)


def run_scheduler(settings: Settings, model: Model, engines: Engines) -> None:
    """Serve until told to stop, from a process's only thread. `model` and `engines` may be shared
    with other processes: they are only read."""
    limits = compile_limits(settings.config.engine)
    zygote = fork_zygote(engines, limits.pool.max_job_bytes)  # before there are other threads
    line = Line(settings.directory, "scheduler", to_scheduler.WIRE)
    epoch = line.report_for_duty()
    grammars = GrammarService(engines, limits, zygote)
    SchedulerProcess(settings, model, grammars, line, epoch).run()


class SchedulerProcess:
    """The main thread runs the scheduler and owns the postboxes; the reader owns `line`."""

    def __init__(
        self,
        settings: Settings,
        model: Model,
        grammars: GrammarService,
        line: Line[to_scheduler.SchedulerNews],
        epoch: int,
    ) -> None:
        self._line = line
        self._reports = line.to_launcher()
        self._tokens = line.to("detokenizer", to_detokenizer.WIRE)
        self._answers = line.to("tokenizer", to_tokenizer.WIRE)
        endpoint = settings.config.kv_events
        self._events = None if endpoint is None else line.broadcast(endpoint, to_subscribers.WIRE)
        self._assembly = assemble(
            settings.config.engine,
            model,
            self._send_outputs,
            None if self._events is None else _journal(self._events),
            grammars,
        )
        grammars.start()
        self._inbox = self._assembly.scheduler.inbox
        self._link = SchedulerLink(epoch, self._inbox, self._send_tokens, self._send_answer)
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._last_ping = self._last_pong = -1

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="espalier-reader", daemon=True)
        reader.start()
        self._reports.try_send(Ready(self._pid, self._assembly.limits))
        self._assembly.scheduler.run()
        reader.join()
        self._assembly.close()
        if self._events is not None:
            self._events.close()

    # -- the scheduler's thread ------------------------------------------------------------

    def _send_outputs(self, outputs: list[TokenOutput]) -> None:
        self._link.send_outputs(outputs)

    def _send_tokens(self, batch: TokenBatch) -> None:
        self._tokens.send(batch, partial(self._is_over, batch.epoch))

    def _send_answer(self, answer: CacheFlushed | StatsReport) -> None:
        self._answers.send(answer, partial(self._is_over, answer.epoch))

    def _is_over(self, epoch: int) -> bool:
        """Whether to give a full queue up. The loop that waits here is alive, and says so."""
        self._answer_ping()
        return self._stopping.is_set() or self._link.epoch > epoch

    def _answer_ping(self) -> None:
        if self._last_pong < self._last_ping:
            self._last_pong = self._last_ping
            self._reports.try_send(Pong(self._pid, self._last_pong))

    # -- the reader's thread ---------------------------------------------------------------

    def _read(self) -> None:
        try:
            while not self._stopping.is_set():
                waiting = self._line.wait()
                if waiting.orders:
                    for order in self._line.orders.drain():
                        self._obey(order)
                if waiting.news:
                    for news in self._line.news.drain():
                        self._link.take(news)
        except BaseException:
            logger.exception("the scheduler process can't read its mailbox")
            os._exit(1)  # deaf, it would be of no use; the launcher replaces it

    def _obey(self, order: Order) -> None:
        match order:
            case NewEpoch():
                self._link.take(order)
            case Ping(number):
                self._last_ping = number
                self._inbox.put(ReportStats(lambda _: self._answer_ping()))
            case Stop():
                self._stopping.set()
                self._inbox.put(Shutdown())
            case _:
                raise AssertionError(f"not an order for the scheduler: {order}")


def _journal(events: Broadcast[to_subscribers.EventBatch]) -> TreeJournal:
    """What is published, in an epoch of this process's own."""
    return TreeJournal(secrets.randbits(63), events.send)
