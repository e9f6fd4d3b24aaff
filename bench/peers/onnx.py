"""ONNX Runtime GenAI, an in-process library, behind a server of ours (`onnx_server`)."""

from __future__ import annotations

from bench.peers.contender import OFFLINE, Contender
from bench.peers.directory import PeersDirectory, Word, make_once

_REQUIREMENTS = [
    "torch",
    "onnxruntime-genai==0.18.0",
    "transformers==5.24.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
]


def set_up(directory: PeersDirectory) -> None:
    venv = directory.venv("onnx")
    venv.install(_REQUIREMENTS)
    build: list[Word] = ["-m", "onnxruntime_genai.models.builder", "-i", directory.model]
    cache = directory.root / "onnx" / "cache"
    make_once(
        directory.root / "onnx" / "int4",
        lambda target: venv.run(*build, "-o", target, "-c", cache, "-p", "int4", "-e", "cpu"),
    )


def contenders(directory: PeersDirectory, threads: int) -> list[Contender]:
    """Static batches only, so that it can't be asked for shared prefixes."""
    python, model = directory.venv("onnx").python, directory.root / "onnx" / "int4"

    def command(port: int) -> list[str]:
        server = (str(python), "-m", "bench.peers.onnx_server")
        return [*server, str(model), str(port), str(threads)]

    return [
        Contender(
            name="ONNX int4",
            engine="ONNX",
            command=command,
            needs=(python, model),
            environment=OFFLINE,
            works=frozenset({"decode", "prefill", "batch", "json"}),
        )
    ]
