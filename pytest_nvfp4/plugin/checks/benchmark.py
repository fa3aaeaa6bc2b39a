"""``benchmark``: the kernel is not slower than its baseline, and its times are plausible.

Times are measured on the device with a cold L2, inputs that rotate and change, and answers that are checked in rounds
the kernel cannot predict. They are replayed into pytest-benchmark, so ``--benchmark-autosave``,
``--benchmark-compare`` and its other options apply to them. The verdict against a baseline is computed here, and only
``slower`` fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.checks.base import Check, CheckItem, CollectedKernel, Needs, RemoteBatch
from pytest_nvfp4.plugin.checks.benchmark_profiles import BenchmarkProfiles, add_option
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.checks.stopwatch import Stopwatch, Timed, checked
from pytest_nvfp4.plugin.devices import DEVICES
from pytest_nvfp4.plugin.failure import CheckFailure, TimingWarning
from pytest_nvfp4.plugin.state import KernelCase

if TYPE_CHECKING:
    from pytest_nvfp4.bench.provenance import Provenance
    from pytest_nvfp4.bench.regression import Policy, ShapeRounds, ShapeVerdict
    from pytest_nvfp4.bench.storage import BenchmarkHooks
    from pytest_nvfp4.bench.table import TimesRow
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.plugin.device_options import DeviceOptions

_MARKER = "nvfp4_threshold"
_FINDINGS_SHOWN = 4
_BLOCKS = 4
"""Turns of each kernel, if several configurations of one file are timed on a problem."""


@dataclass(frozen=True, slots=True)
class BenchmarkOptions:
    """Options of the check.

    Attributes:
        rounds: Timed calls of a benchmark.
        threshold: Least slowdown that fails a benchmark with a baseline, as a share.
    """

    rounds: int
    threshold: float


class BenchmarkCheck(Check):
    """The check of a kernel's times on a device."""

    name = "benchmark"
    help = "the kernel is not slower than its baseline (measured)"
    stage = 70
    uses_device = True
    # pytest-benchmark warns of tests that do not use its fixture; an item that is not measured reports that itself.
    marks = (pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all"),)
    options: BenchmarkOptions

    def __init__(self) -> None:
        self._rows: list[TimesRow] = []
        self._geomeans: dict[str, ShapeVerdict] = {}
        self._pairs: dict[str, list[ShapeRounds]] = {}
        self._hooks: BenchmarkHooks | None = None
        self._stopwatch: Stopwatch | None = None
        self._profiles = BenchmarkProfiles(None)

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare the options."""
        group = parser.getgroup("nvfp4")
        group.addoption(
            "--nvfp4-rounds", type=int, default=120, metavar="N", help="timed calls of a benchmark check (default: 120)"
        )
        group.addoption(
            "--nvfp4-threshold",
            type=float,
            metavar="PERCENT",
            help="least slowdown that fails a benchmark check with a baseline (default: ini nvfp4_threshold, else "
            "0.5); the marker nvfp4_threshold overrides it for one test",
        )
        add_option(group)
        parser.addini("nvfp4_threshold", "least slowdown that fails a benchmark check, in percent", default="0.5")

    def configure(self, config: pytest.Config) -> None:
        """Read the options, and install hooks and storage for devices in pytest-benchmark. Raises pytest.UsageError."""
        config.addinivalue_line("markers", f"{_MARKER}(percent): least slowdown that fails this benchmark")
        rounds = config.getoption("--nvfp4-rounds")
        if rounds < 3:
            raise pytest.UsageError(f"--nvfp4-rounds {rounds} is too few: at least 3 are needed")
        self.options = BenchmarkOptions(rounds, _threshold(config))
        self._profiles = BenchmarkProfiles(config.getoption("--nvfp4-profile"))
        self._install(config)

    def _install(self, config: pytest.Config) -> None:
        """Register hooks with pytest-benchmark, and a storage for the GPU, if there is a device that can be timed."""
        options = config.stash[DEVICES].options
        names = _gpu_names(options)
        if not may_time(options) or not config.pluginmanager.hasplugin("benchmark"):
            return
        from pytest_nvfp4.bench.storage import BenchmarkHooks, use_gpu_storage

        if names:
            use_gpu_storage(config, names[0])
        self._hooks = BenchmarkHooks()
        config.pluginmanager.register(self._hooks, "nvfp4-benchmark")

    def cases(self, kernel: CollectedKernel) -> Iterator[KernelCase]:
        """Yield one case for each problem; none with ``--nvfp4-device=none`` or without pytest-benchmark."""
        if kernel.device_options.device == "none" or not kernel.config.pluginmanager.hasplugin("benchmark"):
            return
        for case, *_ in kernel.runnable:
            settings = case.settings
            chosen = kernel.run.chosen(case.path, settings) or settings.benchmark
            for problem in chosen or settings.kernel_contract.benchmarks:
                yield case.on(problem)

    def needs(self, item: CheckItem) -> Needs:
        """Return the trace if a remote does the timing; otherwise the machine must be idle, and there is no work."""
        remote = item.config.stash[DEVICES].remote
        if remote is None or remote.request.options.simulates or remote.unusable is not None:
            return Needs()
        return Needs(traces=(item.case.trace_case,))

    def remote_batches(self, items: Sequence[CheckItem]) -> Iterator[RemoteBatch]:
        """Yield one batch with the jobs of all configurations of the file, grouped by configuration, and another one.

        The second batch has the second measurements. Only the first one's configurations take turns, as only its times
        are reported.
        """
        import secrets

        from pytest_nvfp4.device.verify import benchmark_job, in_two_processes

        specs: list[tuple[CheckItem, KernelSpec]] = []
        for item in items:
            session = getattr(item.config, "_benchmarksession", None)
            kernel = KernelUnderTest(item)
            if session is None or session.disabled or (remote := kernel.devices.remote) is None:
                return
            if remote.request.options.simulates:  # which has no clock
                return
            if (spec := kernel.remote_spec(remote)) is not None:
                specs.append((item, spec))
        configurations = list(dict.fromkeys(item.case.settings.name for item, _ in specs))
        specs.sort(key=lambda one: configurations.index(one[0].case.settings.name))
        turns = _BLOCKS if len(configurations) > 1 else 1
        for rounds, blocks in zip(in_two_processes(self.options.rounds), (turns, 1), strict=True):
            row_key = secrets.randbits(32)  # jobs with one key may share a process
            jobs = [
                benchmark_job(
                    spec,
                    [job_case(item.case.problem)],
                    rounds=rounds,
                    deadline_s=item.config.stash[DEVICES].options.timeout_s,
                    row_key=row_key,
                )
                for item, spec in specs
            ]
            if jobs:
                yield RemoteBatch(jobs, blocks=blocks)

    def set_up(self, item: CheckItem) -> None:
        """Mark the item: the fixture of pytest-benchmark reads its clock from a marker when it is made."""
        from pytest_nvfp4.bench.mark import mark_item

        mark_item(item)

    def run(self, nvfp4_case: KernelUnderTest, benchmark: Any) -> None:
        """Fail if the kernel is slower than its baseline, an answer is wrong, or the times are implausible."""
        from pytest_nvfp4.bench.replay import BenchmarkReplay

        item, case, devices = nvfp4_case.item, nvfp4_case.case, nvfp4_case.devices
        if devices.shared:
            devices.not_run("not measured, as test processes run beside each other (-n): run benchmarks without xdist")
        if benchmark.disabled:
            pytest.skip("not measured: pytest-benchmark is disabled (--benchmark-disable)")
        device = devices.device(case.settings.arch)
        if device.describe().simulated:
            devices.not_run(devices.no_clock(case.settings.arch))
        spec, base = nvfp4_case.device_spec()
        if devices.remote is not None:
            devices.remote.wait_sent(item.parent)
        siblings = item.siblings(self.name)
        others = [other.case.problem for other in siblings if not other.may_be_skipped]
        if self._stopwatch is None:
            timeout_s = devices.options.timeout_s
            self._stopwatch = Stopwatch(folder=devices.jobs, rounds=self.options.rounds, timeout_s=timeout_s)
        timing = self._stopwatch.time(device, spec, case.problem, others=others, base=base)
        timed = checked(timing, case.problem, device=device, file=case.path, not_run=devices.not_run)
        if self._hooks is not None:
            self._hooks.note(timed.device)
        for warning in timed.warnings:
            item.warn(TimingWarning(warning))
        provenance = BenchmarkReplay(benchmark).replay(
            timed.measurement, device=timed.device, problem=case.problem, kernel_sha256=spec.sha256
        )
        self._show(nvfp4_case, timed)
        self._profiles.add(
            item,
            device,
            spec,
            case.problem,
            base=base,
            folder=devices.jobs,
            timeout_s=devices.options.timeout_s,
        )
        self._judge(nvfp4_case, timed, provenance, siblings)

    def _show(self, kernel: KernelUnderTest, timed: Timed) -> None:
        """Add the measured time to the evidence of the item, for a page."""
        if kernel.run.options.html is None:
            return
        from pytest_nvfp4.bench.roofline import columns
        from pytest_nvfp4.report.evidence import Measured

        found = columns(timed.measurement, kernel.case.problem, timed.device)
        name = "" if timed.device is None else timed.device.name
        kernel.show(
            "measured",
            Measured(device=name, us=found.us, p10_us=found.p10_us, p90_us=found.p90_us),
            kernel.case.problem,
        )

    def _judge(
        self, kernel: KernelUnderTest, timed: Timed, provenance: Provenance, siblings: Sequence[CheckItem]
    ) -> None:
        """Compare the times with the baseline, and add a row to the table. Raises CheckFailure."""
        from pytest_nvfp4.bench.table import TimesRow, render

        item, case = kernel.item, kernel.case
        pairs = self._pairs.setdefault(siblings[0].nodeid, [])
        comparison = _Comparison(item, pairs=pairs, siblings=len(siblings), threshold=self.options.threshold)
        verdict, note = comparison.verdict(timed, provenance, case.problem.name)
        name = kernel.run.relative(case.path)
        self._rows.append(TimesRow(name, case.problem, timed.measurement, timed.device, verdict, note))
        for line in render(self._rows[-1:]).splitlines():
            kernel.establish(line)
        geomean = comparison.geomean()
        if geomean is not None:
            self._geomeans[name] = geomean
        if verdict is not None and verdict.state == "slower":
            raise CheckFailure(
                f"slower than the baseline on {timed.device}: {verdict}\n"
                f"the least change that fails is {100 * verdict.threshold:.2g} %; {note or 'same conditions'}\n"
                "if that is meant, save a new baseline with --benchmark-autosave",
                file=str(case.path),
            )
        if geomean is not None and geomean.state == "slower":
            raise CheckFailure(
                f"the kernel's problems together are slower than their baselines on {timed.device}: geometric mean "
                f"{geomean}\nif that is meant, save a new baseline with --benchmark-autosave",
                file=str(case.path),
            )
        if verdict is not None and verdict.baseline_outdated:
            item.warn(TimingWarning(f"baseline outdated: {verdict}; save a new one (--benchmark-autosave)"))

    def summarise(self, terminal: Any, notes: Sequence[str]) -> None:  # noqa: ARG002
        """Write the table of times."""
        if self._rows:
            from pytest_nvfp4.bench.table import render

            terminal.write_sep("-", "nvfp4: device times")
            terminal.write_line(render(self._rows, geomeans=self._geomeans).strip("\n"))
        self._profiles.summarise(terminal)


def _gpu_names(options: DeviceOptions) -> list[str]:
    """Return the GPUs that may time a kernel."""
    from pytest_nvfp4.device.gpus import gpu_names

    if options.remote is not None and not options.remote.options.simulates:
        return [f"NVIDIA {options.remote.options.gpu}"]
    return gpu_names() if options.device in ("auto", "local") else []


def may_time(options: DeviceOptions) -> bool:
    """Return whether a device of a run may time kernels: a GPU, a remote, or a device that a package adds."""
    return bool(_gpu_names(options)) or options.device not in ("auto", "local", "sim", "none")


def _threshold(config: pytest.Config) -> float:
    given = config.getoption("--nvfp4-threshold")
    where = "ini nvfp4_threshold =" if given is None else "--nvfp4-threshold"
    value = config.getini("nvfp4_threshold") if given is None else given
    try:
        percent = float(value)
    except ValueError as error:
        raise pytest.UsageError(f"{where} {value!r} is not a number of percent") from error
    if not 0 < percent < 100:
        raise pytest.UsageError(f"{where} {percent:g} must be more than 0 and less than 100 percent")
    return percent / 100


class _Comparison:
    """Comparison of times with the stored baseline of an item, and of all problems of its kernel together.

    The items of a kernel share the probability of a false alarm (`Policy.alpha`): the verdict on each problem and the
    one on the geometric mean have equal parts of it.

    Args:
        item: The item.
        pairs: Baselines and times of the kernel's items that were compared before.
        siblings: Number of benchmark items of the same kernel and configuration.
        threshold: Least change that matters, as a share, unless a marker overrides it.
    """

    def __init__(self, item: pytest.Item, *, pairs: list[ShapeRounds], siblings: int, threshold: float) -> None:
        self._item = item
        self._pairs = pairs
        self._siblings = siblings
        self._threshold = threshold

    def _least(self) -> float:
        """Return the least change that matters, as a share: the marker's, else the option's."""
        mark = self._item.get_closest_marker(_MARKER)
        if mark is None:
            return self._threshold
        try:
            (percent,) = mark.args
            share = float(percent) / 100
        except (TypeError, ValueError) as error:
            raise CheckFailure(f"the marker {_MARKER}{mark.args} takes one number, in percent") from error
        if not 0 < share < 1:
            raise CheckFailure(f"the marker {_MARKER}({percent}) must be more than 0 and less than 100 percent")
        return share

    def verdict(self, timed: Timed, provenance: Provenance, name: str) -> tuple[ShapeVerdict | None, str]:
        """Return the verdict against the baseline with a note, or the reason for none.

        Raises:
            CheckFailure: There is a baseline, and it cannot be compared with.
        """
        from pytest_nvfp4.bench.baseline import BaselineError, against, baseline_rounds
        from pytest_nvfp4.bench.regression import compare

        try:
            baseline = baseline_rounds(self._item.config, self._item.nodeid)
            if baseline is None:
                return None, self._no_baseline()
            pair = against(
                baseline,
                rounds_us=timed.measurement.device_us,
                provenance=provenance,
                name=name,
                threshold=self._least(),
            )
        except BaselineError as error:
            raise CheckFailure(str(error)) from error
        self._pairs.append(pair.rounds)
        (verdict,) = compare([pair.rounds], self._policy(verdicts=self._siblings + (self._siblings > 1))).shapes
        return verdict, "; ".join(pair.notes)

    def _no_baseline(self) -> str:
        """Return why an item has no baseline; empty if no comparison was requested."""
        if not getattr(self._item.config.option, "benchmark_compare", None):
            return ""
        session = self._item.config.pluginmanager.get_plugin("pytest-benchmark")
        if not getattr(session, "compared_mapping", None):
            return "no baseline: no stored file was found that could be read"
        return "no baseline of this check"

    def geomean(self) -> ShapeVerdict | None:
        """Return the verdict on all problems of the kernel together, at the last of its items; None before.

        There is none if a problem has no baseline, or was not measured.
        """
        from pytest_nvfp4.bench.regression import compare

        whole = self._siblings > 1 and len(self._pairs) == self._siblings
        return compare(self._pairs, self._policy()).geomean if whole else None

    def _policy(self, *, verdicts: int = 1) -> Policy:
        from pytest_nvfp4.bench.regression import Policy

        policy = Policy(threshold=self._threshold)
        return replace(policy, alpha=policy.alpha / verdicts)
