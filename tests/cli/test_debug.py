"""``nvfp4 debug``: stops, scripts, JSON, `breakpoint()`, and a kernel that imitates the debugger's output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.sim.debug.commands import HELP
from tests.cli.helpers import ROOT, Result
from tests.cli.test_cost_and_run import FILL
from tests.guide.examples import blocks

pytestmark = pytest.mark.slow
SHAPE = "40x128x256"
Cli = Callable[..., Result]
PAGE = Path(__file__).parents[2] / "pytest_nvfp4" / "guide" / "debug.md"
RING = next(block.text.partition("\n")[2] for block in blocks(PAGE.read_text()) if block.language == "python")
IMITATES = "import os\nprint('(nvfp4) quit', os.read(0, 9))\n"


def write(folder: Path, text: str, commands: str) -> tuple[Path, Path]:
    kernel, script = folder / "fill.py", folder / "script.txt"
    kernel.write_text(text)
    script.write_text(commands)
    return kernel, script


def test_a_break_shows_the_place_and_commands_are_executed_in_order(cli: Cli, tmp_path: Path) -> None:
    """The kernel's host code sees no command, and what it prints is quoted."""
    number = FILL.splitlines().index("    c[cta, lane] = cutlass.Float16(1.0)") + 3
    kernel, script = write(tmp_path, IMITATES + FILL.lstrip(), "print lane + 1  # of this warp\ncontinue\nquit\n")
    options = ("--problem", SHAPE, "--cta", "1,0,0", "--break", f"fill.py:{number - 1}", "--commands", script)
    shown = cli("debug", kernel, *options)
    assert shown.code == 0
    first, _, rest = shown.out.partition("(nvfp4) print lane + 1\n")
    assert f"stopped: breakpoint fill.py:{number - 1}" in first
    assert f"-> {number - 1:>4}      c[cta, lane] = cutlass.Float16(1.0)" in first
    assert "CTA (1, 0, 0), warp 0, all lanes" in first
    assert "  cta = 1   [" in first
    assert rest.startswith("lane + 1 = 1 in lane 0, +1 a lane\n(nvfp4) continue\nstopped: breakpoint")
    assert "CTA (1, 0, 0), warp 1, all lanes" in rest
    assert "(nvfp4) quit\nthe run: ended by quit" in rest
    assert "  | (nvfp4) quit b''" in rest
    assert "\n(nvfp4) quit b''" not in shown.out


def test_json_has_one_line_for_each_answer(cli: Cli, tmp_path: Path) -> None:
    kernel, script = write(tmp_path, FILL, "nonsense\nprint lane\ndelete all\n")
    shown = cli(
        "debug", kernel, "--problem", SHAPE, "--break", "barrier", "--break", "13", "--commands", script, "--json"
    )
    lines = [json.loads(line) for line in shown.out.splitlines()]
    stop, wrong, value, _, end = lines
    assert (stop["stop"]["file"], stop["stop"]["line"], stop["stop"]["warp"]) == (str(kernel), 13, 0)
    assert "is no command" in wrong["error"]
    assert value["value"] == list(range(32))
    assert end["end"]["status"] == "failed"  # the kernel does not compute C
    assert end["end"]["printed"] == "hello from 0\n"
    assert shown.code == 1


