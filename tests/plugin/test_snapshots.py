"""The life of a snapshot: recorded, compared, damaged, protected, and never half-written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_nvfp4.plugin import snapshots as snapshots_module
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.trace import Trace
from pytest_nvfp4.toolchain.tracer import Tracer

from .conftest import Project
from .sources import KERNEL, LINE_OF_STAGES, MILD, SEVERE

LAYOUTS = "k/layouts[gpumode-0].txt"


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with one kernel and its snapshots."""
    project.kernel()
    project.record("k.py")
    return project


def damage(project: Project, content: bytes | str | None, name: str = LAYOUTS) -> None:
    """Put other content into a snapshot; None removes it."""
    file = project.path / "snapshots" / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)


class TestRecording:
    @pytest.mark.slow
    def test_the_first_run_fails_with_the_recipe_and_writes_nothing(
        self, project: Project, workers: tuple[str, ...]
    ) -> None:
        project.kernel()
        ran = project.run("k.py", *workers)
        ran.outcomes(passed=1, failed=3)
        failures = ran.failures()
        (whole,) = (name for name, text in failures.items() if "record it with: " in text)
        assert "record it with: pytest k.py --snapshot-update, look at it, and commit it" in failures.pop(whole)
        assert all(f"same cause as k.py::{whole}: there is no snapshot of the" in text for text in failures.values())
        assert project.snapshots() == {}
        assert ran.code == 1

    @pytest.mark.slow
    def test_the_recipe_works(self, project: Project, workers: tuple[str, ...]) -> None:
        project.kernel()
        ran = project.run("k.py", "--snapshot-update", *workers)
        ran.outcomes(passed=4)
        assert "3 snapshots generated." in ran.text
        assert len(project.snapshots()) == 3
        again = project.run("k.py")
        again.outcomes(passed=4)
        assert "3 snapshots passed." in again.text

    def test_the_text_is_for_people_and_for_every_machine(self, recorded: Project) -> None:
        text = recorded.snapshots()[LAYOUTS]
        lines = text.splitlines()
        assert lines[0] == "# nvfp4-layouts 1"
        assert "# kernel   k.py" in lines
        assert "# problem  gpumode-0" in lines
        assert [line.split("  ")[0] for line in lines if line and line[0] != "#"] == [
            "go.c",
            "go.stages",
            "go.start",
            "go.tile",
            "touch.c",
        ]
        assert lines[-1] == "# end 5"
        assert all(str(recorded.path) not in content for content in recorded.snapshots().values())

    def test_recording_again_changes_no_file(self, recorded: Project) -> None:
        folder = recorded.path / "snapshots/k"
        before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
        assert "changes written" not in recorded.run("k.py", "--snapshot-update").text
        assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before

    @pytest.mark.slow
    def test_only_new_ones_are_written_when_that_is_asked(self, recorded: Project) -> None:
        before = recorded.snapshots()
        damage(recorded, None)
        recorded.kernel(source=SEVERE)
        ran = recorded.run("k.py", "--snapshot-update-new-only")
        ran.outcomes(passed=4)
        assert recorded.snapshots()[LAYOUTS] != before[LAYOUTS]
        recorded.kernel(source=KERNEL)
        recorded.run("k.py", "--snapshot-update-new-only").outcomes(passed=3, failed=1)

    def test_another_folder(self, project: Project) -> None:
        project.settings("", ini='nvfp4_snapshots = "golden/nvfp4"')
        project.kernel()
        project.record("k.py")
        assert (project.path / "golden/nvfp4" / LAYOUTS).is_file()

    def test_line_ends_of_windows_are_no_change(self, recorded: Project) -> None:
        damage(recorded, recorded.snapshots()[LAYOUTS].replace("\n", "\r\n"))
        recorded.run("k.py").outcomes(passed=4)


