"""Curves on two logarithmic axes as an SVG file, without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path

_WIDTH, _HEIGHT, _MARGIN = 640, 420, 70
_COLOURS = ("#1b6ca8", "#c0392b", "#888888", "#2e8b57")


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of positive x and y."""

    name: str
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Whole decades from `low` to `high`, drawn from pixel `start` to pixel `end`."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def around(cls, values: list[float], start: float, end: float) -> _Axis:
        low = floor(log10(min(values)))
        return cls(low, max(ceil(log10(max(values))), low + 1), start, end)

    def at(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def write_log_plot(file: Path, title: str, x_label: str, y_label: str, curves: list[Curve]) -> None:
    """Draw `curves` with their names beside their last points."""
    points = [point for curve in curves for point in curve.points]
    x = _Axis.around([px for px, _ in points], _MARGIN, _WIDTH - 2 * _MARGIN)
    y = _Axis.around([py for _, py in points], _HEIGHT - _MARGIN, _MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 30, title, "middle"),
        _text(_WIDTH / 2, _HEIGHT - 20, x_label, "middle"),
        _text(10, _MARGIN - 20, y_label, "start"),
        *_grid(x, y),
    ]
    for index, curve in enumerate(curves):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{x.at(px):.1f},{y.at(py):.1f}" for px, py in curve.points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end_x, end_y = curve.points[-1]
        lines.append(_text(x.at(end_x) + 6, y.at(end_y) + 4, curve.name, "start", colour))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, "</svg>"]) + "\n")


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    for value in x.decades:
        at = x.at(value)
        yield _line(at, y.start, at, y.end)
        yield _text(at, y.start + 18, f"{value:,g}", "middle")
    for value in y.decades:
        at = y.at(value)
        yield _line(x.start, at, x.end, at)
        yield _text(x.start - 6, at + 4, f"{value:,g}", "end")


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
