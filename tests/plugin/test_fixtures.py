"""``nvfp4_trace``, ``layout_snapshot`` and ``nvfp4_fact_snapshot`` in tests of a user's own."""

from __future__ import annotations

import pytest

from pytest_nvfp4.problem import parse_shape

from .conftest import Project
from .sources import ENTRY, MILD, SEVERE

TILE = '!cute.layout<"(16,4):(1,16)">'


@pytest.fixture
def one(project: Project) -> Project:
    """A kernel under the contract and a class kernel with entries."""
    project.kernel()
    project.kernel("e.py", ENTRY, entry="build")
    return project


def run(project: Project, test: str, *args: str, name: str = "test_x.py") -> None:
    """Record what a test compares, and then run it again."""
    project.file(name, test)
    project.run(name, "--snapshot-update", *args).outcomes(passed=1)
    project.run(name, *args).outcomes(passed=1)


class TestTrace:
    @pytest.mark.slow
    def test_of_a_path(self, one: Project) -> None:
        body = f"""
            def test_it(nvfp4_trace):
                types = {{value.name: value.type for value in nvfp4_trace("k.py").values}}
                assert types["go.tile"] == {TILE!r}
        """
        run(one, body.replace("\n            ", "\n"))

    def test_of_an_entry_in_the_same_file(self, one: Project) -> None:
        run(one, 'def test_it(nvfp4_trace):\n    assert nvfp4_trace("e.py", entry="build").entry == "e.py::build"\n')

    @pytest.mark.slow
    def test_of_an_entry_in_another_file(self, one: Project) -> None:
        one.file(
            "tools/make.py",
            "import cutlass\nimport cutlass.cute as cute\nimport e\n\n\ndef wide():\n    return e.build_wide()\n",
        )
        body = 'nvfp4_trace("e.py", entry="tools/make.py::wide").values}["Tile.__call__.tile"]'
        run(one, f"def test_it(nvfp4_trace):\n    assert '(32,4)' in {{v.name: v.type for v in {body}\n")

    @pytest.mark.slow
    def test_of_a_configuration_of_the_settings(self, one: Project) -> None:
        one.settings(
            '[[tool.pytest_nvfp4.kernel]]\npath = "e.py"\nname = "narrow"\nentry = "e.py::build"\n'
            '[[tool.pytest_nvfp4.kernel]]\npath = "e.py"\nname = "wide"\nentry = "e.py::build_wide"\n'
        )
        one.kernel("e.py", ENTRY, entry="build_wide")
        body = 'nvfp4_trace("e.py", configuration="wide").entry == "e.py::build_wide"'
        run(one, f"def test_it(nvfp4_trace):\n    assert {body}\n")

    def test_on_a_problem_with_options_for_an_architecture(self, one: Project) -> None:
        one.bank.seed(
            one.path / "e.py",
            entry="build",
            options=("--opt-level 2",),
            problem=parse_shape("40x128x256"),
            arch="sm_103a",
        )
        arguments = 'entry="build", problem="40x128x256", compile_options="--opt-level 2", arch="sm_103a"'
        body = f'    trace = nvfp4_trace("e.py", {arguments})\n    assert trace.options == ("--opt-level 2",)\n'
        run(
            one,
            f"def test_it(nvfp4_trace):\n{body}    assert (trace.problem, trace.arch) == ('40x128x256', 'sm_103a')\n",
        )

    def test_a_failed_one_can_be_looked_at(self, project: Project) -> None:
        project.file("k.py", "def custom_kernel(data):\n    return (\n")
        body = 'nvfp4_trace("k.py", check=False)'
        project.file("test_x.py", f"def test_it(nvfp4_trace):\n    assert 'never closed' in {body}.errors[0].message\n")
        project.run("test_x.py").outcomes(passed=1)

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            ('"gone.py"', "there is no file"),
            ('"k.py", problem="nonsense"', "no problem is called 'nonsense'"),
            ('"k.py", entry="gone.py::build"', "gone.py, which does not exist"),
            ('"k.py", configuration="gone"', "k.py has no configuration 'gone'; known are ''"),
            ('"broken.py"', "broken.py:2: broken.py is not valid Python"),
        ],
    )
    def test_what_cannot_be_is_said_at_the_users_line(self, one: Project, call: str, said: str) -> None:
        one.file("broken.py", "def custom_kernel(data):\n    return (\n")
        one.file("test_x.py", f"def test_it(nvfp4_trace):\n    nvfp4_trace({call})  # here\n")
        ran = one.run("test_x.py")
        ran.outcomes(failed=1)
        text = ran.failures()["test_it"]
        assert said in text
        assert "# here" in text
        assert "pytest_nvfp4/plugin/" not in text


