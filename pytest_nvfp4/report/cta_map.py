"""The map of C: which CTA wrote each tile, and in which wave it ran."""

from __future__ import annotations

from markupsafe import Markup

from pytest_nvfp4.device.result import OutputWrites, SimulatedCall
from pytest_nvfp4.report.chart import GLYPH, KINDS, Chart, legend
from pytest_nvfp4.text import plural

_WIDTH = 1000.0
_MOST_OUTPUTS = 8
_HIGH = 260.0
_MOST_WAVES = 6


def cta_chart(call: SimulatedCall) -> tuple[Markup, str]:
    """Return the maps of the outputs of a detailed call, drawn to one scale, and what they leave out."""
    outputs = [output for output in call.outputs if output.written][:_MOST_OUTPUTS]
    rows = max(output.size[0] for output in outputs)
    gap = 18.0
    room = _WIDTH - 8 - gap * (len(outputs) - 1)
    scale = min(room / sum(output.size[1] for output in outputs), _HIGH / rows)
    waves = max(_wave(call, each.launch, each.cta) for output in outputs for each in output.written) + 1
    top = 22.0
    height = top + max(rows * scale, 16) + 36
    chart = Chart(width=_WIDTH, height=height, title="Tiles of C by CTA")
    x = 4.0
    for output in outputs:
        _draw(chart, call, output, x=x, y=top, scale=scale, waves=waves)
        x += output.size[1] * scale + gap
    names = [(f"k{wave % KINDS}", f"wave {wave}") for wave in range(min(waves, _MOST_WAVES))]
    if waves == 1:
        names = [("k0", "CTAs of the only wave, in shades by their number")]
    legend(chart, names, x=4, y=height - 10)
    left = len([output for output in call.outputs if output.written]) - len(outputs)
    tiles = sum(output.tiles - len(output.written) for output in outputs)
    notes = [plural(left, "output") if left else "", plural(tiles, "tile") if tiles else ""]
    return chart.svg(), " and ".join(filter(None, notes))


def _draw(
    chart: Chart, call: SimulatedCall, output: OutputWrites, *, x: float, y: float, scale: float, waves: int
) -> None:
    chart.text(x, y - 8, f"group {output.group}: {output.size[0]} x {output.size[1]}", "muted")
    for each in output.written:
        wave = _wave(call, each.launch, each.cta)
        fill = f"k{wave % KINDS}" if waves > 1 else f"k0 s{each.cta % 4}"
        wide, high = each.columns * scale, each.rows * scale
        told = f"CTA {each.cta}, wave {wave}: rows {each.row} to {each.row + each.rows - 1}, "
        told += f"columns {each.column} to {each.column + each.columns - 1}"
        left, top = x + each.column * scale, y + each.row * scale
        chart.rect(left, top, wide - 0.6, high - 0.6, fill, title=told)
        if wide > GLYPH * len(str(each.cta)) + 4 and high > 12:
            chart.text(left + wide / 2, top + high / 2 + 4, str(each.cta), anchor="middle")


def _wave(call: SimulatedCall, launch: int, cta: int) -> int:
    return cta // (call.sms * call.launches[launch].ctas_per_sm)
