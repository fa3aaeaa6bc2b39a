"""Inline SVG rendering of panels of cells.

The SVG is valid XML with a title and a description, follows the light or dark colour scheme, and marks a changed cell
by an outline and bold text, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2s
from xml.sax.saxutils import escape

from pytest_nvfp4.layout.grid import Window

_CELL_H = 18
_GLYPH_W = 6.4
_HEAD = 40
SHADES = 8
"""Colours of each kind: ``k0`` to ``k7`` are distinct, ``r0`` to ``r7`` go from light to dark."""
# Backgrounds keep a contrast of at least 7:1 with the cell text in both schemes.
_LIGHT = ("#eaf1fb", "#fdebd3", "#dff3e4", "#fbe3ea", "#e9e4f8", "#fbf6cf", "#d9f2f2", "#ececec")
_DARK = ("#1d2f4a", "#4a3312", "#173a24", "#4a1e2d", "#2f2756", "#443f10", "#113c3e", "#333333")
_RAMP_LIGHT = ("#f4f8fe", "#e6effc", "#d8e6fa", "#c9ddf8", "#bbd4f6", "#adcbf4", "#9fc2f2", "#91b9f0")
_RAMP_DARK = ("#10151c", "#131d2a", "#162538", "#192d46", "#1c3554", "#1f3d62", "#224570", "#254d7e")


@dataclass(frozen=True)
class Panel:
    """Drawn window of a grid: text and colour class by cell (row, column), and the changed cells."""

    heading: str
    window: Window
    texts: dict[tuple[int, int], str]
    paints: dict[tuple[int, int], str]
    changed: set[tuple[int, int]]


def document(panels: list[Panel], *, title: str, desc: str, notes: list[str]) -> str:
    """Return one SVG element with the panels side by side and the notes below."""
    body: list[str] = []
    x, height = 0.0, 0.0
    headings = [_wrap(panel.heading, max(24, int(_width(panel) / _GLYPH_W))) for panel in panels]
    lift = 14.0 * (max(map(len, headings)) - 1)
    for panel, lines in zip(panels, headings, strict=True):
        width, tall = _draw(panel, x, body, headings=lines, lift=lift)
        x += width + 24
        height = max(height, tall)
    wrapped = [line for note in notes for line in _wrap(note, max(60, int(x / _GLYPH_W)))]
    for line in wrapped:
        height += 16
        body.append(f'<text class="note" x="2" y="{height - 4:g}">{_xml(line)}</text>')
    width = max(x - 24, *(len(line) * _GLYPH_W for line in wrapped), 1)
    name = "nvl" + blake2s("".join([title, desc, *body]).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="nvl" role="img" aria-labelledby="{name}t {name}d" '
        f'viewBox="0 0 {width:g} {height + 4:g}" width="{width:g}" height="{height + 4:g}">'
    )
    label = f'<title id="{name}t">{_xml(title)}</title><desc id="{name}d">{_xml(desc)}</desc>'
    return "".join([head, label, f"<style>{_STYLE}</style>", *body, "</svg>"])


def _cell_width(panel: Panel) -> float:
    longest = max((len(text) for text in panel.texts.values()), default=1)
    return max(24.0, round(longest * _GLYPH_W + 8))


def _side(panel: Panel) -> float:
    return max(20.0, len(str(panel.window.row + panel.window.rows)) * _GLYPH_W + 8)


def _width(panel: Panel) -> float:
    return _side(panel) + panel.window.cols * _cell_width(panel)


def _draw(panel: Panel, x0: float, body: list[str], *, headings: list[str], lift: float) -> tuple[float, float]:
    """Append one panel's elements, its cells moved down by ``lift``; return its width and height."""
    window = panel.window
    wide, side, width = _cell_width(panel), _side(panel), _width(panel)

    def place(row: int, col: int) -> tuple[float, float]:
        return x0 + side + (col - window.col) * wide, _HEAD + (row - window.row) * _CELL_H

    for at, line in enumerate(headings):
        body.append(f'<text class="head" x="{x0 + 2:g}" y="{14 + at * 14}">{_xml(line)}</text>')
    body.append(f'<g transform="translate(0 {lift:g})">')
    cells: dict[str, list[str]] = {}
    marked: list[str] = []
    for (row, col), paint in panel.paints.items():
        x, y = place(row, col)
        box = f"M{x:g} {y:g}h{wide:g}v{_CELL_H}h{-wide:g}z"
        cells.setdefault(paint, []).append(box)
        if (row, col) in panel.changed:
            marked.append(f"M{x + 1.5:g} {y + 1.5:g}h{wide - 3:g}v{_CELL_H - 3}h{3 - wide:g}z")
    body += [f'<path class="{paint}" d="{"".join(boxes)}"/>' for paint, boxes in sorted(cells.items())]
    if marked:
        body.append(f'<path class="x" d="{"".join(marked)}"/>')
    columns = range(window.col, window.col + window.cols)
    ticks = "".join(f'<tspan x="{place(0, col)[0] + wide / 2:g}">{col}</tspan>' for col in columns)
    body.append(f'<text class="tick" y="{_HEAD - 6}">{ticks}</text>')
    for row in range(window.row, window.row + window.rows):
        y = place(row, window.col)[1] + 13
        body.append(f'<text class="tick side" x="{x0 + side - 4:g}" y="{y:g}">{row}</text>')
        spans = "".join(
            f'<tspan{_bold((row, col) in panel.changed)} x="{place(row, col)[0] + wide / 2:g}">'
            f"{_xml(panel.texts[row, col])}</tspan>"
            for col in columns
        )
        body.append(f'<text class="cell" y="{y:g}">{spans}</text>')
    body.append("</g>")
    longest_heading = max(len(line) for line in headings) * _GLYPH_W
    return max(width, longest_heading), _HEAD + lift + window.rows * _CELL_H + 4


