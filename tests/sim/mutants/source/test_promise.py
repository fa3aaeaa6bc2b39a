"""Each mistake in the Python of a kernel is reported by its check and line; no refactoring has a finding."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim.mutants.source.corpus import ROOT, SUBJECTS, Subject
from tests.sim.mutants.source.edit import REFACTORING, Edit, parse
from tests.sim.mutants.source.page import PATH, page
from tests.sim.mutants.source.runner import Said, reported, run_all

Job = tuple[Subject, Edit | None]

needs_dsl = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)
ALL = [(subject, edit) for subject in SUBJECTS for edit in (None, *subject.edits)]
"""All kernels, unedited, and their edits."""


def _name(job: Job) -> str:
    subject, edit = job
    return subject.name if edit is None else f"{subject.name}-{edit.name}"


def _stable(text: str) -> str:
    """Return a first line without its numbers, which the kernel's lines and layouts change."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text.removesuffix(" ..."))


@pytest.fixture(scope="session")
def said(request: pytest.FixtureRequest) -> Callable[[Job], Said]:
    """Return what is reported of a job. All selected ones run side by side, unless xdist divides the tests already."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return reported
    selected = (item for item in request.session.items if item.path == Path(__file__))
    parameters = (getattr(getattr(item, "callspec", None), "params", {}) for item in selected)
    chosen = [one["job"] for one in parameters if "job" in one]
    known = dict(zip(map(_name, chosen), run_all(chosen), strict=True))
    return lambda job: known[_name(job)]


@pytest.mark.slow
@needs_dsl
@pytest.mark.parametrize("job", [pytest.param(job, id=_name(job)) for job in ALL])
def test_what_is_reported(job: Job, said: Callable[[Job], Said]) -> None:
    _, edit = job
    one = said(job)
    if edit is None or edit.topic == REFACTORING or edit.missed:
        assert one == Said()
        return
    assert one.check == edit.check, one.message
    assert edit.line in one.line, one.message
    assert bool(edit.line) == bool(one.line), one.message
    assert _stable(one.first).startswith(_stable(edit.first)), one.message
    # A load of 128 registers names them all.
    assert all(len(line) < 1500 for line in one.message.splitlines())


@pytest.mark.slow
@needs_dsl
def test_pytest_itself_reports_the_same(tmp_path: Path) -> None:
    """The words of `said` are those of the checks, with the kernel in an empty folder and without settings."""
    (subject,) = (one for one in SUBJECTS if one.name == "map_updates")
    edits = {edit.name: edit for edit in subject.edits}
    chosen = (
        "commit before the MMAs",
        "the stage is not given back",
        "no bound on the rows of C",
        "a constant is misspelt",
        "two stages",
    )
    files = [f"k{number}/{subject.name}.py" for number in range(len(chosen))]
    for file, name in zip(files, chosen, strict=True):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(subject.text(edits[name]))
    problem = ",".join("x".join(map(str, group)) for group in subject.groups)
    options = ["-q", f"--nvfp4-problem={problem}", "-k", "compile or verify or races"]
    command = [sys.executable, "-m", "pytest", *files, *options]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    output = _stable(ran.stdout)
    failed = set(re.findall(r"^FAILED (k\d)/", ran.stdout, re.MULTILINE))
    assert failed == {"k0", "k1", "k2", "k3"}, ran.stdout
    for name in chosen[:4]:
        assert _stable(edits[name].first)[:100] in output, ran.stdout


@pytest.mark.slow
def test_every_edit_fits_its_kernel_and_changes_it() -> None:
    for subject in SUBJECTS:
        text = subject.text()
        edited = [subject.text(edit) for edit in subject.edits]
        for edit, changed in zip(subject.edits, edited, strict=True):
            assert changed != text, edit.name
            compile(changed, edit.name, "exec")
        assert len(set(edited)) == len(edited)
        assert len({edit.name for edit in subject.edits}) == len(edited)


def test_there_are_enough() -> None:
    mutants = [edit for subject in SUBJECTS for edit in subject.mutants]
    assert len(mutants) >= 150
    assert sum(len(subject.edits) for subject in SUBJECTS) - len(mutants) >= 60
    for edit in mutants:
        assert edit.missed or (edit.check and edit.first), edit.name


def test_the_page_is_that_of_the_edits() -> None:
    assert page() == PATH.read_text(), "write it anew: python -m tests.sim.mutants.source.page"


def _entries(tmp_path: Path, text: str) -> Iterator[Edit]:
    path = tmp_path / "some.diff"
    path.write_text(text)
    return parse(path)


def test_an_edit_that_does_not_fit_says_so(tmp_path: Path) -> None:
    (edit,) = _entries(tmp_path, "=== rings: one\ncheck: races\n@@\n a\n-b\n+c\n")
    assert edit.applied("a\nb\nd") == "a\nc\nd"
    for text, count in (("a\nd", 0), ("a\nb\na\nb", 2)):
        with pytest.raises(ValueError, match=f"stand {count} times"):
            edit.applied(text)
    with pytest.raises(ValueError, match="no field"):
        list(_entries(tmp_path, "=== rings: one\nsays: something\n"))
    assert (ROOT / "kernels").is_dir()