HALF = '# nvfp4-layouts 1\n# kernel   k.py\n\ngo.c  (96,128):(128,1)  !cute.memref<f16, gmem, "(96,'
DAMAGED: dict[str, tuple[bytes | str, str]] = {
    "empty": ("", "line 1"),
    "half": (HALF, "truncated"),
    "conflict": (
        "<<<<<<< HEAD\n# nvfp4-layouts 1\n=======\n# nvfp4-layouts 1\n>>>>>>> branch\n",
        "a merge conflict marker",
    ),
    "binary": (bytes(range(256)), "line 1"),
    "another kind": ("# nvfp4-launch 1\n# end 0\n", "'# nvfp4-launch 1' where '# nvfp4-layouts 1' belongs"),
}


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGED)
    def test_it_is_said_and_nothing_is_lost(self, recorded: Project, kind: str) -> None:
        content, said = DAMAGED[kind]
        damage(recorded, content)
        before = recorded.snapshots()
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert f"the snapshot snapshots/{LAYOUTS} is damaged" in text
        assert said in text
        assert "--snapshot-update" in text
        assert recorded.snapshots() == before

    @pytest.mark.parametrize("kind", DAMAGED)
    def test_updating_writes_it_anew(self, recorded: Project, kind: str) -> None:
        good = recorded.snapshots()
        damage(recorded, DAMAGED[kind][0])
        recorded.record("k.py")
        assert recorded.snapshots() == good

    @pytest.mark.parametrize("content", ["", "# nvfp4-launch 1\n# kernel  k.py\n\nlaunches  1\n", b"\xff\xfe"])
    def test_of_a_sheet_of_facts(self, recorded: Project, content: bytes | str) -> None:
        good = recorded.snapshots()
        damage(recorded, content, "k/launch[gpumode-0].txt")
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        assert "is damaged" in ran.failures()["launch[gpumode-0]"]
        recorded.record("k.py")
        assert recorded.snapshots() == good

    def test_a_deleted_one_is_as_if_it_had_never_been(self, recorded: Project) -> None:
        damage(recorded, None)
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        assert "there is no snapshot of the layouts yet" in ran.failures()["layouts[gpumode-0]"]


class TestWhatCannotBeWritten:
    def test_a_file_where_the_folder_should_be(self, project: Project, workers: tuple[str, ...]) -> None:
        project.kernel()
        project.file("snapshots", "a file of the user's")
        ran = project.run("k.py", "--snapshot-update", *workers)
        ran.outcomes(passed=1, failed=3)
        text = ran.failures()["layouts[gpumode-0]"]
        assert f"the snapshot snapshots/{LAYOUTS} could not be written" in text
        assert "the old one is unchanged" in text
        assert (project.path / "snapshots").read_text() == "a file of the user's"

    def test_a_folder_where_the_file_should_be(self, project: Project) -> None:
        project.kernel()
        (project.path / "snapshots" / LAYOUTS).mkdir(parents=True)
        ran = project.run("k.py")
        ran.outcomes(passed=1, failed=3)
        assert "cannot be read: " in ran.failures()["layouts[gpumode-0]"]

    @pytest.mark.parametrize(
        "error", [PermissionError(13, "Permission denied"), OSError(28, "No space left on device")]
    )
    def test_the_old_one_is_still_there(
        self, recorded: Project, monkeypatch: pytest.MonkeyPatch, error: OSError
    ) -> None:
        def refuse(_path: Path, _text: str) -> None:
            raise error

        before = recorded.snapshots()
        recorded.kernel(source=SEVERE)
        monkeypatch.setattr(snapshots_module, "write_whole", refuse)
        ran = recorded.run("k.py", "--snapshot-update")
        ran.outcomes(passed=3, failed=1)
        assert error.strerror in ran.failures()["layouts[gpumode-0]"]
        assert recorded.snapshots() == before


