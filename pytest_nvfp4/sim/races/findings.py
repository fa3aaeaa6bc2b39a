"""Findings about pairs of accesses without an order: one finding per defect, naming the missing instruction.

A missing edge shows in many pairs: every operand of every MMA behind it, and everything that follows. So a pair of
instructions is reported once. Pairs with the same earlier or the same later line of the user's source, pairs of the
same two lines, pairs of the same two engines of the same two warps in the same direction, and pairs for which the same
mbarrier should have been waited for, become notes of one finding, one for all pairs of the same two instructions of the
source. The message is of the pair that needs the widest order: a barrier of the CTA orders lanes of a warp, too. A
reported pair counts as ordered from then on, so that its consequences are not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import AccessPair
from pytest_nvfp4.sim.races.messages import Messages
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.text import plural

_NOTES = 6
"""Notes of one finding; further pairs are dropped, unless they name a line that it does not name yet."""
_MOST_NOTES = 40

_GroupKey = tuple[object, ...]


@dataclass(slots=True, eq=False)
class ReportedPair:
    """A pair of instructions that was reported.

    Attributes:
        pair: The accesses that messages name.
        stands: Whether the finding stands. If not, it is withdrawn at the end unless it is confirmed.
    """

    pair: AccessPair
    stands: bool

    def confirm(self, pair: AccessPair) -> None:
        """Let the finding stand because of these accesses, which the messages name then."""
        if not self.stands:
            self.pair, self.stands = pair, True

    def widen(self, pair: AccessPair, *, stands: bool) -> bool:
        """Take accesses of the same instructions that need a wider order, and return whether these do."""
        wider = pair.width > self.pair.width and stands >= self.stands
        if wider:
            self.pair = pair
        return wider


@dataclass(slots=True)
class _Case:
    """The pairs of a finding, that of the message first.

    Attributes:
        pairs: The pairs.
        notes: By the places of both instructions, the number of the note about them and of the pairs that it counts.
    """

    pairs: list[ReportedPair] = field(default_factory=list)
    notes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


class Reporter:
    """Adds findings to the grid's list, and folds those of one defect into one."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.messages = Messages(grid)
        self._pairs: dict[tuple[str, int, int], ReportedPair | None] = {}
        self._groups: dict[_GroupKey, int] = {}
        self._cases: dict[int, _Case] = {}
        """By number of a finding, its pairs."""

    def pair(self, pair: AccessPair, *, stands: bool = True) -> ReportedPair:
        """Report a pair of accesses, once per pair of instructions."""
        old, new = pair.old, pair.new
        defect = ", ".join((pair.kind, *pair.missing))
        instructions = (defect, old.at, new.at)
        reported = self._pairs.get(instructions)
        if reported is not None:
            if stands:
                reported.confirm(pair)
            if reported.widen(pair, stands=stands):
                for index in [index for index, case in self._cases.items() if reported in case.pairs]:
                    self._rewrite(index)
            return reported
        reported = self._pairs[instructions] = ReportedPair(pair, stands)
        memory = pair.place.split(" ")[0]
        old_kind, new_kind = pair.old_agent.kind, pair.new_agent.kind
        earlier, later = self.messages.line(old.at), self.messages.line(new.at)
        keys: list[_GroupKey] = [
            (defect, old_kind, new_kind, _issuer(old, old_kind), _issuer(new, new_kind), pair.old_writes,
             pair.new_writes, memory, pair.foreign),
            (defect, memory, tuple(sorted((earlier, later)))),
            (defect, memory, "earlier", earlier),
            (defect, memory, "later", later),
        ]  # fmt: skip
        # A finding with one of the keys `matches` has the same cause; otherwise the new finding gets the keys `keys`.
        matches = [*keys]
        if old_kind == "mbarrier":
            keys.append((defect, memory, "reverse", later))
            keys.append((defect, memory, "not waited for", old.warp.index))
            if not pair.foreign:
                keys.append((defect, memory, "waits for", pair.old_agent.name))
                matches.append(keys[-1])
        if new_kind == "mbarrier" and pair.new_writes:
            # The same defect appears in both directions: if a reader is out of step with the copies, the copies of the
            # next stages are out of step with the reader; a producer that runs ahead of readers also runs ahead of its
            # own copies; and if no reader waits for copies, neither does a later copy.
            if old_kind == "mbarrier":
                matches.append((defect, memory, "not waited for", old.warp.index))
            matches.append((defect, memory, "reverse", earlier))
            matches.append((defect, memory, "ahead", new.warp.index, old_kind != "mbarrier"))
            keys.append((defect, memory, "ahead", new.warp.index, old_kind == "mbarrier"))
        known = self._known(matches, keys)
        index = len(self.grid.findings) if known is None else known
        if known is None:
            self.grid.findings.append(self.messages.of_pair(pair))
        else:
            self._note_pair(index, pair)
        pairs = self._cases.setdefault(index, _Case()).pairs
        pairs.append(reported)
        if pair.width > pairs[0].pair.width:
            self._rewrite(index)
        return reported

    def _rewrite(self, index: int) -> None:
        """Write a finding anew: its message is of the first of the pairs that need the widest order."""
        case = self._cases[index]
        case.pairs.sort(key=lambda each: -each.pair.width)
        case.notes.clear()
        self.grid.findings[index] = self.messages.of_pair(case.pairs[0].pair)
        for each in case.pairs[1:]:
            self._note_pair(index, each.pair)

    def _note_pair(self, index: int, pair: AccessPair) -> None:
        """Add a note about a pair to a finding, or count it in that of the same two instructions of the source."""
        finding, case = self.grid.findings[index], self._cases.setdefault(index, _Case())
        places = self.grid.place(pair.old.at), self.grid.place(pair.new.at)
        number, count = case.notes.get(places, (len(finding.notes), 0))
        if count:
            notes = list(finding.notes)
            notes[number] = notes[number].removesuffix(_more(count - 1)) + _more(count)
            self.grid.findings[index] = replace(finding, notes=tuple(notes))
        else:
            lines = self.messages.line(pair.old.at), self.messages.line(pair.new.at)
            self.grid.findings[index] = noted = _with_note(finding, self.messages.note(pair), lines)
            if noted is finding:
                return
        case.notes[places] = number, count + 1

    def settle(self) -> None:
        """Withdraw the pairs that do not stand; a finding or its notes go on with those of its pairs that stand."""
        findings = self.grid.findings
        self._pairs = {key: each for key, each in self._pairs.items() if each is None or each.stands}
        left: dict[int, int] = {}
        for index in range(len(findings)):
            case = self._cases.get(index, _Case())
            standing = [each for each in case.pairs if each.stands]
            if case.pairs and not standing:
                continue
            if len(standing) < len(case.pairs):
                case.pairs = standing
                self._rewrite(index)
            left[index] = len(left)
        findings[:] = [findings[index] for index in left]
        self._groups = {key: left[index] for key, index in self._groups.items() if index in left}
        self._cases = {left[index]: case for index, case in self._cases.items() if index in left}

    def begin_part(self) -> None:
        """Forget the findings in a forked process, whose list of them is empty. The pairs are not reported again."""
        self._groups.clear()
        self._cases.clear()

    def other(
        self, kind: str, message: str, hint: str, *, warp: WarpId, at: int, group: _GroupKey = (), note: str = ""
    ) -> None:  # fmt: skip
        """Report something that is not a pair of accesses, once per instruction.

        If an earlier finding has the same ``group``, it gets ``note`` (unless that is empty) instead.
        """
        if (kind, at, at) in self._pairs:
            return
        self._pairs[kind, at, at] = None
        keys = ((kind, *group),) if group else ()
        index = self._known(keys, keys)
        if index is not None:
            self.grid.findings[index] = _with_note(self.grid.findings[index], note)
        else:
            self.grid.findings.append(self.messages.finding(kind, message, hint, warp=warp, at=at))

    def _known(self, matches: Sequence[_GroupKey], keys: Sequence[_GroupKey]) -> int | None:
        """Return the number of a finding with one of ``matches``, which gets a note; or give the next one ``keys``."""
        findings = self.grid.findings
        known = next((self._groups[key] for key in matches if key in self._groups), None)
        if known is None or known >= len(findings):
            self._groups.update(dict.fromkeys(keys, len(findings)))
            return None
        return known

    def part(self) -> dict[_GroupKey, Finding]:
        """Return the finding of each key, for the parent process."""
        findings = self.grid.findings
        return {key: findings[index] for key, index in self._groups.items() if index < len(findings)}

    def absorb(self, reported: dict[_GroupKey, Finding]) -> None:
        """Drop a child process's findings that were reported before. The grid has just adopted all of them."""
        findings = self.grid.findings
        for key, finding in reported.items():
            known = self._groups.get(key)
            if known is not None and findings[known] is not finding:
                for index in range(len(findings) - 1, known, -1):
                    if findings[index] == finding:
                        del findings[index]
                        break
            elif known is None and finding in findings:
                self._groups[key] = findings.index(finding)


def _more(count: int) -> str:
    """Return the end of a note that counts further pairs."""
    return f", and {plural(count, 'more pair')} of these lines" if count else ""


def _with_note(finding: Finding, note: str, lines: Sequence[str] = ()) -> Finding:
    """Return a finding with a note, if it has room or the note names a line that the finding does not."""
    texts = (finding.message, *finding.notes)
    new = any(not any(f"{line} (" in text for text in texts) for line in lines)
    room = len(finding.notes) < (_MOST_NOTES if new else _NOTES)
    return replace(finding, notes=(*finding.notes, note)) if note and room else finding


def _issuer(access: Access, kind: str) -> int:
    """Return the warp of an access, or the first of its warpgroup, of which any warp may be the last to issue."""
    return access.warp.index & ~3 if kind == "wgmma" else access.warp.index
