"""Collect the checks of kernel files as pytest items, without importing the files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.plugin.checks import BENCHMARK, CHECKS, RACES, SEARCHED, SIMULATED, TMEM, VERIFY, Check
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.kernel import item_name
from pytest_nvfp4.plugin.racing import race_cases
from pytest_nvfp4.plugin.recognise import claim, lacks_entry
from pytest_nvfp4.plugin.running import benchmark_cases, verify_cases
from pytest_nvfp4.plugin.searching import OPTIONS, search_cases
from pytest_nvfp4.plugin.simulating import simulated_cases
from pytest_nvfp4.plugin.state import RUN, Case


class CheckItem(pytest.Function):
    """One check of one kernel on one problem: ``sm100.py::layouts[gpumode-0]``.

    It is a test function of this package that gets its kernel from the item, so fixtures, marks and plugins that work
    on test functions work on it.
    """

    def __init__(self, *, check: Check, case: Case, **kwargs: Any) -> None:
        super().__init__(callobj=check.function, **kwargs)
        self.check = check
        self.case = case
        self.add_marker(pytest.mark.nvfp4)
        if check is BENCHMARK:  # one that is not run says so itself
            self.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"))

    @property
    def may_be_skipped(self) -> bool:
        """Whether a marker may skip it before it asks for anything."""
        return any(self.iter_markers("skip")) or any(self.iter_markers("skipif"))

    def setup(self) -> None:
        """Set up the fixtures; that of pytest-benchmark reads its clock from a marker when it is made."""
        if self.check is BENCHMARK:
            from pytest_nvfp4.bench.replay import mark_item

            mark_item(self)
        super().setup()

    @property
    def id(self) -> Any:
        """The node id in the structured form that pytest 9.2 compares (``--lf``, ``--sw``).

        Pytest makes it from the parameters that it knows of; read from the text, as it reads those of earlier runs, the
        part in brackets is one of them.
        """
        return type(super().id).parse(self.nodeid)

    def listchain(self) -> list[pytest.Item | pytest.Collector]:  # type: ignore[override]
        """The nodes to set up for this item: those of pytest, without packages.

        To set a package up, pytest imports its ``__init__.py``, which may import the kernel into this process. A
        package that has a conftest.py is imported for that anyway, and may have fixtures that need it.
        """
        return [
            node  # type: ignore[misc]
            for node in super().listchain()
            if not isinstance(node, pytest.Package) or (node.path / "conftest.py").is_file()
        ]

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is: in the kernel's file."""
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ARG002
        """What a person sees: the finding, without this package's own lines."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class KernelFile(pytest.File):
    """A kernel file: its items are the checks of each of its configurations and problems."""

    def __init__(self, *, named: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._named = named

    def collect(self) -> Iterable[pytest.Item]:
        """One item a check, configuration and problem, also where the check will say that it cannot be made."""
        cases = self._cases()
        made = [(check, case) for case in cases for check in CHECKS]
        if _uses_tmem(self.path):
            made += [(TMEM, case) for case in cases]
        run, devices = self.config.stash[RUN], self.config.stash[DEVICES]
        made += [(VERIFY, case) for case in verify_cases(run, devices, cases)]
        made += [(check, case) for case in simulated_cases(run, devices, cases) for check in SIMULATED]
        made += [(RACES, case) for case in race_cases(run, devices, cases)]
        made += [(SEARCHED, case) for case in search_cases(self.config.stash[OPTIONS], devices, cases)]
        if self.config.pluginmanager.hasplugin("benchmark"):
            made += [(BENCHMARK, case) for case in benchmark_cases(run, devices, cases)]
        # Pytest looks up a function's fixtures anew for each item; the items of one check have the same.
        fixtures: dict[str, Any] = {}
        for check, case in made:
            item: CheckItem = CheckItem.from_parent(
                self,
                name=item_name(check.name, case),
                check=check,
                case=case,
                fixtureinfo=fixtures.get(check.name),
            )
            fixtures[check.name] = item._fixtureinfo
            yield item

    def _cases(self) -> list[Case]:
        run = self.config.stash[RUN]
        cases = run.cases(self.path, named=self._named)
        lacking = next((case for case in cases if case.settings.entry is None and case.trouble is None), None)
        trouble = lacks_entry(self.path, run) if lacking else None
        if lacking is None or trouble is None:
            return cases
        # One item says it once, however many problems the kernel was to be checked on.
        return [replace(lacking, trouble=trouble), *(case for case in cases if case.settings.entry is not None)]


def _uses_tmem(path: Path) -> bool:
    """Whether a kernel's file has anything to do with tensor memory, which only some architectures have."""
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return b"tcgen05" in text or b"tmem" in text


def collect_file(path: Path, parent: pytest.Collector, collectors: list[pytest.Collector]) -> list[pytest.Collector]:
    """The collectors of a file: its checks if it is a kernel, and otherwise those that pytest has for it.

    A kernel keeps pytest's own collectors, which import it, only for tests that stand in it.
    """
    found = claim(path, run=parent.config.stash[RUN], config=parent.config, named=parent.session.isinitpath(path))
    if found is None:
        return collectors
    kernel: KernelFile = KernelFile.from_parent(parent, path=path, named=found.named)
    return [kernel, *(collectors if found.tests else [])]
