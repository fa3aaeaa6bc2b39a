"""The grouped GEMM for sm_100a and its steps: exact, free of races, and their counters on GPU MODE's benchmarks."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.problem import GPUMODE_BENCH, Problem, parse_shape
from tests.model.kernels.group_gemm.versions import VERSIONS

FOLDER = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm"
PATHS = {path.stem: path for path in (FOLDER / "sm100.py", *sorted((FOLDER / "steps").glob("*.py")))}

RAGGED = "300x384x512,40x128x1024,1x512x256,0x256x256,248x256x256,72x128x256"
"""Unlike n and k, rows of all sizes of boxes, an empty group, and an item of three rounds."""
UNIFORM = "1200x256x512,208x256x256,40x256x256"
"""One n, so that rounds turn; tiles in succession that have more tokens than tensor memory has columns."""
MANY = ",".join(f"{m}x128x256" for m in range(1, 10))
"""More groups than a launch has."""

WORK = {
    "map_updates": {
        "gpumode-bench-0": (363_331_584, 136_421_376, 82_678_120_448, 352),
        "gpumode-bench-3": (28_311_552, 7_520_256, 6_442_450_944, 128),
    },
    "sm100": {
        "gpumode-bench-0": (201_850_880, 136_421_376, 61_069_066_240, 128),
        "gpumode-bench-1": (103_219_200, 67_321_856, 31_943_819_264, 112),
        "gpumode-bench-2": (49_938_432, 15_368_192, 12_884_901_888, 120),
        "gpumode-bench-3": (21_233_664, 7_520_256, 6_442_450_944, 128),
    },
}
"""Bytes loaded, the different ones of them, flops executed, and CTAs, by kernel and benchmark."""
LIMITS = {"gpumode-bench-0": 1.55, "gpumode-bench-1": 1.55, "gpumode-bench-2": 3.4, "gpumode-bench-3": 3.4}
"""Most bytes that ``sm100.py`` loads, in units of the different ones."""

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)


def run(path: Path, problem: Problem, folder: Path, *, schedule: str = "eager", races: bool = True):
    """Simulate a kernel on a problem, and judge its outputs."""
    spec, base = KernelSpec.from_files(path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(problem), family="gpumode")
    (done,) = simulate(
        SimDevice(), spec, [case], folder=folder / "jobs", base=base, outputs=True, races=races, schedule=schedule
    )
    return done


def changed(name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Write a kernel with changes to lines, each of which its file has once."""
    text = PATHS[name].read_text()
    for old, new in changes:
        text, count = re.subn(re.escape(old), lambda _, new=new: new, text)
        assert count == 1, old
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def few_sms(name: str, folder: Path, *changes: tuple[str, str]) -> Path:
    """Write a kernel for two pairs of CTAs, each of which has several tiles, if a CTA of it may have them."""
    persistent = "SMS = 148\n" in PATHS[name].read_text()
    return changed(name, folder, *[("SMS = 148\n", "SMS = 4\n")] * persistent, *changes)


def test_every_step_is_run_here_or_as_a_twin():
    """Those of published versions are exact and free of races by ``tests/model/test_group_gemm_twins.py``."""
    assert set(PATHS) == {*WORK, *(name.removesuffix(".py") for name, _ in VERSIONS.values())}


def test_two_steps_are_one_file_with_other_constants():
    """What is mended in one must be mended in the other."""
    files = [PATHS[name].read_text() for name in ("map_parameters", "persistent")]
    codes = [[line.partition("#")[0].rstrip() for line in text.split('"""\n', 1)[1].splitlines()] for text in files]
    unlike = {one.split(" = ")[0] for one, other in zip(*codes, strict=True) if one != other}
    assert unlike == {"TILE_N", "STAGES", "MOST_CTAS", "SORTED"}


@pytest.mark.parametrize("name", PATHS)
def test_a_step_is_submittable(name):
    text = PATHS[name].read_text()
    assert "stream" not in text.lower()  # GPU MODE refuses a file with this word
    assert not re.search(r"^\s*(from|import) (tests|pytest_nvfp4)", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("shape", [RAGGED, UNIFORM, MANY], ids=["ragged", "uniform", "many"])
def test_a_step_is_exact_and_free_of_races(name, shape, tmp_path):
    done = run(few_sms(name, tmp_path), parse_shape(shape), tmp_path)
    assert (done.status, done.findings) == ("passed", ())


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("schedule", ["lazy", "1", "2", "3"])
def test_a_step_is_exact_and_free_of_races_in_other_schedules(name, schedule, tmp_path):
    done = run(few_sms(name, tmp_path), parse_shape(UNIFORM), tmp_path, schedule=schedule)
    assert (done.status, done.findings) == ("passed", ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (("if before + tokens > ACC_COLUMNS:", "if before + tokens > TMEM_COLUMNS:"), "1200x256x512"),
        (("2 * EPILOGUE_WARPS)\n", "2 * EPILOGUE_WARPS - 1)\n"), UNIFORM),
        (("turned = step - columns - across", "turned = step - across"), UNIFORM),
        (("(lane // 8 ^ lane % 8 // 2)", "(lane // 8)"), "16x128x256"),
        (("(rows & box - 1) + j * box", "(rows & box) + j * box"), "80x128x256"),
    ],
    ids=["overlapping accumulators", "one epilogue warp is not waited for", "rounds", "swizzle", "boxes"],
)
def test_a_mistake_in_the_shipped_kernel_is_found(change, shape, tmp_path):
    done = run(few_sms("sm100", tmp_path, change), parse_shape(shape), tmp_path)
    assert done.status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "problem"), [(name, problem) for name, own in WORK.items() for problem in own])
def test_the_work_of_a_step(name, problem, tmp_path):
    (problem,) = (one for one in GPUMODE_BENCH if one.name == problem)
    done = run(PATHS[name], problem, tmp_path, races=False)
    assert (done.status, done.findings) == ("passed", ())
    loaded, different, flops, ctas = work(done)
    assert (loaded, different, flops, ctas) == WORK[name][problem.name]
    useful = sum(2 * group.m * group.n * group.k for group in problem.groups)
    good = loaded <= LIMITS[problem.name] * different and flops <= 1.1 * useful and ctas <= 148
    assert good == (name == "sm100")


def work(done):
    """Bytes loaded, the different ones of them, flops executed, and CTAs, of a call of one launch."""
    (launch,) = done.call.launches
    counters = launch.counters
    return tuple(counters[name] for name in ("tma.load.bytes", "tma.load.unique_bytes", "mma.flops", "ctas"))


@pytest.mark.slow
def test_tiles_of_half_the_tokens_load_more_bytes(tmp_path):
    narrow = changed("sm100", tmp_path, ("MOST_TOKENS = 256", "MOST_TOKENS = 128"))
    loaded, different, *_ = work(run(narrow, GPUMODE_BENCH[1], tmp_path, races=False))
    assert loaded > LIMITS["gpumode-bench-1"] * different
