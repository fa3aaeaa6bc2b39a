"""Run one profile job under a profiler: ``python -m pytest_nvfp4.device.worker.profile_worker JOB.json FOLDER cuda``.

Unlike other workers this one is a single process: a profiler's connections to the process that it has started do not
survive the forks of a keeper and of a mirror. So nothing compares its memory, and the outputs of a profile are judged
without that; ``verify`` is the check that an author cannot influence.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.worker.__main__ import Worker
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.job_steps import completed
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.wall import WALL_VARIABLE, Wall, enter


def main() -> None:
    """Run the job named on the command line."""
    result = int(taken(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter(Wall.from_json(taken(WALL_VARIABLE)))
    events = Events(result)
    exit_process = os._exit
    _, file, folder, backend = sys.argv
    job = Job.model_validate_json(Path(file).read_bytes())
    Path(file).unlink()
    del sys.argv[1:]
    completed(events, lambda: Worker(job, Path(folder), events, backend=backend, sealed=None).run())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if job.profiling is None or job.profiling.mode != "nsys":  # which writes its last events in an exit handler
        exit_process(0)


if __name__ == "__main__":
    main()
