"""Which snapshots are unused: never one that a run did not get to, always one that nothing compares any more."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.plugin.ownership import unharmed

from .conftest import Project
from .sources import ENTRY

TESTS = """
import pytest
from helper import made

@pytest.fixture(scope="module")
def trace(nvfp4_trace):
    return nvfp4_trace("e.py", entry="build")

def test_a(layout_snapshot, trace):
    layout_snapshot(trace)

@pytest.mark.second
def test_b(layout_snapshot, trace):
    layout_snapshot(trace, name="one")
    layout_snapshot(trace, name="two")
"""
OF_TESTS = ["test_x/test_a.txt", "test_x/test_b[one].txt", "test_x/test_b[two].txt"]
OF_KERNELS = [f"{folder}/k/{check}[gpumode-0].txt" for folder in "pq" for check in ("codegen", "launch", "layouts")]
INI = 'nvfp4_kernels = ["p/*.py", "q/*.py"]\nmarkers = ["second"]\npythonpath = ["."]'


@pytest.fixture
def recorded(project: Project) -> Project:
    """Two kernels of one name and a module of tests, with their snapshots."""
    project.settings("", ini=INI)
    project.kernel("p/k.py")
    project.kernel("q/k.py")
    project.kernel("e.py", ENTRY, entry="build")
    project.file("helper.py", "made = None\n")
    project.file("test_x.py", TESTS)
    project.record()
    assert sorted(project.snapshots()) == sorted([*OF_KERNELS, *OF_TESTS])
    return project


class TestARunThatSelects:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "args",
        [
            (),
            (".",),
            ("p",),
            ("p/k.py",),
            ("test_x.py", "q"),
            ("-k", "test_a or codegen"),
            ("-m", "second"),
            ("-m", "nvfp4"),
            ("--ignore=p",),
            ("--ignore=test_x.py",),
            ("--deselect=test_x.py::test_b",),
            ("test_x.py::test_a",),
            ("p/k.py::layouts[gpumode-0]", "q/k.py"),
            ("p/k.py", "--nvfp4-problem=gpumode-1"),
            ("--setup-plan",),
            ("--collect-only",),
        ],
        ids=" ".join,
    )
    def test_harms_nothing(self, recorded: Project, args: tuple[str, ...]) -> None:
        if "--nvfp4-problem=gpumode-1" in args:
            recorded.kernel("p/k.py", problems=("gpumode-1",))
            recorded.record(*args)
        unharmed(recorded, *args)

    @pytest.mark.slow
    @pytest.mark.parametrize("node", ["test_y.py::TestC", "test_y.py::TestC::test_c", "test_y.py::test_d"])
    def test_of_a_class_or_a_test_harms_nothing(self, recorded: Project, node: str) -> None:
        compare = 'layout_snapshot("p/k.py")\n\n'
        inside = f"class TestC:\n    def test_c(self, layout_snapshot):\n        {compare}"
        recorded.file("test_y.py", f"{inside}def test_d(layout_snapshot):\n    {compare}")
        recorded.record("test_y.py")
        unharmed(recorded, node)

    @pytest.mark.slow
    def test_harms_nothing_in_test_processes(self, recorded: Project) -> None:
        unharmed(recorded, "-n2", "-k", "test_a or codegen")

    def test_last_failed_harms_nothing(self, recorded: Project, pytester: pytest.Pytester) -> None:
        before = recorded.snapshots()
        recorded.file("test_x.py", TESTS + "\ndef test_fails():\n    assert False\n")
        for args in ((), ("--lf",), ("--lf", "--snapshot-update")):
            result = pytester.runpytest_inprocess("-p", "no:hypothesispytest", "--nvfp4-device=none", *args)
            assert result.ret == 1
            assert "unused" not in result.stdout.str()
        assert recorded.snapshots() == before


class TestARunThatDoesNotPass:
    BROKEN: ClassVar = {
        "a failure": "def test_b(trace):\n    assert False\n",
        "an error before the comparison": "def test_b(trace, missing_fixture):\n    pass\n",
        "a skip": "def test_b(trace):\n    pytest.skip('not now')\n",
        "a skip by mark": "@pytest.mark.skip\ndef test_b(trace):\n    pass\n",
        "an expected failure": "@pytest.mark.xfail\ndef test_b(trace):\n    assert False\n",
        "a failing subtest": "def test_b(trace, subtests):\n    with subtests.test():\n        assert False\n",
        "a failing teardown": (
            "@pytest.fixture\ndef late():\n    yield\n    assert False\n\ndef test_b(trace, late):\n    pass\n"
        ),
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("what", BROKEN)
    def test_what_it_did_not_get_to_is_kept(self, recorded: Project, what: str) -> None:
        head = TESTS[: TESTS.index("@pytest.mark.second")]
        recorded.file("test_x.py", head + self.BROKEN[what])
        unharmed(recorded, "test_x.py")

    @pytest.mark.slow
    def test_nor_in_test_processes(self, recorded: Project) -> None:
        head = TESTS[: TESTS.index("@pytest.mark.second")]
        recorded.file("test_x.py", head + self.BROKEN["a failure"])
        unharmed(recorded, "-n2")

    @pytest.mark.slow
    def test_a_module_that_cannot_be_collected(self, recorded: Project, workers: tuple[str, ...]) -> None:
        recorded.file("test_x.py", "import no_such_module\n" + TESTS)
        unharmed(recorded, "--continue-on-collection-errors", *workers, update=not workers)
        unharmed(recorded)

    def test_a_module_that_skips_itself(self, recorded: Project) -> None:
        recorded.file("test_x.py", "import pytest\npytest.skip('no', allow_module_level=True)\n" + TESTS)
        unharmed(recorded)

    @pytest.mark.parametrize("stop", [("-x",), ("--maxfail=1",)])
    def test_a_run_that_stops_at_the_first_failure(self, recorded: Project, stop: tuple[str, ...]) -> None:
        recorded.file("a/test_first.py", "def test_first():\n    assert False\n")
        (recorded.path / "q/k.py").unlink()  # a true orphan, and still not the time to say so
        unharmed(recorded, *stop)

    @pytest.mark.slow
    def test_a_run_that_a_test_ends(self, recorded: Project) -> None:
        recorded.file(
            "a/test_first.py", "import pytest\n\n\ndef test_first():\n    pytest.exit('enough', returncode=0)\n"
        )
        unharmed(recorded)

    @pytest.mark.slow
    def test_a_test_process_that_is_lost(self, recorded: Project) -> None:
        recorded.file("test_x.py", "import os\n\n\ndef test_dies():\n    os._exit(3)\n" + TESTS)
        (recorded.path / "q/k.py").unlink()
        before = recorded.snapshots()
        ran = recorded.run("-n2", "--snapshot-update")
        assert ran.code == 1
        assert "crashed while running" in ran.text
        assert "unused" not in ran.text
        assert recorded.snapshots() == before


class TestTrueOrphans:
    def gone(self, project: Project, expected: list[str], *args: str) -> None:
        """They are reported by name, fail the run, and are removed by ``--snapshot-update``, and nothing else is."""
        before = project.snapshots()
        ran = project.run(*args)
        assert ran.code == 1, ran.text
        said = ran.section(f"nvfp4: {len(expected)} unused snapshots")
        assert sorted(said.splitlines()) == sorted(f"snapshots/{file}" for file in expected)
        assert project.snapshots() == before
        ran = project.run(*args, "--snapshot-update")
        assert ran.code == 0, ran.text
        assert sorted(ran.section(f"nvfp4: {len(expected)} unused snapshots removed").splitlines()) == sorted(
            f"snapshots/{file}" for file in expected
        )
        assert project.snapshots() == {file: text for file, text in before.items() if file not in expected}
        assert project.run(*args).code == 0

    def test_a_name_that_a_test_no_longer_uses(self, recorded: Project, workers: tuple[str, ...]) -> None:
        recorded.file("test_x.py", TESTS.replace('    layout_snapshot(trace, name="two")\n', ""))
        self.gone(recorded, ["test_x/test_b[two].txt"], "test_x.py", *workers)

    def test_a_test_that_is_gone(self, recorded: Project) -> None:
        recorded.file("test_x.py", TESTS[: TESTS.index("@pytest.mark.second")])
        self.gone(recorded, OF_TESTS[1:])

    def test_every_test_of_a_module_is_gone(self, recorded: Project) -> None:
        recorded.file("test_x.py", "")
        self.gone(recorded, OF_TESTS)
        assert not (recorded.path / "snapshots/test_x").exists()

    def test_a_module_that_is_gone(self, recorded: Project, workers: tuple[str, ...]) -> None:
        (recorded.path / "q/k.py").unlink()
        self.gone(recorded, OF_KERNELS[3:], *workers)
        assert not (recorded.path / "snapshots/q").exists()
        assert (recorded.path / "snapshots/p/k").is_dir()

    @pytest.mark.slow
    def test_a_kernel_that_was_renamed(self, recorded: Project) -> None:
        (recorded.path / "q/k.py").rename(recorded.path / "q/k2.py")
        recorded.bank.seed(recorded.path / "q/k2.py")
        recorded.record("q/k2.py")
        assert set(OF_KERNELS) <= set(recorded.snapshots()), "a run of the new name alone knows nothing of the old one"
        self.gone(recorded, OF_KERNELS[3:], "q")

    @pytest.mark.slow
    @pytest.mark.parametrize("args", [(), ("-k", "not compile")], ids=["all", "those that compare"])
    def test_a_problem_that_is_no_longer_checked(self, recorded: Project, args: tuple[str, ...]) -> None:
        """A check that compares no snapshot, left out or skipped for want of a device, says nothing about them."""
        recorded.settings('[[tool.pytest_nvfp4.kernel]]\npath = "p/k.py"\nproblems = ["gpumode-1"]\n', ini=INI)
        recorded.kernel("p/k.py", problems=("gpumode-1",))
        recorded.run("p/k.py", "--snapshot-update", "--snapshot-no-cleanup").outcomes(passed=4)
        self.gone(recorded, OF_KERNELS[:3], "p/k.py", *args)

    @pytest.mark.slow
    def test_they_can_be_let_be(self, recorded: Project) -> None:
        (recorded.path / "q/k.py").unlink()
        before = recorded.snapshots()
        warned = recorded.run("--snapshot-warn-unused")
        assert warned.code == 0
        assert "nvfp4: 3 unused snapshots" in warned.text
        assert "unused snapshots" not in recorded.run("--snapshot-disable-unused").text
        assert recorded.run("--snapshot-update", "--snapshot-no-cleanup").code == 0
        assert recorded.snapshots() == before

    def test_one_that_cannot_be_removed_is_named(self, recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_self: Path, **_kwargs: object) -> None:
            raise PermissionError(13, "Permission denied")

        recorded.file("test_x.py", TESTS[: TESTS.index("@pytest.mark.second")])
        monkeypatch.setattr(Path, "unlink", refuse)
        ran = recorded.run("test_x.py", "--snapshot-update")
        assert ran.code == 1
        assert "snapshots/test_x/test_b[one].txt could not be removed: [Errno 13] Permission denied" in ran.text


class TestFilesOfOthers:
    def test_files_that_are_no_snapshots_of_ours_are_never_touched(self, recorded: Project) -> None:
        for name in ("notes.txt", "gone/golden.txt", "p/k/README.txt", "test_x/picture.png"):
            recorded.file(f"snapshots/{name}", "the user's")
        unharmed(recorded)

    @pytest.mark.slow
    def test_snapshots_of_syrupys_own_live_beside_them(self, recorded: Project, workers: tuple[str, ...]) -> None:
        one, other = (f"def test_{name}(snapshot):\n    assert 1 == snapshot\n\n" for name in ("plain", "other"))
        recorded.file("test_plain.py", one + other)
        recorded.run("--snapshot-update").outcomes(passed=12)
        recorded.run(*workers).outcomes(passed=12)
        recorded.file("test_plain.py", one)
        ran = recorded.run()
        assert ran.code == 1
        assert "1 snapshot unused." in ran.text
        recorded.run(*workers, "--snapshot-update").outcomes(passed=11)
        left = (recorded.path / "__snapshots__/test_plain.ambr").read_text()
        assert "test_other" not in left
        assert "test_plain" in left
        assert sorted(recorded.snapshots()) == sorted([*OF_KERNELS, *OF_TESTS])

    @pytest.mark.slow
    def test_a_failure_keeps_syrupys_own_too(self, recorded: Project) -> None:
        """An error before the comparison makes syrupy take the snapshot for unused."""
        recorded.file("test_plain.py", "def test_plain(snapshot):\n    assert 'text' == snapshot\n")
        recorded.record()
        ambr = recorded.path / "__snapshots__/test_plain.ambr"
        before = ambr.read_text()
        recorded.file("test_plain.py", "def test_plain(snapshot):\n    assert False\n    assert 'text' == snapshot\n")
        assert recorded.run("--snapshot-update").code == 1
        assert ambr.read_text() == before

    def test_runs_without_kernels_are_syrupys_alone(self, project: Project) -> None:
        project.file(
            "test_plain.py", "def test_plain(snapshot):\n    assert 'text' == snapshot\n\ndef test_b():\n    pass\n"
        )
        project.record()
        project.file("test_plain.py", "def test_b():\n    assert False\n")
        ran = project.run("-x")
        assert "detection is disabled" not in ran.text
        assert "1 snapshot unused." in ran.text
