"""Run a Python program: ``python -m pytest_nvfp4.device.worker.program FILE FOLDER cuda|host|sim [ARGUMENT ...]``.

With ``sim``, ``device="cuda"`` and the launches of CuTe DSL kernels land in the simulator, whose model is that of
``CUTE_DSL_ARCH``; with ``host``, plain torch operations on ``device="cuda"`` are computed on the CPU. How the simulator
runs is said by ``NVFP4_SIMULATING`` (a ``device.job.Simulating`` as JSON), which the program does not see.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pytest_nvfp4.cores import cores
from pytest_nvfp4.isolation.limits import apply as apply_limits

SIMULATING_VARIABLE = "NVFP4_SIMULATING"
"""Environment variable that says how the simulator runs."""
_DEFAULT_ARCH = "sm_100a"
_MOST_FINDINGS = 50


class _Judged:
    """Whether what was found makes the program a failure: not where nothing was to be looked for."""

    def __init__(self) -> None:
        self.failed = False


@contextmanager
def _simulated(folder: Path, judged: _Judged) -> Iterator[None]:
    from pytest_nvfp4.device.job import Simulating
    from pytest_nvfp4.device.worker.sim_findings import merge_by_statement, worker_finding
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.host import redirect
    from pytest_nvfp4.sim.run.session import LaunchRecord

    how = Simulating.model_validate_json(os.environ.pop(SIMULATING_VARIABLE, "{}"))

    class Launches(list[LaunchRecord]):
        """Tells what each launch printed as soon as it has ended."""

        def append(self, record: LaunchRecord) -> None:
            super().append(record)
            if record.output:
                sys.stdout.write(record.output)
                sys.stdout.flush()

    arch = os.environ.get("CUTE_DSL_ARCH") or _DEFAULT_ARCH
    dump = folder / "ptx"
    dump.mkdir(exist_ok=True)
    os.environ.update(redirect.environment(dump, arch=arch))
    processes = min(4, cores())
    with simulate(
        arch=arch, processes=processes, schedule=how.schedule, races=how.races, race_warnings=how.race_warnings
    ) as session:
        session.launches = Launches()
        try:
            yield
        finally:
            sys.stdout.flush()
            findings = [worker_finding(finding) for finding in merge_by_statement(session.findings)]
            for finding in findings[:_MOST_FINDINGS]:
                place = f"{Path(finding.file).name}:{finding.line}: " if finding.file is not None else ""
                sys.stderr.write(f"{place}{finding.message}\n")
            if len(findings) > _MOST_FINDINGS:
                sys.stderr.write(f"simulated: {len(findings) - _MOST_FINDINGS} more findings\n")
            judged.failed = how.races and any(finding.severity == "error" for finding in findings)


@contextmanager
def _device(backend: str, folder: Path, judged: _Judged) -> Iterator[None]:
    if backend == "sim":
        with _simulated(folder, judged):
            yield
        return
    if backend == "host":
        from pytest_nvfp4.host import torch_cuda

        torch_cuda.install()
    yield


def _run(file: Path, arguments: list[str]) -> int:
    """Run the program as ``__main__``; its exit status. What it raises is told from its own first line on."""
    module = ModuleType("__main__")
    module.__file__ = str(file)
    sys.modules["__main__"] = module
    sys.argv = [str(file), *arguments]
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        sys.stderr.write(f"{leaving.code}\n")
        return 1
    except BaseException as error:
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(own))
        return 1
    return 0


def main() -> None:
    """Run the program named on the command line, and leave with its exit status."""
    os.environ.pop("NVFP4_RESULT_FD", None)
    apply_limits(dict(os.environ))
    file, folder, backend, *arguments = sys.argv[1:]
    sys.path.insert(0, str(Path.cwd()))
    judged = _Judged()
    with _device(backend, Path(folder), judged):
        status = _run(Path(file), arguments)
    sys.exit(status & 0xFF or int(judged.failed))


if __name__ == "__main__":
    main()
