"""Every program under every tool: ``python -m tests.silicon.sanitizer.record OUT_DIR [--budget-s 400] [--jobs 8]``.

``--keep sanitizer.json --tools racecheck`` runs again only what did not end, or is not there, of that tool.

Writes ``sanitizer.json`` (device, driver, versions, and for each program what a plain run and each tool said) and
``help.txt`` (the options of the installed version). One process a program and a tool, because a program may hang or
lose its context. What does not fit into the budget is recorded as not run; programs that may hang come last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.silicon.sanitizer.corpus import PROGRAMS
from tests.silicon.sanitizer.kernel import KERNELS
from tests.silicon.sanitizer.parse import parsed, unavailable
from tests.silicon.sanitizer.program import Program

ROOT = Path(__file__).parents[3]
TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
_COMMON = (("--print-limit", "100"), ("--show-backtrace", "no"))
_OPTIONS = {
    "racecheck": (("--racecheck-report", "analysis"), ("--racecheck-detect-level", "info"),
                  ("--racecheck-deadlock-timeout", "3000"),
                  ("--racecheck-indirect-barrier-dependency", "yes")),
    "synccheck": (),
    "memcheck": (("--padding", "64"),),
    "initcheck": (("--initcheck-address-space", "all"),),
}  # fmt: skip
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda-13/bin", "/usr/local/cuda-13.0/bin", "/opt/nvidia/compute-sanitizer")
_MOST = 12
"""Records that are kept of one run."""
_RAW = 1200
"""Characters of output that are kept where no record was understood."""


def tool(name: str) -> str | None:
    """Where an executable is."""
    return shutil.which(name) or next((str(p) for folder in _PLACES if (p := Path(folder) / name).exists()), None)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its output, its status; None if it was killed because it took too long."""

    text: str
    status: int | None
    seconds: float


