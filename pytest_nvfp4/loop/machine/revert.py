"""Take back promotions of a loop that has stopped: an earlier incumbent becomes the incumbent again, in a new commit.

The history stays: promotions are marked, and their commits stay on the branch below the one that reverts them.
"""

from __future__ import annotations

import contextlib

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.context import write_log
from pytest_nvfp4.loop.machine.lock import LoopLock
from pytest_nvfp4.loop.machine.session import StateError
from pytest_nvfp4.loop.repository.repository import GitRepository
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model, write_model
from pytest_nvfp4.text import clip, visible

_MOST_REASON = 4000


def revert(
    config: LoopConfig,
    folder: StateFolder,
    repository: GitRepository,
    *,
    candidate: int | None,
    reason: str,
    clock: Clock,
) -> LoopState:
    """Revert the promotion of a candidate and all later ones, and return the new state.

    Interrupted anywhere, it is done again by the same call.

    Args:
        config: Configuration of the loop.
        folder: Its directory of state.
        repository: Its repository.
        candidate: Number of the candidate; None for the last one that was promoted.
        reason: Why; part of the commit and of the next prompt.
        clock: Clocks.

    Raises:
        StateError: The loop has not stopped after an iteration, or has not promoted the candidate.
        LockedError: A process runs the loop.
        DoorError: Its state is damaged.
        InfrastructureError: git refused.
        OSError: The state cannot be written.
    """
    stale_s = config.limits.lock_minutes * 60
    places = ((repository.lock, f"the branch {repository.branch}"), (folder.lock, str(folder.root)))
    with contextlib.ExitStack() as stack:
        for place, what in places:
            stack.enter_context(LoopLock(place, what=what, heartbeat=folder.heartbeat, stale_s=stale_s, clock=clock))
        state = read_model(folder.state, LoopState)
        if state is None:
            raise DoorError(str(folder.state), "is missing; `nvfp4 loop run` begins a loop")
        if state.phase != "STOPPED" or state.interrupted:
            raise StateError(
                f"the loop has not come to the end of iteration {state.iteration}: run it (`nvfp4 loop run`), and stop "
                "it after the iteration (`nvfp4 loop stop`)"
            )
        reverted = _reverted(state, candidate, reason=reason, repository=repository)
        write_model(folder.state, reverted)
        taken = len([each for each in reverted.promotions if each.reverted])
        write_log(folder, clock, f"reverted to {reverted.incumbent_candidate or 'the start'}; {taken} in all: {reason}")
        return reverted


def _reverted(state: LoopState, candidate: int | None, *, reason: str, repository: GitRepository) -> LoopState:
    """Move the branch, and return the state that goes with it."""
    held = [at for at, each in enumerate(state.promotions) if not each.reverted]
    if not held:
        raise StateError("no promotion is left to revert: the incumbent is the kernel where the loop began")
    first = held[-1]
    if candidate is not None:
        found = [at for at in held if state.promotions[at].candidate == candidate]
        if not found:
            known = ", ".join(str(state.promotions[at].candidate) for at in held)
            raise StateError(f"candidate {candidate} is no accepted step; accepted are {known}")
        first = found[0]
    before = [state.promotions[at] for at in held if at < first]
    to = before[-1].commit if before else state.baseline
    commit = repository.revert(to, expected=state.incumbent, reason=reason)
    names = ", ".join(str(state.promotions[at].candidate) for at in held if at >= first)
    hint = f"The promotion of candidate {names} was reverted" + (f": {visible(reason)}" if reason else "")
    return state.model_copy(
        update={
            "incumbent": commit,
            "incumbent_candidate": before[-1].candidate if before else 0,
            "best_value": before[-1].value if before else state.baseline_value,
            "promotions": tuple(
                each.model_copy(update={"reverted": each.reverted or at >= first})
                for at, each in enumerate(state.promotions)
            ),
            "no_progress": 0,
            "target_confirmations": 0,
            "hint": clip(hint, _MOST_REASON),
        }
    )
