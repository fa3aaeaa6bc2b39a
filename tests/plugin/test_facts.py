"""``launch`` and ``codegen``: which facts fail, which are reported."""

from __future__ import annotations

import pytest

from pytest_nvfp4.layout.launch_facts import diff_facts
from pytest_nvfp4.plugin.checks.codegen import CodegenCheck
from pytest_nvfp4.plugin.checks.facts import FactsCheck
from pytest_nvfp4.plugin.checks.launch import LaunchCheck

from .conftest import Project
from .sources import OTHER_CODE, OTHER_LAUNCH

CODE = {
    "code.0.kernel": "touch",
    "code.0.registers": "32",
    "code.0.local_bytes": "0",
    "code.0.spill_stores": "0",
    "code.0.ptx.ld.global": "4",
}


def gated(changes: dict[str, str | None], *, same_dsl: bool = True, check: type[FactsCheck] = CodegenCheck) -> set[str]:
    """Names of the facts that fail when ``CODE`` changes."""
    new = {name: value for name, value in (CODE | changes).items() if value is not None}
    return {change.name for change in check().gated(diff_facts(CODE, new), same_dsl=same_dsl)}


class TestWhatFails:
    @pytest.mark.parametrize(
        ("fact", "value", "same_dsl", "fails"),
        [
            ("code.0.spill_stores", "8", True, True),
            ("code.0.spill_stores", "8", False, True),
            ("code.0.local_bytes", "16", False, True),
            ("code.0.registers", "200", True, False),
            ("code.0.ptx.ld.global", "40", True, False),
            ("code.0.ptx.ld.global", None, True, True),
            ("code.0.ptx.ld.global", None, False, False),
            ("code.0.ptx.st.local", "1", True, True),
            ("code.0.ptx.st.local", "1", False, False),
            ("code.0.kernel", "other", True, False),
            ("code.0.kernel", "other", False, False),
            ("code.1.kernel", "second", True, True),
            ("code.1.spill_stores", "0", False, False),
            ("code.1.spill_stores", "2", False, True),
            ("code.0.spill_stores", "unavailable", True, False),
        ],
    )
    def test_of_the_code(self, fact: str, value: str | None, same_dsl: bool, fails: bool) -> None:
        assert gated({fact: value}, same_dsl=same_dsl) == ({fact} if fails else set())

    def test_fewer_spills_do_not(self) -> None:
        old, new = {"code.0.spill_loads": "8"}, {"code.0.spill_loads": "2"}
        assert CodegenCheck().gated(diff_facts(old, new), same_dsl=True) == []

    def test_of_a_launch_everything(self) -> None:
        assert gated({"launch.0.grid": "2x1x1", "code.0.registers": "33"}, check=LaunchCheck) == {
            "launch.0.grid",
            "code.0.registers",
        }


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with one kernel and its snapshots."""
    project.kernel()
    project.record("k.py")
    return project


@pytest.mark.slow
def test_another_grid_fails_the_launch_alone(recorded: Project, workers: tuple[str, ...]) -> None:
    recorded.kernel(source=OTHER_LAUNCH)
    ran = recorded.run("k.py", *workers)
    ran.outcomes(passed=3, failed=1)
    text = ran.failures()["launch[gpumode-0]"]
    assert "1 launch fact of k.py changed against snapshots/k/launch[gpumode-0].txt:" in text
    assert "launch.0.grid 2x1x1 -> 2x2x1" in text
    assert "pytest k.py --snapshot-update, and commit the snapshot" in text


def remember(project: Project, registers: str) -> None:
    """Change what the snapshot says of the registers."""
    file = project.path / "snapshots/k/codegen[gpumode-0].txt"
    lines = [
        f"code.0.registers  {registers}" if line.startswith("code.0.registers") else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join([*lines, ""]))


@pytest.mark.slow
def test_another_opcode_fails_the_code_alone(recorded: Project) -> None:
    remember(recorded, registers="99")
    recorded.kernel(source=OTHER_CODE)
    ran = recorded.run("k.py")
    ran.outcomes(passed=3, failed=1)
    text = ran.failures()["codegen[gpumode-0]"]
    assert "code.0.ptx.ld.global absent -> 1" in text
    assert "code.0.registers" not in text
    assert "further change" in text


def test_counts_that_moved_are_reported(recorded: Project) -> None:
    remember(recorded, registers="99")
    ran = recorded.run("k.py")
    ran.outcomes(passed=4)
    assert "k.py::codegen[gpumode-0]\n  code.0.registers 99 -> " in ran.section("nvfp4: changes below the gate")