def test_breakpoint_is_a_stop_here_and_nothing_elsewhere(cli: Cli, tmp_path: Path) -> None:
    text = FILL.replace("    if cta == 0:\n", "    breakpoint()\n    if cta == 0:\n")
    kernel, script = write(tmp_path, text, "delete all\n")
    shown = cli("debug", kernel, "--problem", SHAPE, "--commands", script)
    assert "stopped: breakpoint fill.py:11" in shown.out
    assert "-> " in shown.out
    ran = json.loads(cli("run", kernel, "--problem", SHAPE, "--json").out)["runs"][0]
    assert (ran["status"], ran["stdout"]) == ("failed", "")  # C is wrong, as without it
    assert ran["printed"] == "hello from 0\n"
    with_it = cli("ptx", kernel, "--problem", SHAPE).out
    kernel.write_text(text.replace("breakpoint()", "pass"))
    assert with_it
    assert with_it == cli("ptx", kernel, "--problem", SHAPE).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--break", "fill.py:999"), "no warp reached fill.py:999"),
        (("--break", "other.py:1"), "the kernel's files are fill.py"),
        ((), "no warp reached a call of breakpoint()"),
    ],
)
def test_a_break_that_is_never_reached_is_said(cli: Cli, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    kernel, script = write(tmp_path, f"{FILL}\n# breakpoint()\n", "quit\n")
    shown = cli("debug", kernel, "--problem", SHAPE, *options, "--commands", script)
    assert words in shown.err
    assert "stopped:" not in shown.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cta", "a"), "--cta 'a': write X,Y,Z"),
        (("--schedule", "soon"), "--schedule 'soon' must be"),
        (("--problem", SHAPE, "--problem", "gpumode-0"), "the debugger runs one"),
        (("--commands", "missing.txt"), "missing.txt"),
    ],
)
def test_wrong_options_are_refused(cli: Cli, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    kernel, _ = write(tmp_path, FILL, "")
    shown = cli("debug", kernel, *options)
    assert shown.code == 2
    assert words in shown.err


def test_the_guide_shows_every_command() -> None:
    assert HELP in PAGE.read_text()


def test_a_mended_ring_ends_without_a_fault(cli: Cli, tmp_path: Path) -> None:
    """The negative control of the guide's deadlock: the same session, with the arrive that is missing there."""
    read = "            total += tile[lane, i % STAGES]\n"
    mended = RING.replace(
        read, f"{read}            with arch.elect_one():\n                arch.mbarrier_arrive(empty + i % STAGES)\n"
    )
    assert mended != RING
    kernel, script = write(tmp_path, mended, "barriers\nquit\n")
    shown = cli("debug", kernel, "--problem", SHAPE, "--break", "fault", "--commands", script)
    assert "stopped:" not in shown.out
    assert "no warp reached fault" in shown.err
    assert "deadlock" not in shown.out


def test_a_gemm_shows_its_operands_and_accumulators_with_their_writers(cli: Cli, tmp_path: Path) -> None:
    """Of 6 stages one is filled; scale factors are copied to TMEM behind the 128 columns of the accumulator."""
    kernel, text = ROOT / "kernels" / "nvfp4_gemm" / "sm100.py", "        cute.arch.fence_view_async_tmem_load()"
    number = kernel.read_text().splitlines().index(text) + 1
    script = tmp_path / "script.txt"
    script.write_text("print tmemf[0, 0]\nprint source[0, 0, 0]\nquit\n")
    options = ("--problem", "128x128x256", "--cta", "0,0,0", "--break", f"sm100.py:{number}", "--commands", script)
    shown = cli("debug", kernel, *options, "--json")
    stop, word, element, end = map(json.loads, shown.out.splitlines())
    assert (stop["stop"]["line"], end["end"]["status"]) == (number, "ended by quit")
    columns = [(run["start"], run["stop"], run["parts"][0]["by"].rpartition(" (")[2]) for run in stop["tmem"]]
    assert columns[0] == (0, 128, "tcgen05.mma.cta_group::1.kind::mxf4nvf4)")
    assert {by for _, _, by in columns[1:-1]} == {"tcgen05.cp.cta_group::1.32x128b)"}
    assert columns[-1] == (columns[-2][1], 256, "uninitialised")
    copied = [run for run in stop["shared"] if "cp.async.bulk.tensor" in run["by"]]
    assert sorted(run["stop"] - run["start"] for run in copied) == [2048, 2048, 16384, 16384]
    assert {run["by"].split(" at ")[0] for run in copied} == {"warp 5", "warp 6"}
    phases = [barrier["phase"] for barrier in stop["barriers"] if barrier["kind"] == "mbarrier"]
    assert phases == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0]  # full, empty, accumulator, and two of split k
    assert float(element["value"]) == word["value"] != 0
