"""Run a Python program: ``python -m pytest_nvfp4.device.worker.program FILE FOLDER cuda|host|sim [ARGUMENT ...]``.

With ``sim``, the simulator executes ``device="cuda"`` and the launches of CuTe DSL kernels, as the device of
``CUTE_DSL_ARCH``; with ``host``, plain torch operations on ``device="cuda"`` are computed on the CPU. The variable
``NVFP4_SIMULATING`` holds the settings of the simulator (a ``device.job.Simulating`` as JSON). Python processes that
the program starts have the same device (``child_start``).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.wall import enter_from_environment
from pytest_nvfp4.toolchain.dsl_names import missing_name

SIMULATING_VARIABLE = "NVFP4_SIMULATING"
"""Environment variable with the settings of the simulator."""


def _run_simulated(folder: Path, run: Callable[[], int]) -> int:
    """Run the program on the simulator; findings make it fail only if races were searched for."""
    from pytest_nvfp4.device.job import Simulating
    from pytest_nvfp4.device.worker.simulated_process import SimulatedProcess

    settings = Simulating.model_validate_json(os.environ.pop(SIMULATING_VARIABLE, "{}"))
    with SimulatedProcess(folder, settings) as process:
        status = run()
        sys.stdout.flush()
        if status:
            process.explain()
    return status & 0xFF or int(settings.races and process.failed)


def _run(file: Path, arguments: list[str]) -> int:
    """Run the program as ``__main__``, and return its exit status. A traceback starts at the program's first line."""
    module = ModuleType("__main__")
    module.__file__ = str(file)
    # multiprocessing, which is imported already, calls the main module so in results of its processes.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv = [str(file), *arguments]
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException as error:
        first = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(first))
        if hint := missing_name(error):
            sys.stderr.write(f"{hint}\n")
        return 1
    return 0


def main() -> None:
    """Run the program named on the command line, and exit with its status."""
    os.environ.pop(RESULT_VARIABLE, None)
    enter_from_environment()
    file, folder, backend, *arguments = sys.argv[1:]
    beside = [str(Path(file).parent)] if Path(file).is_relative_to(Path.cwd()) else []  # it is a mounted file
    sys.path[:0] = dict.fromkeys([*beside, str(Path.cwd())])
    run = partial(_run, Path(file), arguments)
    if backend == "host":
        from pytest_nvfp4.host import torch_cuda

        torch_cuda.install()
    sys.exit((_run_simulated(Path(folder), run) if backend == "sim" else run()) & 0xFF)


if __name__ == "__main__":
    main()
