"""Chooses who computes the steps of a model, by how its weights are held, and says so once."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, cast

import torch

from espalier.kernels.native import why_unavailable

from ..config import SchedulerConfig
from ..models.config import ModelConfig
from ..models.llama import LlamaModel
from ..models.packed import AnyWeights, is_packed
from .backend import Backend
from .kv_pool import DeviceTables, KVPool
from .torch_backend import TorchBackend

if TYPE_CHECKING:
    from espalier.kernels.pool import Pool

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
    from .native_backend import NativeBackend

    threads = _start_threads(num_threads)
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


def _start_threads(num_threads: int | None) -> Pool:
    """Where they fill all CPUs of this process, each has one of its own. Fewer go where there is
    room: somebody else may have been given the same number."""
    from espalier.kernels.pool import MAX_CPUS, Pool  # no such module without the extension

    cpus = sorted(os.sched_getaffinity(0))
    num_threads = num_threads or len(cpus)
    are_all = num_threads == len(cpus) and cpus[-1] < MAX_CPUS
    pool = Pool.start(num_threads, cpus=cpus if are_all else None)
    logger.info("native kernels: %s, %d threads", pool.isa, pool.num_threads)
    return pool
