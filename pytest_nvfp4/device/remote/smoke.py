"""A try-out of a remote with a real account: what cannot be known without one, step by step, within a budget.

Each step records what it saw: times, statuses and texts of errors, with the kind that they were given. A failed step
does not stop the others; the budget does. Nothing that is recorded contains a secret: programs report the names of
variables and never their values, and remotes clean their own messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.remote.base import (
    Batch,
    ProgramRemote,
    PythonProgram,
    Remote,
    RemoteCall,
    RemoteError,
    RemoteOptions,
    left_on,
)
from pytest_nvfp4.device.remote.gpus import capability_of
from pytest_nvfp4.device.remote.limits import cost_error
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.text import printed

_PROBES = 5
_QUIET_S = 45.0
"""Seconds without output of the silent program: longer than a client waits before it asks for a sign of life."""
_SLICE_S = 1.0
"""Seconds between two looks at the cost of a job that is waited for."""
_MOST_TEXT = 4000
_REPORTED = Bounds(size=1 << 20, depth=8, values=20_000)

ISOLATION = """
import glob, json, os, socket

def reaches(host, port):
    try:
        socket.create_connection((host, port), timeout=3).close()
        return "connected"
    except OSError as error:
        return f"{type(error).__name__}: {error}"

def names(path):
    try:
        with open(path, "rb") as file:
            entries = file.read().split(b"\\0")
        return sorted(entry.split(b"=")[0].decode("utf-8", "replace") for entry in entries if entry)
    except OSError as error:
        return f"{type(error).__name__}"

WORDS = ("TOKEN", "SECRET", "KEY", "PASSWORD", "CREDENTIAL", "AUTH", "MODAL")
others = {}
for path in glob.glob("/proc/[0-9]*/environ"):
    found = names(path)
    if path != f"/proc/{os.getpid()}/environ":
        others[path] = [n for n in found if any(w in n.upper() for w in WORDS)] if isinstance(found, list) else found
memory = {}
for path in glob.glob("/proc/[0-9]*/mem"):
    if path.split("/")[2] != str(os.getpid()):
        try:
            open(path, "rb").close()
            memory[path] = "opened"
        except OSError as error:
            memory[path] = type(error).__name__
files = [path for path in ("~/.modal.toml", "~/.aws/credentials", "~/.netrc", "/run/secrets", "/__modal")
         if os.path.exists(os.path.expanduser(path))]
print(json.dumps({
    "network": {f"{h}:{p}": reaches(h, p) for h, p in (("1.1.1.1", 443), ("api.modal.com", 443), ("pypi.org", 443))},
    "own variables": [name for name in sorted(os.environ) if any(word in name.upper() for word in WORDS)],
    "variables of other processes": others, "memory of other processes": memory, "files": files, "uid": os.getuid(),
}))
"""
"""Names alone are reported: whether a value can be read shows in them, and no value leaves the machine."""
TOOLS = """
import json, shutil, subprocess
found = {}
for name in ("nvidia-smi", "ncu", "nsys", "compute-sanitizer", "nvcc"):
    path = shutil.which(name)
    if path:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        found[name] = (done.stdout + done.stderr).strip()[-300:]
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class SmokeStep:
    """One step.

    Attributes:
        name: Name, in the report.
        what: What it does, for people, before anything is paid for.
        seconds: About how long it takes, on a machine that is up.
        act: Does it, and returns the facts that it saw. Raises RemoteError.
    """

    name: str
    what: str
    seconds: float
    act: Callable[[], dict[str, Any]]


@dataclass(slots=True)
class StepRecord:
    """What one step saw: its outcome (``done``, ``failed`` or ``left out``), seconds, facts, and the error's text."""

    name: str
    outcome: str
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "name": self.name,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 3),
            "facts": self.facts,
            "error": self.error,
        }


