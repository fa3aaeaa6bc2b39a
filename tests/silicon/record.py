"""Runs every case and keeps its outputs: ``python -m tests.silicon.record OUT_DIR [--only NAME] [--jobs N]``.

On a machine with a Hopper GPU it writes ``h200.npz`` (what the tests read), ``full.npz`` (the outputs of which the
former keeps digests only) and ``log.txt``. With ``--simulate`` the same from the simulator, as ``simulated.npz``.

The cases run in child processes. A child that dies or says nothing for too long loses the case it was at, which is
tried once more alone; the others go on in a new child.
"""

from __future__ import annotations

import argparse
import datetime
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.silicon.cases import every_case
from tests.silicon.driver import CudaError, Gpu
from tests.silicon.model import Case
from tests.silicon.runners import Outputs, Runner, on_silicon, simulate
from tests.silicon.store import Record, Recording, keep, save

PATIENCE = {"silicon": 30.0, "simulator": 180.0}
"""Seconds that a child may take for one case."""
ROOT = Path(__file__).parents[2]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# ---- the child -------------------------------------------------------------------------------------------------------


def child(where: str, folder: Path) -> int:
    """Runs the cases whose numbers come on the standard input, one a line, and answers a line of JSON for each."""
    found = every_case()
    say(json.dumps({"ready": True}))
    runner: Runner | None = None
    for line in sys.stdin:
        case = found[int(line)]
        started = time.perf_counter()
        answer: dict[str, Any] = {"number": int(line), "error": ""}
        lost = False
        try:
            runner = runner or (simulate if where == "simulator" else on_silicon(Gpu()))
            outputs = runner(case)
            np.savez(folder / f"{int(line)}.npz", **outputs)  # type: ignore[arg-type]
        except CudaError as error:
            answer["error"], lost = str(error), error.lost
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
            if where == "simulator" and not answer["error"].strip():
                answer["error"] = traceback.format_exc()
        answer["lost"] = lost
        answer["seconds"] = time.perf_counter() - started
        say(json.dumps(answer))
        if lost:
            return 3
    return 0


# ---- the parent ------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    error: str = ""
    seconds: float = 0.0


@dataclass
class Pool:
    """Children that take cases from one queue."""

    where: str
    folder: Path
    left: deque[int]
    results: dict[int, Result] = field(default_factory=dict)
    progress: Callable[[str], None] = say

    def run(self, jobs: int) -> None:
        threads = [threading.Thread(target=self._serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        while self.left:
            self._one_child()

    def _one_child(self) -> None:
        command = [sys.executable, "-m", "tests.silicon.record", str(self.folder), "--child", self.where]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        lines: queue.Queue[str | None] = queue.Queue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_pump, args=(process.stdout, lines.put), daemon=True),
            threading.Thread(target=_pump, args=(process.stderr, lambda line: errors.append(line or "")), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            if not _wait(lines, 120.0):
                self._drop("".join(errors)[-2000:] or "the child did not start")
                return
            while True:
                try:
                    number = self.left.popleft()
                except IndexError:
                    return
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
                answer = _wait(lines, PATIENCE[self.where])
                if not answer:
                    process.kill()
                    process.wait()
                    readers[1].join(1.0)
                    said = "".join(errors)[-1500:]
                    self._done(
                        number, Result(f"no answer within {PATIENCE[self.where]:g} s, or the child died\n{said}")
                    )
                    return
                self._done(number, Result(answer["error"], answer["seconds"]))
                if answer["lost"]:
                    return
        except BrokenPipeError:
            self._done(number, Result("the child died\n" + "".join(errors)[-1500:]))
        finally:
            process.stdin.close()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _drop(self, why: str) -> None:
        try:
            self._done(self.left.popleft(), Result(why))
        except IndexError:
            return

    def _done(self, number: int, result: Result) -> None:
        self.results[number] = result
        name = every_case()[number].name
        self.progress(f"{name}: " + (f"FAILED {result.error}" if result.error else f"{result.seconds:.2f} s"))


def _pump(stream: Any, put: Callable[[str | None], None]) -> None:
    for line in stream:
        put(line)
    put(None)


def _wait(lines: queue.Queue[str | None], seconds: float) -> dict[str, Any] | None:
    """The next line of JSON."""
    end = time.monotonic() + seconds
    while True:
        try:
            line = lines.get(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            return None
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.silicon.record", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for the files")
    parser.add_argument("--only", action="append", default=[], help="cases whose name contains this; may be repeated")
    parser.add_argument("--jobs", type=int, default=4, help="child processes at a time")
    parser.add_argument("--simulate", action="store_true", help="run on the simulator instead of the GPU")
    parser.add_argument("--child", choices=sorted(PATIENCE), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return child(given.child, given.out)
    given.out.mkdir(parents=True, exist_ok=True)
    where = "simulator" if given.simulate else "silicon"
    found = every_case()
    chosen = [n for n, case in enumerate(found) if not given.only or any(part in case.name for part in given.only)]
    device, driver = _device(where)
    say(f"{len(chosen)} cases on {device} ({driver})")
    log = (given.out / "log.txt").open("w")

    def progress(text: str) -> None:
        say(text)
        log.write(text + "\n")
        log.flush()

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(where, Path(folder), deque(chosen), progress=progress)
        pool.run(given.jobs)
        again = [number for number in chosen if pool.results[number].error]
        if where == "silicon":
            for number in again:  # alone, each in a child of its own
                progress(f"again: {found[number].name}")
                pool.left = deque([number])
                pool.run(1)
        kept, full = {}, {}
        for number in chosen:
            case, result = found[number], pool.results[number]
            outputs: Outputs = {}
            if not result.error:
                with np.load(Path(folder) / f"{number}.npz") as file:
                    outputs = {name: file[name] for name in file.files}
            kept[case.name] = Record(case.ptx_sha256, case.inputs_sha256, keep(case, outputs), result.error)
            if case.chunked:
                full[case.name] = Record(case.ptx_sha256, case.inputs_sha256, outputs, result.error)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    save(given.out / ("h200.npz" if where == "silicon" else "simulated.npz"), Recording(device, driver, date, kept))
    save(given.out / "full.npz", Recording(device, driver, date, full))
    refused = {case.name for case in found if case.refused} if where == "simulator" else set()
    failed = [name for name, record in kept.items() if record.error and name not in refused]
    progress(
        f"{len(kept)} cases in {time.monotonic() - started:.0f} s, {len(failed)} failed {' '.join(failed)}".rstrip()
    )
    log.close()
    return int(bool(failed))


def _device(where: str) -> tuple[str, str]:
    if where == "simulator":
        return "simulator", "none"
    gpu = Gpu()
    if gpu.capability != (9, 0):
        raise SystemExit(f"{gpu.name} has compute capability {gpu.capability}: the cases are for 9.0")
    return gpu.name, f"CUDA {gpu.driver // 1000}.{gpu.driver % 1000 // 10}"


def case_named(name: str) -> Case:
    """One case."""
    return next(case for case in every_case() if case.name == name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
