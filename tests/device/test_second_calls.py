"""A kernel that is wrong from its second call on is red on every problem, in a job of several and in one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import CaseVerdict, Judge
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.problem import parse_shape, resolve

from .second_calls import HONEST, ONLY_WRONG_TWICE

pytest.importorskip("torch")

SHAPES = ("40x128x256,9x128x256", "9x128x256,130x128x512", "7x128x256")


def verdicts(
    folder: Path, text: str, *shapes: str, seed: int, side_stream: bool = False
) -> dict[str, list[CaseVerdict]]:
    """The verdicts on a kernel, by problem."""
    path = folder / "kernel.py"
    path.write_text(HONEST + text)
    spec, base = KernelSpec.from_files(path, arch="sm_100a", side_stream=side_stream)
    cases = tuple(
        JobCase(problem=ProblemSpec.of(parse_shape(shape)), family=family)
        for shape in shapes
        for family in ("pow2_exact", "gpumode")
    )
    job = Job(id="t", action="verify", kernel=spec, cases=cases, order_seed=seed, row_key=seed, deadline_s=120)
    at = folder / f"job-{seed}"
    at.mkdir()
    result = LocalDevice(probe_folder=folder / "probe", backend="host").run(job, folder=at, base=base)
    assert result.status == "passed", result.findings
    by_problem: dict[str, list[CaseVerdict]] = {}
    for verdict in Judge().judge(job, result, folder=at):
        by_problem.setdefault(verdict.case.problem.name, []).append(verdict)
    return by_problem


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(name, marks=() if name.startswith(("skips the", "ignores")) else pytest.mark.slow)
        for name in ONLY_WRONG_TWICE
    ],
)
def test_it_is_red_on_every_problem(tmp_path: Path, kept: str) -> None:
    text, words = ONLY_WRONG_TWICE[kept]
    said: list[str] = []
    for seed, shapes in enumerate((SHAPES, SHAPES[:1])):
        for problem, found in verdicts(tmp_path, text, *shapes, seed=seed).items():
            assert "failed" in {verdict.status for verdict in found}, problem
            said += [finding.message for verdict in found for finding in verdict.findings]
    assert any(words in message for message in said), said


@pytest.mark.slow
def test_who_keeps_what_may_be_kept_is_right(tmp_path: Path) -> None:
    """Tables by address, kernels by number of groups, a workspace that grows: all of it may be kept."""
    text = """
TABLES, BUILT, SPACE = {}, {}, []
def custom_kernel(data):
    abc, _, reordered, sizes = data
    key = (tuple(sizes), tuple((a.data_ptr(), b.data_ptr(), c.data_ptr()) for a, b, c in abc))
    TABLES.setdefault(key, torch.tensor([list(pointers) for pointers in key[1]], device="cuda"))
    BUILT.setdefault(len(sizes), object())
    if not SPACE or SPACE[0].numel() < max(m * n for m, n, _, _ in sizes):
        SPACE[:] = [torch.empty(max(m * n for m, n, _, _ in sizes), dtype=torch.float16, device="cuda")]
    for (a, b, c), (sfa, sfb), (m, n, k, _) in zip(abc, reordered, sizes, strict=True):
        space = SPACE[0][: m * n].view(m, n)
        space.copy_(compute(a, b, sfa, sfb, m, n, k))
        c[:, :, 0].copy_(space)
    return [c for _, _, c in abc]
"""
    for found in verdicts(tmp_path, text, *SHAPES, seed=3, side_stream=True).values():
        assert [verdict.status for verdict in found] == ["passed"] * 2, found


@pytest.mark.slow
def test_a_kernel_that_refuses_other_sizes_is_judged_on_its_own(tmp_path: Path) -> None:
    text = """
def custom_kernel(data):
    assert data[3][0][0] == 40, "sizes that it is not made for"
    return work(data)
