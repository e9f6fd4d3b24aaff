"""Ratios against the best peer: who is best, which way is better, and who was not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import llama_cpp, onnx, openvino, ours, vllm
from bench.peers.comparisons import COMPARISONS, Comparison, best, ratio_row
from bench.peers.directory import PeersDirectory
from bench.peers.works import WORKS

COMPARISON = Comparison("q4", "decode", ("us",), ("a", "b"), 1.4)


def test_best_has_the_highest_or_the_lowest_median() -> None:
    samples = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 2.0]}
    assert best(("a", "b"), samples, "higher") == "b"
    assert best(("a", "b"), samples, "lower") == "a"


def test_best_of_nobody_is_none() -> None:
    assert best(("a", "b"), {"c": [1.0]}, "higher") is None


def test_a_ratio_compares_medians_with_the_best_peer() -> None:
    samples = {"us": [30.0, 28.0, 32.0], "a": [10.0, 11.0, 9.0], "b": [20.0, 20.0, 16.0]}
    row = ratio_row(COMPARISON, samples, "higher")
    assert row is not None
    assert (row.value, row.peer, row.met) == (1.5, "b", "yes")
    assert row.note == "us; 3 runs, 1.4 to 2"


def test_less_time_is_a_ratio_above_one() -> None:
    row = ratio_row(COMPARISON, {"us": [2.0], "a": [3.0], "b": [8.0]}, "lower")
    assert row is not None
    assert (row.value, row.peer, row.better) == (1.5, "a", "higher")


def test_a_peer_that_was_not_measured_is_named() -> None:
    row = ratio_row(COMPARISON, {"us": [2.0], "a": [2.0]}, "higher")
    assert row is not None
    assert row.note.endswith("without b")
    assert row.met == "no"


@pytest.mark.parametrize(
    "samples", [{"us": [1.0]}, {"a": [1.0]}, {"us": [1.0], "a": list[float]()}]
)
def test_there_is_no_ratio_without_both_sides(samples: dict[str, list[float]]) -> None:
    assert ratio_row(COMPARISON, samples, "higher") is None


def test_comparisons_name_contenders_and_figures_that_exist(tmp_path: Path) -> None:
    directory = PeersDirectory(tmp_path)
    peers = [
        *llama_cpp.contenders(directory, tmp_path / "model.gguf", 2),
        *openvino.contenders(directory, 2),
        *onnx.contenders(directory, 2),
        *vllm.contenders(directory, 2),
    ]
    figures = {figure for work in WORKS.values() for figure in work.figures}
    mine = {contender.name for contender in ours.contenders(2)}
    for comparison in COMPARISONS:
        assert comparison.figure in figures
        assert set(comparison.ours) <= mine
        assert set(comparison.peers) <= {contender.name for contender in peers}
