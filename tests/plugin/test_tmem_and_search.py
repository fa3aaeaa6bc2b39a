"""``tmem`` and ``search``: the shipped kernel and copies of it with one line changed, compiled and simulated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.cache_root import CACHE_VARIABLE
from tests.plugin.shipped_kernel import SHIPPED, counted, kernel

from .conftest import Ran

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
pytest.importorskip("cutlass")

LEAN = ("-p", "no:benchmark", "-p", "no:cacheprovider")

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, compiled_once: Path) -> Run:
    monkeypatch.setenv(CACHE_VARIABLE, str(compiled_once))
    for name in ("CI", "GITHUB_ACTIONS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    pytester.path.joinpath("pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    def go(*args: str) -> Ran:
        return Ran(pytester.runpytest_subprocess(*LEAN, *args))

    return go


class TestTmem:
    def test_the_shipped_kernel_allocates_what_it_needs(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester)
        ran = run("k.py", "-k", "tmem", "--nvfp4-device=none", "-v")
        counted(ran, passed=1, warnings=0)
        assert "k.py::tmem[gpumode-0] PASSED" in ran.text

    def test_too_little_fails_and_too_much_is_noted(
        self, run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
    ) -> None:
        kernel(pytester, columns=128).rename(pytester.path / "little.py")
        kernel(pytester, columns=512).rename(pytester.path / "much.py")
        ran = run("little.py", "much.py", "-k", "tmem", "--nvfp4-device=none", *workers)
        counted(ran, passed=1, failed=1)
        assert "it uses acc 128 + SFA 16 + SFB 16 = 160 columns" in ran.text
        assert "and allocates 128" in ran.text
        assert "allocate 256" in ran.text
        assert "it allocates 512 columns, and its named tensors cover acc 128 + SFA 16 + SFB 16 = 160:" in ran.text
        assert "KernelWarning" in ran.text

    def test_columns_that_overlap_fail_with_both_lines(self, run: Run, pytester: pytest.Pytester) -> None:
        """The simulation is that of ``coverage``; named layouts alone do not show where a tensor begins."""
        text = kernel(pytester).read_text()
        right = "sfb_tmem_ptr = sfa_tmem_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)"
        assert text.count(right) == 1
        wrong = text.replace(right, "sfb_tmem_ptr = sfa_tmem_ptr + 8")
        pytester.path.joinpath("wrong.py").write_text(wrong)
        first, second = (
            wrong[: wrong.index(copy)].count("\n") + 1 for copy in ("cute.copy(s2t_sfa,", "cute.copy(s2t_sfb,")
        )
        ran = run("k.py", "wrong.py", "-k", "tmem", "--nvfp4-device=sim", "--nvfp4-problem=gpumode-0")
        counted(ran, passed=1, failed=1)
        assert f"wrong.py:{second}: simulated, tmem-overlap: TMEM columns [136, 140)" in ran.text
        assert f"wrong.py:{second} copied them over what wrong.py:{first} had copied there" in ran.text

    def test_a_kernel_without_tensor_memory_has_no_such_check(self, run: Run, pytester: pytest.Pytester) -> None:
        pytester.path.joinpath("k.py").write_text("def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n")
        assert "tmem" not in run("k.py", "--co", "-q", "--nvfp4-device=none").text

    def test_a_kernel_that_does_not_compile_says_so_once(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester, tile_map="tiles_m = nowhere")
        ran = run("k.py", "-k", "tmem or compile", "--nvfp4-device=none")
        counted(ran, failed=1, skipped=1)


class TestSearch:
    def test_it_is_off_unless_asked_for(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester)
        assert "::search" not in run("k.py", "--co", "-q").text
        assert "::search" not in run("k.py", "--co", "-q", "--nvfp4-search=0").text
        assert "k.py::search" in run("k.py", "--co", "-q", "--nvfp4-search=ci").text
        assert "::search" not in run("k.py", "--co", "-q", "--nvfp4-search=ci", "--nvfp4-device=none").text

    def test_a_value_that_means_nothing_is_refused(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester)
        ran = run("k.py", "--nvfp4-search=lots")
        assert ran.code == pytest.ExitCode.USAGE_ERROR
        assert "neither a number of examples nor dev, ci, thorough" in ran.errors + ran.text

    def test_the_thorough_profile_of_hypothesis_turns_it_on(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester)
        assert "k.py::search" in run("k.py", "--co", "-q", "--hypothesis-profile=nvfp4-thorough").text

    def test_the_shipped_kernel_survives_a_short_search(self, run: Run, pytester: pytest.Pytester) -> None:
        kernel(pytester)
        ran = run("k.py", "-k", "search", "--nvfp4-search=2")
        counted(ran, passed=1)
        line = ran.section(r"nvfp4: searched \(Hypothesis, in the simulator\)")
        assert "group list" in line
        assert "none is wrong (which proves nothing)" in line

    @pytest.mark.slow
    def test_a_wrong_map_of_ctas_is_found_made_small_and_tried_first(
        self, run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
    ) -> None:
        """A group of whole tiles has one row of tiles too many in the map: wrong from two tiles of columns on."""
        kernel(pytester, tile_map="tiles_m = Int32(table[low, M]) // TILE_M + 1")
        ran = run("k.py", "-k", "search", "--nvfp4-search=ci", *workers)
        counted(ran, failed=1)
        assert "searched: 128x256x256 failed (1 group; the smallest that fails)" in ran.text
        command = "-k verify --nvfp4-device=sim --nvfp4-family=nan_pad --nvfp4-problem=128x256x256"
        assert command in ran.text
        assert "16384 of 32768" in ran.text
        # The example database: one example would hardly come upon it again.
        again = run("k.py", "-k", "search", "--nvfp4-search=1", *workers)
        counted(again, failed=1)
        assert "1 that failed before" in again.text
        assert command in again.text
        repeated = run("k.py", *command.split(), *workers)
        counted(repeated, failed=1)
        # Mended, it passes, and nothing is left to be tried.
        shutil.copy(SHIPPED, pytester.path / "k.py")
        counted(run("k.py", "-k", "search", "--nvfp4-search=1"), passed=1)
        assert "failed before" not in run("k.py", "-k", "search", "--nvfp4-search=1").text
