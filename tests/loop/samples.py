"""Directories of state that look as a loop leaves them, written through the models of `loop.state`."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.loop.clock import Clock, stamp
from pytest_nvfp4.loop.machine.lock import this_process
from pytest_nvfp4.loop.schemas import (
    Candidate,
    Comparison,
    Examination,
    GateResult,
    Outcome,
    ProblemTime,
    Verdict,
    WorkerEnd,
    WorkerResult,
)
from pytest_nvfp4.loop.state import (
    Control,
    Gates,
    Heartbeat,
    LockOwner,
    LoopState,
    Phase,
    Promotion,
    Spent,
    StateFolder,
    write_model,
)

NOW = 1_760_000_000.0
BASE = "b" * 40
CONFIG = """\
version = 1
name = "night"
[kernel]
file = "my_kernel.py"
problems = ["gpumode-bench"]
[target]
metric = "modelled"
[worker]
command = ["worker"]
[budget]
iterations = 40
minutes = 360
dollars = 20
"""


class FixedClock(Clock):
    """A wall clock that stands."""

    def now(self) -> float:
        return NOW


def commit(number: int) -> str:
    """Return the commit of a candidate."""
    return f"{number:040x}"


def promoted_commit(number: int) -> str:
    """Return the commit that promotes a candidate; it is another one than the candidate's."""
    return f"{number:020x}{'c' * 20}"


def times(us: float) -> tuple[ProblemTime, ...]:
    """Return times of two problems with this geometric mean."""
    return ProblemTime(problem="small", us=us / 2), ProblemTime(problem="large", us=us * 2)


def comparison(ratio: float, *, device: str = "NVIDIA H200") -> Comparison:
    """Return a comparison with an interval of one per cent to either side."""
    return Comparison(
        device=device,
        incumbent=times(100.0),
        candidate=times(100.0 * ratio),
        ratio=ratio,
        low=ratio - 0.01,
        high=ratio + 0.01,
        outcome="faster" if ratio < 0.99 else "undecided",
    )