def execute(command: Sequence[str], limit: float) -> Ended:
    """Run a command in a process group of its own, and leave nothing of it behind."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            for number, patience in ((signal.SIGINT, 1.5), (signal.SIGKILL, 20.0)):
                _signal(process.pid, number)
                try:
                    process.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            _signal(process.pid, signal.SIGKILL)
        out.seek(0)
        text = out.read().decode(errors="replace")
    return Ended(text, status, time.monotonic() - started)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


class Recorder:
    """One recording.

    Args:
        budget: Seconds for everything.
        limit: Seconds for one process.
    """

    def __init__(self, budget: float, limit: float, folder: Path) -> None:
        self.started = time.monotonic()
        self.budget = budget
        self.limit = limit
        self.folder = folder
        self.sanitizer = tool("compute-sanitizer")
        self.help = execute([self.sanitizer, "--help"], 30).text if self.sanitizer else ""
        self.absent: dict[str, str] = {}
        """By tool, why it cannot work here."""

    def left(self) -> float:
        """Seconds of the budget."""
        return self.budget - (time.monotonic() - self.started)

    def options(self, name: str) -> list[str]:
        """Those that the installed version has."""
        pairs = (*_COMMON, *_OPTIONS[name])
        return ["--tool", name, *(word for pair in pairs if pair[0] in self.help for word in pair)]

    def assemble(self, program: Program) -> str:
        """A cubin with lines, or nothing: then the driver compiles. Returns ptxas' complaint."""
        ptxas = tool("ptxas")
        if ptxas is None:
            return "no ptxas"
        source = self.folder / f"{program.hash}.ptx"
        source.write_text(program.ptx)
        done = execute([ptxas, "-arch=sm_90a", "-lineinfo", str(source), "-o", str(self._cubin(program))], 60)
        return "" if done.status == 0 else done.text[-_RAW:]

    def _cubin(self, program: Program) -> Path:
        return self.folder / f"{program.hash}.cubin"

    def child(self, program: Program) -> list[str]:
        """The command that runs a program."""
        cubin = self._cubin(program)
        return [sys.executable, "-m", "tests.silicon.sanitizer.child", program.name, *([str(cubin)] * cubin.exists())]

    def plain(self, command: Sequence[str], limit: float) -> str:
        """Run without a tool: right, wrong, hang or error."""
        if self.left() < 3:
            return "not run: no time left"
        done = execute(command, min(limit, self.left()))
        if done.status is None:
            return "hang"
        found = [line for line in done.text.splitlines() if line.startswith("RESULT ")]
        return found[-1][7:][:300] if found else f"error: status {done.status}: {done.text[-300:]}"

    def checked(self, name: str, command: Sequence[str], limit: float) -> dict[str, Any]:
        """What a tool says."""
        if name in self.absent:
            return {"status": "unavailable", "because": self.absent[name]}
        if self.left() < 3:
            return {"status": "not run", "because": "no time left"}
        assert self.sanitizer is not None
        done = execute([self.sanitizer, *self.options(name), *command], min(limit, self.left()))
        records = parsed(done.text)
        why = unavailable(done.text)
        if why is not None:
            return {"status": "unavailable", "because": why}
        result = next((line[7:][:160] for line in done.text.splitlines() if line.startswith("RESULT ")), "")
        told: dict[str, Any] = {"status": "ended" if done.status is not None else "hang", "found": records[:_MOST]}
        told |= {"result": result, "seconds": round(done.seconds, 1)}
        summary = [line.strip("= ").strip() for line in done.text.splitlines() if "SUMMARY" in line]
        if summary:
            told["summary"] = summary[-1]
        elif not records:
            told["raw"] = done.text[-_RAW:]
        return told

    def probe(self) -> None:
        """Find out which tools work at all, on a program that is correct."""
        for name in TOOLS:
            if self.sanitizer is None:
                self.absent[name] = "compute-sanitizer is not installed"
                continue
            told = self.checked(name, self.child(PROGRAMS[0]), 60)
            if told["status"] == "unavailable":
                self.absent[name] = told["because"]
            elif told["status"] == "hang" or not told["result"]:
                self.absent[name] = f"a correct program did not run under it: {told.get('raw', told)!s:.400}"


