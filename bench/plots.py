"""Pictures of a report's numbers, by matplotlib, in the format that the file's name asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of positive x and y."""

    name: str
    points: list[tuple[float, float]]


def log_plot(file: Path, title: str, x_label: str, y_label: str, curves: list[Curve]) -> None:
    """Curves on two logarithmic axes."""
    figure, axes = panels(1, width=6.4, height=4.2)
    (axis,) = axes
    for curve in curves:
        axis.loglog(*zip(*curve.points, strict=True), marker=".", label=curve.name)
    axis.set(title=title, xlabel=x_label, ylabel=y_label)
    axis.grid(True, color="0.9")
    axis.legend()
    save(figure, file)


def bar_panels(file: Path, title: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    """One panel for each figure, with a bar for each name; every panel has a scale of its own.

    Bars alternate in colour, so that pairs of names are told apart.
    """
    num_bars = max(map(len, figures.values()))
    figure, axes = panels(len(figures), columns=_COLUMNS, width=4.6, height=0.6 + 0.24 * num_bars)
    for axis, (name, bars) in zip(axes, figures.items(), strict=True):
        colours = ["tab:blue" if index % 2 == 0 else "skyblue" for index in range(len(bars))]
        drawn = axis.barh(list(bars), list(bars.values()), color=colours)
        axis.bar_label(drawn, fmt="{:,.4g}", padding=3, fontsize=7)
        axis.margins(x=0.2)
        axis.invert_yaxis()
        axis.set_title(name, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.suptitle(title)
    save(figure, file)


def panels(count: int, *, columns: int = 1, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its axes, row by row, each of so many inches; what is not needed is empty."""
    rows = -(-count // columns)
    size = (columns * width, rows * height)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def save(figure: Any, file: Path) -> None:
    """Write a figure and forget it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