class TestTheGate:
    @pytest.mark.slow
    def test_a_mild_change_passes_and_is_reported(self, recorded: Project, workers: tuple[str, ...]) -> None:
        recorded.kernel(source=MILD)
        ran = recorded.run("k.py", *workers)
        ran.outcomes(passed=4)
        said = ran.section("nvfp4: changes below the gate")
        assert "k.py::layouts[gpumode-0]" in said
        assert "SAME FUNCTION go.tile" in said
        assert "passed" not in said
        assert ran.code == 0

    def test_a_severe_change_fails_and_shows_no_more_than_itself(
        self, recorded: Project, workers: tuple[str, ...]
    ) -> None:
        recorded.kernel(source=SEVERE)
        ran = recorded.run("k.py", *workers)
        ran.outcomes(passed=3, failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert "1 layout change of k.py at or above the gate (permuted)" in text
        assert "1 different, 4 identical" in text
        assert "first difference at (1,0) [index 1]: offset 2 -> 1" in text
        assert '- !cute.layout<"(8,2):(2,1)">\n    + !cute.layout<"(8,2):(1,8)">' in text
        assert text.count("go.stages") == 1
        assert "nvfp4:" not in text
        assert text.endswith("if the change is meant: pytest k.py --snapshot-update, and commit the snapshot")

    def test_updating_accepts_it(self, recorded: Project) -> None:
        recorded.kernel(source=SEVERE)
        ran = recorded.run("k.py", "--snapshot-update")
        ran.outcomes(passed=4)
        assert "DIFFERENT     go.stages" in ran.section("nvfp4: changes written to the snapshots")
        recorded.run("k.py").outcomes(passed=4)
        recorded.kernel(source=KERNEL)
        recorded.run("k.py").outcomes(passed=3, failed=1)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("source", "gate", "failed"),
        [
            (MILD, "different", 0),
            (MILD, "permuted", 0),
            (MILD, "same-function", 1),
            (MILD, "cosmetic", 1),
            (SEVERE, "different", 1),
        ],
    )
    @pytest.mark.parametrize("way", ["option", "ini"])
    def test_where_it_stands(self, recorded: Project, source: str, gate: str, failed: int, way: str) -> None:
        recorded.kernel(source=source)
        args = (f"--nvfp4-fail-on={gate}",) if way == "option" else ()
        if way == "ini":
            recorded.settings("", ini=f'nvfp4_fail_on = "{gate}"')
        recorded.run("k.py::layouts[gpumode-0]", *args).outcomes(**({"failed": 1} if failed else {"passed": 1}))

    def test_the_option_beats_the_ini_file(self, recorded: Project) -> None:
        recorded.settings("", ini='nvfp4_fail_on = "cosmetic"')
        recorded.kernel(source=MILD)
        recorded.run("k.py::layouts[gpumode-0]", "--nvfp4-fail-on=different").outcomes(passed=1)

    def test_another_version_of_the_dsl_is_reported_and_judged_by_the_layouts(self, recorded: Project) -> None:
        text = recorded.snapshots()[LAYOUTS]
        line = next(line for line in text.splitlines() if line.startswith("# dsl"))
        damage(recorded, text.replace(line, "# dsl      4.3.0"))
        ran = recorded.run("k.py")
        ran.outcomes(passed=4)
        assert "dsl 4.3.0 -> " in ran.section("nvfp4: changes below the gate")
        recorded.kernel(source=SEVERE)
        ran = recorded.run("k.py::layouts[gpumode-0]")
        ran.outcomes(failed=1)
        assert "dsl 4.3.0 -> " in ran.failures()["layouts[gpumode-0]"]

    def test_a_long_table_is_cut_and_the_rest_is_in_a_file(self, recorded: Project) -> None:
        lines = recorded.snapshots()[LAYOUTS].splitlines()
        start = lines.index("") + 1
        more = [f'go.old{index}  4:1  !cute.layout<"4:1">  -  -' for index in range(1000, 1250)]
        records = sorted([*lines[start:-1], *more])
        damage(recorded, "\n".join([*lines[:start], *records, f"# end {len(records)}", ""]))
        ran = recorded.run("k.py::layouts[gpumode-0]")
        ran.outcomes(failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert "250 layout changes" in text
        assert "DIFFERENT     go.old1000 (removed): the layout was removed" in text
        assert text.count("DIFFERENT ") == 40 + 2
        assert "... and 210 more" in text
        assert "the first 2 in full:" in text
        assert "all of them: .nvfp4/diffs/k/layouts[gpumode-0].txt" in text
        kept = recorded.path / ".nvfp4/diffs/k/layouts[gpumode-0].txt"
        assert kept.read_text().count("DIFFERENT ") == 250
        assert (recorded.path / ".nvfp4/.gitignore").read_text() == "*\n"


class TestProtection:
    INI = 'nvfp4_protected = ["go.stages"]'
    TABLE = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nprotected = ["stages"]\n'

    @pytest.fixture(params=["ini", "table"])
    def guarded(self, request: pytest.FixtureRequest, recorded: Project) -> Project:
        """``go.stages`` is protected and has changed."""
        if request.param == "ini":
            recorded.settings("", ini=self.INI)
        else:
            recorded.settings(self.TABLE)
        recorded.kernel(source=SEVERE)
        return recorded

    def test_updating_refuses_and_leaves_the_snapshot(self, guarded: Project) -> None:
        before = guarded.snapshots()
        ran = guarded.run("k.py", "--snapshot-update")
        ran.outcomes(passed=3, failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert "--snapshot-update would change 1 protected layout(s)" in text
        assert "pytest k.py --snapshot-update --nvfp4-unprotect=go.stages" in text
        assert guarded.snapshots() == before

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["go.stages", "stages", "go.*"])
    def test_unless_it_is_named(self, guarded: Project, name: str) -> None:
        guarded.run("k.py", "--snapshot-update", f"--nvfp4-unprotect={name}").outcomes(passed=4)
        guarded.run("k.py").outcomes(passed=4)

    def test_naming_another_one_does_not_help(self, guarded: Project) -> None:
        guarded.run("k.py", "--snapshot-update", "--nvfp4-unprotect=go.tile").outcomes(passed=3, failed=1)

    def test_the_failure_without_updating_names_the_whole_recipe(self, guarded: Project) -> None:
        text = guarded.run("k.py").failures()["layouts[gpumode-0]"]
        assert "pytest k.py --snapshot-update --nvfp4-unprotect=go.stages, and commit the snapshot" in text

    def test_even_a_mild_change_of_a_protected_layout_fails(self, recorded: Project) -> None:
        recorded.settings("", ini='nvfp4_protected = ["tile"]')
        recorded.kernel(source=MILD)
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        assert "[protected]" in ran.failures()["layouts[gpumode-0]"]

    def test_other_layouts_are_updated(self, recorded: Project) -> None:
        recorded.settings("", ini='nvfp4_protected = ["touch.c"]')
        recorded.kernel(source=SEVERE)
        recorded.run("k.py", "--snapshot-update").outcomes(passed=4)

    def test_a_first_snapshot_is_recorded(self, project: Project) -> None:
        project.settings("", ini='nvfp4_protected = ["*"]')
        project.kernel()
        project.run("k.py", "--snapshot-update").outcomes(passed=4)

    def test_a_damaged_snapshot_is_no_way_around_it(self, guarded: Project) -> None:
        damage(guarded, HALF)
        ran = guarded.run("k.py", "--snapshot-update")
        ran.outcomes(passed=3, failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert "is damaged" in text
        assert "it is unknown whether 1 protected layout(s) changed" in text
        assert guarded.snapshots()[LAYOUTS] == HALF
        guarded.run("k.py", "--snapshot-update", "--nvfp4-unprotect=go.stages").outcomes(passed=4)


class TestNewNames:
    """Functions and variables with new names, and nothing else."""

    RENAMED = KERNEL.replace("touch", "fill").replace("stages", "ring")

    @pytest.mark.slow
    def test_they_fail_no_check(self, recorded: Project, workers: tuple[str, ...]) -> None:
        recorded.kernel(source=self.RENAMED)
        ran = recorded.run("k.py", *workers)
        ran.outcomes(passed=4)
        section = ran.section("nvfp4: changes below the gate")
        assert "touch.c is renamed to fill.c, with the same type" in section
        assert "go.stages is renamed to go.ring, with the same type" in section
        assert "launch.0.kernel touch -> fill" in section

    @pytest.mark.slow
    def test_a_real_change_beside_them_fails(self, recorded: Project) -> None:
        recorded.kernel(source=self.RENAMED.replace("stride=(2, 1)", "stride=(1, 8)"))
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        text = ran.failures()["layouts[gpumode-0]"]
        assert "go.ring (was go.stages)" in text
        assert "fill.c" not in text

    @pytest.mark.slow
    @pytest.mark.parametrize("pattern", ["touch.c", "stages"])
    def test_a_protected_layout_fails_with_its_new_name(self, recorded: Project, pattern: str) -> None:
        recorded.settings("", ini=f'nvfp4_protected = ["{pattern}"]')
        recorded.kernel(source=self.RENAMED)
        ran = recorded.run("k.py")
        ran.outcomes(passed=3, failed=1)
        old, new = {"touch.c": ("touch.c", "fill.c"), "stages": ("go.stages", "go.ring")}[pattern]
        text = ran.failures()["layouts[gpumode-0]"]
        assert text.startswith(f"the protected layout {old} of k.py is renamed to {new}, against ")
        assert f"--snapshot-update --nvfp4-unprotect={new}" in text
        refused = recorded.run("k.py", "--snapshot-update")
        refused.outcomes(passed=3, failed=1)
        assert recorded.run("k.py", "--snapshot-update", f"--nvfp4-unprotect={new}").code == 0
        assert new in recorded.snapshots()["k/layouts[gpumode-0].txt"]


def test_the_line_of_the_layout_is_known_to_the_reports(recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    recorded.kernel(source=SEVERE)
    assert f"::error file=k.py,line={LINE_OF_STAGES}," in recorded.run("k.py").text


@pytest.mark.slow
def test_without_syrupy_it_is_said_what_is_missing(recorded: Project) -> None:
    ran = recorded.run_apart("-p", "no:syrupy", "k.py")
    ran.outcomes(passed=1, failed=3)
    text = ran.failures()["layouts[gpumode-0]"]
    assert "snapshots need syrupy" in text
    assert "-p syrupy" in text


class TestLayoutsThatVanish:
    """A snapshot that holds less than before checks less from now on."""

    @staticmethod
    def _lose(monkeypatch: pytest.MonkeyPatch, *, keep: int) -> None:
        """Make every trace report only some of its values."""
        trace = Tracer.trace

        def fewer(self: Tracer, request: TraceRequest) -> Trace:
            whole = trace(self, request)
            return whole.model_copy(update={"values": whole.values[:keep]})

        monkeypatch.setattr(Tracer, "trace", fewer)

    def test_an_update_names_them(self, recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lose(monkeypatch, keep=1)
        ran = recorded.run("k.py", "-k", "layouts", "--snapshot-update")
        ran.outcomes(passed=1, deselected=3)
        assert re.search(r"^  \d+ layouts? vanished: \w+\.\w+", ran.text, re.MULTILINE), ran.text

    def test_an_update_to_none_is_refused(self, recorded: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        before = recorded.snapshots()
        self._lose(monkeypatch, keep=0)
        ran = recorded.run("k.py", "-k", "layouts", "--snapshot-update")
        ran.outcomes(failed=1, deselected=3)
        assert "the compile shows no layout, so --snapshot-update did not replace" in ran.text
        assert recorded.snapshots() == before

    def test_a_first_snapshot_of_none_is_no_pass(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        project.kernel()
        self._lose(monkeypatch, keep=0)
        ran = project.run("k.py", "-k", "layouts", "--snapshot-update", "-rs")
        ran.outcomes(skipped=1, deselected=3)
        assert "the compile shows no named layout, so there is nothing to compare" in ran.text
