"""Puts a scheduler together around a loaded model: device, cache and grammars."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from espalier.radix.cache import RadixCache
from espalier.radix.eviction import strategy_of

from .config import EngineConfig
from .errors import ModelError
from .grammar.engines import Engines
from .grammar.jumping import Jumper
from .grammar.service import CompileLimits, GrammarService
from .grammar.vocabulary import Vocabulary as GrammarVocabulary
from .loading import Model
from .models.config import ModelConfig
from .runner.build import build_backend
from .runner.device_runner import DeviceRunner
from .runner.kv_pool import KVPool, free_memory_bytes, pool_tokens
from .runner.protocol import Runner
from .scheduler.limits import RequestLimits
from .scheduler.sampling_rows import Vocabulary
from .scheduler.scheduler import Channel, Scheduler
from .scheduler.tree_journal import TreeJournal
from .tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A scheduler that is ready to run, and what its clients must know of it."""

    scheduler: Scheduler
    limits: RequestLimits
    runner: Runner
    grammars: GrammarService
    cache: RadixCache

    def close(self) -> None:
        """Stop the device and the compilers; the scheduler's loop has ended before."""
        self.runner.close()
        self.grammars.close()


def grammar_engines(tokenizer: Tokenizer, vocab_width: int) -> Engines:
    """Both grammar engines over a vocabulary; `vocab_width` is that of the model's logits."""
    return Engines(
        GrammarVocabulary(
            tuple(tokenizer.token_bytes),
            tuple(tokenizer.control_ids),
            tuple(tokenizer.eos_ids),
            vocab_width,
        )
    )


def compile_limits(config: EngineConfig) -> CompileLimits:
    """What a grammar may cost."""
    return CompileLimits(deadline_s=config.compile_deadline_s)


def assemble(
    config: EngineConfig,
    model: Model,
    channel: Channel,
    journal: TreeJournal | None = None,
    grammars: GrammarService | None = None,
) -> Assembly:
    """Build a scheduler over a loaded model; several may share one model's weights.

    A `journal` is told of all changes of its cache, from the beginning on. `grammars` is the
    assembly's from now on; by default one whose compilers start with the first constraint.
    """
    context_len = _context_len(config, model.config)
    num_slots = _num_slots(config, model.config, context_len)
    limits = RequestLimits(context_len, num_slots, model.tokenizer.vocab_size)
    backend = build_backend(
        model.config,
        model.weights,
        KVPool(model.config, num_slots, config.kv_storage),
        config.scheduler,
        context_len=context_len,
        num_threads=config.num_threads,
    )
    cache = RadixCache(num_slots, strategy=strategy_of(config.scheduler.eviction))
    if journal is not None:
        cache.observe(journal)
    vocabulary = Vocabulary(
        width=model.config.vocab_size,
        size=model.tokenizer.vocab_size,
        eos_ids=model.tokenizer.eos_ids,
        visible_bytes=model.tokenizer.visible_bytes,
    )
    if grammars is None:
        grammars = GrammarService(
            grammar_engines(model.tokenizer, model.config.vocab_size), compile_limits(config)
        )
    runner = DeviceRunner(backend)
    jumper = None
    if config.scheduler.jump_forward:
        jumper = Jumper(
            model.tokenizer.encode,
            model.tokenizer.token_bytes,
            control_ids=model.tokenizer.control_ids,
            vocab_width=model.config.vocab_size,
        )
    scheduler = Scheduler(
        config.scheduler,
        cache,
        runner,
        grammars,
        vocabulary,
        channel,
        jumper=jumper,
        journal=journal,
    )
    logger.info("KV pool: %d tokens of %s", num_slots, config.kv_storage)
    return Assembly(scheduler, limits, runner, grammars, cache)


def _context_len(config: EngineConfig, model: ModelConfig) -> int:
    wanted = config.context_len
    if wanted is not None and wanted > model.max_position:
        raise ModelError(
            f"context_len={wanted} is longer than the model's own {model.max_position}"
        )
    return model.max_position if wanted is None else wanted


def _num_slots(config: EngineConfig, model: ModelConfig, context_len: int) -> int:
    if config.kv_pool_tokens is not None:
        return config.kv_pool_tokens
    return pool_tokens(
        free_memory_bytes(),
        config.kv_memory_fraction,
        KVPool.bytes_per_slot(model, config.kv_storage),
        config.scheduler.max_running_requests * context_len,
    )
