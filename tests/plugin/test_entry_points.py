"""Checks of other packages (entry points ``pytest_nvfp4.checks``), from a distribution in a temporary folder."""

from __future__ import annotations

import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_nvfp4.device import simulate

from .conftest import Project
from .simulated import FILL, PROBLEM, written

pytest.importorskip("torch")

CTAS = """
from pytest_nvfp4.plugin.checks.base import Check, Needs
from pytest_nvfp4.plugin.failure import CheckFailure


class CtaCheck(Check):
    name = "ctas"
    help = "no launch has more CTAs than --most-ctas"
    summary_title = "CTAs (simulated)"

    def add_options(self, parser):
        parser.getgroup("ctas").addoption("--most-ctas", type=int, default=100)

    def configure(self, config):
        self.most = config.getoption("--most-ctas")

    def cases(self, kernel):
        return kernel.simulated_cases()

    def needs(self, item):
        return Needs(traces=(item.case.trace_case,), simulations=(item.case,))

    def run(self, nvfp4_case):
        ctas = max(launch.ctas for launch in nvfp4_case.simulated().call.launches)
        nvfp4_case.note(f"{ctas} CTAs")
        if ctas > self.most:
            raise CheckFailure(f"{ctas} CTAs are more than {self.most}", file=str(nvfp4_case.case.path))
"""
OPTIONS = ("k.py", f"--nvfp4-problem={PROBLEM}", "--nvfp4-device=sim")
NODE_ID = f"k.py::ctas[{PROBLEM}]"


@pytest.fixture
def site(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that this process and test processes of xdist search."""
    folder = project.path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def install(site: Path, name: str, source: str, **entry_points: str) -> None:
    """Install a distribution with one module."""
    module, info = site / f"{name}.py", site / f"{name}-1.0.dist-info"
    module.write_text(source)
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = "".join(f"{point} = {value}\n" for point, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[pytest_nvfp4.checks]\n{points}")


@pytest.fixture
def ctas(project: Project, site: Path) -> Project:
    """A project with a kernel of five CTAs and the check ``ctas``."""
    install(site, "cta_check", CTAS, ctas="cta_check:CtaCheck")
    return written(project, FILL)


@pytest.mark.slow
def test_its_items_are_selected_run_and_summarised(ctas: Project, workers: tuple[str, ...]) -> None:
    # In a process of its own, because xdist gives its test processes the sys.path of this interpreter's start.
    ran = ctas.run_apart(*OPTIONS, "-k", "ctas", "--nvfp4-html=r.html", "--nvfp4-md=r.md", "--junitxml=j.xml", *workers)
    assert "1 passed" in ran.text, ran.text + ran.errors
    assert ran.section(r"nvfp4: CTAs \(simulated\)").startswith(f"{NODE_ID}: 5 CTAs\n")
    (case,) = ElementTree.parse(ctas.path / "j.xml").getroot().iter("testcase")
    assert case.get("name") == f"ctas[{PROBLEM}]"
    assert {item.get("name"): item.get("value") for item in case.iter("property")} == {"nvfp4_ctas": "5 CTAs"}
    for report in ("r.html", "r.md"):
        assert f"ctas[{PROBLEM}]" in (ctas.path / report).read_text()


@pytest.mark.slow
def test_its_option_and_its_failure(ctas: Project, workers: tuple[str, ...]) -> None:
    ran = ctas.run_apart(*OPTIONS, "-k", "ctas", "--most-ctas=4", "--nvfp4-md=r.md", *workers)
    assert ran.failures()[f"ctas[{PROBLEM}]"].endswith("5 CTAs are more than 4")
    assert "5 CTAs are more than 4" in (ctas.path / "r.md").read_text()
    assert "--most-ctas" in ctas.run("--help").text
    assert "ctas: no launch has more CTAs than --most-ctas" in ctas.run("--markers").text


@pytest.mark.slow
def test_its_trace_and_simulation_are_prepared_in_the_background(
    ctas: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    original = simulate.simulate

    def recorded(*args: object, **options: object) -> object:
        threads.append(threading.current_thread().name)
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(simulate, "simulate", recorded)
    assert "1 passed" in ctas.run(*OPTIONS, "-k", "ctas", "--nvfp4-jobs=2", "--nvfp4-fresh").text
    assert [name.rpartition("-")[0] for name in threads] == ["nvfp4-worker"]


def test_it_is_skipped_if_the_kernel_does_not_compile(project: Project, site: Path) -> None:
    install(site, "cta_check", CTAS, ctas="cta_check:CtaCheck")
    project.file("k.py", "def custom_kernel(data):\n    return (\n")
    ran = project.run(*OPTIONS, "-k", "ctas or compile", "-rs")
    assert f"it did not compile: see k.py::compile[{PROBLEM}]" in ran.text


NAMED = (
    "from pytest_nvfp4.plugin.checks.base import Check\n\n\nclass Named(Check):\n    name = {name!r}\n    help = 'h'\n"
)
RUN = "\n    def run(self, nvfp4_case):\n        pass\n"


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        ("", "bad_check:Missing", "AttributeError: module 'bad_check' has no attribute 'Missing'"),
        ("import no_such_module\n", "bad_check:Check", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("Check = dict\n", "bad_check:Check", "<class 'dict'> is not a class derived from pytest_nvfp4.plugin.checks"),
        (NAMED.format(name="verify") + RUN, "bad_check:Named", "a check named 'verify' exists already"),
        (NAMED.format(name="a b") + RUN, "bad_check:Named", "the check's name 'a b' must be letters, digits"),
        (NAMED.format(name="fine"), "bad_check:Named", "the check 'fine' must define `run` and `help`"),
    ],
    ids=["missing", "import", "no check", "duplicate", "name", "no run"],
)
def test_an_entry_point_that_cannot_be_used(project: Project, site: Path, source: str, value: str, reason: str) -> None:
    install(site, "bad_check", source, broken=value)
    project.kernel()
    project.file("test_a.py", "def test_a():\n    pass\n")
    ran = project.run("k.py", "test_a.py", "--continue-on-collection-errors")
    ran.outcomes(passed=1, errors=1)
    assert f"the entry point broken = {value!r} of the distribution bad_check" in ran.text
    assert reason in ran.text
    assert "Traceback" not in ran.text


@pytest.mark.slow
def test_a_name_that_begins_like_another_check_is_not_taken_for_it(project: Project, site: Path) -> None:
    """The races check refers to ``verify`` for a wrong result, and not to ``verify-x``."""
    install(site, "x_check", NAMED.format(name="verify-x") + RUN, x="x_check:Named")
    ran = written(project, FILL).run(*OPTIONS, "-k", "verify-x or races", "-rs")
    assert "1 failed, 1 passed" in ran.text
    assert "see k.py::verify-x" not in ran.text
