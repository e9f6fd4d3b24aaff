"""Between the wire and a scheduler's inbox: epochs, and which outputs anyone still waits for.

Two threads meet here: the one that reads the mailbox calls `take`, the scheduler's calls
`send_outputs`. Knows no sockets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from ..ipc import to_scheduler as wire
from ..ipc.orders import NewEpoch
from ..ipc.to_detokenizer import TextStart, TokenBatch
from ..ipc.to_tokenizer import CacheFlushed, StatsReport
from ..messages import AbortRequest, SubmitRequests, TokenOutput
from .control import AbortAll, FlushCache, Message, ReportStats, SendSnapshot
from .stats import SchedulerStats


class SchedulerLink:
    """One scheduler's tie to its clients.

    A request belongs to the epoch in which it came. When a newer one begins, all that is
    open is aborted, and nothing of it is sent any more.
    """

    def __init__(
        self,
        epoch: int,
        inbox: SimpleQueue[Message],
        send_tokens: Callable[[TokenBatch], None],
        send_answer: Callable[[CacheFlushed | StatsReport], None],
    ) -> None:
        self._inbox = inbox
        self._send_tokens = send_tokens
        self._send_answer = send_answer
        self._lock = threading.Lock()  # guards the three below
        self._epoch = epoch
        self._open: set[tuple[str, int]] = set()
        self._starts: list[TextStart] = []

    @property
    def epoch(self) -> int:
        return self._epoch

    def take(self, news: wire.SchedulerNews | NewEpoch) -> None:
        """A message from outside; those of older epochs are dropped."""
        if news.epoch < self._epoch:
            return
        if news.epoch > self._epoch:
            self._begin(news.epoch)
        match news:
            case wire.Submit(_, requests):
                with self._lock:
                    for request in requests:
                        key = request.rid, request.choice
                        self._open.add(key)
                        self._starts.append(
                            TextStart(*key, request.sampling.stop, request.sampling.stop_regex)
                        )
                self._inbox.put(SubmitRequests(requests))
            case wire.Abort(_, rid):
                self._inbox.put(AbortRequest(rid))
            case wire.FlushCache(epoch, call):
                self._inbox.put(FlushCache(self._flush_reply(epoch, call)))
            case wire.ReportStats(epoch, call):
                self._inbox.put(ReportStats(self._stats_reply(epoch, call)))
            case wire.SendSnapshot():
                self._inbox.put(SendSnapshot())
            case NewEpoch():
                pass

    def send_outputs(self, outputs: list[TokenOutput]) -> None:
        """The scheduler's channel: what a step gave, to those who still wait for it."""
        with self._lock:
            wanted = tuple(o for o in outputs if (o.rid, o.choice) in self._open)
            self._open.difference_update((o.rid, o.choice) for o in wanted if o.finish is not None)
            starts, self._starts = tuple(self._starts), []
            epoch = self._epoch
        if wanted or starts:
            self._send_tokens(TokenBatch(epoch, starts, wanted))

    def _begin(self, epoch: int) -> None:
        with self._lock:
            self._epoch = epoch
            self._open.clear()
            self._starts.clear()
        self._inbox.put(AbortAll("its client is gone"))

    def _flush_reply(self, epoch: int, call: int) -> Future[int]:
        reply: Future[int] = Future()
        reply.add_done_callback(
            lambda done: self._send_answer(CacheFlushed(epoch, call, done.result()))
        )
        return reply

    def _stats_reply(self, epoch: int, call: int) -> Callable[[SchedulerStats], None]:
        return lambda stats: self._send_answer(StatsReport(epoch, call, stats))
