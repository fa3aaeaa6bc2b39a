"""``insights``, ``epilogue`` and ``cost`` agree about one kernel; the count of the simulator is the oracle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.insights import accesses
from tests.cli.helpers import ROOT, run_process

SHIPPED = (ROOT / "kernels/nvfp4_group_gemm/steps/map_updates.py").read_text()
STORE = "            cute.autovec_copy(tDrC, tDgC)\n"
ELEMENTS = """            for i in cutlass.range_constexpr(cute.size(tDgC)):
                if y * TILE_N + i < n:
                    tDgC[i] = tDrC[i]
"""
VARIANTS = {
    "shipped": (SHIPPED, 32),
    "alignment": (SHIPPED.replace("AddressSpace.gmem, assumed_align=32)", "AddressSpace.gmem, assumed_align=2)"), 2),
    # the layout allows 32 bytes; a predicate on each element leaves stores of 2
    "predicate": (SHIPPED.replace(STORE, ELEMENTS), 2),
}
"""Source of a kernel, and the bytes of a lane that its stores to C have."""


def _command(*arguments: object) -> Any:
    done = run_process(*map(str, arguments), "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def _signals(kernel: Path, signal: str) -> list[dict[str, str]]:
    insights = [one for layout in _command("insights", kernel)["insights"] for one in layout["insights"]]
    return [one for one in insights if one["signal"] == signal]


def _insight(kernel: Path) -> tuple[int, int]:
    """Sectors a request and bytes a lane of the insight on C."""
    (insight,) = _signals(kernel, "sectors of a warp")
    match = re.match(r"(\d+) sectors .* of (\d+) B a lane", insight["value"])
    assert match is not None
    return int(match[1]), int(match[2])


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_commands_agree_with_the_simulator(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(tmp_path / "cache"))
    source, width = VARIANTS[name]
    assert name == "shipped" or source != SHIPPED
    kernel = tmp_path / f"{name}.py"
    kernel.write_text(source)
    (launch,) = _command("cost", kernel, "--problem", "gpumode-0")["problems"][0]["launches"]
    counters = launch["counters"]
    counted = counters["global.store.sectors"] / counters["global.store.requests"]
    assert _insight(kernel) == (counted, width)
    stores = [one for one in _signals(kernel, "access width") if one["value"].startswith(f"stores of {width} B at")]
    assert stores
    narrow = {one["level"] for one in stores if "allows 2 B" not in one["meaning"]}
    assert narrow == {"look" if width < 4 else "fine"}
    document = _command("epilogue", kernel, "--top-k", "1")
    (own,) = (way for way in document["ranked"] if way["own"])
    assert own["sectors"] / own["requests"] == counted
    assert own["bytes_a_lane"] == width
    assert (
        own["sectors"] / own["ideal_sectors"]
        == counters["global.store.sectors"] / counters["global.store.sectors_least"]
    )


@pytest.mark.slow
def test_layouts_alone_would_be_too_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the PTX the predicated stores count as 16 bytes, and the text says why."""
    from pytest_nvfp4.cli import insights
    from pytest_nvfp4.cli.options import KernelOptions
    from pytest_nvfp4.cli.subject import resolve
    from pytest_nvfp4.cli.tracing import trace

    kernel = tmp_path / "predicate.py"
    kernel.write_text(VARIANTS["predicate"][0])
    traced = trace(resolve(kernel, KernelOptions()), cache=tmp_path / "cache")
    monkeypatch.setattr(insights, "accesses_in", lambda _: [])
    values = [one.value for found in insights.findings_of(traced) for one in found.insights if "sectors" in one.signal]
    assert len(values) == 1
    assert "of 16 B a lane" in values[0]
    assert "as the layout allows" in values[0]
    assert accesses.accesses_in(traced.trace)
