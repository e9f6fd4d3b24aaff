"""The whole runtime in one process, without sockets: client, scheduler and detokenizer.

The tokenizer is the default model's own; the weights are a tiny random Llama over its
vocabulary, so output is gibberish and fast.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

from espalier.radix.cache import RadixCache
from espalier.runtime.assembly import grammar_engines
from espalier.runtime.client import RuntimeClient
from espalier.runtime.config import SchedulerConfig
from espalier.runtime.detokenizer.batches import BatchDetokenizer
from espalier.runtime.hub.catalog import default_cache_dir
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.ipc.orders import NewEpoch
from espalier.runtime.ipc.to_detokenizer import TokenBatch
from espalier.runtime.ipc.to_scheduler import SchedulerNews
from espalier.runtime.ipc.to_tokenizer import TokenizerNews
from espalier.runtime.messages import TokenOutput
from espalier.runtime.models.config import ModelConfig, RopeConfig
from espalier.runtime.runner.build import build_backend
from espalier.runtime.runner.device_runner import DeviceRunner
from espalier.runtime.runner.kv_pool import KVPool
from espalier.runtime.scheduler.control import Shutdown
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.scheduler.link import SchedulerLink
from espalier.runtime.scheduler.sampling_rows import Vocabulary
from espalier.runtime.scheduler.scheduler import Scheduler
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.fakes import tiny_weights
from tests.local_grammars import LocalGrammars

CONTEXT_LEN = 512
POOL_TOKENS = 4096


@cache
def smollm2_tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2", cache_dir=default_cache_dir()).path)


class InProcessRuntime:
    """`client` talks to a scheduler in a thread; everything else is as between processes."""

    def __init__(
        self, *, context_len: int, max_open_requests: int, timed: bool, **options: object
    ) -> None:
        self._loop = asyncio.get_running_loop()
        tokenizer = smollm2_tokenizer()
        config = ModelConfig(
            architecture="llama",
            vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            intermediate_size=32,
            num_layers=1,
            num_heads=2,
            num_kv_heads=1,
            head_dim=8,
            rms_norm_eps=1e-5,
            rope=RopeConfig(theta=10_000.0),
            max_position=context_len,
            tie_word_embeddings=True,
        )
        scheduler_config = SchedulerConfig(**{"max_running_requests": 16, **options})  # type: ignore[arg-type]
        self._runner = DeviceRunner(
            build_backend(
                config,
                tiny_weights(config),
                KVPool(config, POOL_TOKENS, "float32"),
                scheduler_config,
                context_len=context_len,
                num_threads=None,
            )
        )
        self._grammars = LocalGrammars(grammar_engines(tokenizer, tokenizer.vocab_size))
        vocabulary = Vocabulary(
            width=tokenizer.vocab_size,
            size=tokenizer.vocab_size,
            eos_ids=tokenizer.eos_ids,
            visible_bytes=tokenizer.visible_bytes,
        )
        self.cache = RadixCache(POOL_TOKENS)
        self.scheduler = Scheduler(
            scheduler_config, self.cache, self._runner, self._grammars, vocabulary, self._channel
        )
        self._detokenizer = BatchDetokenizer(tokenizer.visible_bytes)
        self._link = SchedulerLink(0, self.scheduler.inbox, self._send_tokens, self._answer)
        self.limits = RequestLimits(context_len, POOL_TOKENS, tokenizer.vocab_size)
        self.client = RuntimeClient(
            tokenizer, self._send, max_open_requests=max_open_requests, timed=timed
        )
        self.client.serve(0, self.limits)
        self._thread = threading.Thread(target=self.scheduler.run, daemon=True)
        self._thread.start()

    def lose_a_process(self, epoch: int) -> None:
        """What the launcher says when a process has died."""
        self.client.new_epoch(epoch, "the scheduler process ended")
        self._detokenizer.clear()
        self._link.take(NewEpoch(epoch, "the scheduler process ended"))

    async def close(self) -> None:
        self.client.close()
        self.scheduler.inbox.put(Shutdown())
        await asyncio.to_thread(self._thread.join)
        self._runner.close()
        self._grammars.close()

    def _send(self, news: SchedulerNews) -> bool:
        self._link.take(news)
        return True

    def _channel(self, outputs: list[TokenOutput]) -> None:
        self._link.send_outputs(outputs)

    def _send_tokens(self, batch: TokenBatch) -> None:
        if batch.epoch == self._link.epoch:
            self._answer(self._detokenizer.take(batch))

    def _answer(self, news: TokenizerNews) -> None:
        self._loop.call_soon_threadsafe(self.client.deliver, news)


@asynccontextmanager
async def in_process_runtime(
    *,
    context_len: int = CONTEXT_LEN,
    max_open_requests: int = 64,
    timed: bool = False,
    **options: object,
) -> AsyncGenerator[InProcessRuntime]:
    runtime = InProcessRuntime(
        context_len=context_len, max_open_requests=max_open_requests, timed=timed, **options
    )
    try:
        yield runtime
    finally:
        await runtime.close()