class TestLayouts:
    def test_of_a_trace_and_of_a_path(self, one: Project) -> None:
        body = 'layout_snapshot(nvfp4_trace("k.py"), name="trace")\n    layout_snapshot("k.py", name="path")\n'
        run(one, f"def test_it(layout_snapshot, nvfp4_trace):\n    {body}")
        texts = one.snapshots()
        assert texts["test_x/test_it[trace].txt"] == texts["test_x/test_it[path].txt"]
        assert "go.tile  64:1  " in texts["test_x/test_it[path].txt"]

    def test_with_what_a_trace_takes(self, one: Project) -> None:
        run(one, 'def test_it(layout_snapshot):\n    layout_snapshot("e.py", entry="build")\n')
        assert "# entry    e.py::build\n" in one.snapshots()["test_x/test_it.txt"]

    @pytest.mark.slow
    def test_a_change_fails_the_test_with_the_table(self, one: Project, workers: tuple[str, ...]) -> None:
        run(one, 'def test_it(layout_snapshot):\n    layout_snapshot("k.py")\n')
        one.kernel(source=SEVERE)
        ran = one.run("test_x.py", *workers)
        ran.outcomes(failed=1)
        text = ran.failures()["test_it"]
        assert "1 layout change of k.py at or above the gate (permuted), against snapshots/test_x/test_it.txt" in text
        assert "DIFFERENT     go.stages" in text
        assert "pytest test_x.py --snapshot-update" in text
        assert "compare_layouts.py" not in text

    @pytest.mark.slow
    def test_a_milder_one_is_reported(self, one: Project, workers: tuple[str, ...]) -> None:
        run(one, 'def test_it(layout_snapshot):\n    layout_snapshot("k.py")\n')
        one.kernel(source=MILD)
        ran = one.run("test_x.py", *workers)
        ran.outcomes(passed=1)
        assert "test_x.py::test_it\n  1 same function" in ran.text

    @pytest.mark.slow
    @pytest.mark.parametrize(("gate", "outcome"), [("different", "passed"), ("same function", "failed")])
    def test_its_own_gate(self, one: Project, gate: str, outcome: str) -> None:
        run(one, f'def test_it(layout_snapshot):\n    layout_snapshot("k.py", fail_on={gate!r})\n')
        one.kernel(source=MILD)
        one.run("test_x.py").outcomes(**{outcome: 1})

    @pytest.mark.slow
    @pytest.mark.parametrize("where", ["argument", "table", "ini"])
    def test_what_is_protected(self, one: Project, where: str) -> None:
        argument = ', protected="tile"' if where == "argument" else ""
        if where == "table":
            one.settings('[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nprotected = ["tile"]\n')
        if where == "ini":
            one.settings("", ini='nvfp4_protected = ["tile"]')
        run(one, f'def test_it(layout_snapshot):\n    layout_snapshot("k.py"{argument})\n')
        one.kernel(source=MILD)
        one.run("test_x.py").outcomes(failed=1)
        one.run("test_x.py", "--snapshot-update").outcomes(failed=1)
        one.run("test_x.py", "--snapshot-update", "--nvfp4-unprotect=tile").outcomes(passed=1)

    def test_two_without_a_name_are_said_to_be_one_file(self, one: Project) -> None:
        one.file(
            "test_x.py", 'def test_it(layout_snapshot):\n    layout_snapshot("k.py")\n    layout_snapshot("k.py")\n'
        )
        ran = one.run("test_x.py", "--snapshot-update")
        ran.outcomes(failed=1)
        text = ran.failures()["test_it"]
        assert "test_x.py::test_it compares a second snapshot without a name" in text
        assert 'layout_snapshot(trace, name="...")' in text

    def test_two_of_one_name(self, one: Project) -> None:
        call = '    layout_snapshot("k.py", name="a")\n'
        one.file("test_x.py", f"def test_it(layout_snapshot):\n{call}{call}")
        assert "a second snapshot named 'a'" in one.run("test_x.py", "--snapshot-update").failures()["test_it"]

    def test_a_fact_snapshot_of_the_same_test_is_another_file(self, one: Project) -> None:
        body = '    trace = nvfp4_trace("k.py")\n    layout_snapshot(trace)\n'
        body += '    nvfp4_fact_snapshot(trace, kind="launch", name="launch")\n'
        run(one, f"def test_it(layout_snapshot, nvfp4_fact_snapshot, nvfp4_trace):\n{body}")
        assert set(one.snapshots()) == {"test_x/test_it.txt", "test_x/test_it[launch].txt"}

    def test_a_failed_trace_is_never_recorded(self, project: Project) -> None:
        project.file("k.py", "def custom_kernel(data):\n    return (\n")
        project.file(
            "test_x.py",
            'def test_it(layout_snapshot, nvfp4_trace):\n    layout_snapshot(nvfp4_trace("k.py", check=False))\n',
        )
        ran = project.run("test_x.py", "--snapshot-update")
        ran.outcomes(failed=1)
        assert "k.py:2: k.py is not valid Python" in ran.failures()["test_it"]
        assert project.snapshots() == {}

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            ('layout_snapshot(nvfp4_trace("k.py"), problem="gpumode-1")', "give these to nvfp4_trace"),
            ('layout_snapshot("k.py", colour=1)', "colour"),
            ('layout_snapshot("k.py", fail_on="bad")', "unknown layout severity 'bad'"),
            ('nvfp4_fact_snapshot(nvfp4_trace("k.py"), kind="bad")', "the kinds are 'launch' and 'codegen'"),
        ],
    )
    def test_arguments_that_cannot_be(self, one: Project, call: str, said: str) -> None:
        one.file("test_x.py", f"def test_it(layout_snapshot, nvfp4_fact_snapshot, nvfp4_trace):\n    {call}\n")
        ran = one.run("test_x.py")
        ran.outcomes(failed=1)
        assert said in ran.failures()["test_it"]

    def test_every_parameter_has_a_snapshot_of_its_own(self, one: Project) -> None:
        one.file(
            "test_x.py",
            "import pytest\n\n\n@pytest.mark.parametrize('tag', ['a/b', 'a_b', 'x' * 300, 'é'])\n"
            'def test_it(layout_snapshot, tag):\n    layout_snapshot("k.py")\n',
        )
        one.run("test_x.py", "--snapshot-update").outcomes(passed=4)
        assert len(one.snapshots()) == 4
        one.run("test_x.py").outcomes(passed=4)

    def test_in_a_class(self, one: Project) -> None:
        run(one, 'class TestIt:\n    def test_it(self, layout_snapshot):\n        layout_snapshot("k.py")\n')
        assert set(one.snapshots()) == {"test_x/TestIt.test_it.txt"}

    def test_in_a_unittest_through_a_fixture(self, one: Project) -> None:
        run(
            one,
            "import unittest\nimport pytest\n\n\nclass TestIt(unittest.TestCase):\n"
            "    @pytest.fixture(autouse=True)\n    def _take(self, layout_snapshot):\n"
            "        self.snapshot = layout_snapshot\n\n"
            '    def test_it(self):\n        self.snapshot("k.py")\n',
        )
        assert set(one.snapshots()) == {"test_x/TestIt.test_it.txt"}

    def test_in_a_doctest(self, one: Project) -> None:
        text = "    >>> getfixture('layout_snapshot')('k.py')\n"
        run(one, f"def f():\n    '''\n{text}    '''\n", "--doctest-modules", name="doc.py")

    def test_in_a_test_of_hypothesis(self, one: Project) -> None:
        """Device-free traces are session-scoped, so a property may ask for them."""
        one.file(
            "test_x.py",
            "from hypothesis import given, strategies as st\n\n\n@given(st.integers())\n"
            'def test_it(nvfp4_trace, number):\n    assert nvfp4_trace("k.py").ok\n',
        )
        one.run("test_x.py").outcomes(passed=1)

    def test_two_modules_of_one_name(self, one: Project) -> None:
        test = 'def test_it(layout_snapshot):\n    layout_snapshot("k.py")\n'
        for folder in ("a", "b"):
            one.file(f"{folder}/__init__.py", "")
            one.file(f"{folder}/test_x.py", test)
        one.run("--snapshot-update").outcomes(passed=2)
        assert set(one.snapshots()) == {"a/test_x/test_it.txt", "b/test_x/test_it.txt"}


def test_the_fixture_of_check_items_is_not_for_tests(project: Project) -> None:
    project.file("test_x.py", "def test_it(nvfp4_case):\n    pass\n")
    ran = project.run("test_x.py")
    ran.outcomes(errors=1)
    assert "a test uses nvfp4_trace(PATH)" in ran.text
