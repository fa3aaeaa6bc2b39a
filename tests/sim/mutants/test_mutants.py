"""Each mutant of the shipped kernels is found, gives a wrong result, or is equivalent: nothing survives unexplained."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sim.mutants import table
from tests.sim.mutants.corpus import SUBJECTS
from tests.sim.mutants.outcome import Equivalent, Found, Hidden, Mutant, Wrong, check

ROOT = Path(__file__).parents[3]
LIMIT_S = 1800
ALL = [(subject.name, mutant) for subject in SUBJECTS.values() for mutant in subject.mutants]


needs_dsl = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)


def _selected(session: pytest.Session) -> Iterator[tuple[str, str]]:
    """The mutants whose tests run."""
    for item in session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(mutant := parameters.get("mutant"), Mutant):
            yield parameters["kernel"], mutant.name


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """What the workers, one a kernel, say of each mutant; that of the unchanged kernel has the name ''."""
    chosen = set(_selected(request.session))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    workers = []
    for name in SUBJECTS:
        names = [mutant for kernel, mutant in sorted(chosen) if kernel == name]
        if names:
            folder = tmp_path_factory.mktemp(name)
            command = [sys.executable, "-m", "tests.sim.mutants.worker", str(folder), name, *names]
            output, errors = (folder / "output").open("w+"), (folder / "errors").open("w+")
            workers.append(
                (subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=errors), output, errors)
            )
    said: dict[tuple[str, str], Any] = {}
    for worker, output, errors in workers:
        try:
            code = worker.wait(LIMIT_S)
        finally:
            worker.kill()
        for stream in (output, errors):
            stream.seek(0)
        for line in output:
            if line.startswith("MUTANT "):
                one = json.loads(line.removeprefix("MUTANT "))
                said[one["kernel"], one["name"]] = one
        assert code == 0, errors.read()
        for stream in (output, errors):
            stream.close()
    return said


@pytest.mark.slow
@needs_dsl
@pytest.mark.parametrize("kernel", SUBJECTS)
def test_the_kernel_itself_is_right_and_nothing_is_found(kernel: str, ran: dict[tuple[str, str], Any]) -> None:
    if (kernel, "") not in ran:
        pytest.skip("none of its mutants is selected")
    said = ran[kernel, ""]
    for schedule in ("eager", "lazy", "races"):
        warned = SUBJECTS[kernel].warned if schedule == "races" else ()
        assert [one["severity"] for one in said[schedule]["findings"]] == ["warning"] * len(warned)
        for one, part in zip(said[schedule]["findings"], warned, strict=True):
            assert part in one["text"]
        assert said[schedule]["wrong"] == []
    assert said["eager"]["counters"] == said["races"]["counters"]


@pytest.mark.slow
@needs_dsl
@pytest.mark.parametrize(("kernel", "mutant"), [pytest.param(*one, id="-".join((one[0], one[1].name))) for one in ALL])
def test_a_mutant(kernel: str, mutant: Mutant, ran: dict[tuple[str, str], Any]) -> None:
    said = ran[kernel, mutant.name]
    assert "error" not in said, said["error"]
    for schedule, expected in mutant.expected.items():
        check(said[schedule], expected, first=schedule != "races")


def test_names_are_unique_and_every_survivor_has_a_reason() -> None:
    names = [(kernel, mutant.name) for kernel, mutant in ALL]
    assert len(set(names)) == len(names)
    for _, mutant in ALL:
        shown = mutant.expected.values()
        if any(isinstance(one, Hidden) for one in shown):
            assert any(isinstance(one, Found | Wrong) for one in shown), mutant.name
        for one in shown:
            if isinstance(one, Hidden | Equivalent):
                assert len(one.reason) > 20, mutant.name


def test_there_are_enough_of_every_kind() -> None:
    for subject, least in (("map_updates", 60), ("sm90", 15)):
        mutants = SUBJECTS[subject].mutants
        assert len(mutants) >= least
        kinds = {"synchronisation", "address", "descriptor", "predicate", "count", "arithmetic"}
        assert {mutant.aspect for mutant in mutants} == kinds


def test_the_table_is_that_of_the_corpus() -> None:
    assert table.PATH.read_text() == table.table(), "write it anew: python -m tests.sim.mutants.table"
