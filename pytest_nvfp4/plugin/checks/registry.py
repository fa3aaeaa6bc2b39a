"""The checks of a run: those of this package, and those of other packages (entry points ``pytest_nvfp4.checks``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby

import pytest

from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Differences
from pytest_nvfp4.plugin.checks.benchmark import BenchmarkCheck
from pytest_nvfp4.plugin.checks.codegen import CodegenCheck
from pytest_nvfp4.plugin.checks.compile import CompileCheck
from pytest_nvfp4.plugin.checks.cost import CostCheck
from pytest_nvfp4.plugin.checks.coverage import CoverageCheck
from pytest_nvfp4.plugin.checks.launch import LaunchCheck
from pytest_nvfp4.plugin.checks.layouts import LayoutsCheck
from pytest_nvfp4.plugin.checks.model import ModelCheck
from pytest_nvfp4.plugin.checks.races import RacesCheck
from pytest_nvfp4.plugin.checks.search import SearchCheck
from pytest_nvfp4.plugin.checks.tmem import TmemCheck
from pytest_nvfp4.plugin.checks.verify import VerifyCheck
from pytest_nvfp4.plugin.record import CheckRecord
from pytest_nvfp4.plugin.state import KernelCase

GROUP = "pytest_nvfp4.checks"
"""Entry point group of checks of other packages."""
PLUGIN_NAME = "nvfp4-checks"
"""Name under which the registry is registered with pytest, so that hooks find it before there is a configuration."""
BUILT_IN: tuple[type[Check], ...] = (
    CompileCheck,
    LayoutsCheck,
    LaunchCheck,
    CodegenCheck,
    TmemCheck,
    VerifyCheck,
    CoverageCheck,
    CostCheck,
    ModelCheck,
    RacesCheck,
    SearchCheck,
    BenchmarkCheck,
)
_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


class CheckRegistry:
    """The checks of a run, in the order of their stages.

    Attributes:
        errors: Why checks of other packages cannot be used; collecting a kernel file reports them.
    """

    def __init__(self, parser: pytest.Parser) -> None:
        self.errors: list[str] = []
        self._checks: list[Check] = []
        for check_class in BUILT_IN:
            check = check_class()
            check.add_options(parser)
            self._checks.append(check)
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
            try:
                check = self._load(point)
                check.add_options(parser)
            except Exception as error:
                distribution = point.dist.name if point.dist is not None else "unknown"
                reason = str(error) if isinstance(error, CheckError) else f"{type(error).__name__}: {error}"
                self.errors.append(
                    f"the entry point {point.name} = {point.value!r} of the distribution {distribution} "
                    f"(group {GROUP}) cannot be used: {reason}; correct or uninstall the distribution"
                )
            else:
                self._checks.append(check)
        self._checks.sort(key=lambda check: check.stage)

    def _load(self, point: EntryPoint) -> Check:
        check_class = point.load()
        if not (isinstance(check_class, type) and issubclass(check_class, Check)):
            raise CheckError(f"{check_class!r} is not a class derived from {Check.__module__}.Check")
        name = getattr(check_class, "name", None)
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise CheckError(f"the check's name {name!r} must be letters, digits, _ and -, and begin with a letter")
        if self.get(name) is not None:
            raise CheckError(f"a check named {name!r} exists already; choose another name")
        if not callable(getattr(check_class, "run", None)) or not getattr(check_class, "help", ""):
            raise CheckError(f"the check {name!r} must define `run` and `help`")
        return check_class()

    def __iter__(self) -> Iterator[Check]:
        return iter(self._checks)

    def get(self, name: str) -> Check | None:
        """Return the check of a name; None if there is none."""
        return next((check for check in self._checks if check.name == name), None)

    def configure(self, config: pytest.Config) -> None:
        """Read the options of all checks. Raises pytest.UsageError."""
        for check in self:
            check.configure(config)

    def items(self, kernel: CollectedKernel) -> Iterator[tuple[Check, KernelCase]]:
        """Yield the checks of a kernel file with their cases, in the order of the items."""
        for _, stage in groupby(self, key=lambda check: check.stage):
            by_label: dict[str, list[tuple[Check, KernelCase]]] = {}
            for check in stage:
                for case in check.cases(kernel):
                    by_label.setdefault(case.label, []).append((check, case))
            for pairs in by_label.values():
                yield from pairs

    def differences(self, record: CheckRecord) -> Differences:
        """Return the differences between the texts of a record; none if a text is damaged, which its check reports."""
        check = self.get(record.kind)
        if check is None or record.old is None or record.new is None:
            return Differences()
        try:
            return check.differences(record)
        except ValueError:
            return Differences()

    def not_made(self, snapshot: str, made: Sequence[str]) -> bool:
        """Return whether options left out the check that compares a snapshot.

        Args:
            snapshot: Name of the snapshot's file without its suffix, which is the name of an item.
            made: Names of the checks that have items for the kernel in this run.
        """
        return any(
            check.optional
            and check.name not in made
            and (snapshot == check.name or snapshot.startswith(f"{check.name}["))
            for check in self
        )

    @classmethod
    def of(cls, config: pytest.Config) -> CheckRegistry:
        """Return the registry of a run."""
        registry = config.pluginmanager.get_plugin(PLUGIN_NAME)
        assert isinstance(registry, cls)
        return registry


class CheckError(ValueError):
    """A check of another package breaks the contract of `Check`; the message is the reason."""


def check_items(items: Sequence[pytest.Item]) -> list[CheckItem]:
    """Return the check items among some items."""
    return [item for item in items if isinstance(item, CheckItem)]