"""
    (found,) = verdicts(tmp_path, text, "40x128x256,9x128x256", seed=1).values()
    assert [verdict.status for verdict in found] == ["passed"] * 2, found


SM100 = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
TABLE = "    table = device_table(rows)\n"
MAPS = 'tensormaps = torch.empty(num_tiles * NUM_TENSORMAPS * TENSORMAP_BYTES, dtype=torch.uint8, device="cuda")'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (TABLE, '    table = globals().setdefault("TABLE", device_table(rows))\n', "device allocation"),
        (
            TABLE,
            '    table = globals().setdefault("TABLES", {}).setdefault(tuple(problem_sizes), device_table(rows))\n',
            "other addresses, inputs at a storage offset",
        ),
        (MAPS, f'tensormaps = globals().setdefault("MAPS", {MAPS.removeprefix("tensormaps = ")})', ""),
        (
            TABLE,
            f"{TABLE}    if globals().setdefault('LAST', []) == [rows]:\n"
            "        return outputs\n    LAST[:] = [rows]\n",
            "one row of A of each group changed",
        ),
    ],
    ids=["one table", "a table for each list of sizes", "workspace of call one", "skips the same call"],
)
def test_the_shipped_kernel_that_keeps_state_is_red_in_each_item(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = SM100.read_text()
    assert old in text
    path = tmp_path / "kernel.py"
    path.write_text(text.replace(old, new))
    kernel, base = KernelSpec.from_files(path, arch="sm_100a")
    problems = resolve(["gpumode-0", "gpumode-2"])
    cases = [JobCase(problem=ProblemSpec.of(problem), family="pow2_exact") for problem in problems]
    done = Verifier(SimDevice(), folder=tmp_path / "jobs").verify(kernel, cases, base=base)
    assert [verdict.status for verdict in done.verdicts] == ["failed"] * 2, done
    said = [finding.message for verdict in done.verdicts for finding in verdict.findings]
    assert any(words in message for message in said), said


NAMED_STREAM = [
    ("import torch\n", "import torch\nfrom cuda.bindings import driver\n"),
    ("num_groups: Int32, num_tiles: Int32):", "num_groups: Int32, num_tiles: Int32, side: driver.CUstream):"),
    ("block=(NUM_THREADS, 1, 1))\n", "block=(NUM_THREADS, 1, 1), stream=side)\n"),
    ("Int32(1), Int32(1))\n", "Int32(1), Int32(1), driver.CUstream(0))\n"),
    (
        "        num_tiles,\n    )\n    return",
        "        num_tiles,\n        driver.CUstream(torch.cuda.current_stream().cuda_stream),\n    )\n    return",
    ),
]


FORKED = [
    *NAMED_STREAM,
    ("driver.CUstream(torch.cuda.current_stream().cuda_stream)", "driver.CUstream(SIDE.cuda_stream)"),
    ("@functools.cache\ndef compiled():", "SIDE = torch.cuda.Stream()\n\n\n@functools.cache\ndef compiled():"),
    ("    compiled()(\n", "    SIDE.wait_stream(torch.cuda.current_stream())\n    compiled()(\n"),
]
JOINED = [
    *FORKED,
    ("    )\n    return outputs", "    )\n    torch.cuda.current_stream().wait_stream(SIDE)\n    return outputs"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "status"),
    [([], "failed"), (NAMED_STREAM, "passed"), (FORKED, "failed"), (JOINED, "passed")],
    ids=["the default stream", "the current stream", "its own, forked", "its own, forked and joined"],
)
def test_a_launch_must_be_ordered_with_the_callers_stream(
    tmp_path: Path, edits: list[tuple[str, str]], status: str
) -> None:
    text = SM100.read_text()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "kernel.py"
    path.write_text(text)
    kernel, base = KernelSpec.from_files(path, arch="sm_100a", side_stream=True)
    cases = [JobCase(problem=ProblemSpec.of(problem), family="pow2_exact") for problem in resolve(["gpumode-2"])]
    (verdict,) = Verifier(SimDevice(), folder=tmp_path / "jobs").verify(kernel, cases, base=base).verdicts
    assert verdict.status == status, verdict.findings
    said = [finding.message for finding in verdict.findings]
    assert all("stream of the caller's is torch's current stream" in message for message in said), said
