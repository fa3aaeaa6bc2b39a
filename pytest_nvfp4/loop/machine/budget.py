"""What a loop has spent and may still spend: over all restarts, with what was reserved when a process was killed."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pytest_nvfp4.isolation.door.error import DoorError
from pytest_nvfp4.loop.clock import Clock
from pytest_nvfp4.loop.configuration.config import BudgetSection
from pytest_nvfp4.loop.protocols import BudgetError
from pytest_nvfp4.loop.state import Entry, Ledger, LoopState, Spent, StateFolder, read_model, write_model

_ROUNDING = 1e-9
_MOST_USD, _MOST_SECONDS, _MOST_TOKENS = 1e9, 1e7, (1 << 63) - 1


class Budget:
    """The account of a loop. Its calls are safe in several threads.

    Args:
        limits: The budget of the configuration.
        folder: Directory of state.
        state: State that was read, or a new one.
        wall_s: Wall clock of earlier processes.
        clock: Clocks.

    Raises:
        DoorError: The ledger is damaged: what the current iteration has spent is unknown, so that no ceiling holds.
        OSError: It cannot be read.
    """

    def __init__(
        self, limits: BudgetSection, folder: StateFolder, state: LoopState, *, wall_s: float, clock: Clock
    ) -> None:
        self._limits, self._file, self._clock = limits, folder.ledger, clock
        self._lock = threading.RLock()
        self._began, self._wall_s = clock.running(), wall_s
        self._settled, self._iteration = state.spent, state.iteration
        self._entries: dict[str, Entry] = {}
        complete = state.phase == "STOPPED" and not state.interrupted
        if not complete and (ledger := self._read()) is not None and ledger.iteration == state.iteration:
            self._entries = dict(ledger.entries)

    def wall_s(self) -> float:
        """Return the seconds that the loop has run, in this process and in earlier ones."""
        return min(self._wall_s + max(0.0, self._clock.running() - self._began), _MOST_SECONDS)

    def total(self) -> Spent:
        """Return what was spent, with what is reserved."""
        with self._lock:
            parts = [part for entry in self._entries.values() for part in (entry.lost, entry.spent, entry.reserved)]
            return _sum([self._settled, *parts], wall_s=self.wall_s())

    def begin(self, iteration: int) -> Spent:
        """Close the account of the current iteration, and return what state.json has to say of it."""
        with self._lock:
            self._settled, self._iteration, self._entries = self.total(), iteration, {}
            return self._settled

    def attempt(self, key: str) -> _Account:
        """Return the purse of an activity that is begun, or begun anew: what it cost before is lost."""
        with self._lock:
            if (entry := self._entries.get(key)) is not None:
                self._set(key, Entry(lost=_sum([entry.lost, entry.spent, entry.reserved])))
        return _Account(self, key)

    def record(self, key: str, spent: Spent) -> None:
        """Settle the cost of an activity that has ended, from its record, which is on the disk."""
        with self._lock:
            entry = self._entries.get(key, Entry())
            # A record may leave out a stage. No write: whoever resumes reads the record, and says the same again.
            most = Spent(
                gpu_s=max(spent.gpu_s, entry.spent.gpu_s),
                usd=max(spent.usd, entry.spent.usd),
                tokens=max(spent.tokens, entry.spent.tokens),
            )
            self._entries[key] = Entry(lost=entry.lost, spent=most)

    def reserve(self, key: str, more: Spent) -> None:
        """Reserve for a stage. Raises BudgetError."""
        with self._lock:
            total, limits = self.total(), self._limits
            for name, unit, has, wants, limit in (
                ("gpu_seconds", "s", total.gpu_s, more.gpu_s, limits.gpu_seconds),
                ("dollars", "USD", total.usd, more.usd, limits.dollars),
            ):
                if limit is not None and wants > 0 and has + wants > limit + _ROUNDING:
                    raise BudgetError(
                        f"budget.{name} = {limit:g} does not suffice: the next stage may take {wants:.4g} {unit}, and "
                        f"{max(0.0, limit - has):.4g} {unit} are left"
                    )
            entry = self._entries.get(key, Entry())
            self._set(key, Entry(lost=entry.lost, spent=entry.spent, reserved=_sum([entry.reserved, more])))

    def settle(self, key: str, spent: Spent) -> None:
        """Replace what is reserved."""
        with self._lock:
            entry = self._entries.get(key, Entry())
            self._set(key, Entry(lost=entry.lost, spent=_sum([entry.spent, spent])))

    def reached(self) -> str:
        """Return which limit of what is spent is reached; empty for none."""
        total, limits = self.total(), self._limits
        for name, unit, has, limit in (
            ("minutes", "min", total.wall_s / 60, limits.minutes),
            ("gpu_seconds", "s", total.gpu_s, limits.gpu_seconds),
            ("dollars", "USD", total.usd, limits.dollars),
            ("tokens", "tokens", total.tokens, limits.tokens),
        ):
            # With a limit of 0 dollars, what costs nothing goes on.
            if limit is not None and has >= limit and has > 0:
                return f"budget.{name} = {limit:g} is reached: {has:.4g} {unit}"
        return ""

    def left_s(self) -> float:
        """Return the seconds of wall clock that are left."""
        return self._limits.minutes * 60 - self.wall_s()

    def _read(self) -> Ledger | None:
        try:
            return read_model(self._file, Ledger)
        except DoorError as error:
            raise DoorError(
                error.source,
                f"is damaged, and with it what the current iteration has spent: {error.problem}. Restore it; or remove "
                "it, and lower budget.dollars, gpu_seconds and tokens by that; or begin anew with --fresh-start",
            ) from None

    def _set(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        write_model(self._file, Ledger(iteration=self._iteration, entries=self._entries))


class _Account:
    """The purse of one activity."""

    def __init__(self, budget: Budget, key: str) -> None:
        self._budget, self._key = budget, key

    def reserve(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Reserve the worst case of a stage. Raises BudgetError and OSError."""
        self._budget.reserve(self._key, Spent(gpu_s=gpu_s, usd=usd))

    def settle(self, *, gpu_s: float = 0.0, usd: float = 0.0) -> None:
        """Replace all that is reserved by what was really spent."""
        self._budget.settle(self._key, Spent(gpu_s=gpu_s, usd=usd))


def _sum(parts: Iterable[Spent], *, wall_s: float | None = None) -> Spent:
    """Return the sum; a worker that says it used every token there is must not make the sum unreadable."""
    all_parts = list(parts)
    return Spent(
        wall_s=sum(part.wall_s for part in all_parts) if wall_s is None else wall_s,
        gpu_s=min(sum(part.gpu_s for part in all_parts), _MOST_SECONDS),
        usd=min(sum(part.usd for part in all_parts), _MOST_USD),
        tokens=min(sum(part.tokens for part in all_parts), _MOST_TOKENS),
    )
