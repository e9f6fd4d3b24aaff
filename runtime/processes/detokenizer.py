"""The detokenizer process: batches of tokens in, batches of text out; ends nothing."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from ..detokenizer.batches import BatchDetokenizer
from ..ipc import to_detokenizer, to_tokenizer
from ..ipc.orders import NewEpoch, Ping, Stop
from ..ipc.to_detokenizer import TokenBatch
from ..ipc.to_launcher import Pong, Ready
from ..tokenizer.tokenizer import load_tokenizer
from .child import Settings
from .line import Line


class DetokenizerProcess:
    """One loop over two mailboxes; while the tokenizer process takes no more, orders only."""

    def __init__(self, settings: Settings) -> None:
        tokenizer = load_tokenizer(Path(settings.config.engine.model))
        self._line = Line(settings.directory, "detokenizer", to_detokenizer.WIRE)
        self._texts = self._line.to("tokenizer", to_tokenizer.WIRE)
        self._detokenizer = BatchDetokenizer(tokenizer.visible_bytes)
        self._pid = os.getpid()
        self._epoch = self._line.report_for_duty()
        self._stopping = False

    def run(self) -> None:
        gc.freeze()  # what lives as long as the process is not to be looked through again
        self._line.launcher.try_send(Ready(self._pid))
        while not self._stopping:
            waiting = self._line.wait()
            if waiting.orders:
                self._obey_orders()
            if waiting.news and (batch := self._line.news.receive_ready()) is not None:
                self._take(batch)
        self._line.close()

    def _take(self, batch: TokenBatch) -> None:
        self._advance(batch.epoch)
        if batch.epoch < self._epoch:
            return
        texts = self._detokenizer.take(batch)
        self._texts.send(texts, lambda: self._is_over(batch.epoch))

    def _is_over(self, epoch: int) -> bool:
        self._obey_orders()
        return self._stopping or self._epoch > epoch

    def _obey_orders(self) -> None:
        for order in self._line.orders.drain():
            match order:
                case NewEpoch(epoch):
                    self._advance(epoch)
                case Ping(number):
                    self._line.launcher.try_send(Pong(self._pid, number))
                case Stop():
                    self._stopping = True
                case _:
                    raise AssertionError(f"not an order for the detokenizer: {order}")

    def _advance(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            self._detokenizer.clear()


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    DetokenizerProcess(settings).run()
