"""Small SVG drawings whose colours are the page's own, so that they follow its light and dark scheme.

Classes ``k0`` to ``k7`` are fills that differ, and ``faint``, ``axis``, ``muted`` and ``strong`` do what they say; the
style sheet of ``report.html.j2`` defines them.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from pytest_nvfp4.text import visible

KINDS = 8
"""Number of fills."""
GLYPH = 6.6
"""Width of a character in pixels."""


class Chart:
    """A drawing of a size in pixels. It is as wide as its place on the page, which scrolls if that is too narrow.

    Args:
        title: Accessible name. Untrusted, as all texts.
    """

    def __init__(self, *, width: float, height: float, title: str) -> None:
        self._width, self._height = width, height
        self._parts = [Markup("<title>{}</title>").format(visible(title))]

    def rect(self, x: float, y: float, width: float, height: float, kind: str, *, title: str = "") -> None:
        """Draw a rectangle, with a text for the pointer."""
        shape = f'<rect class="{kind}" x="{x:.5g}" y="{y:.5g}" width="{max(width, 0.5):.5g}" height="{height:.5g}"'
        if title:
            self._parts.append(Markup(f"{shape}><title>{{}}</title></rect>").format(visible(title)))
        else:
            self._parts.append(Markup(f"{shape} />"))

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "axis") -> None:
        """Draw a line."""
        self._parts.append(Markup(f'<path class="{kind}" d="M{x:.5g} {y:.5g}L{to_x:.5g} {to_y:.5g}" />'))

    def polyline(self, points: list[tuple[float, float]], kind: str = "curve") -> None:
        """Draw a line through points."""
        places = "L".join(f"{x:.5g} {y:.5g}" for x, y in points)
        self._parts.append(Markup(f'<path class="{kind}" d="M{places}" />'))

    def dot(self, x: float, y: float, kind: str, *, radius: float = 5, title: str = "") -> None:
        """Draw a point, with a text for the pointer."""
        shape = f'<circle class="{kind}" cx="{x:.5g}" cy="{y:.5g}" r="{radius:g}">'
        self._parts.append(Markup(f"{shape}<title>{{}}</title></circle>").format(visible(title)))

    def text(self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> None:
        """Write a text, whose start, middle or end is at the place."""
        shape = f'<text class="{kind}" x="{x:.5g}" y="{y:.5g}" text-anchor="{anchor}">'
        self._parts.append(Markup(shape) + escape(visible(text)) + Markup("</text>"))

    def svg(self) -> Markup:
        """Return the drawing as an SVG element."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
            f'viewBox="0 0 {self._width:g} {self._height:g}" '
            f'style="min-width:{min(self._width, 720):g}px;max-width:{self._width:g}px">'
        )
        return Markup(head) + Markup("").join(self._parts) + Markup("</svg>")


def legend(chart: Chart, items: list[tuple[str, str]], *, x: float, y: float) -> None:
    """Draw a square and a name for each (fill, name), from left to right."""
    for kind, name in items:
        chart.rect(x, y - 9, 10, 10, kind)
        chart.text(x + 15, y, name)
        x += 15 + len(name) * GLYPH + 18


def amount(value: float) -> str:
    """Return a number of at most about seven characters: ``12,345``, ``1.23 M``, ``0.415``."""
    if isinstance(value, float) and value < 1000:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}"


def clipped(text: str, width: float) -> str:
    """Return a text that fits a width in pixels."""
    most = max(1, int(width / GLYPH))
    return text if len(text) <= most else f"{text[: most - 1]}…"
