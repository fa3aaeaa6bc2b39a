"""The contract of a check: which cases it makes of a kernel, what it needs, how it runs and what it reports.

A check is a class derived from `Check`. The plugin makes one instance for each run of pytest, and calls in this order:

1. `Check.add_options` when pytest declares options, and `Check.configure` when it has parsed them;
2. `Check.cases` when a kernel file is collected: each case becomes a `CheckItem`, ``k.py::NAME[LABEL]``;
3. `Check.needs` when the items are known: traces and simulations are prepared on all cores while the first items run;
   with ``--nvfp4-remote``, `Check.remote_batches`: their jobs are sent at once;
4. `Check.set_up` and `Check.run` for each item;
5. `Check.differences` for the reports, and `Check.summarise` for the terminal.

Another package adds a check with an entry point, and need not do anything else::

    [project.entry-points."pytest_nvfp4.checks"]
    registers = "my_package.checks:Registers"

    class Registers(Check):
        name = "registers"
        help = "no kernel uses more than 200 registers"

        def run(self, nvfp4_case: KernelUnderTest) -> None:
            for code in nvfp4_case.trace().code:
                if (code.registers or 0) > 200:
                    raise CheckFailure(f"{code.source_name} uses {code.registers} registers")

Pytest reports its items as those of any test function: in the terminal, JUnit and with xdist. They are entries of the
HTML, Markdown and GitHub reports without further work, and jobs for a remote count in the remote's progress lines.
The modules of checks are imported in every run of pytest, so they import large packages inside their functions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pytest_nvfp4.plugin.device_options import DeviceOptions
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.fitted import FITTED
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.plugin.state import CASE, RUN, KernelCase, Run

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import Job
    from pytest_nvfp4.layout.change import ListingDiff
    from pytest_nvfp4.layout.launch_facts import FactChange
    from pytest_nvfp4.plugin.compare_facts import FactKind

_LINES_SHOWN = 30


@dataclass(frozen=True, slots=True)
class CollectedKernel:
    """A kernel file during collection.

    Attributes:
        path: The kernel file.
        cases: Its configurations on the problems that it is compiled for.
        config: pytest's configuration.
    """

    path: Path
    cases: Sequence[KernelCase]
    config: pytest.Config

    @property
    def run(self) -> Run:
        """Options and settings of the run."""
        return self.config.stash[RUN]

    @property
    def device_options(self) -> DeviceOptions:
        """Options about devices."""
        return self.config.stash[DEVICES].options

    @property
    def runnable(self) -> list[list[KernelCase]]:
        """The cases of each configuration that a contract calls and that can be traced."""
        configurations: dict[str, list[KernelCase]] = {}
        for case in self.cases:
            if case.settings.is_run and case.error is None:
                configurations.setdefault(case.settings.name, []).append(case)
        return list(configurations.values())

    def fitted_cases(self) -> Iterator[KernelCase]:
        """Yield the case of each configuration on the problem fitted to it (`plugin.fitted`).

        There are none if the command line names problems, and with a device or a remote that is not simulated.
        """
        options = self.device_options
        if options.simulates and not self.run.options.problems:
            for case, *_ in self.runnable:
                if case.settings.on_fitted_problem:
                    yield case.on(case.problem, label=FITTED, variant=FITTED)

    def simulated_cases(self) -> Iterator[KernelCase]:
        """Yield the cases of a check that counts what a kernel does in the simulator.

        They are the problems of the command line, else those of the setting ``simulate-problems``, else those that the
        kernel is compiled for; none with a device that is not simulated.
        """
        if not self.device_options.simulates:
            return
        for cases in self.runnable:
            compiled = {case.problem: case for case in cases}
            for problem in self.run.chosen(cases[0].path, cases[0].settings) or cases[0].settings.simulate or compiled:
                yield compiled.get(problem, cases[0]).on(problem)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Work that is done in the background, before the items that need it.

    Attributes:
        key: Identity of the work: items whose preparations have equal keys share it.
        work: Does the work and stores the result where `Check.run` looks it up. Its exceptions are dropped, because
            the item meets the same one.
    """

    key: Hashable
    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Needs:
    """What an item needs before it runs.

    Attributes:
        traces: Cases to trace.
        simulations: Cases to simulate once, with the inputs of `KernelUnderTest.simulated`. The cases of one
            configuration run in one job.
        preparations: Further work, which begins after the traces.
        raced: Cases that the preparations simulate once with a search for races, in the eager schedule. A run without
            findings shows what a simulation without the search does, so that it serves both.
    """

    traces: tuple[KernelCase, ...] = ()
    simulations: tuple[KernelCase, ...] = ()
    preparations: tuple[Preparation, ...] = ()
    raced: tuple[KernelCase, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """Jobs that are sent to a remote together.

    Attributes:
        jobs: The jobs, each equal to the one that the item will request, apart from what is drawn for it.
        blocks: Number of parts in which the jobs take turns, so that slow drifts of the GPU affect all of them alike.
    """

    jobs: Sequence[Job]
    blocks: int = 1


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between a snapshot and the current text.

    Attributes:
        layouts: Differences of layouts; None if no layouts were compared.
        facts: Facts that changed.
    """

    layouts: ListingDiff | None = None
    facts: Sequence[FactChange] = ()


class Check:
    """Base class of checks.

    Attributes:
        name: Name in node ids, of letters, digits, ``_`` and ``-``. It is unique, and it is also the kind of the
            snapshots that the check compares.
        help: What the check proves or measures, in one line.
        stage: Position of its items. The items of checks of one stage follow each other case by case.
        run: The test function: a method whose parameters are fixtures. ``nvfp4_case`` is the kernel of the item.
        marks: Marks of its items.
        uses_device: Its items run kernels on the device of the run, and not only in the simulator. While there are
            such items on a GPU of this machine, nothing is prepared in the background.
        optional: Options may leave its items out, so a snapshot without an item is not unused then.
        compile_errors_reported_by: Name of the check that fails if a kernel does not compile. Items of this check are
            then skipped and refer to it, so that one defect is one failure.
        wrong_results_reported_by: Name of the check that fails if the kernel does something wrong that is not this
            check's subject; see `KernelUnderTest.defer_wrong_results`.
        fact_kind: Facts that the fixture ``nvfp4_fact_snapshot`` compares with this check's name as ``kind``.
        summary_title: Title of the section of the terminal summary that shows the lines of `KernelUnderTest.note`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    stage: ClassVar[int] = 100
    marks: ClassVar[Sequence[pytest.MarkDecorator]] = ()
    uses_device: ClassVar[bool] = False
    optional: ClassVar[bool] = False
    compile_errors_reported_by: ClassVar[str | None] = "compile"
    wrong_results_reported_by: ClassVar[str | None] = None
    summary_title: ClassVar[str] = ""
    fact_kind: FactKind | None = None
    run: Callable[..., None]

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare command-line options and ini settings; options go to ``parser.getgroup("nvfp4")``."""

    def configure(self, config: pytest.Config) -> None:
        """Read the options into an attribute. Raises pytest.UsageError if a value cannot be used."""

    def cases(self, kernel: CollectedKernel) -> Iterable[KernelCase]:
        """Return the cases of a kernel file; each becomes an item. By default those that the kernel is compiled for."""
        return kernel.cases

    def needs(self, item: CheckItem) -> Needs:
        """Return what an item needs. It must be fast; by default the trace of the item's case."""
        return Needs(traces=(item.case.trace_case,))

    def remote_batches(self, items: Sequence[CheckItem]) -> Iterable[RemoteBatch]:  # noqa: ARG002
        """Return the jobs that the items of one kernel file will request from a remote; by default none."""
        return ()

    def set_up(self, item: CheckItem) -> None:
        """Prepare an item before its fixtures are set up."""

    def differences(self, record: CheckRecord) -> Differences:  # noqa: ARG002
        """Return the differences between the two texts of a record whose kind is this check's name.

        Raises:
            ValueError: A text is damaged.
        """
        return Differences()

    def summarise(self, terminal: Any, notes: Sequence[str]) -> None:
        """Write a section of the terminal summary; by default the notes.

        Args:
            terminal: pytest's terminal reporter.
            notes: Lines that items noted with `KernelUnderTest.note`, each with its node id, of every test process.
        """
        if notes:
            terminal.write_sep("-", f"nvfp4: {self.summary_title or self.name}")
            for line in notes[:_LINES_SHOWN]:
                terminal.write_line(line)
            if len(notes) > _LINES_SHOWN:
                terminal.write_line(f"... and {len(notes) - _LINES_SHOWN} more")

    @property
    def note_name(self) -> str:
        """Name of the property of test reports, and so of JUnit, that holds a note."""
        return f"nvfp4_{self.name}"


class CheckItem(pytest.Function):
    """One check of one kernel on one problem: ``sm100.py::layouts[gpumode-0]``.

    It is a test function whose kernel comes from the item, so fixtures, marks and plugins apply to it.

    Attributes:
        check: The check.
        case: The kernel, its configuration and the problem.
    """

    def __init__(self, *, check: Check, case: KernelCase, **kwargs: Any) -> None:
        super().__init__(callobj=check.run, **kwargs)
        self.check = check
        self.case = case
        self.stash[CASE] = case
        self.add_marker(pytest.mark.nvfp4)
        for mark in check.marks:
            self.add_marker(mark)

    @property
    def may_be_skipped(self) -> bool:
        """Whether a mark may skip the item before it requires anything."""
        return any(self.iter_markers("skip")) or any(self.iter_markers("skipif"))

    def siblings(self, check: str | None) -> list[CheckItem]:
        """Return the items of a check, of this kernel and configuration, in the order of this run."""
        return [
            item
            for item in self.session.items
            if isinstance(item, CheckItem)
            and item.parent is self.parent
            and item.check.name == check
            and item.case.settings == self.case.settings
        ]

    def setup(self) -> None:
        """Set up the check, then the fixtures."""
        self.check.set_up(self)
        super().setup()

    @property
    def id(self) -> Any:
        """The node id in the structured form that pytest 9.2 compares for ``--lf`` and ``--sw``.

        Pytest makes this form from the parameters of a test, and this item has none. Parsed from the text, as pytest
        parses the node ids of earlier runs, the label in brackets is a parameter.
        """
        return type(super().id).parse(self.nodeid)

    def listchain(self) -> list[pytest.Item | pytest.Collector]:  # type: ignore[override]
        """Return the nodes to set up for this item: those of pytest without packages.

        To set up a package, pytest imports its ``__init__.py``, which may import the kernel into this process. A
        package with a conftest.py is imported anyway, and may have fixtures that require the package node.
        """
        return [
            node  # type: ignore[misc]
            for node in super().listchain()
            if not isinstance(node, pytest.Package) or (node.path / "conftest.py").is_file()
        ]

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the place of the item, which is the kernel file."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002
        """Return the text of a failure without a traceback through this package."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)
