"""Records the Hopper points of the validation in the simulator, in which no row needs a GPU.

``python -m tests.model.record_hopper [TABLE|TABLE_NUMBER ...]`` writes ``data/recordings/TABLE_NUMBER.npz`` for each
row of the tables of ``measure_hopper``; a row that has a recording is left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.model.record_twins import RECORDINGS
from tests.model.tables import DATA, read_table

ARCH = "sm_90a"


def path_of(table: str, number: int) -> Path:
    """Where the recording of a row is."""
    return RECORDINGS / f"{table}_{number:02}.npz"


def record(name: str) -> None:
    """Record the rows of a table, or one, that have no recording; this process has the simulator's environment."""
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.model.recorder_dataless import DatalessRecorder
    from pytest_nvfp4.model.storage import dumps
    from tests.model.measure_hopper import TABLES

    table = next(table for table in TABLES if name.startswith(table))
    for number, row in enumerate(read_table(DATA / f"{table}.csv")):
        path = path_of(table, number)
        if path.exists() or name not in (table, path.stem):
            continue
        began = time.monotonic()
        with simulate(arch=ARCH) as session:
            session.machine.monitor = recorder = DatalessRecorder(sampled=True)
            for _ in TABLES[table]([row], checked=False):
                pass
            if session.findings:
                raise RuntimeError(f"{path.stem}: {session.findings}")
            recorded = dumps(recorder.recordings(below=str(Path(__file__).parents[2])))
        path.write_bytes(recorded)
        print(f"{path.stem}: {len(recorded)} bytes, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201


def main() -> None:
    """Record the tables that are named, or all."""
    with tempfile.TemporaryDirectory() as folder:
        from pytest_nvfp4.host import redirect

        os.environ.update(redirect.environment(Path(folder), arch=ARCH))
        from tests.model.measure_hopper import TABLES

        for name in sys.argv[1:] or TABLES:
            record(name)


if __name__ == "__main__":
    main()
