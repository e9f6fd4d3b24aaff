"""Which sides of which figure are compared, and what the ratio should reach. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.peers.works import BATCH, COLD, DECODE, JSON_1, JSON_8, PREFILL, WARM
from bench.report import Better, Row, spread

Samples = Mapping[str, Sequence[float]]
"""One figure's values by contender, in the order of the rounds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best of `ours` against the best of `peers`: how many times better it should be."""

    name: str
    figure: str
    ours: tuple[str, ...]
    peers: tuple[str, ...]
    target: float


LLAMA_CPP = ("llama.cpp Q4_0", "llama.cpp Q4_1", "llama.cpp Q8_0")
OPENVINO = ("OpenVINO f32", "OpenVINO int8", "OpenVINO int4")
_PEERS = (*LLAMA_CPP, *OPENVINO, "ONNX int4", "vLLM f32")
_F32_PEERS = ("OpenVINO f32", "vLLM f32")
_QUANTIZED = ("espalier int8", "espalier q4")
_OURS = ("espalier f32", *_QUANTIZED)

COMPARISONS = (
    Comparison("q4", DECODE, ("espalier q4",), ("llama.cpp Q4_0", "ONNX int4"), 1.4),
    Comparison("int8", DECODE, ("espalier int8",), ("llama.cpp Q8_0", "OpenVINO int8"), 1.5),
    Comparison("f32", DECODE, ("espalier f32",), _F32_PEERS, 1.1),
    Comparison("int8 or q4", PREFILL, _QUANTIZED, _PEERS, 1.2),
    Comparison("int8 or q4", BATCH, _QUANTIZED, _PEERS, 1.5),
    Comparison("f32", BATCH, ("espalier f32",), _F32_PEERS, 1.1),
    Comparison("any", COLD, _OURS, _PEERS, 2.0),
    Comparison("any", WARM, _OURS, _PEERS, 1.5),
    Comparison("any", JSON_1, _OURS, _PEERS, 2.0),
    Comparison("any", JSON_8, _OURS, _PEERS, 2.0),
)


def best(names: Sequence[str], samples: Samples, better: Better) -> str | None:
    """Who of `names` has the best median; None if nobody has any values."""
    measured = [name for name in names if samples.get(name)]
    if not measured:
        return None
    pick = max if better == "higher" else min
    return pick(measured, key=lambda name: median(samples[name]))


def ratio_row(comparison: Comparison, samples: Samples, better: Better) -> Row | None:
    """Ours over the best peer's, above one where we are better; None if a side is missing.

    The value is the medians' ratio; the note has the range of the ratios round by round, and
    the peers that were not measured.
    """
    ours = best(comparison.ours, samples, better)
    peer = best(comparison.peers, samples, better)
    if ours is None or peer is None:
        return None
    rounds = [
        _times_better(mine, theirs, better)
        for mine, theirs in zip(samples[ours], samples[peer], strict=True)
    ]
    absent = [name for name in comparison.peers if not samples.get(name)]
    notes = [ours, spread(rounds), *([f"without {', '.join(absent)}"] if absent else [])]
    return Row(
        f"{comparison.figure}: {comparison.name} / best peer",
        _times_better(median(samples[ours]), median(samples[peer]), better),
        "x",
        target=comparison.target,
        peer=peer,
        note="; ".join(notes),
    )


def _times_better(ours: float, theirs: float, better: Better) -> float:
    return ours / theirs if better == "higher" else theirs / ours
