"""The state machine: INIT, RUN_WORKER, JUDGE, RUN_REVIEWER, APPLY_VERDICT, STOPPED.

Each phase can be done again: what it has finished is on the disk and is not repeated. ``state.json`` is written at each
transition, so that a process that is killed anywhere leaves a loop that goes on to the same history.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.isolation.cancellation import StoppedError
from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.machine import disk
from pytest_nvfp4.loop.machine.context import Context, EndError, Status
from pytest_nvfp4.loop.machine.judgement import Incumbent, Judgement, examine_baseline, incumbent_of
from pytest_nvfp4.loop.machine.limits import counted, given_up, stop_reason
from pytest_nvfp4.loop.machine.proposals import numbers, propose
from pytest_nvfp4.loop.protocols import BudgetError, InfrastructureError
from pytest_nvfp4.loop.schemas import Candidate, ReviewerVerdict, Verdict
from pytest_nvfp4.loop.state import JUDGED, LoopState, Phase, Promotion, Spent, read_model, remove_records, write_model
from pytest_nvfp4.temporary import remove_tree
from pytest_nvfp4.text import clip


@dataclass(frozen=True, slots=True)
class End:
    """How a run of the loop has ended.

    Attributes:
        status: ``stopped`` as asked or at a limit, ``interrupted`` by a signal, ``failed`` where it cannot go on.
        reason: Why, for people.
        state: The state that it leaves.
        spent: What was spent, over all runs.
    """

    status: Status
    reason: str
    state: LoopState
    spent: Spent


class LoopMachine:
    """One run of a loop, from what its directory says to its end.

    Args:
        context: What the phases share.
        state: The state to go on with.
        seen: Whether the run before this one came to its end, so that people have seen why.
    """

    def __init__(self, context: Context, state: LoopState, *, seen: bool = False) -> None:
        self._context, self.state, self._seen = context, state, seen
        self._judged: list[tuple[Candidate, Verdict]] = []
        self._phases: dict[Phase, Callable[[], None]] = {
            "INIT": self._init,
            "RUN_WORKER": self._run_worker,
            "JUDGE": self._judge,
            "RUN_REVIEWER": self._run_reviewer,
            "APPLY_VERDICT": self._apply_verdict,
        }

    def run(self) -> End:
        """Run the loop until it ends. Whatever happens, its directory is left so that a later run goes on."""
        context = self._context
        try:
            context.pulse.start()
            try:
                self._resume()
                while True:
                    self._show()
                    self._phases[self.state.phase]()
            finally:
                context.pulse.stop()
        except EndError as error:
            status, reason = error.status, error.reason
        except StoppedError:
            ended = context.ended()
            status, reason = ended.status, ended.reason
        except BudgetError as error:
            status, reason = "stopped", str(error)
        except KeyboardInterrupt as error:
            status, reason = "interrupted", f"interrupted by {str(error) or 'Ctrl-C'}"
        except InfrastructureError as error:
            status, reason = "failed", str(error)
        except DoorError as error:
            status, reason = "failed", f"{error}; put a copy of the file back, or begin anew with --fresh-start"
        except OSError as error:
            status, reason = "failed", os_reason(error)
        except Exception as error:  # a defect: what it left is kept, and whoever looks in the morning finds it
            status, reason = "failed", "".join(traceback.format_exception_only(error)).strip()
            with contextlib.suppress(OSError):
                context.log("".join(traceback.format_exception(error)))
        return self._ended(status, reason)

    def _resume(self) -> None:
        """Go on where the last run ended."""
        state, context = self.state, self._context
        if state.phase == "STOPPED":
            if state.interrupted:
                self._go(state.interrupted, interrupted="", stop_reason="")
            else:
                self._next_iteration(stop_reason="", **(given_up(state, context.config) if self._seen else {}))
        if self.state.phase != "INIT":
            context.parts.repository.clean()
            if self.state.phase != "APPLY_VERDICT":  # there, a promotion may be made that the state does not know
                self._compare_branch()

    def _compare_branch(self) -> None:
        found = self._context.parts.repository.incumbent()
        if found != self.state.incumbent:
            raise EndError(
                "failed",
                f"the branch nvfp4-loop/{self._context.config.name} is at {found}, and the loop left it at "
                f"{self.state.incumbent}; move it back with `git branch -f`, or begin anew with --fresh-start",
            )

    def _init(self) -> None:
        context, parts = self._context, self._context.parts
        context.pulse.doing("the kernel at the start is examined")
        parts.repository.clean()
        commit = parts.repository.incumbent()
        if self.state.baseline != commit:
            remove_tree(context.folder.baseline)  # what another commit was found to be
            self._go("INIT", baseline=commit, incumbent=commit, metric=context.config.target.metric)
        baseline = examine_baseline(context, commit)
        if not baseline.passed:
            red = baseline.gates[-1] if baseline.gates else None
            found = f"the gate {red.gate} is {red.outcome}: {red.message}" if red is not None else "no gate has run"
            raise EndError(
                "failed",
                f"the kernel at the start cannot be optimised, because {found}\n"
                "Mend it, commit it, and begin anew with --fresh-start.",
            )
        value = parts.judge.value(baseline)
        context.log(f"the kernel at the start passes; {context.config.target.metric} is {figure(value)}")
        self._next_iteration(baseline_value=value, best_value=value)

    def _run_worker(self) -> None:
        reason = disk.kept_within(self._context.folder, self._context.config.budget.disk_mb, keep=self.state)
        if reason:
            raise EndError("stopped", reason)
        for candidate in propose(self._context, self.state):
            # Nobody has judged it yet: what lies there was written by a worker without a sandbox.
            remove_records(self._context.folder.candidate(candidate.number), *JUDGED)
        self._go("JUDGE")

    def _judge(self) -> None:
        context = self._context
        self._judged = self._judgement().run()
        usable = any(verdict.outcome not in ("infrastructure", "no-candidate") for _, verdict in self._judged)
        remove_records(context.folder.iteration(self.state.iteration), "review.json")  # nobody has reviewed it yet
        if context.parts.reviewer is not None and usable:
            self._go("RUN_REVIEWER")
        else:
            self._go("APPLY_VERDICT", promotion_seconds=int(context.clock.now()))

    def _judgement(self) -> Judgement:
        state, context = self.state, self._context
        start = incumbent_of(context.folder, state.incumbent_candidate)
        if start is None:
            raise EndError("failed", f"{context.folder.root} lacks the examination of the incumbent; use --fresh-start")
        return Judgement(context, state, propose(context, state), Incumbent(state.incumbent, start))

    def _run_reviewer(self) -> None:
        context, state = self._context, self.state
        if self._review() is None:
            assert context.parts.reviewer is not None
            reviewer, folder = context.parts.reviewer, context.folder.iteration(state.iteration)
            context.pulse.doing("the reviewer reviews the iteration")
            folder.mkdir(parents=True, exist_ok=True)
            manual = context.config.mode == "manual"
            most_s = context.config.limits.wait_s if manual else context.config.reviewer.timeout_s
            timeout_s = max(1.0, min(most_s, context.pulse.left_s()))
            judged = self._all_judged()
            review = context.called(
                lambda: reviewer.review(state.iteration, judged, folder=folder, timeout_s=timeout_s)
            )
            write_model(folder / "review.json", review)
            context.log(f"iteration {state.iteration}: the reviewer says {review.verdict}: {review.reason}")
        self._go("APPLY_VERDICT", promotion_seconds=int(context.clock.now()))

    def _apply_verdict(self) -> None:
        context, state = self._context, self.state
        judged, review = self._all_judged(), self._review()
        if review is not None:
            context.budget.record(f"review/{state.iteration:04d}", Spent(tokens=review.tokens, usd=review.usd))
        if review is None or not review.requires_revert:
            for candidate, verdict in judged:
                if verdict.outcome == "faster" and all(candidate.number != one.candidate for one in state.promotions):
                    self._promote(candidate, verdict)
        changes = counted(self.state, judged, review, context.config)
        changes["next_candidate"] = state.next_candidate + context.config.worker.candidates
        reason = stop_reason(self.state.model_copy(update=changes), review, context)
        if changes["infrastructure_failures"] > state.infrastructure_failures:
            context.parts.notify(
                "infrastructure", title=f"iteration {state.iteration} failed", text=judged[0][1].reason
            )
        if reason:
            self._go("STOPPED", **changes, stop_reason=reason, spent=context.budget.begin(state.iteration))
            raise EndError("stopped", reason)
        self._next_iteration(**changes)

    def _promote(self, candidate: Candidate, verdict: Verdict) -> None:
        """Promote a candidate; the state says so before the next one is promoted."""
        context, state = self._context, self.state
        commit = context.parts.repository.promote(
            candidate, verdict, expected=state.incumbent, seconds=state.promotion_seconds
        )
        known = state.baseline_value if state.baseline_value is not None else verdict.incumbent_value
        promotion = Promotion(
            candidate=candidate.number, iteration=candidate.iteration, commit=commit, value=verdict.value
        )
        self._go(
            state.phase,
            incumbent=commit,
            incumbent_candidate=candidate.number,
            baseline_value=known,
            best_value=verdict.value,
            promotions=(*state.promotions, promotion),
        )
        change = f"{verdict.metric} {figure(verdict.incumbent_value)} -> {figure(verdict.value)}"
        context.log(f"iteration {state.iteration}: candidate {candidate.number} is promoted as {commit}: {change}")
        context.parts.notify("promoted", title=f"candidate {candidate.number} is promoted", text=change)

    def _all_judged(self) -> list[tuple[Candidate, Verdict]]:
        """Return the candidates of the iteration with their verdicts, which are on the disk."""
        if not self._judged:
            self._judged = self._judgement().run()
        return self._judged

    def _review(self) -> ReviewerVerdict | None:
        return read_model(self._context.folder.iteration(self.state.iteration) / "review.json", ReviewerVerdict)

    def _next_iteration(self, **changes: Any) -> None:
        """Begin the next iteration, unless a limit is reached. Raises EndError."""
        context, iteration = self._context, self.state.iteration + 1
        after = self.state.model_copy(update=changes)
        if reason := stop_reason(after, None, context):
            spent = context.budget.begin(self.state.iteration)
            self._go("STOPPED", **{**changes, "stop_reason": reason}, spent=spent)
            raise EndError("stopped", reason)
        self._judged = []
        for number in numbers(context, after):
            remove_tree(context.folder.candidate(number))
        remove_tree(context.folder.iteration(iteration))
        self._go("RUN_WORKER", **changes, iteration=iteration, spent=context.budget.begin(iteration))

    def _go(self, phase: Phase, **changes: Any) -> None:
        """Write the state of the next phase. Raises OSError."""
        after = self.state.model_copy(update={"phase": phase, **changes})
        write_model(self._context.folder.state, after)
        self.state = after

    def _show(self) -> None:
        activity = self._context.pulse.activity
        activity.phase, activity.iteration = self.state.phase, self.state.iteration
        pulse = self._context.pulse
        pulse.look()
        # What has been judged is applied also when no time is left: it may never come again.
        if pulse.halt.is_set() and (pulse.cause != "time" or self.state.phase not in ("JUDGE", "APPLY_VERDICT")):
            raise self._context.ended()

    def _ended(self, status: Status, reason: str) -> End:
        """Leave a directory that says why the loop has ended, if that can be written."""
        context = self._context
        context.pulse.activity.phase = "STOPPED"
        try:
            if self.state.phase != "STOPPED":
                self._go("STOPPED", interrupted=self.state.phase, stop_reason=clip(reason, 20_000))
            context.pulse.beat()
            context.log(f"{status}: {reason}")
        except OSError:  # a full disk: what is on it is enough to go on
            context.parts.show(f"{status}: {reason}")
        context.parts.notify("stopped", title=f"the loop has {status}", text=reason)
        return End(status, reason, self.state, context.budget.total())


def os_reason(error: OSError) -> str:
    """Return why the system refused something, with the file."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def figure(value: float | None) -> str:
    """Return a value for people."""
    return "unknown" if value is None else f"{value:.6g}"
