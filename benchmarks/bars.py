"""Horizontal bars as SVG: groups of them, a colour for each place in a group, the value beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 760
LEFT = 230
RIGHT = 90
BAR = 16
GAP = 14
TOP = 58
COLOURS = ("#2f6db5", "#e08a1e", "#7a7a7a", "#3f9b57")


class Bar(NamedTuple):
    """legend: of its place in every group."""

    legend: str
    value: float


def bars(title: str, legends: Sequence[str], groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """A picture of the groups, each with its label; all bars have one scale that begins at 0."""
    most = max((bar.value for _, group in groups for bar in group), default=0.0)
    scale = (WIDTH - LEFT - RIGHT) / most if most > 0 else 0.0
    shapes = [_text(12, 22, title, size=15)]
    x = 12
    for legend, colour in zip(legends, COLOURS, strict=False):
        shapes.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>')
        shapes.append(_text(x + 15, 43, legend))
        x += 35 + 7 * len(legend)
    y = TOP
    for label, group in groups:
        middle = y + BAR * len(group) / 2 + 4
        shapes.append(_text(LEFT - 10, middle, label, anchor="end"))
        for bar in group:
            colour = COLOURS[legends.index(bar.legend) % len(COLOURS)]
            width = max(0.0, bar.value * scale)
            shapes.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>'
            )
            value = f"{bar.value:,.0f}" if abs(bar.value) >= 100 else f"{bar.value:.3g}"
            shapes.append(_text(LEFT + width + 6, y + BAR - 5, value))
            y += BAR
        y += GAP
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    ground = f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', ground, *shapes, "</svg>", ""]
    return "\n".join(lines)


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    font = f'font-family="sans-serif" font-size="{size}" fill="#222222" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {font}>{escape(text)}</text>'
