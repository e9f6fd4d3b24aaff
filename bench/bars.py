"""Draws panels of horizontal bars as SVG; knows names and numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

LABEL, BAR, VALUE, LINE, COLUMNS = 110, 170, 60, 18, 3  # widths and heights in pixels
COLOURS = ("#3465a4", "#73a5d8")


def bar_panels(title: str, panels: Mapping[str, Mapping[str, float]]) -> str:
    """One panel for each figure, with one bar for each name; every panel has a scale of its own.

    Bars alternate in colour, so that pairs of names are told apart.
    """
    width = LABEL + BAR + VALUE
    height = LINE * (2 + max(len(bars) for bars in panels.values()))
    rows = -(-len(panels) // COLUMNS)
    body = [f'<text x="8" y="20" font-size="15">{escape(title)}</text>']
    for index, (name, bars) in enumerate(panels.items()):
        x, y = index % COLUMNS * width, 2 * LINE + index // COLUMNS * height
        body.append(f'<g transform="translate({x},{y})">{_panel(name, bars)}</g>')
    size = f'width="{COLUMNS * width}" height="{2 * LINE + rows * height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _panel(name: str, bars: Mapping[str, float]) -> str:
    parts = [f'<text x="8" y="13" font-weight="bold">{escape(name)}</text>']
    most = max(bars.values()) or 1.0
    for index, (label, value) in enumerate(bars.items()):
        y, length = LINE * (index + 1), BAR * value / most
        parts += [
            f'<text x="{LABEL - 6}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y + 3}" width="{length:.1f}" height="{LINE - 5}" '
            f'fill="{COLOURS[index % 2]}"/>',
            f'<text x="{LABEL + length + 4:.1f}" y="{y + 13}">{value:,.4g}</text>',
        ]
    return "\n".join(parts)