class Smoke:
    """The steps for one remote.

    Args:
        remote: The remote; nothing else uses it.
        options: Its options.
        budget: US dollars that the steps may cost by the remote's own estimate.
        without: Makes the same remote with other options, for the steps that try errors.

    Attributes:
        steps: The steps, in order.
        records: What the steps so far have seen.
    """

    def __init__(
        self,
        remote: Remote,
        options: RemoteOptions,
        *,
        budget: float,
        without: Callable[[RemoteOptions], Remote],
    ) -> None:
        self._remote = remote
        self._options = options
        self._budget = budget
        self._other = without
        # Only a container has a limit of its own: a machine of the user's is left alone.
        self._memory_gib: int = getattr(remote, "container_memory_gib", 0)
        self.steps = list(self._plan())
        self.records: list[StepRecord] = []

    def _plan(self) -> Iterator[SmokeStep]:
        yield SmokeStep("status", "ask what runs there", 5, self._status)
        yield SmokeStep("start", "build the image, wait for a machine, and run a probe on its GPU", 240, self._start)
        yield SmokeStep("warm jobs", f"run {_PROBES} more probes, to time a warm job", 20, self._warm)
        if isinstance(self._remote, ProgramRemote):
            yield SmokeStep("tools", "name the versions of driver and profilers", 15, self._tools)
            yield SmokeStep("isolation", "try the network, and what a program can see of others", 20, self._isolation)
            yield SmokeStep("silence", f"run a program that says nothing for {_QUIET_S:.0f} s", _QUIET_S, self._silence)
            yield SmokeStep("ends", "run programs that exit, raise, are killed, and exceed their time", 40, self._ends)
            if self._memory_gib:
                yield SmokeStep("memory", "allocate more memory than the container has", 60, self._memory)
        yield SmokeStep("no such app", "ask for a deployed app that does not exist", 5, self._no_app)
        yield SmokeStep("end", "stop, and ask again what runs there", 10, self._end)

    def estimate_usd(self) -> float | None:
        """Return about what all steps cost; None if no price is known."""
        price = self._remote.cost().usd_per_hour
        return None if price is None else sum(step.seconds for step in self.steps) * price / 3600

    def run(self, on_step: Callable[[SmokeStep], None]) -> list[StepRecord]:
        """Do the steps in order, and stop the remote, whatever happens; ``on_step`` is called before each."""
        try:
            for step in self.steps:
                on_step(step)
                self.records.append(self._record(step))
        finally:
            self._remote.stop()
        return self.records

    def _record(self, step: SmokeStep) -> StepRecord:
        cost = self._remote.cost()
        # What the step will cost counts before it begins: the last one must not exceed the budget either.
        expected = (cost.usd or 0.0) + step.seconds * (cost.usd_per_hour or 0.0) / 3600
        if expected > self._budget and step.name != "end":
            why = {"kind": "cost", "problem": f"it would bring the cost to ${expected:.2f}, above ${self._budget:.2f}"}
            return StepRecord(step.name, "left out", error=why)
        start = time.monotonic()
        record = StepRecord(step.name, "done")
        try:
            record.facts = step.act()
        except RemoteError as error:
            record.outcome, record.error = "failed", _described(error)
        except Exception as error:  # what a real account does is not known: the later steps still show something
            problem = f"unexpected: {type(error).__name__}: {error}"
            record.outcome, record.error = "failed", _described(RemoteError("remote", problem))
        record.seconds = time.monotonic() - start
        record.facts["estimated_usd_so_far"] = self._remote.cost().usd
        return record

    def _status(self) -> dict[str, Any]:
        status = self._remote.status()
        return {
            "reachable": status.reachable,
            "summary": printed(status.summary),
            "containers": status.containers,
            "details": {name: printed(text) for name, text in status.details.items()},
        }

    def _start(self) -> dict[str, Any]:
        return self._probe(timeout_s=self._options.timeout_s)

    def _warm(self) -> dict[str, Any]:
        times = []
        for _ in range(_PROBES):
            start = time.monotonic()
            self._probe(timeout_s=120.0)
            times.append(round(time.monotonic() - start, 4))
        return {"seconds": times}

    def _probe(self, *, timeout_s: float) -> dict[str, Any]:
        capability = None if self._options.simulates else capability_of(self._options)
        batch = Batch(jobs=(Job(id="smoke", action="probe", deadline_s=120),), capability=capability)
        calls = self._remote.submit([batch])
        ended = self._ended(calls, until=time.monotonic() + timeout_s)
        if ended is None:
            summary = self._remote.status().summary
            self._remote.cancel(calls)
            raise RemoteError("capacity", f"no machine answered within {timeout_s:.0f} s ({summary})")
        if ended.error is not None:
            raise ended.error
        assert ended.result is not None
        (result,) = ended.result.results
        return {
            "status": result.status,
            "findings": [printed(str(finding))[:_MOST_TEXT] for finding in result.findings],
            "device": None if result.device is None else printed(str(result.device)),
            "place": ended.result.place.model_dump(mode="json"),
            "busy_s": ended.result.busy_s,
        }

    def _ended(self, calls: list[RemoteCall], *, until: float) -> RemoteCall | None:
        """Return the end of the only call; None at the time limit. Raises RemoteError if the budget ends before."""
        while (left_s := until - time.monotonic()) > 0:
            for ended in self._remote.collect(calls, timeout_s=min(_SLICE_S, left_s)):
                return ended
            if (error := cost_error(self._remote.cost(), self._budget, limit="the budget")) is not None:
                self._remote.cancel(calls)
                raise error
        return None

    def _run(self, source: str, *, deadline_s: float = 60.0, json_output: bool = False) -> dict[str, Any]:
        """Run a program; an error of the remote is a fact too, since its text is what is looked for."""
        assert isinstance(self._remote, ProgramRemote)
        written: list[bytes] = []
        start = time.monotonic()
        facts: dict[str, Any]
        try:
            program = PythonProgram(source=source, deadline_s=deadline_s)
            status = self._remote.execute(program, on_output=lambda _, data: written.append(data))
            facts = {"exit status": status}
        except RemoteError as error:
            facts = {"error": _described(error)}
        text = b"".join(written).decode("utf-8", "replace")
        seconds = round(time.monotonic() - start, 3)
        with contextlib.suppress(ValueError):
            if json_output:
                return {**facts, "output": read_json(text, source="the output", bounds=_REPORTED), "seconds": seconds}
        return {**facts, "output": printed(text[-_MOST_TEXT:]), "seconds": seconds}

    def _tools(self) -> dict[str, Any]:
        return self._run(TOOLS, deadline_s=180.0, json_output=True)

    def _isolation(self) -> dict[str, Any]:
        return self._run(ISOLATION, json_output=True)

    def _silence(self) -> dict[str, Any]:
        return self._run(f"import time; time.sleep({_QUIET_S}); print('still here')", deadline_s=_QUIET_S + 60)

    def _ends(self) -> dict[str, Any]:
        return {
            "exit 3": self._run("raise SystemExit(3)"),
            "exception": self._run("raise ValueError('smoke')"),
            "killed": self._run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
            "timeout": self._run("import time; time.sleep(600)", deadline_s=3.0),
        }

    def _memory(self) -> dict[str, Any]:
        pieces = self._memory_gib * 5  # of a quarter of a GiB: a quarter more than there is
        # Each is written to, so that it is used and not only reserved.
        source = f"held = [bytearray(b'x') * (1 << 28) for _ in range({pieces})]\nprint('held', len(held))"
        return self._run(source, deadline_s=90.0)

    def _no_app(self) -> dict[str, Any]:
        other = self._other(replace(self._options, deployed_app="nvfp4-smoke-no-such-app"))
        try:
            other.submit([Batch(jobs=(Job(id="smoke", action="probe", deadline_s=60),))])
        except RemoteError as error:
            return {"error": _described(error)}
        finally:
            other.stop()
        return {"error": None}

    def _end(self) -> dict[str, Any]:
        self._remote.stop()
        other = self._other(self._options)
        try:
            status = other.status()
        finally:
            other.stop()
        left = printed(left_on(self._remote))
        return {"containers": status.containers, "summary": printed(status.summary), "may still run": left}


def _described(error: RemoteError) -> dict[str, str]:
    return {"kind": error.kind, "problem": printed(error.problem)[:_MOST_TEXT], "remedy": printed(error.remedy)}
