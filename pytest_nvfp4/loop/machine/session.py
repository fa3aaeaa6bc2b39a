"""One run of a loop: under its locks, from the state that its directory holds, until it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.machine.budget import Budget
from pytest_nvfp4.loop.machine.context import Context, Parts
from pytest_nvfp4.loop.machine.lock import LoopLock
from pytest_nvfp4.loop.machine.machine import End, LoopMachine, os_reason
from pytest_nvfp4.loop.machine.pulse import Pulse
from pytest_nvfp4.loop.machine.resume import compare, read_config, write_config
from pytest_nvfp4.loop.state import Heartbeat, LoopState, StateFolder, read_model, write_model
from pytest_nvfp4.temporary import remove_unfinished
from pytest_nvfp4.text import visible
from pytest_nvfp4.writing import write_whole

_MARK = "*\n"


class StateError(Exception):
    """The directory of state is none that a loop can go on with."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a run of a loop needs.

    Attributes:
        config: Configuration.
        folder: Directory of state.
        parts: Makes the parts, when the locks are held.
        branch_lock: File that stands for the loop's branch; None if there is no repository.
        set_aside: Renames what else belongs to an old loop, such as its branch, when the loop begins anew.
        until_s: Seconds until the loop ends; None for no such time.
        clock: Clocks.
        pulse_s: Seconds between two heartbeats.
        show: Called with the reason if the directory of state cannot be written at all.
    """

    config: LoopConfig
    folder: StateFolder
    parts: Callable[[], Parts]
    branch_lock: Path | None = None
    set_aside: Callable[[], None] | None = None
    until_s: float | None = None
    clock: Clock = field(default_factory=Clock)
    pulse_s: float = 2.0
    show: Callable[[str], None] = lambda _: None

    def run(self, *, fresh: bool = False) -> End:
        """Run the loop until it ends; a directory of state that cannot be written is an end too.

        Args:
            fresh: Begin anew; the directory of state is renamed before, and nothing of it is lost.

        Raises:
            LockedError: Another process runs it.
            ChangedError: The configuration differs from that of the start.
            StateError: The directory holds records without a state, or files that no loop wrote.
            DoorError: A file of it is damaged.
        """
        try:
            return self._run(fresh=fresh)
        except OSError as error:  # before the machine begins, which ends in the same way
            reason, state = os_reason(error), LoopState()
            with contextlib.suppress(OSError, DoorError):
                state = read_model(self.folder.state, LoopState) or state
            self.show(f"failed: {reason}")
            return End("failed", reason, state, state.spent)

    def _run(self, *, fresh: bool) -> End:
        with self._locked(self.branch_lock, f"the branch nvfp4-loop/{self.config.name}"):
            if fresh:
                with self._locked(self.folder.lock, str(self.folder.root)):
                    self._refuse_foreign()
                    if self.set_aside is not None:  # first, because a state without its branch is refused
                        self.set_aside()
                    self._rename(datetime.fromtimestamp(self.clock.now(), UTC).strftime("%Y%m%dT%H%M%SZ"))
            with self._locked(self.folder.lock, str(self.folder.root)):
                self._refuse_foreign()
                # A request that was made to an earlier run has had its effect.
                self.folder.control.unlink(missing_ok=True)
                # The directory is no part of the user's repository, and this says that a loop made it.
                write_whole(self._mark, _MARK)
                parts, state = self.parts(), self._state()
                beat = self._last_beat()
                # A process that was killed has not written its wall clock into the state.
                wall_s = max(state.spent.wall_s, beat.spent.wall_s)
                budget = Budget(self.config.budget, self.folder, state, wall_s=wall_s, clock=self.clock)
                pulse = Pulse(self.folder, budget, self.clock, until_s=self.until_s, interval_s=self.pulse_s)
                context = Context(self.config, self.folder, parts, self.clock, budget, pulse)
                return LoopMachine(context, state, seen=beat.phase == "STOPPED").run()

    @property
    def _mark(self) -> Path:
        return self.folder.root / ".gitignore"

    def _refuse_foreign(self) -> None:
        """Raise StateError if no loop made the directory: some of its folders are emptied, and it may be renamed."""
        root = self.folder.root
        remove_unfinished(root)
        with contextlib.suppress(OSError):
            if self._mark.read_bytes() == _MARK.encode():
                return
        lock = self.folder.lock.parent.name
        if found := sorted(place.name for place in root.iterdir() if place.name != lock):
            raise StateError(
                f"{root} is no directory of state: it holds {visible(found[0])}, and no .gitignore with the line *, "
                "which a loop writes first; name an empty or a new folder with --state, or remove what it holds"
            )

    def _state(self) -> LoopState:
        """Return the state to go on with; a new one is written."""
        folder, state = self.folder, read_model(self.folder.state, LoopState)
        if state is None:
            if self._has_records():
                raise StateError(
                    f"{folder.root} holds records of a loop, and no state.json; begin anew with --fresh-start"
                )
            write_config(folder.config, self.config)
            state = LoopState(started_at=self.clock.stamp())
        else:
            old = read_config(folder.config)
            if old is None:
                raise DoorError(str(folder.config), "is missing; begin anew with --fresh-start")
            compare(old, self.config)
            if old != self.config:
                write_config(folder.config, self.config)
            state = state.model_copy(update={"restarts": state.restarts + 1})
        write_model(folder.state, state)
        return state

    def _last_beat(self) -> Heartbeat:
        with contextlib.suppress(DoorError):
            return read_model(self.folder.heartbeat, Heartbeat) or Heartbeat()
        return Heartbeat()

    def _has_records(self) -> bool:
        places = (self.folder.root / "candidates", self.folder.baseline)
        return any(place.is_dir() and any(place.iterdir()) for place in places)

    def _rename(self, suffix: str) -> None:
        root = self.folder.root
        if not self.folder.state.exists() and not self._has_records():
            return
        for count in range(1000):
            target = root.with_name(f"{root.name}.{suffix}" + (f"-{count}" if count else ""))
            if not target.exists():
                root.rename(target)
                (target / "lock" / "active.lock").unlink(missing_ok=True)
                return
        raise StateError(f"{root} cannot be renamed: {target} and all like it exist")

    @contextlib.contextmanager
    def _locked(self, file: Path | None, what: str) -> Iterator[None]:
        if file is None:
            yield
            return
        stale_s = self.config.limits.lock_minutes * 60
        with LoopLock(file, what=what, heartbeat=self.folder.heartbeat, stale_s=stale_s, clock=self.clock):
            yield
