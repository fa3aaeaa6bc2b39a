"""The judge of a loop: it examines candidates with the product's own commands, and decides against the incumbent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge import decide
from pytest_nvfp4.loop.judge.examine import Examiner, Worktrees
from pytest_nvfp4.loop.judge.measured import Measurer, OpenPlace
from pytest_nvfp4.loop.judge.place import container_price, open_place
from pytest_nvfp4.loop.judge.processes import Run, run_product
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse
from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult, Verdict
from pytest_nvfp4.loop.state import StateFolder

_MOST_EVIDENCE: Final = 64 << 20


class ProductJudge:
    """Judges candidates; see `protocols.Judge`.

    Args:
        config: The configuration.
        worktrees: Where commits are checked out from.
        state: The directory of state.
        run: Runs the product's commands.
        open_place: Opens the device that measures.

    Raises:
        InfrastructureError: A remote of the configuration cannot be used.
    """

    def __init__(
        self,
        config: LoopConfig,
        *,
        worktrees: Worktrees,
        state: StateFolder,
        run: Run = run_product,
        open_place: OpenPlace = open_place,
    ) -> None:
        self.config = config
        price = 0.0
        if judge := config.judge.remote:
            price = container_price(judge, RemoteOptions(simulates=True, containers=config.judge.containers))
        self._examiner = Examiner(config, worktrees=worktrees, state=state, run=run, hourly_usd=price)
        self._measurer = Measurer(config, worktrees=worktrees, state=state, open_place=open_place)
        self._again: dict[str, Examination] = {}

    def examine(
        self,
        candidate: Candidate | None,
        *,
        commit: str,
        parent: str,  # noqa: ARG002 - what is compared with the parent is compared by `decide`
        known: Mapping[str, int],
        folder: Path,
        on_gate: Callable[[GateResult], None],
        purse: Purse,
    ) -> Examination:
        """Return what can be found about a commit without a GPU; see `protocols.Judge.examine`."""
        return self._examiner.examine(
            candidate, commit=commit, known=known, folder=folder, on_gate=on_gate, purse=purse
        )

    def value(self, examination: Examination) -> float | None:
        """Return the target's metric of an examined commit; None if that needs a measurement."""
        return decide.value_of(self.config.target.metric, examination)

    def decide(
        self,
        candidate: Candidate,
        examination: Examination,
        *,
        against: str,
        incumbent: Examination,
        folder: Path,
        purse: Purse,
    ) -> Verdict:
        """Return the verdict about an examined candidate against the incumbent; see `protocols.Judge.decide`."""
        metric, least = self.config.target.metric, self.config.target.least_gain
        if not examination.passed:
            verdict = decide.rejected(metric, candidate, examination, against=against)
        elif metric == "measured":
            verdict = self._measurer.verdict(
                candidate, examination, incumbent, against=against, folder=folder, purse=purse
            )
        else:
            theirs = self._comparable(examination, incumbent, against=against, folder=folder, purse=purse)
            verdict = decide.decided(metric, candidate, examination, theirs, against=against, least_gain=least)
            if verdict.outcome == "faster":
                verdict = self._confirmed(verdict, candidate, examination, folder=folder, purse=purse)
        return verdict.model_copy(update={"artifacts": evidence(folder)})

    def _confirmed(
        self, verdict: Verdict, candidate: Candidate, examination: Examination, *, folder: Path, purse: Purse
    ) -> Verdict:
        """Return the verdict on a win after a fresh call of the kernel, which must be like the first one.

        Counts and modelled times are exact. A kernel whose second call is another one chooses what it does, by chance
        or by what it knows of the process it is in.

        Raises:
            InfrastructureError: The second call says nothing about the candidate.
        """
        assert candidate.commit is not None
        metric = self.config.target.metric
        gates = ("cost", "model") if metric == "modelled" else ("cost",)
        again = self._examiner.examine(
            candidate,
            commit=candidate.commit,
            known={},
            folder=folder / "again",
            on_gate=_ignore,
            purse=purse,
            gates=gates,
        )
        if again.infrastructure:
            raise InfrastructureError(f"the win was not confirmed: {again.infrastructure}")
        if not again.passed:
            return decide.rejected(metric, candidate, again, against=verdict.against)
        if decide.comparable(metric, again, examination):  # a table or the model changed while the loop was stopped
            raise InfrastructureError(
                f"the win was not confirmed: it was examined with {examination.table}, and is now with {again.table}"
            )
        if (difference := decide.difference(metric, examination, again)) is None:
            return verdict
        reason = f"the kernel does not do the same in two calls: {difference}"
        changes = {"outcome": "rejected", "reason": reason, "feedback": reason, "value": None}
        return verdict.model_copy(update=changes)

    def _comparable(
        self, mine: Examination, incumbent: Examination, *, against: str, folder: Path, purse: Purse
    ) -> Examination:
        """Return the examination of the incumbent, made again if it cannot be compared with the candidate's.

        That is so after a new version of the model or of a table while the loop was stopped. Raises
        InfrastructureError.
        """
        metric = self.config.target.metric
        if not decide.comparable(metric, mine, incumbent):
            return incumbent
        if against not in self._again:
            gates = ("model",) if metric == "modelled" else ("cost",)
            self._again[against] = self._examiner.examine(
                None, commit=against, known={}, folder=folder / "incumbent", on_gate=_ignore, purse=purse, gates=gates
            )
        again = self._again[against]
        if reason := again.infrastructure or decide.comparable(metric, mine, again):
            del self._again[against]
            raise InfrastructureError(f"the incumbent {against[:12]} was examined again: {reason}")
        # Where only the model ran again, the counters are the known ones.
        return again if again.counters else again.model_copy(update={"counters": incumbent.counters})


def evidence(folder: Path) -> dict[str, str]:
    """Return the hashes of the files of evidence in a candidate's folder, by their names."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem not in ("candidate", "verdict", "gates", "examination"):
            found[path.name] = hashlib.sha256(read_file(path, source=path.name, most=_MOST_EVIDENCE)).hexdigest()
    return found


def _ignore(_result: GateResult) -> None:
    return None
