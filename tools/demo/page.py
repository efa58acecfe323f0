"""The run as one self-contained HTML page: lag and throughput over time, and the comparison."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 240, 64, 28, 14
COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e")


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: (seconds since the start, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, unit: str, series: Sequence[Series]) -> str:
    """A line plot as inline SVG, with a grid, axis labels and a legend."""
    points = [p for one in series for p in one.points]
    if not points:
        return f"<h2>{html.escape(title)}</h2><p>No samples.</p>"
    right = max(max(x for x, _ in points), 1.0)
    top = _round_up(max(y for _, y in points))

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - 10) * x / right
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (1 - y / top)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">']
    for i in range(5):
        value = top * i / 4
        x, y = at(0, value)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    step = _round_up(right / 10)
    for i in range(int(right / step) + 1):
        x, y = at(i * step, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{i * step:g} s</text>')
    for colour, one in zip(COLOURS, series, strict=False):
        line = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in one.points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    parts.append("</svg>")
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(one.name)}</span>'
        for colour, one in zip(COLOURS, series, strict=False)
    )
    return (
        f'<h2>{html.escape(title)} <small>{html.escape(unit)}</small></h2><p class="legend">{legend}</p>'
        + "".join(parts)
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; a cell that says equal or NOT EQUAL is coloured."""
    marks = {"equal": ' class="good"', "NOT EQUAL": ' class="bad"'}
    lines = "".join(
        "<tr>" + "".join(f"<td{marks.get(cell, '')}>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return "<table><tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in head) + f"</tr>{lines}</table>"


STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin: 2rem 0 0; font-size: 1.1rem; } small { font-weight: normal; opacity: .7; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: currentColor; stroke-opacity: .15; }
.legend span { margin-right: 1.2rem; } .legend i { display: inline-block; width: 1rem; height: .25rem; margin-right: .4rem; vertical-align: middle; }
table { border-collapse: collapse; margin-top: 1rem; } td, th { padding: .25rem .9rem; text-align: left; border-bottom: 1px solid #8884; }
.good { color: #2b8a3e; font-weight: 600; } .bad { color: #e03131; font-weight: 600; }
"""


def render(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p>"
        + "".join(sections)
        + "</body></html>"
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... at or above a value."""
    step = 1e-3
    while True:
        for factor in (1, 2, 5):
            if step * factor >= value:
                return step * factor
        step *= 10


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
