"""Types of layouts and copies, and their insights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_nvfp4.cli.insights import findings_of
from pytest_nvfp4.insights import copies, warp_requests
from pytest_nvfp4.insights.model import Insight, LayoutInsights
from pytest_nvfp4.layout.listing import Record
from tests.cli.helpers import traced

ROW_COPY = (
    '!cute.tiled_copy<!cute_nvgpu.atom.universal_copy<f16, 128 b>, layout_copy_tv = <"((8,16),8):((128,1),16)">, '
    'tiler_mn = <"[16:1;64:1]">>'
)
COLUMN_COPY = (
    '!cute.tiled_copy<!cute_nvgpu.atom.universal_copy<f16, 128 b>, layout_copy_tv = <"(128,8):(1,128)">, '
    'tiler_mn = <"[128:1;8:1]">>'
)
T2R = (
    "!cute.tiled_copy<!cute_nvgpu.atom.tmem_load<f32, 32 DP, 32 bit, x128>, "
    'layout_copy_tv = <"((32,4),(128,32)):((0,1),(4,512))">, tiler_mn = <"[(512,32):(32,1);1:0;1:0]">>'
)
GMEM = '!cute.memref<f16, gmem, align<16>, "(128,64):(?{div=64},1)">'
PLAIN = '!cute.memref<f16, smem, align<1024>, "(128,64):(64,1)">'
SWIZZLED = '!cute.memref<f16, smem, align<1024>, S<3,4,3>, "(128,64):(64,1)">'
TMEM = '!cute.memref<f32, tmem, align<16>, "((128,128),1,1,{}):((65536,1),0,0,128)">'
ROW_PART = '!cute.memref<f16, {}, align<16>, "((8,1),8,1):((1,0),{},0)">'
COLUMN_PART = '!cute.memref<f16, {}, align<16>{}, "((8,1),1,8):((1,0),0,8)">'


def signal_of(insights: Iterable[Insight], signal: str) -> Insight:
    """Return the only insight of a signal."""
    (insight,) = [insight for insight in insights if insight.signal == signal]
    return insight


def walked(**types: str) -> dict[str, list[Insight]]:
    """Return the insights on every walk of a scope with these types, by the partition."""
    walks = copies.walks([Record(f"k.{name}", text) for name, text in types.items()])
    return {walk.part.name: [*warp_requests.insights(walk, alone=True)] for walk in walks}


def traced_records(**types: str) -> list[LayoutInsights]:
    """Return the findings on a kernel with these types."""
    return findings_of(traced(Path("/nowhere/k.py"), {f"k.{name}": text for name, text in types.items()}))