def _bold(changed: bool) -> str:
    return ' class="b"' if changed else ""


def _wrap(text: str, width: int) -> list[str]:
    """Split a text into lines of at most ``width`` characters, after blanks and commas where possible."""
    lines: list[str] = []
    while len(text) > width:
        cut = max(text.rfind(mark, 0, width) for mark in (" ", ",", ":"))
        cut = width if cut < width // 3 else cut + 1
        lines.append(text[:cut])
        text = text[cut:]
    return [*lines, text]


def _xml(text: str) -> str:
    """Escape a text for an XML element; characters that XML 1.0 forbids become U+FFFD."""
    safe = "".join(char if char in "\t\n\r" or _allowed(ord(char)) else "�" for char in text)
    return escape(safe)


def _allowed(code: int) -> bool:
    return 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF


def _classes(prefix: str, colours: Iterable[str]) -> str:
    return "".join(f".nvl .{prefix}{at}{{fill:{colour}}}" for at, colour in enumerate(colours))


_STYLE = (
    ".nvl{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;color:#1b1f24}"
    ".nvl text{fill:currentColor;stroke:none}"
    ".nvl .cell,.nvl .tick{text-anchor:middle}.nvl .side{text-anchor:end}"
    ".nvl .tick{font-size:9px;opacity:.75}.nvl .head{font-weight:600}.nvl .note{opacity:.85}"
    ".nvl path{stroke:#8c959f;stroke-width:.5}.nvl .none{fill:none}"
    ".nvl .x{fill:none;stroke:#b3261e;stroke-width:1.3}.nvl .b{font-weight:700}"
    + _classes("k", _LIGHT)
    + _classes("r", _RAMP_LIGHT)
    + "@media(prefers-color-scheme:dark){.nvl{color:#e6edf3}.nvl path{stroke:#57606a}.nvl .x{stroke:#ff7b72}"
    + _classes("k", _DARK)
    + _classes("r", _RAMP_DARK)
    + "}"
)