def _device() -> dict[str, Any]:
    done = execute([sys.executable, "-m", "tests.silicon.sanitizer.child", "--device"], 60)
    try:
        device: dict[str, Any] = json.loads(done.text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        device = {"error": done.text[-_RAW:]}
    smi = tool("nvidia-smi")
    if smi is not None:
        text = execute([smi, "--query-gpu=name,driver_version", "--format=csv,noheader"], 30).text
        device["smi"] = text.strip().splitlines()[:1]
    return device


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.silicon.sanitizer.record", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=400.0, help="seconds for everything")
    parser.add_argument("--limit-s", type=float, default=20.0, help="seconds for one process")
    parser.add_argument("--jobs", type=int, default=8, help="processes at once")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--no-kernels", action="store_true", help="leave out the shipped kernels")
    parser.add_argument("--keep", type=Path, help="a recording, of which what ended is not run again")
    parser.add_argument("--tools", nargs="+", default=["plain", *TOOLS], help="with --keep, which ones to run again")
    parser.add_argument("--again", nargs="*", default=[], help="with --keep, shipped kernels to run again in any case")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = [program for program in PROGRAMS if given.only in program.name]
    with tempfile.TemporaryDirectory() as folder:
        recording = record(
            Recorder(given.budget_s, given.limit_s, Path(folder)),
            chosen,
            jobs=given.jobs,
            kernels=() if given.no_kernels else KERNELS,
            out=given.out,
            kept=Kept(json.loads(given.keep.read_text()), given.tools, given.again) if given.keep is not None else None,
        )
    counts: dict[str, int] = {}
    for told in recording["programs"].values():
        for name in TOOLS:
            status = told.get(name, {}).get("status", "missing")
            counts[f"{name} {status}"] = counts.get(f"{name} {status}", 0) + 1
    sys.stdout.write(json.dumps({"seconds": recording["seconds"], "device": recording["device"], **counts}) + "\n")
    return 0


@dataclass(frozen=True)
class Kept:
    """An earlier recording, what of it may run again, and the shipped kernels that must."""

    recording: dict[str, Any]
    tools: Sequence[str]
    kernels: Sequence[str]

    def stays(self, name: str, what: Program | str) -> bool:
        """Whether what was recorded of a program or a shipped kernel is not to run again."""
        if name not in self.tools:
            return True
        if isinstance(what, str):
            return what not in self.kernels
        entry = self.recording["programs"].get(what.name, {})
        told = entry.get(name)
        if told is None or entry.get("ptx") != what.hash:
            return False
        return not told.startswith(("hang", "not run")) if isinstance(told, str) else bool(told["status"] == "ended")


def record(
    recorder: Recorder,
    chosen: Sequence[Program],
    *,
    jobs: int,
    kernels: Sequence[str],
    out: Path,
    kept: Kept | None = None,
) -> Any:
    """Run everything, and write the files; the JSON is written after each stage, so that a kill loses little."""
    version = execute([recorder.sanitizer, "--version"], 30).text.strip() if recorder.sanitizer else "absent"
    (out / "help.txt").write_text(recorder.help)
    with ThreadPoolExecutor(jobs) as pool:
        complaints = list(pool.map(recorder.assemble, chosen))
    recorder.probe()
    result: dict[str, Any] = {
        "device": _device(),
        "sanitizer": version,
        "options": {name: recorder.options(name) for name in TOOLS},
        "unavailable": recorder.absent,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "programs": {program.name: {"ptx": program.hash} for program in chosen},
        "kernels": {name: {} for name in kernels},
    }
    if kept is not None:
        for program in chosen:
            earlier = kept.recording["programs"].get(program.name, {})
            if earlier.get("ptx") == program.hash:
                result["programs"][program.name] = dict(earlier)
        for kernel in kernels:
            result["kernels"][kernel] = dict(kept.recording["kernels"].get(kernel, {}))
    for program, complaint in zip(chosen, complaints, strict=True):
        if complaint:
            result["programs"][program.name]["ptxas"] = complaint
    sure = [program for program in chosen if not program.hangs]
    unsure = [program for program in chosen if program.hangs]
    stages: list[list[tuple[str, Any]]] = [
        [("plain", program) for program in sure],
        [(name, program) for name in TOOLS for program in sure],
        [("plain", kernel) for kernel in kernels],
        [(name, kernel) for name in ("racecheck", "synccheck", "memcheck") for kernel in kernels],
        [("plain", program) for program in unsure],
        *([(name, program) for program in unsure] for name in ("synccheck", "racecheck", "memcheck", "initcheck")),
    ]

    def one(task: tuple[str, Any]) -> None:
        name, what = task
        if isinstance(what, str):
            command = ["env", "CUTE_DSL_LINEINFO=1", sys.executable, "-m", "tests.silicon.sanitizer.kernel", what]
            limit, into = 60.0, result["kernels"][what]
        else:
            command, into = recorder.child(what), result["programs"][what.name]
            limit = recorder.limit if name != "plain" else min(8.0, recorder.limit)
            if what.hangs:
                limit = min(limit, 12.0)
        into[name] = recorder.plain(command, limit) if name == "plain" else recorder.checked(name, command, limit)

    for every in stages:
        stage = [task for task in every if kept is None or not kept.stays(*task)]
        if not stage:
            continue
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, stage))
        result["seconds"] = round(time.monotonic() - recorder.started)
        text = json.dumps(result, indent=None, separators=(",", ":"))
        (out / "sanitizer.json").write_text(text)
        names = sorted({name for name, _ in stage})
        sys.stdout.write(f"{result['seconds']} s: {len(stage)} runs of {', '.join(names)}; {len(text)} bytes\n")
        sys.stdout.flush()
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
