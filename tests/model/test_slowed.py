"""Kernels that were slowed on purpose: the model says slower, and names the line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_nvfp4.bench.line_texts import LineTexts
from pytest_nvfp4.bench.modelled_facts import causes, modelled_facts, time_change
from pytest_nvfp4.cli.options import RunOptions
from pytest_nvfp4.cli.simulation import runnable
from pytest_nvfp4.device.modelled import ModelledCall, conditions_of, device_for, modelled_call, recordings_of
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate

from .slowed import SLOWED, SOURCE

pytest.importorskip("cutlass")

SHAPE = "128x128x2048"
"""One CTA with eight k-tiles, which refill three stages."""


def modelled(file: Path, source: str) -> ModelledCall:
    file.write_text(source)
    subject = runnable(file, RunOptions(names=(SHAPE,)), simulated=True)
    (done,) = simulate(
        SimDevice(), subject.spec, subject.cases(), folder=file.parent / "jobs", base=subject.base, recording=True
    )
    assert done.status == "passed", done.findings
    device = device_for("sm_100a")
    return modelled_call(recordings_of(done), device, conditions_of("single", device))


@pytest.mark.slow
def test_each_slower_kernel_is_modelled_slower_and_its_line_is_named(tmp_path: Path) -> None:
    sources = {"base": SOURCE} | {name: slowed.source for name, slowed in SLOWED.items()}
    files = [tmp_path / f"{name.replace(' ', '_')}.py" for name in sources]
    with ThreadPoolExecutor(2) as pool:
        calls = dict(zip(sources, pool.map(modelled, files, sources.values()), strict=True))
    texts = {name: LineTexts(file, tmp_path) for name, file in zip(sources, files, strict=True)}
    before = modelled_facts(calls["base"], text_of=texts["base"])
    assert not causes(before, calls["base"], texts["base"])
    for name, slowed in SLOWED.items():
        change = time_change(before, calls[name])
        assert change.share > 0.02, (name, str(change))
        lines = slowed.source.splitlines()
        grown = causes(before, calls[name], texts[name])
        own = [place for place, text in grown[:3] if f": {slowed.role}" in text.replace("tensormap+", "")]
        named = [lines[int(place.rpartition(":")[2]) - 1] for place in own if place]
        assert any(text in line for line in named for text in slowed.lines), (name, grown)
