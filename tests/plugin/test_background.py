"""What runs ahead of the checks: in parallel, only what is selected, with the same verdicts, and gone with the run."""

from __future__ import annotations

import pytest

from pytest_nvfp4.device import select
from pytest_nvfp4.plugin.tasks import Workers

from .conftest import Project, is_alive, left_behind
from .meeting import Elsewhere, meeting
from .simulated import FILL, PROBLEM, outcomes
from .sources import ENTRY


@pytest.fixture(autouse=True)
def _notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels here meet by files in their folder, which a sandbox would not let them write."""
    monkeypatch.setenv("NVFP4_SANDBOX", "off")


@pytest.mark.slow
def test_kernels_are_compiled_at_once(project: Project) -> None:
    meeting(project)
    outcomes(project.run("a.py", "b.py", "-k", "compile", "--nvfp4-jobs=2"), passed=2)


@pytest.mark.slow
def test_or_one_after_the_other(project: Project) -> None:
    meeting(project, seconds=1.0)
    ran = project.run("a.py", "b.py", "-k", "compile", "--nvfp4-jobs=1")
    outcomes(ran, failed=1, passed=1)
    assert "nobody came" in ran.failures()["compile"]


@pytest.mark.slow
def test_with_xdist_its_test_processes_are_all_there_is(project: Project) -> None:
    meeting(project)
    outcomes(project.run("a.py", "b.py", "-k", "compile", "--nvfp4-jobs=2", "-n2"), passed=2)


@pytest.mark.parametrize("how", ["-k", "node id", "skip", "--collect-only"])
def test_nothing_is_compiled_that_is_not_selected(project: Project, how: str) -> None:
    meeting(project, seconds=0.0)
    project.file(
        "conftest.py",
        "import pytest\n\n\ndef pytest_collection_modifyitems(config, items):\n"
        f"    for item in items if {how == 'skip'} else ():\n        item.add_marker(pytest.mark.skip('not now'))\n",
    )
    arguments = {
        "-k": ("a.py", "b.py", "-k", "nothing"),
        "node id": ("a.py::nothing",),
        "skip": ("a.py", "b.py"),
        "--collect-only": ("a.py", "b.py", "--collect-only"),
    }[how]
    project.run(*arguments, "--nvfp4-jobs=2")
    assert not list(project.path.glob("met-*"))


@pytest.mark.slow
def test_what_runs_ends_with_the_run(project: Project) -> None:
    """``-x`` after the first failure: another kernel's process, which would run for minutes, is gone."""
    meeting(project)
    hangs = (
        (project.path / "b.py")
        .read_text()
        .replace(ENTRY, "import os\n(own.parent / 'pid').write_text(str(os.getpid()))\ntime.sleep(600)\n" + ENTRY)
    )
    (project.path / "b.py").write_text(hangs)
    fails = (
        (project.path / "a.py")
        .read_text()
        .replace(
            ENTRY,
            "while not (own.parent / 'pid').exists() or not (own.parent / 'pid').read_text():\n    time.sleep(0.02)\n"
            "raise RuntimeError('enough')\n" + ENTRY,
        )
    )
    (project.path / "a.py").write_text(fails)
    ran = project.run("a.py", "b.py", "-k", "compile", "--nvfp4-jobs=2", "-x")
    assert "enough" in ran.text
    assert "1 failed" in ran.text
    assert not is_alive(int((project.path / "pid").read_text()))
    assert not left_behind()


@pytest.mark.slow
def test_a_failure_is_told_as_without_it(project: Project) -> None:
    meeting(project)
    broken = (project.path / "a.py").read_text().replace(ENTRY, "raise ValueError('broken')\n" + ENTRY)
    (project.path / "a.py").write_text(broken)
    said = []
    for jobs in (2, 1):
        for name in ("met-a", "met-b"):
            (project.path / name).touch()
        ran = project.run("a.py", "b.py", "-k", "compile or launch", f"--nvfp4-jobs={jobs}", "--snapshot-update")
        outcomes(ran, failed=1, passed=2, skipped=1)
        said.append(ran.failures()["compile"])
    assert "a.py:" in said[0]
    assert "ValueError: broken" in said[0]
    assert said[0] == said[1]


VERDICTS = ("verify", "coverage", "cost", "races")


@pytest.mark.parametrize(
    "how",
    [("--nvfp4-jobs=2",), ("--nvfp4-jobs=1",), ("-n2",)],
    ids=" ".join,
)
@pytest.mark.slow
def test_verdicts(project: Project, how: tuple[str, ...]) -> None:
    """FILL fills C with ones: it covers C, and its results are wrong, which the races check leaves to verify."""
    project.kernel(source=FILL, problems=(PROBLEM,))
    options = ("k.py", f"--nvfp4-problem={PROBLEM}", "--nvfp4-device=sim", "--nvfp4-family=pow2_exact")
    options += ("--nvfp4-cache-dir", str(project.path / "cache"), "-k", " or ".join(VERDICTS))
    ran = project.run(*options, *how, "--snapshot-update")
    outcomes(ran, failed=1, passed=2, skipped=1)
    assert "outputs wrong" in ran.failures()[f"verify[{PROBLEM}]"]
    again = project.run(*options, *how)
    outcomes(again, failed=1, passed=2, skipped=1)
    assert "1 case is known to pass in the simulator" in again.text or "-n2" in how


@pytest.mark.parametrize(
    ("option", "number", "range_"),
    [("jobs", 0, "1 to 64"), ("jobs", 65, "1 to 64"), ("seed", -1, "0 to 4294967295")],
)
def test_a_number_that_cannot_be_used(project: Project, option: str, number: int, range_: str) -> None:
    errors = project.run(f"--nvfp4-{option}={number}").errors
    assert f"--nvfp4-{option} {number} must be {range_}" in errors


@pytest.mark.parametrize("device", [pytest.param("sim", marks=pytest.mark.slow), "elsewhere"])
def test_a_device_of_this_machine_has_it_to_itself(
    project: Project, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """While something may be timed on it, nothing else runs."""
    begun: list[int] = []
    monkeypatch.setattr(Workers, "start", lambda self: begun.append(len(self._threads)))
    monkeypatch.setattr(Workers, "wait", lambda *_: None)
    monkeypatch.setattr(select, "known_names", lambda: ["elsewhere"])
    monkeypatch.setattr(select, "_third_party", lambda _name: Elsewhere)
    project.kernel()
    project.run("k.py", "-k", "(compile or verify) and gpumode-0", "--nvfp4-jobs=2", f"--nvfp4-device={device}")
    assert len(begun) == (1 if device == "sim" else 0)
