"""The map of C: which CTA wrote each tile, and in which wave it ran."""

from __future__ import annotations

from markupsafe import Markup

from pytest_nvfp4.device.result import OutputWrites, SimulatedCall
from pytest_nvfp4.report.chart import GLYPH, KINDS, Chart, legend
from pytest_nvfp4.text import plural

_WIDTH = 1000.0
_MOST_OUTPUTS = 12
_HIGH = 560.0
"""Most pixels of all outputs."""
_TILE = 18.0
"""Pixels that the lowest tile shall have, for its CTA's number."""
_MOST_SCALE = 1.5
_HEAD, _MOST_WAVES = 20.0, 6


def cta_chart(call: SimulatedCall) -> tuple[Markup, str]:
    """Return the maps of the outputs of a detailed call, and what they leave out.

    All are drawn to one scale, on which rows may be higher than columns are wide.
    """
    every = [output for output in call.outputs if output.written]
    outputs = every[:_MOST_OUTPUTS]
    across = min((_WIDTH - 8) / max(output.size[1] for output in outputs), _MOST_SCALE)
    rows = sum(output.size[0] for output in outputs)
    lowest = min(each.rows for output in outputs for each in output.written)
    down = min(max(across, _TILE / lowest), _HIGH / rows)
    waves = max(_wave(call, each.launch, each.cta) for output in outputs for each in output.written) + 1
    chart = Chart(width=_WIDTH, height=rows * down + len(outputs) * _HEAD + 34, title="Tiles of C by CTA")
    y = 0.0
    for output in outputs:
        y += _HEAD
        _draw(chart, call, output, y=y, scale=(across, down), waves=waves)
        y += output.size[0] * down
    names = [(f"k{wave % KINDS}", f"wave {wave}") for wave in range(min(waves, _MOST_WAVES))]
    if waves == 1:
        names = [("k0", "CTAs of the only wave, in shades by their number")]
    legend(chart, names, x=4, y=y + 24)
    left = len(every) - len(outputs)
    tiles = sum(output.tiles - len(output.written) for output in outputs)
    notes = [plural(left, "output") if left else "", plural(tiles, "tile") if tiles else ""]
    return chart.svg(), " and ".join(filter(None, notes))


def _draw(
    chart: Chart, call: SimulatedCall, output: OutputWrites, *, y: float, scale: tuple[float, float], waves: int
) -> None:
    chart.text(4, y - 6, f"group {output.group}: {output.size[0]} x {output.size[1]}", "muted")
    for each in output.written:
        wave = _wave(call, each.launch, each.cta)
        fill = f"k{wave % KINDS}" if waves > 1 else f"k0 s{each.cta % 4}"
        wide, high = each.columns * scale[0], each.rows * scale[1]
        told = f"CTA {each.cta}, wave {wave}: rows {each.row} to {each.row + each.rows - 1}, "
        told += f"columns {each.column} to {each.column + each.columns - 1}"
        left, top = 4 + each.column * scale[0], y + each.row * scale[1]
        chart.rect(left, top, wide - 0.6, max(high - 0.6, 0.5), fill, title=told)
        if wide > GLYPH * len(str(each.cta)) + 4 and high > 11:
            chart.text(left + wide / 2, top + high / 2 + 4, str(each.cta), anchor="middle")


def _wave(call: SimulatedCall, launch: int, cta: int) -> int:
    return cta // (call.sms * call.launches[launch].ctas_per_sm)
