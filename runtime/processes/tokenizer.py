"""The tokenizer process: HTTP, chat templates, tokenising and every open request's state.

One uvloop event loop. Mailboxes are read when their file descriptors become readable.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from ..client import RuntimeClient
from ..http.app import create_app
from ..http.metrics import Metrics
from ..http.server import HttpServer
from ..http.service import Service
from ..http.tracing import Tracing
from ..ipc import to_scheduler, to_tokenizer
from ..ipc.orders import Drain, NewEpoch, Order, Ping, Serve, Stop
from ..ipc.to_launcher import Pong, Ready
from ..tokenizer.tokenizer import load_tokenizer
from .child import Settings
from .line import Line

logger = logging.getLogger(__name__)

_DRAIN_POLL_S = 0.05


class TokenizerProcess:
    """Wires a `RuntimeClient` to the mailboxes and an HTTP server to it."""

    def __init__(self, settings: Settings) -> None:
        config = settings.config
        tokenizer = load_tokenizer(Path(config.engine.model))
        self._line = Line(settings.directory, "tokenizer", to_tokenizer.WIRE)
        self._requests = self._line.to("scheduler", to_scheduler.WIRE)
        self._client = RuntimeClient(
            tokenizer,
            self._requests.try_send,
            max_open_requests=config.max_queued_requests,
            epoch=self._line.report_for_duty(),
            timed=config.otlp_endpoint is not None,
        )
        model_name = config.served_model_name or config.engine.model
        self._tracing = (
            None
            if config.otlp_endpoint is None
            else Tracing.to_collector(config.otlp_endpoint, model_name)
        )
        service = Service(
            client=self._client,
            config=config,
            model_name=model_name,
            model_path=config.engine.model,
            metrics=Metrics(),
            started_at=time.time(),
            tracing=self._tracing,
        )
        self._server = HttpServer(create_app(service))
        self._socket = socket.socket(fileno=settings.fd)
        self._pid = os.getpid()
        self._drain: asyncio.Task[None] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch(loop, self._line.orders.fd, self._obey_orders)
        self._watch(loop, self._line.news.fd, self._take_news)
        gc.freeze()  # what lives as long as the process is not to be looked through again
        self._line.launcher.try_send(Ready(self._pid))
        await self._server.serve(sockets=[self._socket])
        self._client.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        for mailbox in (self._line.orders, self._line.news):
            loop.remove_reader(mailbox.fd)
        self._line.close()

    def _watch(self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], None]) -> None:
        """ZeroMQ's descriptors tell changes only, so what is there already is read now."""

        def read_or_die() -> None:
            try:
                read()
            except BaseException:  # the loop would go on, and whoever waits for the rest, wait
                logger.exception("the tokenizer process can't read its mailbox")
                os._exit(1)

        loop.add_reader(fd, read_or_die)
        loop.call_soon(read_or_die)

    def _take_news(self) -> None:
        for news in self._line.news.drain():
            self._client.deliver(news)

    def _obey_orders(self) -> None:
        for order in self._line.orders.drain():
            self._obey(order)

    def _obey(self, order: Order) -> None:
        match order:
            case NewEpoch(epoch, why):
                self._client.new_epoch(epoch, why)
            case Serve(epoch, limits):
                self._client.serve(epoch, limits)
            case Ping(number):
                self._line.launcher.try_send(Pong(self._pid, number))
            case Drain(deadline_s):
                self._drain = asyncio.create_task(self._end_after(deadline_s))
            case Stop():
                self._server.stop(now=True)
            case _:
                raise AssertionError(f"not an order for the tokenizer: {order}")

    async def _end_after(self, deadline_s: float) -> None:
        """Let the open requests end, for so long; abort the rest, tell them, and end."""
        self._client.refuse("the runtime is shutting down")
        deadline = time.monotonic() + deadline_s
        while self._client.num_open and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        self._client.close()
        self._server.stop()


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(TokenizerProcess(settings).run())
