"""Failures of one cause: one whole text, one line for each other item, and two texts for two causes."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.plugin.causes import Cause, Causes, causes_of
from pytest_nvfp4.plugin.failure import CheckFailure

from .conftest import Project
from .simulated import FILL, PROBLEM, written
from .sources import KERNEL

pytest.importorskip("torch")
RUN = SimpleNamespace(relative=lambda path: path.name)
BROKEN = KERNEL.replace("    tile = cute.make_layout((16, 4))", "    tile = cute.make_layoutt((16, 4))")
LINE = 1 + BROKEN.splitlines().index("    tile = cute.make_layoutt((16, 4))")


def causes(*findings: Finding, text: str = "k.py: wrong", effects: tuple[str, ...] = ()) -> list[Cause]:
    """The causes of a failure with these findings."""
    return causes_of(CheckFailure(text, findings=findings, effects=effects), RUN)  # type: ignore[arg-type]


def at(line: int, kind: str = "race", message: str = "said") -> Finding:
    """A finding at a line of a kernel."""
    return Finding(kind, message, file="/x/k.py", line=line)


def report(nodeid: str, of: list[Cause], text: str = "whole") -> pytest.TestReport:
    """The report of an item that failed by some causes."""
    made = pytest.TestReport(nodeid, ("k.py", 0, ""), {}, "failed", text, "call")
    made.nvfp4_causes = json.loads(json.dumps([asdict(cause) for cause in of]))  # type: ignore[attr-defined]
    return made


def settle(*failed: tuple[str, list[Cause]]) -> list[str]:
    """The texts of items that fail one after the other."""
    found = Causes()
    reports = [report(f"k.py::{name}", of, f"whole text of {name}\nmore") for name, of in failed]
    for each in reports:
        found.settle(each)
    return [str(each.longrepr) for each in reports]


class TestIdentity:
    def test_a_line_is_one_cause_whatever_is_found_there(self) -> None:
        first, second = settle(("races[a]", causes(at(7))), ("verify[b]", causes(at(7, "uninitialised", "else"))))
        assert first == "whole text of races[a]\nmore"
        assert second == "same cause as k.py::races[a]: whole text of races[a]"

    def test_a_use_of_unwritten_memory_is_another_cause_than_a_race_at_its_line(self) -> None:
        first, *others = (("verify", causes(at(7, "unwritten"))), ("races", causes(at(7))))
        assert settle(first, *others)[1].startswith("whole text of races")
        assert settle(first, ("verify[b]", causes(at(7, "unwritten"))))[1].startswith("same cause")

    def test_two_lines_are_two_causes(self) -> None:
        assert all(text.startswith("whole") for text in settle(("races", causes(at(7))), ("verify", causes(at(8)))))

    def test_a_message_without_a_line_is_compared_without_its_figures(self) -> None:
        texts = [f"call {call}: group 0 ({call}x128): 0x{call:04X}" for call in (1, 22)]
        same = [causes(Finding("crash", text)) for text in texts]
        assert settle(("a", same[0]), ("b", same[1]))[1].startswith("same cause")
        other = causes(Finding("crash", "call 1: another thing"))
        assert settle(("a", same[0]), ("b", other))[1].startswith("whole")

    def test_a_failure_without_findings_is_its_text_without_the_path_of_its_bundle(self) -> None:
        alike = [causes(text=f"it failed\ndebug bundle: {folder}") for folder in "ab"]
        assert settle(("a", alike[0]), ("b", alike[1]))[1].startswith("same cause as k.py::a")
        assert settle(("a", alike[0]), ("b", causes(text="else")))[1].startswith("whole")

    def test_warnings_are_no_causes(self) -> None:
        warning = Finding("race-warning", "said", severity="warning", file="/x/k.py", line=7)
        first, second = settle(("a", causes(warning, at(8))), ("b", causes(warning, at(9))))
        assert first.startswith("whole")
        assert second.startswith("whole")

    def test_kernels_do_not_share_causes(self) -> None:
        found = Causes()
        both = [report(f"{kernel}::verify", causes(effects=("outputs wrong",))) for kernel in ("a.py", "b.py")]
        assert [found.settle(each) for each in both] == ["", ""]


class TestEffects:
    def test_equal_effects_are_probably_one_cause(self) -> None:
        wrong = causes(effects=("outputs wrong",))
        assert settle(("verify[a]", wrong), ("verify[b]", wrong))[1] == (
            "probably the same cause as k.py::verify[a]: whole text of verify[b]"
        )

    def test_other_effects_are_another_cause(self) -> None:
        wrong, silent = causes(effects=("outputs wrong",)), causes(effects=("outputs not written",))
        assert settle(("verify[a]", wrong), ("verify[b]", silent))[1].startswith("whole")

    def test_an_effect_follows_from_the_cause_that_made_it_before(self) -> None:
        race = causes(at(7), effects=("outputs wrong",))
        assert settle(("verify[a]", race), ("verify[b]", causes(effects=("outputs wrong",))))[1].startswith("probably")

    def test_a_cause_is_new_whatever_its_effects(self) -> None:
        first, second = (causes(at(line), effects=("outputs wrong",)) for line in (7, 8))
        assert settle(("verify[a]", first), ("verify[b]", second))[1].startswith("whole")


class TestTexts:
    def test_what_the_first_does_not_say_is_added(self) -> None:
        _, second = settle(("races", causes(at(7))), ("verify", causes(at(7), at(9, message="more is wrong"))))
        assert second.splitlines()[1:] == ["and, which that item does not say:", "k.py:9: more is wrong"]

    def test_the_first_line_is_shortened(self) -> None:
        found = Causes()
        found.settle(report("k.py::a", causes(at(7)), "x" * 1000))
        found.settle(other := report("k.py::b", causes(at(7)), "x"))
        assert len(str(other.longrepr)) < 200

    def test_an_item_that_is_repeated_does_not_refer_to_itself(self) -> None:
        assert settle(("a", causes(at(7))), ("a", causes(at(7))))[1].startswith("whole")

    def test_the_first_says_what_the_cause_takes_down(self) -> None:
        found = Causes()
        first = report("k.py::verify[a]", causes(at(7)))
        skipped = pytest.TestReport("k.py::cost[a]", ("k.py", 0, ""), {}, "skipped", ("k.py", 1, "see"), "call")
        skipped.nvfp4_refers = "k.py::races"  # type: ignore[attr-defined]
        for each in (first, report("k.py::verify[b]", causes(at(7))), skipped, report("k.py::races", causes(at(7)))):
            found.settle(each)
        assert list(found.finish()) == ["k.py::verify[a]"]
        assert str(first.longrepr).splitlines() == [
            "whole",
            "this cause fails verify (a, b), races",
            "not checked because of it: cost (a)",
        ]

    def test_a_cause_of_one_failure_is_left_as_it_is(self) -> None:
        found = Causes()
        found.settle(only := report("k.py::a", causes(at(7))))
        assert found.finish() == {}
        assert only.longrepr == "whole"


class TestRuns:
    @pytest.mark.slow
    def test_a_compile_error_is_one_failure_of_the_checks_that_were_selected(
        self, project: Project, workers: tuple[str, ...]
    ) -> None:
        project.file("k.py", BROKEN)
        cases = project.junit("k.py", "-k", "layouts or launch or codegen", "--nvfp4-html=r.html", *workers)
        assert [outcome for _, outcome, _ in cases] == ["failure"] * 3
        (whole,) = (message for _, _, message in cases if message.startswith(f"k.py:{LINE}: "))
        assert "make_layoutt" in whole
        (first,) = (name for name, _, message in cases if message == whole)
        others = [message for _, _, message in cases if message != whole]
        assert all(text.startswith(f"same cause as k.py::{first}: k.py:{LINE}: ") for text in others)
        page = (project.path / "r.html").read_text()
        assert page.count(f"same cause as k.py::{first}: ") == 2 * 2, "in the row of the check and in its message"
        assert "this cause fails " in page

    @pytest.mark.slow
    def test_the_terminal_says_it_once(self, project: Project) -> None:
        project.file("k.py", BROKEN)
        ran = project.run("k.py", "-k", "layouts or launch or codegen")
        ran.outcomes(failed=3, deselected=1)
        assert ran.text.count("debug bundle") == 1
        assert "nvfp4: k.py::layouts[gpumode-0]: one cause fails layouts (1), launch (1), codegen (1)" in ran.text
        assert "this cause fails layouts (gpumode-0), launch (gpumode-0), codegen (gpumode-0)" in ran.text

    @pytest.mark.slow
    def test_it_names_what_was_not_checked(self, project: Project) -> None:
        project.file("k.py", BROKEN)
        ran = project.run("k.py")
        ran.outcomes(failed=1, skipped=3)
        assert "not checked because of it: layouts (gpumode-0), launch (gpumode-0), codegen (gpumode-0)" in ran.text


SIMULATED = ("k.py", "--nvfp4-device=sim", f"--nvfp4-problem={PROBLEM}", "-k", "verify or coverage or races")
STORE = "        c[tile * ROWS + row, lane] = cutlass.Float16(1.0)"
UNWRITTEN = FILL.replace(STORE, "        if lane > 500:\n    " + STORE)
LAST_WARP = FILL.replace(STORE, f"{STORE}\n        c[tile * ROWS + row, lane % 32] = cutlass.Float16(lane // 32)")
"""All warps write the same elements: the last one wins."""
NO_MATTER = FILL.replace(
    STORE,
    """        value = cutlass.Float16(1.0)
        if c[tile * ROWS + row, lane ^ 32] > cutlass.Float16(30000.0):
            value = cutlass.Float16(2.0)
        c[tile * ROWS + row, lane] = value""",
)
"""Each warp reads what another one writes, and neither 1.0 nor the poison, a NaN, is greater."""


@pytest.mark.slow
class TestSimulated:
    def test_unwritten_outputs_are_one_bounded_text(self, project: Project, workers: tuple[str, ...]) -> None:
        other = "40x128x512"
        project.kernel(source=UNWRITTEN, problems=(PROBLEM, other))
        ran = project.run(*SIMULATED, f"--nvfp4-problem={other}", *workers)
        texts = list(ran.failures().values())
        assert len(texts) == 4, ran.text
        (whole,) = (text for text in texts if "this cause fails " in text)
        assert len(whole.splitlines()) <= 40
        assert "never-written" in whole
        assert all("the same cause as k.py::" in text for text in texts if text != whole)

    def test_a_race_comes_before_the_wrong_result_it_makes(self, project: Project) -> None:
        written(project, LAST_WARP)
        failures = project.run(*SIMULATED).failures()
        whole = failures[f"verify[{PROBLEM}]"]
        assert "simulated, race: " in whole.partition("\n")[0], whole
        assert "outputs wrong" in whole
        assert failures[f"races[{PROBLEM}]"].startswith(f"same cause as k.py::verify[{PROBLEM}]: k.py:")

    def test_a_wrong_result_that_no_order_changes_is_another_cause(self, project: Project) -> None:
        written(project, NO_MATTER)
        failures = project.run(*SIMULATED).failures()
        whole = failures[f"verify[{PROBLEM}]"]
        assert "simulated, race: " not in whole
        assert "outputs wrong" in whole
        assert "simulated, race: " in failures[f"races[{PROBLEM}]"].splitlines()[0]
