"""Kernels that work on streams of their own, as the races check runs them: who forks and joins is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import SimulationResult, simulate
from pytest_nvfp4.problem import parse_shape

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parent / "kernels"
SIDES = """
    abc, _, reordered, sizes = data
    here = torch.cuda.current_stream()
    for side, (a, b, c), (sfa, sfb), (m, n, k, _) in zip(SIDES, abc, reordered, sizes, strict=False):
        side.wait_stream(here)
        with torch.cuda.stream(side):
            c[:, :, 0].copy_(compute(a, b, sfa, sfb, m, n, k))
    for side in SIDES:
        here.wait_stream(side)
    return [c for _, _, c in abc]
"""
"""A body of ``custom_kernel``: one stream a group."""
EVENTS = """
    abc, _, reordered, sizes = data
    start, ends = torch.cuda.Event(), []
    start.record()
    for side, (a, b, c), (sfa, sfb), (m, n, k, _) in zip(SIDES, abc, reordered, sizes, strict=False):
        with torch.cuda.stream(side):
            start.wait()
            c[:, :, 0].copy_(compute(a, b, sfa, sfb, m, n, k))
            ends.append(side.record_event())
    for end in ends:
        torch.cuda.current_stream().wait_event(end)
    return [c for _, _, c in abc]
"""
ONE = """
    abc, _, reordered, sizes = data
    SIDES[0].wait_stream(torch.cuda.default_stream())
    with SIDES[0]:
        for (a, b, c), (sfa, sfb), (m, n, k, _) in zip(abc, reordered, sizes, strict=True):
            c[:, :, 0].copy_(compute(a, b, sfa, sfb, m, n, k))
    SIDES[0].synchronize()
    return [c for _, _, c in abc]
"""


def raced(folder: Path, text: str) -> SimulationResult:
    path = folder / "kernel.py"
    path.write_text(text)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256,7x128x256")), family="pow2_exact")
    (one,) = simulate(SimDevice(), kernel, [case], folder=folder / "jobs", base=base, races=True)
    return one


def with_body(body: str) -> str:
    honest, _, _ = (KERNELS / "honest.py").read_text().partition("def custom_kernel")
    sides = "SIDES = [torch.cuda.Stream() for _ in range(2)]\n\n\n"
    return f"{honest}{sides}def custom_kernel(data: input_t) -> output_t:{body}"


@pytest.mark.parametrize("body", [SIDES, EVENTS, ONE], ids=["wait_stream", "events", "synchronize"])
def test_who_forks_and_joins_is_clean(tmp_path: Path, body: str) -> None:
    done = raced(tmp_path, with_body(body))
    assert done.status == "passed", done.findings
    assert not done.findings


@pytest.mark.parametrize(
    ("body", "old", "new", "said"),
    [
        (SIDES, "        side.wait_stream(here)\n", "", "the caller (before the call) on the default stream may still"),
        (
            SIDES,
            "        here.wait_stream(side)\n",
            "        pass\n",
            "the caller (after the call) on the default stream",
        ),
        (EVENTS, "            start.wait()\n", "", "the caller (before the call) on the default stream may still"),
        (
            EVENTS,
            "wait_event(end)",
            "record_event(end)",
            "the caller (after the call) on the default stream reads C of",
        ),
        (ONE, "    SIDES[0].synchronize()\n", "    SIDES[1].synchronize()\n", "the caller (after the call)"),
    ],
    ids=["no fork", "no join", "no fork event", "no join event", "the wrong stream"],
)
def test_each_edge_is_needed(tmp_path: Path, body: str, old: str, new: str, said: str) -> None:
    assert old in body
    done = raced(tmp_path, with_body(body.replace(old, new)))
    assert done.status == "failed"
    assert {finding.kind for finding in done.findings} == {"race"}
    assert said in done.findings[0].message
    assert "kernel.py:" in done.findings[0].message


@pytest.mark.parametrize(("cheat", "told"), [("trailing_stream", ["after"]), ("other_stream", ["before", "after"])])
def test_a_cheat_that_only_its_times_show_is_seen_without_them(tmp_path: Path, cheat: str, told: list[str]) -> None:
    done = raced(tmp_path, (KERNELS / f"cheat_{cheat}.py").read_text())
    assert done.status == "failed"
    assert len(done.findings) == len(told)
    for finding, when in zip(done.findings, told, strict=True):
        assert f"the caller ({when} the call) on the default stream" in finding.message
    assert "the benchmark check fails it" in done.findings[-1].message


LAUNCHES = """
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr

