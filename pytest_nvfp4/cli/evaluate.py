"""``nvfp4 eval``: check and time a kernel as GPU MODE does, with the same protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.options import timeout_option
from pytest_nvfp4.cli.popcorn import Popcorn, PopcornExit, Statistics, spec_line, writer
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.settings import SettingsError, find_root, load
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.verdict import CaseVerdict

MODES = ("test", "benchmark", "leaderboard")


@dataclass(frozen=True)
class _Evaluation:
    """One evaluation of a kernel on a device."""

    popcorn: Popcorn
    device: Device
    kernel: KernelSpec
    base: Path
    folder: Path
    rounds: int
    timeout: float

    def test(self, problems: Sequence[Problem]) -> PopcornExit:
        """Check the kernel on every problem."""
        from pytest_nvfp4.bench.twice import cases_of
        from pytest_nvfp4.device.verify import Verifier

        verifier = Verifier(self.device, folder=self.folder, deadline_s=self.timeout)
        done = verifier.verify(self.kernel, cases_of(problems), base=self.base)
        self.popcorn.log("test-count", len(problems))
        shown: set[str] = set()
        for index, (problem, verdict) in enumerate(zip(problems, done.verdicts, strict=True)):
            self.popcorn.log(f"test.{index}.spec", spec_line(problem))
            self.popcorn.log(f"test.{index}.status", "pass" if verdict.status == "passed" else "fail")
            if verdict.status != "passed":
                self.popcorn.log(f"test.{index}.error", _error_text(verdict, shown))
        return self._check(done.verdicts)

    def benchmark(self, problems: Sequence[Problem]) -> PopcornExit:
        """Time the kernel on every problem in two processes, and check its outputs, times and launches."""
        from pytest_nvfp4.bench.twice import measure_twice

        _, timed = measure_twice(
            self.device,
            self.kernel,
            problems,
            folder=self.folder,
            rounds=self.rounds,
            base=self.base,
            deadline_s=self.timeout,
        )
        self.popcorn.log("benchmark-count", len(problems))
        shown: set[str] = set()
        for index, one in enumerate(timed):
            self.popcorn.log(f"benchmark.{index}.spec", spec_line(one.problem))
            if one.measurement is not None:
                self.popcorn.statistics(f"benchmark.{index}", Statistics.of(one.measurement.device_us))
                for finding in one.verdict.findings:
                    self.popcorn.log(f"benchmark.{index}.warning", str(finding))
            else:
                self.popcorn.log(f"benchmark.{index}.status", "fail")
                self.popcorn.log(f"benchmark.{index}.error", _error_text(one.verdict, shown))
        return self._check([one.verdict for one in timed])

    def _check(self, verdicts: Sequence[CaseVerdict]) -> PopcornExit:
        statuses = {verdict.status for verdict in verdicts}
        self.popcorn.log("check", "pass" if statuses == {"passed"} else "fail")
        if statuses == {"passed"}:
            return PopcornExit.FINE
        if "timeout" in statuses:
            return PopcornExit.TIMEOUT
        if statuses & {"crashed", "error", "unavailable", "unsupported"}:
            return PopcornExit.CUDA
        return PopcornExit.VALIDATION


def _error_text(verdict: CaseVerdict, shown: set[str]) -> str:
    """Return the findings of a verdict; of those that ``shown`` has from earlier errors, the first lines."""
    texts = []
    for finding in verdict.findings:
        text = str(finding)
        texts.append(text.partition("\n")[0] if finding.identity in shown else text)
        shown.add(finding.identity)
    return "; ".join(texts) or verdict.status


def _stop(message: str, code: PopcornExit) -> NoReturn:
    click.echo(printed(f"nvfp4: error: {message}"), err=True)
    sys.exit(int(code))


@click.command("eval")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--mode", type=click.Choice(MODES), default="test", show_default=True, help="Part of the evaluation.")
@click.option("--device", default="auto", show_default=True, help="Device to run on: local, sim or another device.")
@click.option("--problem", "names", multiple=True, help="Problem in place of the official ones; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object with the keys and the exit code.")
@click.option("--rounds", type=click.IntRange(min=3), default=120, show_default=True, help="Number of timed calls.")
@timeout_option(600.0, help_text="Time limit of a part in seconds.")
def eval_command(
    kernel: Path, *, mode: str, device: str, names: tuple[str, ...], as_json: bool, rounds: int, timeout: float
) -> None:
    """Check KERNEL (test), time it (benchmark) or both (leaderboard), as GPU MODE's harness does.

    Lines go to the descriptor POPCORN_FD, or to standard output if it is not set. Exit codes: 0 success, 110 CUDA or
    kernel error, 111 unusable descriptor, 112 wrong results, 113 malformed problem, 114 timeout.
    """
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.select import select

    lines: dict[str, str] = {}

    def show(line: str) -> None:
        if as_json:
            key, _, value = line.rstrip("\n").partition(": ")
            lines[key] = value
        else:
            click.echo(line, nl=False)

    try:
        popcorn = Popcorn(writer({} if as_json else dict(os.environ), show))
    except (OSError, ValueError) as error:
        _stop(f"POPCORN_FD={os.environ.get('POPCORN_FD')!r} cannot be written: {error}", PopcornExit.PIPE)
    if not kernel.is_file():
        _stop(f"{kernel}: no such file", PopcornExit.VALIDATION)
    try:
        settings = load(find_root(kernel))
        own = settings.for_kernel(kernel)[0]
        chosen = settings.resolve_problems(names, contract=own.contract)
        for problem in chosen:
            contract_of(problem).require(problem)
    except (SettingsError, ProblemError) as error:
        _stop(str(error), PopcornExit.SPEC)
    try:
        spec, base = KernelSpec.from_files(kernel, roots=(settings.root,), **own.of_job)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        _stop(f"{kernel}: cannot be read: {error}", PopcornExit.VALIDATION)
    with temporary_folder("eval") as name:
        folder = Path(name)
        try:
            where = select(device, folder=folder)
            unsupported = where.unsupported(spec.arch)
        except DeviceUnavailableError as error:
            _stop(str(error), PopcornExit.CUDA)
        if unsupported is not None:
            _stop(unsupported, PopcornExit.CUDA)
        run = _Evaluation(popcorn, where, spec, base=base, folder=folder / "jobs", rounds=rounds, timeout=timeout)
        code = PopcornExit.FINE
        if mode in ("test", "leaderboard"):
            tests = chosen or own.kernel_contract.tests
            with output.working(f"checking {kernel} on {len(tests)} problems on {where.name}"):
                code = run.test(tests)
        if mode in ("benchmark", "leaderboard") and code is PopcornExit.FINE:
            timed = chosen or own.kernel_contract.benchmarks
            with output.working(f"timing {kernel} on {len(timed)} problems on {where.name}"):
                code = run.benchmark(timed)
    if as_json:
        output.write_json({"kernel": str(kernel), "mode": mode, "exit_code": int(code), "lines": lines})
    sys.exit(int(code))
