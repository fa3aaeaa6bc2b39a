"""Kernel items behave as pytest's own: selection, order, reports, other plugins, odd places."""

from __future__ import annotations

import os

import pytest

from .conftest import Project
from .sources import ENTRY, KERNEL

IDS = [f"k.py::{check}[gpumode-0]" for check in ("compile", "layouts", "launch", "codegen")]


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with one kernel and its snapshots."""
    project.kernel()
    project.record("k.py")
    return project


class TestSelection:
    @pytest.mark.slow
    def test_collect_only_lists_node_ids_that_can_be_run(self, recorded: Project) -> None:
        listed = [line for line in recorded.run("k.py", "--co", "-q").text.splitlines() if "::" in line]
        assert listed == IDS
        recorded.run(*listed).outcomes(passed=4)

    @pytest.mark.parametrize(
        ("args", "passed", "deselected"),
        [
            (("k.py", "-k", "layouts or launch"), 2, 2),
            (("k.py", "-k", "gpumode-0 and not codegen"), 3, 1),
            (("k.py", "-m", "nvfp4"), 4, 0),
            (("k.py", "--deselect", IDS[3]), 3, 1),
            ((IDS[1],), 1, 0),
        ],
    )
    def test_of_some_checks(self, recorded: Project, args: tuple[str, ...], passed: int, deselected: int) -> None:
        recorded.run(*args).outcomes(passed=passed, **({"deselected": deselected} if deselected else {}))

    @pytest.mark.slow
    def test_of_some_checks_in_test_processes(self, recorded: Project) -> None:
        recorded.run("k.py", "-k", "layouts or launch", "-n2").outcomes(passed=2)

    def test_a_marker_expression_leaves_kernels_out(self, recorded: Project) -> None:
        recorded.run("k.py", "-m", "not nvfp4").outcomes(deselected=4)

    def test_strict_markers(self, recorded: Project) -> None:
        recorded.run("k.py", "--strict-markers").outcomes(passed=4)

    def test_exit_first(self, project: Project, workers: tuple[str, ...]) -> None:
        project.kernel()
        ran = project.run("k.py", "-x", *workers)
        assert ran.code == (pytest.ExitCode.INTERRUPTED if workers else pytest.ExitCode.TESTS_FAILED)  # as xdist has it
        assert "stopping after 1 failures" in ran.text

    def test_last_failed_and_failed_first(self, project: Project, pytester: pytest.Pytester) -> None:
        project.kernel()
        project.record("k.py")
        (project.path / "snapshots/k/launch[gpumode-0].txt").unlink()

        def run(*args: str) -> list[str]:
            result = pytester.runpytest_inprocess(
                "-p", "no:hypothesispytest", "--nvfp4-device=none", "-v", "k.py", *args
            )
            return [line.split(" ")[0].split("::")[1] for line in result.stdout.lines if line.startswith("k.py::")]

        assert len(run()) == 4
        assert run("--ff")[0] == "launch[gpumode-0]"
        assert run("--lf") == ["launch[gpumode-0]"]


class TestWorkers:
    @pytest.mark.slow
    @pytest.mark.parametrize("dist", ["load", pytest.param("loadfile", marks=pytest.mark.slow)])
    def test_every_check_runs_once(self, recorded: Project, dist: str) -> None:
        ran = recorded.run("k.py", "-n2", f"--dist={dist}")
        ran.outcomes(passed=4)
        assert "3 snapshots passed" in ran.text

    @pytest.mark.slow
    def test_more_workers_than_checks(self, recorded: Project) -> None:
        recorded.run("k.py", "-n8").outcomes(passed=4)

    @pytest.mark.slow
    def test_a_kernel_is_compiled_once_for_all(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NVFP4_SANDBOX", "off")  # the kernel writes what the test counts
        log = project.path / "compiled.txt"
        stamp = f"open({str(log)!r}, 'a').write('once\\n')\n"
        project.file("k.py", ENTRY + stamp)
        project.run("k.py", "-n2", "--nvfp4-entry=k.py::build", "--snapshot-update").outcomes(passed=4)
        assert log.read_text() == "once\n"


class TestReportsOfPytests:
    def test_junit_has_one_case_a_check_with_its_text(self, project: Project, workers: tuple[str, ...]) -> None:
        project.kernel()
        cases = sorted(project.junit("k.py", *workers))
        assert [(name, kind) for name, kind, _ in cases] == [
            ("codegen[gpumode-0]", "failure"),
            ("compile[gpumode-0]", "passed"),
            ("launch[gpumode-0]", "failure"),
            ("layouts[gpumode-0]", "failure"),
        ]
        texts = [text for _, kind, text in cases if kind == "failure"]
        assert any("there is no snapshot of the" in text and "same cause" not in text for text in texts)

    @pytest.mark.parametrize("style", ["auto", "long", "short", "line", "native", "no"])
    def test_every_traceback_style(self, project: Project, style: str) -> None:
        project.kernel()
        ran = project.run("k.py", f"--tb={style}")
        ran.outcomes(passed=1, failed=3)
        assert "compare_layouts.py" not in ran.text

    def test_a_skip_points_at_the_kernel(self, project: Project, workers: tuple[str, ...]) -> None:
        project.file("k.py", ENTRY)
        ran = project.run("k.py", "-rs", *workers)
        assert "SKIPPED [3] k.py:1: it did not compile: see k.py::compile[gpumode-0]" in ran.text

    @pytest.mark.parametrize(
        "args", [("--fixtures",), ("--fixtures-per-test",), ("--setup-plan",), ("--markers",), ("--help",)]
    )
    def test_what_pytest_shows_of_itself(self, recorded: Project, args: tuple[str, ...]) -> None:
        ran = recorded.run("k.py", *args)
        assert ran.code == 0
        assert "INTERNALERROR" not in ran.text


class TestBesideOtherThings:
    @pytest.mark.slow
    def test_ordinary_tests_and_doctests(self, recorded: Project, workers: tuple[str, ...]) -> None:
        recorded.file("test_a.py", "def test_a():\n    '''\n    >>> 1 + 1\n    2\n    '''\n")
        recorded.run("k.py", "test_a.py", "--doctest-modules", *workers).outcomes(passed=6)

    def test_two_kernels_of_one_name(self, project: Project, workers: tuple[str, ...]) -> None:
        project.settings("", ini='nvfp4_kernels = ["*/k.py"]')
        project.kernel("one/k.py")
        project.kernel("two/k.py")
        project.record()
        assert set(project.snapshots()) == {
            f"{folder}/k/{check}[gpumode-0].txt"
            for folder in ("one", "two")
            for check in ("layouts", "launch", "codegen")
        }
        project.run(*workers).outcomes(passed=8)

    def test_fixtures_of_a_conftest_apply(self, recorded: Project) -> None:
        recorded.file(
            "conftest.py",
            "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef noted(request):\n"
            "    print('around', request.node.name)\n    yield\n",
        )
        assert "around layouts[gpumode-0]" in recorded.run("k.py", "-s").text

    def test_a_conftest_can_mark_checks(self, project: Project) -> None:
        project.kernel()
        project.file(
            "conftest.py",
            "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n    for item in items:\n"
            "        item.add_marker(pytest.mark.skip if 'compile' in item.name else pytest.mark.xfail)\n",
        )
        project.run("k.py").outcomes(xfailed=3, skipped=1)


class TestOddPlaces:
    @pytest.mark.parametrize("name", ["my kernel.py", "größe.py", "a'b.py", "two  blanks.py", "k.v2.py"])
    def test_names(self, project: Project, name: str) -> None:
        project.kernel(name)
        project.record(name)
        project.run(name).outcomes(passed=4)
        listing = next(text for file, text in project.snapshots().items() if "layouts" in file)
        assert f"# kernel   {' '.join(name.split())}\n" in listing

    def test_the_command_in_a_message_can_be_copied(self, project: Project) -> None:
        project.kernel("my kernel.py")
        text = project.run("my kernel.py").failures()["layouts[gpumode-0]"]
        assert "pytest 'my kernel.py' --snapshot-update" in text

    @pytest.mark.slow
    def test_and_says_again_what_the_run_was_told(self, project: Project) -> None:
        project.kernel(source=ENTRY, entry="build")
        text = project.run("k.py", "--nvfp4-entry=k.py::build").failures()["layouts"]
        assert "pytest k.py --nvfp4-entry=k.py::build --snapshot-update" in text
        project.kernel("c.py", problems=("96x128x256",))
        text = project.run("c.py", "--nvfp4-problem=96x128x256").failures()["layouts[96x128x256]"]
        assert "pytest c.py --nvfp4-problem=96x128x256 --snapshot-update" in text

    def test_and_is_meant_for_where_the_run_was_started(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project.kernel("kernels/k.py")
        project.file("kernels/e.py", ENTRY)
        monkeypatch.chdir(project.path / "kernels")
        failures = project.run("k.py", "e.py").failures()
        assert "pytest k.py --snapshot-update" in failures["layouts[gpumode-0]"]
        assert "(snapshots/kernels/k/layouts[gpumode-0].txt)" in failures["layouts[gpumode-0]"]
        assert "pytest e.py --nvfp4-entry FILE::FUNCTION" in failures["compile[gpumode-0]"]
        assert 'path = "kernels/e.py"' in failures["compile[gpumode-0]"]

    def test_a_name_that_could_command_a_terminal(self, project: Project) -> None:
        project.kernel("k\x1b7.py")
        text = project.run("k\x1b7.py").failures()["layouts[gpumode-0]"]
        assert "\x1b" not in text
        assert "snapshots/k\\x1b7/" in text

    def test_outside_the_root(self, project: Project) -> None:
        inner, outside = project.path / "inner", project.path / "outside"
        inner.mkdir()
        outside.mkdir()
        project.kernel("outside/k.py")
        args = (outside / "k.py", f"--rootdir={inner}")
        project.record(*args)
        project.run(*args).outcomes(passed=4)
        listing = (project.path / "snapshots/outside/k/layouts[gpumode-0].txt").read_text()  # of the kernel's project
        assert "# kernel   outside/k.py\n" in listing
        assert str(project.path) not in listing
        assert not (inner / "snapshots").exists()

    def test_a_linked_folder(self, project: Project) -> None:
        project.kernel("real/k.py")
        (project.path / "link").symlink_to("real")
        project.record("real/k.py")
        before = project.snapshots()
        project.run("link/k.py").outcomes(passed=4)
        assert project.snapshots() == before

    @pytest.mark.slow
    def test_in_a_package_with_relative_imports(
        self, project: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """pytest imports a package to set it up; with the kernel in its __init__, that would import the kernel."""
        monkeypatch.setenv("NVFP4_SANDBOX", "off")  # the package writes what the test counts
        log = project.path / "pids.txt"
        project.file(
            "pkg/__init__.py", f"import os\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}}\\n')\nfrom . import k\n"
        )
        project.file("pkg/shared.py", "WIDTH = 4\n")
        project.file("pkg/k.py", ENTRY.replace("import cutlass\n", "import cutlass\nfrom .shared import WIDTH\n", 1))
        project.file("pkg/test_beside.py", "def test_beside():\n    pass\n")
        args = ("pkg/k.py", "--nvfp4-entry=pkg/k.py::build", *workers)
        project.run_apart(*args, "--snapshot-update").outcomes(passed=4)
        assert len(log.read_text().split()) == 1, "the package was imported by more than the compile"
        listing = project.snapshots()["pkg/k/layouts.txt"]
        assert "Tile.__call__.tile" in listing

    def test_a_package_whose_conftest_has_package_fixtures(self, project: Project) -> None:
        project.file("pkg/__init__.py", "")
        project.file(
            "pkg/conftest.py",
            "import pytest\n\n\n@pytest.fixture(scope='package', autouse=True)\ndef noted():\n"
            "    print('package set up')\n    yield\n",
        )
        project.kernel("pkg/k.py")
        project.record("pkg/k.py")
        project.file("pkg/test_beside.py", "def test_beside():\n    pass\n")
        ran = project.run("pkg/k.py", "pkg/test_beside.py", "-s")
        ran.outcomes(passed=5)
        assert ran.text.count("package set up") == 1

    def test_packages_and_folders_take_turns(self, project: Project) -> None:
        """Kernel items do not set their package up; what comes before and after them must still be torn down right."""
        project.settings("", ini='nvfp4_kernels = ["pkg/*.py"]')
        project.file("pkg/__init__.py", "")
        project.kernel("pkg/k.py")
        project.record("pkg/k.py")
        for name in ("a", "z"):
            project.file(f"pkg/test_{name}.py", f"def test_{name}():\n    pass\n")
        project.run("pkg/test_a.py", "pkg/k.py", "pkg/test_z.py", "pkg/k.py::layouts[gpumode-0]").outcomes(passed=6)


class TestTheCache:
    @pytest.mark.slow
    def test_it_notices_a_changed_helper(self, project: Project) -> None:
        project.file("helper.py", "ROWS = 16\n")
        source = ENTRY.replace("import cutlass\n", "import cutlass\nfrom helper import ROWS\n", 1).replace(
            "Tile(16)", "Tile(ROWS)"
        )
        project.file("k.py", source)
        args = ("k.py", "--nvfp4-entry=k.py::build")
        project.record(*args)
        project.run(*args).outcomes(passed=4)
        project.file("helper.py", "ROWS = 8\n")
        ran = project.run(*args)
        ran.outcomes(passed=3, failed=1)
        assert "16:1 -> 8:1" in ran.failures()["layouts"]

    @pytest.mark.slow
    def test_its_folder_can_be_given(self, project: Project) -> None:
        project.file("k.py", ENTRY)
        project.run("k.py::compile", "--nvfp4-entry=k.py::build", "--nvfp4-cache-dir=mine").outcomes(passed=1)
        assert list((project.path / "mine/sealed/traces").rglob("trace.json"))

    def test_another_than_the_given_one_is_told(self, project: Project) -> None:
        project.file("k.py", "def custom_kernel(data):\n    return (\n")  # nothing is compiled
        project.file("taken", "")
        ran = project.run("k.py::compile", "--nvfp4-cache-dir=taken/mine")
        ran.outcomes(failed=1)
        assert f"nvfp4: --nvfp4-cache-dir {project.path}/taken/mine cannot be written; the cache is in" in ran.text
        assert "cannot be written" not in project.run("k.py::compile", "--nvfp4-cache-dir=mine").text


@pytest.mark.slow
def test_a_kernel_is_never_imported_into_a_process_of_pytests(
    project: Project, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVFP4_SANDBOX", "off")  # the kernel writes its number
    log = project.path / "pids.txt"
    stamp = f"import os\nopen({str(log)!r}, 'a').write(f'{{os.getpid()}} {{os.getppid()}}\\n')\n"
    project.file("k.py", stamp + ENTRY)
    project.file("test_a.py", "import os\n\n\ndef test_a():\n    print('pid', os.getpid())\n")
    ran = project.run("k.py", "test_a.py", "-s", "--nvfp4-entry=k.py::build", "--snapshot-update", *workers)
    ran.outcomes(passed=5)
    ((own, _),) = (line.split() for line in log.read_text().splitlines())
    assert int(own) != os.getpid()


def test_without_the_plugin_nothing_of_it_happens(project: Project) -> None:
    project.file("k.py", "def custom_kernel(data):\n    return data\n")
    ran = project.pytester.runpytest_subprocess("-p", "no:nvfp4", "k.py")
    assert ran.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "nvfp4" not in ran.stdout.str().replace("-p no:nvfp4", "").split("plugins:")[0]


def test_the_readme_of_a_kernel_says_which_dsl_compiles_it(recorded: Project) -> None:
    assert "nvfp4: nvidia-cutlass-dsl" in recorded.run(IDS[0]).text
    recorded.file("test_a.py", "def test_a():\n    pass\n")
    assert KERNEL
    assert "nvfp4: nvidia" not in recorded.run("--ignore=k.py").text
