"""Chooses who computes the steps of a model, by how its weights are held, and says so once."""

from __future__ import annotations

import logging
import os
from typing import cast

import torch

from espalier.kernels.native import why_unavailable

from ..config import SchedulerConfig
from ..models.config import ModelConfig
from ..models.llama import LlamaModel
from ..models.packed import AnyWeights, is_packed
from .backend import Backend
from .kv_pool import DeviceTables, KVPool
from .torch_backend import TorchBackend

logger = logging.getLogger(__name__)

AnyBackend = Backend[object, object]


def build_backend(
    config: ModelConfig,
    weights: AnyWeights,
    pool: KVPool,
    scheduler: SchedulerConfig,
    *,
    context_len: int,
    num_threads: int | None,
) -> AnyBackend:
    """Native kernels for packed weights, torch's for tensors. Starts the threads they need."""
    num_rows = scheduler.max_running_requests
    if not is_packed(weights):
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        why = why_unavailable()
        if why is not None:
            logger.warning("torch computes, slowly: the native kernels can't be loaded: %s", why)
        tables = DeviceTables(num_rows, context_len)
        return cast(AnyBackend, TorchBackend(LlamaModel(config, weights), pool, tables))
    from espalier.kernels.pool import Pool  # there is no such module without the extension

    from .native_backend import NativeBackend

    threads = Pool.start(num_threads or len(os.sched_getaffinity(0)))
    logger.info("native kernels: %s, %d threads", threads.isa, threads.num_threads)
    return cast(
        AnyBackend,
        NativeBackend(
            LlamaModel(config, weights),
            pool,
            threads,
            num_rows=num_rows,
            context_len=context_len,
            max_step_tokens=scheduler.max_step_tokens,
        ),
    )