@dataclass
class Sample:
    """A directory of state that a test fills.

    Attributes:
        folder: The directory.
    """

    folder: StateFolder

    @classmethod
    def at(cls, root: Path) -> "Sample":
        """Return an empty directory with a configuration and an examined baseline of 100 us."""
        sample = cls(StateFolder(root))
        root.mkdir(parents=True, exist_ok=True)
        sample.folder.config.write_text(CONFIG)
        baseline = Examination(candidate=0, passed=True, modelled=times(100.0), table="B200, model 3")
        write_model(sample.folder.baseline / "examination.json", baseline)
        return sample

    def state(
        self,
        phase: Phase,
        promotions: Sequence[Promotion] = (),
        *,
        iteration: int = 3,
        stop_reason: str = "",
        metric: str = "modelled",
    ) -> None:
        """Write what the loop does next."""
        kept = [each for each in promotions if not each.reverted]
        write_model(
            self.folder.state,
            LoopState(
                phase=phase,
                iteration=iteration,
                baseline=BASE,
                incumbent=kept[-1].commit if kept else BASE,
                incumbent_candidate=kept[-1].candidate if kept else 0,
                metric=metric,
                baseline_value=100.0,
                best_value=kept[-1].value if kept else 100.0,
                promotions=tuple(promotions),
                spent=Spent(wall_s=600, gpu_s=12, usd=1.25, tokens=5000),
                stop_reason=stop_reason,
            ),
        )

    def runs(self, *candidates: int, activity: str = "judges", spent: Spent | None = None, host: str = "") -> None:
        """Make this process, or one of another host, the one that runs the loop; it has shown a sign of life now."""
        host = host or socket.gethostname()
        owner = this_process(self.folder.heartbeat, FixedClock())
        write_model(self.folder.lock, owner.model_copy(update={"host": host}))
        self.beat(candidates, activity=activity, spent=spent, host=host)

    def beat(
        self, candidates: Sequence[int] = (), *, activity: str = "", spent: Spent | None = None, host: str = ""
    ) -> None:
        """Write a sign of life."""
        beat = Heartbeat(
            pid=os.getpid(),
            host=host,
            updated_at=stamp(NOW),
            phase="JUDGE",
            iteration=3,
            activity=activity,
            candidates=tuple(candidates),
            spent=spent or Spent(),
        )
        write_model(self.folder.heartbeat, beat)

    def died(self) -> None:
        """Let a process that is no more be the one that ran the loop."""
        owner = LockOwner(pid=(1 << 22) + 1, started=1, host=socket.gethostname(), created_at=stamp(NOW))
        write_model(self.folder.lock, owner)

    def red_start(self, message: str) -> None:
        """Let the kernel at the start fail a gate."""
        gates = (
            GateResult(gate="compile", outcome="passed"),
            GateResult(gate="verify", outcome="failed", message=message),
        )
        write_model(self.folder.baseline / "gates.json", Gates(gates=gates))
        write_model(self.folder.baseline / "examination.json", Examination(candidate=0, gates=gates))

    def control(self, control: Control) -> None:
        """Write a request."""
        write_model(self.folder.control, control)

    def log(self, *lines: str) -> None:
        """Append to the log."""
        with self.folder.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def candidate(
        self,
        number: int,
        *,
        end: WorkerEnd = "proposed",
        outcome: Outcome | None = None,
        us: float | None = None,
        before: float = 100.0,
        metric: str = "modelled",
        red: str = "",
        reason: str = "because",
        feedback: str = "",
        against: str = BASE,
        comparisons: Sequence[Comparison] = (),
        words: str = "",
        diff: str | None = None,
        violations: Sequence[str] = (),
    ) -> None:
        """Write what is known of a candidate: without an outcome, its verdict is still open."""
        folder = self.folder.candidate(number)
        usable = end == "proposed"
        result = WorkerResult(iteration=number, kernel_path="k.py", decision="KEEP", summary=words) if words else None
        write_model(
            folder / "candidate.json",
            Candidate(
                number=number,
                iteration=number,
                parent=BASE,
                end=end,
                commit=commit(number) if usable else None,
                violations=tuple(violations),
                result=result,
            ),
        )
        names = ("compile", "verify", "races")
        gates = [GateResult(gate=name, outcome="passed", wall_s=1.5) for name in names]
        if red:
            at = names.index(red)
            gates = [*gates[:at], GateResult(gate=red, outcome="failed", message="k.py:7: wrong")]
        if us is not None or red:
            write_model(
                folder / "examination.json",
                Examination(
                    candidate=number, gates=tuple(gates), passed=not red, modelled=times(us) if us is not None else ()
                ),
            )
        if outcome is not None:
            write_model(
                folder / "verdict.json",
                Verdict(
                    candidate=number,
                    iteration=number,
                    against=against,
                    outcome=outcome,
                    reason=reason,
                    feedback=feedback,
                    metric=metric,
                    value=us,
                    incumbent_value=before,
                    comparisons=tuple(comparisons),
                ),
            )
        if diff is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "diff.patch").write_text(diff)

    def gates(self, number: int, *passed: str) -> None:
        """Write the gates of an examination that still runs."""
        results = tuple(GateResult(gate=name, outcome="passed", wall_s=2.0) for name in passed)
        write_model(self.folder.candidate(number) / "gates.json", Gates(gates=results))

    def output(self, number: int, data: bytes, name: str = "worker_attempt_1.stdout.log") -> None:
        """Write the output of a candidate's worker."""
        folder = self.folder.candidate(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def promotion(number: int, value: float, *, reverted: bool = False) -> Promotion:
    """Return the promotion of a candidate."""
    return Promotion(candidate=number, iteration=number, commit=promoted_commit(number), value=value, reverted=reverted)


DIFF = """\
--- a/my_kernel.py
+++ b/my_kernel.py
@@ -1 +1 @@
-STAGES = 3
+STAGES = 4
"""


def night(root: Path) -> Sample:
    """Return a loop after six candidates: two accepted and measured, two red gates, a violation, a duplicate."""
    sample = Sample.at(root)
    sample.candidate(
        1,
        outcome="faster",
        us=90.0,
        reason="10 % less",
        comparisons=[comparison(0.9)],
        words="one stage more",
        diff=DIFF,
    )
    sample.candidate(2, outcome="rejected", red="races", reason="two accesses race", feedback="k.py:7: wait")
    sample.candidate(3, end="violation", violations=["tests/test_k.py: may not be changed"], outcome="no-candidate")
    sample.candidate(
        4,
        outcome="faster",
        us=81.0,
        before=90.0,
        against=promoted_commit(1),
        reason="10 % less again",
        comparisons=[comparison(0.95), comparison(0.92)],
        diff=DIFF.replace("3", "4"),
    )
    sample.candidate(5, outcome="duplicate", reason="the same as candidate 2")
    sample.candidate(6, outcome="rejected", red="verify", reason="C[3, 4] is wrong", feedback="k.py:9: tile")
    sample.log("2026-01-01T00:00:00Z iteration 1 begins", "2026-01-01T00:01:00Z candidate 1 is promoted")
    sample.state("STOPPED", [promotion(1, 90.0), promotion(4, 81.0)], iteration=6, stop_reason="no progress")
    return sample