SIDE = torch.cuda.Stream()


@cute.kernel
def fill(c: cute.Tensor, a: cute.Tensor):
    column, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    c[row, column] = a[row, column].to(cutlass.Float16)


@cute.jit
def go(start: cute.Pointer, source: cute.Pointer, stream: cuda.CUstream):
    c = cute.make_tensor(start, cute.make_layout((40, 128), stride=(128, 1)))
    a = cute.make_tensor(source, cute.make_layout((40, 128), stride=(128, 1)))
    fill(c, a).launch(grid=(40, 1, 1), block=(128, 1, 1), stream=stream)


def pointer(kind, tensor):
    return make_ptr(kind, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


def custom_kernel(data):
    a, _, c = data[0][0]
    here = torch.cuda.current_stream()
    SIDE.wait_stream(here)
    go(pointer(cutlass.Float16, c), pointer(cutlass.Int8, a), cuda.CUstream(SIDE.cuda_stream))
    here.wait_stream(SIDE)
    return [c]
"""


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (None, ""),
        ("    SIDE.wait_stream(here)\n", "while the caller (before the call) on the default stream may still write it"),
        (
            "    here.wait_stream(SIDE)\n",
            "while kernel fill launched at kernel.py:33 on stream 1 (made at kernel.py:8)",
        ),
    ],
    ids=["forks and joins", "no fork", "no join"],
)
def test_a_launch_on_a_side_stream(tmp_path: Path, old: str | None, said: str) -> None:
    pytest.importorskip("cutlass")
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="pow2_exact")
    path = tmp_path / "kernel.py"
    path.write_text(LAUNCHES.replace(old, "    pass\n") if old else LAUNCHES)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    (done,) = simulate(SimDevice(), kernel, [case], folder=tmp_path / "jobs", base=base, races=True)
    assert [finding.kind for finding in done.findings] == (["race"] if old else []), done
    assert all(said in finding.message for finding in done.findings)
    assert all("kernel.py:15 (" in finding.message for finding in done.findings)
    assert done.status == ("failed" if old else "passed")


ON_CURRENT = ("cuda.CUstream(SIDE.cuda_stream)", "cuda.CUstream(torch.cuda.current_stream().cuda_stream)")
ON_DEFAULT = ("cuda.CUstream(SIDE.cuda_stream)", "cuda.CUstream(torch.cuda.default_stream().cuda_stream)")
NO_WAIT = ("    SIDE.wait_stream(here)\n", ""), ("    here.wait_stream(SIDE)\n", "")
UNNAMED = ("block=(128, 1, 1), stream=stream", "block=(128, 1, 1)")


@pytest.mark.parametrize(
    ("edits", "side_stream", "found"),
    [
        ([ON_CURRENT, *NO_WAIT], True, False),
        ([ON_DEFAULT, *NO_WAIT], True, True),
        ([UNNAMED, *NO_WAIT], True, True),
        ([UNNAMED, *NO_WAIT], False, False),
        ([], True, False),
    ],
    ids=["the current stream", "the default stream", "none named", "none named, called on the default", "its own"],
)
def test_a_call_while_another_stream_is_current(
    tmp_path: Path, edits: list[tuple[str, str]], side_stream: bool, found: bool
) -> None:
    pytest.importorskip("cutlass")
    text = LAUNCHES
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "kernel.py"
    path.write_text(text)
    case = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256")), family="pow2_exact")
    kernel, base = KernelSpec.from_files(path, arch="sm_100a", side_stream=side_stream)
    (done,) = simulate(SimDevice(), kernel, [case], folder=tmp_path / "jobs", base=base, races=True)
    assert done.status == ("failed" if found else "passed"), done.findings
    if found:
        (finding,) = done.findings
        line = next(number for number, text in enumerate(text.splitlines(), 1) if text.startswith("    go("))
        assert finding.line == line
        assert "kernel fill is launched on the default stream while stream" in finding.message
        assert "is torch's current stream: it writes C of group 0" in finding.message
        assert "cuda.CUstream(torch.cuda.current_stream().cuda_stream)" in finding.message
