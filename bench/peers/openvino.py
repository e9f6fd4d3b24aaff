"""OpenVINO GenAI, an in-process library, behind a server of ours (`openvino_server`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.peers.contender import OFFLINE, Contender
from bench.peers.directory import PeersDirectory, Word, make_once

_REQUIREMENTS = ["torch", "openvino-genai==2026.4.1.0", "optimum-intel[openvino]==2.2.0"]
# The exporter's words; its own groups of 128 do not divide the model's width of 576.
_FORMATS = {"f32": ["fp32"], "int8": ["int8"], "int4": ["int4", "--group-size", "64"]}


def set_up(directory: PeersDirectory) -> None:
    venv = directory.venv("openvino")
    venv.install(_REQUIREMENTS, unwanted=["torchvision"])
    command: list[Word] = ["-m", "optimum.commands.optimum_cli", "export", "openvino"]
    command += ["--model", directory.model, "--task", "text-generation-with-past"]
    for precision, weights in _FORMATS.items():
        export = partial(venv.run, *command, "--weight-format", *weights)
        make_once(_model(directory, precision), export)


def contenders(directory: PeersDirectory, threads: int) -> list[Contender]:
    return [_contender(directory, precision, threads) for precision in _FORMATS]


def _contender(directory: PeersDirectory, precision: str, threads: int) -> Contender:
    python, model = directory.venv("openvino").python, _model(directory, precision)

    def command(port: int) -> list[str]:
        server = (str(python), "-m", "bench.peers.openvino_server")
        return [*server, str(model), str(port), str(threads), precision]

    return Contender(
        name=f"OpenVINO {precision}",
        engine="OpenVINO",
        command=command,
        needs=(python, model),
        environment=OFFLINE,
    )


def _model(directory: PeersDirectory, precision: str) -> Path:
    return directory.root / "openvino" / precision
