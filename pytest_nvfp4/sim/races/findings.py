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
from typing import NamedTuple

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.lane_order import PartialRelease
from pytest_nvfp4.sim.races.names import AgentInfo, WarpId
from pytest_nvfp4.sim.races.tensor_order import AFTER, BEFORE_SYNC, COMMIT, WAIT_LD, WAIT_ST
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.source import lines_of
from pytest_nvfp4.sim.run.wording import worded
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.text import plural

RACE = "race"
PROXY = "proxy"
WARNING = "race-warning"
_NOTES = 6
"""Notes of one finding; further pairs are dropped, unless they name a line that it does not name yet."""
_MOST_NOTES = 40
_PLAIN = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")
_VERBS = {"atom": "update", "red": "update", "tcgen05.dealloc": "free"}

_GroupKey = tuple[object, ...]


class Missing(NamedTuple):
    """What two accesses lack, and the instructions that would order them, for messages."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class AccessPair:
    """Two accesses that lack an order.

    Attributes:
        kind: ``RACE``, ``PROXY`` or ``WARNING``.
        place: The memory, for messages.
        old, new: The earlier and the later access of this run.
        old_agent, new_agent: Their agents.
        old_writes, new_writes: Whether each writes.
        foreign: Whether they are of different clusters.
        witness: A warp that has waited for the earlier access, if that is asynchronous.
        missing: The instructions that are missing between them, of a warning and of a pending load.
        partial: The release behind the earlier access that the later one is ordered behind, if only lanes of the warp
            execute it that have not made the access.
        scope: What they lack if only a scope between them is too narrow.
    """

    kind: str
    place: str
    old: Access
    new: Access
    old_agent: AgentInfo
    new_agent: AgentInfo
    old_writes: bool
    new_writes: bool
    foreign: bool = False
    witness: WarpId | None = None
    missing: tuple[str, ...] = ()
    partial: PartialRelease | None = None
    scope: Missing | None = None


PENDING_LD = "pending tcgen05.ld"
"""A wait for a ``tcgen05.ld`` before the arrive that frees its columns, where no use of its registers waits for it."""
COPY_FENCE = "copy-fence"
"""A proxy fence behind ``cp.async``, which the ISA requires and NVIDIA's gathering grouped GEMMs omit."""
ALLOC_FENCE = "alloc-fence"
"""A proxy fence behind ``tcgen05.alloc``, whose result Triton's compiler reads and then overwrites by TMA."""


@dataclass(frozen=True, slots=True)
class _Template:
    """Templates of the message about what is missing, and of the hint, with the names of both lines and warps."""

    message: str
    hint: str


_OMISSIONS = {
    COPY_FENCE: _Template(
        "no fence.proxy.async is between {first}, a cp.async, which writes through the generic proxy, and the read "
        "through the async proxy",
        "<fence.proxy.async> behind the wait for {first}, before {second}",
    ),
    ALLOC_FENCE: _Template(
        "no fence.proxy.async is between {first}, a tcgen05.alloc, which writes its result through the generic proxy, "
        "and the access through the async proxy",
        "<fence.proxy.async> behind the reads of the result, before {second}",
    ),
    PENDING_LD: _Template(
        "neither tcgen05.wait::ld nor a use of a register that {first} loads is between it and the arrive that frees "
        "the columns, which does not wait for loads",
        "<tcgen05.wait::ld> in {old} after {first}, before its arrive",
    ),
    WAIT_LD: _Template(
        "no tcgen05.wait::ld of {old} follows {first}",
        "<tcgen05.wait::ld> in {old} after {first}",
    ),
    WAIT_ST: _Template(
        "no tcgen05.wait::st of {old} follows {first}",
        "<tcgen05.wait::st> in {old} after {first}",
    ),
    BEFORE_SYNC: _Template(
        "no tcgen05.fence::before_thread_sync of {old} is between {first} and the synchronisation",
        "<tcgen05.fence::before_thread_sync> in {old} after {first}, before its barrier or arrive",
    ),
    AFTER: _Template(
        "no tcgen05.fence::after_thread_sync of {new} is between the synchronisation and {second}",
        "<tcgen05.fence::after_thread_sync> in {new} behind its barrier or wait, before {second}",
    ),
    COMMIT: _Template(
        "the two are no pipelined pair, and no tcgen05.commit after {first} is waited for before {second}",
        "tcgen05.commit after {first} to an mbarrier, a wait for it and tcgen05.fence::after_thread_sync before "
        "{second}; or alternate between columns of TMEM",
    ),
}


_EDGES: dict[str, _Template] = {
    "mbarrier": _Template(
        "the copy completes at the {name}, and no wait for that mbarrier is ordered before {second}",
        "wait for the phase of that mbarrier by <mbarrier.try_wait> before {second}",
    ),
    "pipe": _Template(
        "no tcgen05.commit after {first} is waited for before {second}",
        "<tcgen05.commit> after {first} to an mbarrier, and a <wait for it> before {second}",
    ),
    "bulk-read": _Template(
        "no cp.async.bulk.wait_group.read for {name} is ordered between them",
        "cp.async.bulk.commit_group and wait_group.read in the storing thread, and a barrier before {second}",
    ),
    "map-read": _Template(
        "no cp.async.bulk.wait_group for the {name} is ordered between them, so the map may be unread",
        "cp.async.bulk.commit_group and <wait_group.read 0> in the storing warp before {second}",
    ),
    "map-load": _Template(
        "no wait for the bytes of the {name} is ordered between them, so the map may be unread",
        "a wait for the full barrier of the last stage that {old} has filled by {first} before {second}",
    ),
    "bulk-write": _Template(
        "no cp.async.bulk.wait_group for {name} is ordered between them",
        "cp.async.bulk.wait_group (without .read) in the storing thread, and a barrier before {second}",
    ),
    "cp.async": _Template(
        "no cp.async.wait_group of {old} is ordered between them",
        "cp.async.commit_group and wait_group in {old}, and before {second} a barrier if that is of another warp",
    ),
    "wgmma": _Template(
        "no wgmma.wait_group for the {name} is ordered between them",
        "wgmma.commit_group and wgmma.wait_group, then the arrive that frees the stage before {second}",
    ),
    "tmem-store": _Template(
        "no tcgen05.wait::st of {old} follows {first}",
        "<tcgen05.wait::st> in {old} after {first}, before the barrier or arrive that {new} waits for",
    ),
}
"""By kind of the earlier access's agent, the edge of the causality order that is missing."""


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
        wider = _width(pair) > _width(self.pair) and stands >= self.stands
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
                    self._tell(index)
            return reported
        reported = self._pairs[instructions] = ReportedPair(pair, stands)
        memory = pair.place.split(" ")[0]
        old_kind, new_kind = pair.old_agent.kind, pair.new_agent.kind
        earlier, later = self.line(old.at), self.line(new.at)
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
            self.grid.findings.append(self._finding(pair))
        else:
            self._note_pair(index, pair)
        pairs = self._cases.setdefault(index, _Case()).pairs
        pairs.append(reported)
        if _width(pair) > _width(pairs[0].pair):
            self._tell(index)
        return reported

    def _tell(self, index: int) -> None:
        """Write a finding anew: its message is of the first of the pairs that need the widest order."""
        case = self._cases[index]
        case.pairs.sort(key=lambda each: -_width(each.pair))
        case.notes.clear()
        self.grid.findings[index] = self._finding(case.pairs[0].pair)
        for each in case.pairs[1:]:
            self._note_pair(index, each.pair)

    def _note_pair(self, index: int, pair: AccessPair) -> None:
        """Add a note about a pair to a finding, or count it in that of the same two instructions of the source."""
        finding, case = self.grid.findings[index], self._cases.setdefault(index, _Case())
        places = self.grid.place(pair.old.at), self.grid.place(pair.new.at)
        number, count = case.notes.get(places, (len(finding.notes), 0))
        if count:
            notes = list(finding.notes)
            told = notes[number].removesuffix(_more(count - 1))
            notes[number] = told + _more(count)
            self.grid.findings[index] = replace(finding, notes=tuple(notes))
        else:
            lines = self.line(pair.old.at), self.line(pair.new.at)
            self.grid.findings[index] = noted = _with_note(finding, self._note(pair), lines)
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
                self._tell(index)
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
            self.grid.findings.append(
                Finding(kind, message, hint=worded(hint, self.grid.kernel), where=self._where(warp, at))
            )

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

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _finding(self, pair: AccessPair) -> Finding:
        old, new = pair.old, pair.new
        if pair.kind == PROXY:
            message, hint = self._proxy(pair)
        elif pair.kind == WARNING:
            message, hint = self._omission(pair)
        else:
            old_verb = self._verb(old, writes=pair.old_writes)
            new_verb = self._verb(new, writes=pair.new_writes)
            missing, hint = self._missing(pair)
            message = (
                f"{self._describe(new)} {new_verb}s {pair.place}{self._detail(new)} while {self._describe(old)}"
                f"{self._detail(old)} may still {old_verb} it: {missing}"
            )
        return Finding(pair.kind, message, hint=worded(hint, self.grid.kernel), where=self._where(new.warp, new.at))

    def _proxy(self, pair: AccessPair) -> tuple[str, str]:
        """Return message and hint about a missing proxy fence (PTX ISA, "Proxies" and "membar/fence")."""
        old, new = pair.old, pair.new
        verb = self._verb(new, writes=pair.new_writes)
        if pair.old_writes:
            missing = (
                "wrote it through the generic proxy: no fence.proxy.async is between them, so the write may not be "
                "visible"
            )
        else:
            missing = (
                "may not have read it yet: neither a use of the loaded value nor a fence.proxy.async is between it and "
                "the arrive that frees the memory, which does not wait for loads"
            )
        message = (
            f"{self._describe(new)} {verb}s {pair.place}{self._detail(new)} through the async proxy, and "
            f"{self._describe(old)} {missing}"
        )
        hint = (
            f"<fence.proxy.async> in {self._who(old)} after "
            f"{self.line(old.at)}, before the barrier or arrive that {self._who(new)} waits for"
        )
        return message, hint

    def _omission(self, pair: AccessPair) -> tuple[str, str]:
        """Return message and hint about instructions that the ISA requires and official kernels omit."""
        old, new = pair.old, pair.new
        fields = {
            "old": self._who(old), "new": self._who(new), "first": self.line(old.at), "second": self.line(new.at),
        }  # fmt: skip
        new_verb = self._verb(new, writes=pair.new_writes)
        past = {"read": "read", "write": "wrote", "update": "updated"}[self._verb(old, writes=pair.old_writes)]
        omissions = [_OMISSIONS[name] for name in pair.missing]
        message = (
            f"{self._describe(new)} {new_verb}s {pair.place}, which {self._describe(old)} {past}: "
            f"{' and '.join(omission.message.format(**fields) for omission in omissions)}; the PTX ISA requires this "
            "here, and official kernels omit it"
        )
        return message, "; ".join(omission.hint.format(**fields) for omission in omissions)

    def _missing(self, pair: AccessPair) -> tuple[str, str]:
        """Return the missing edge of the causality order, and the instructions that would create it."""
        if pair.scope is not None:
            return pair.scope
        missing, hint = self._edge(pair)
        line = self.line(pair.old.at)
        if line == self.line(pair.new.at) and pair.old_agent.kind == pair.new_agent.kind == "warp":
            if pair.old_writes != pair.new_writes:
                hint = f"if {line} updates one element in several threads, an atomic (atomicAdd, red); else {hint}"
            elif not pair.foreign:
                hint = f"if one thread should write it, correct the index in {line}; else {hint}"
        return missing, hint

    def _edge(self, pair: AccessPair) -> tuple[str, str]:
        old, new = pair.old, pair.new
        first, second = self.line(old.at), self.line(new.at)
        if pair.missing:
            omission, fields = _OMISSIONS[pair.missing[0]], {"old": self._who(old), "first": first}
            return omission.message.format(**fields), omission.hint.format(**fields)
        kind, name = pair.old_agent.kind, pair.old_agent.name
        ahead = self._ran_ahead(pair)
        if ahead and kind == "warp" and not pair.witness and not pair.partial and not self._comes_back(pair):
            old, new, first, second, ahead = new, old, second, first, False
        then = f" before {second}"
        # Agents are numbered within their cluster: equal numbers can be of two clusters. A description is of one agent.
        if pair.old_agent is pair.new_agent and kind == "warp":
            return (
                "the accesses are of different lanes of the warp, and no bar.warp.sync orders them",
                f"<bar.warp.sync> after {first}{then}",
            )
        if pair.foreign:
            who = f"CTA {old.warp.cta} and CTA {new.warp.cta}"
            if max(old.warp.cluster_size, new.warp.cluster_size) > 1:
                who += " are of different clusters"
            hint = (
                f"after {first}: a barrier of the CTA, then <fence.acq_rel.gpu> and an atomic (or st.release.gpu) on a "
                f"flag; before {second}: ld.acquire.gpu of the flag until it is set, then a barrier"
            )
            if ahead:
                hint += f"; or, if {first} must read the value that {second} writes, the same with {second} first"
            if pair.old_writes and pair.new_writes:
                hint = f"if one CTA should write it, correct the tile that {second} takes from blockIdx; else {hint}"
            return f"no flag or counter with release and acquire orders the two CTAs: {who}", hint
        if pair.witness is not None:
            return (
                f"{pair.witness} has waited for it, but then neither a barrier nor an arrive of {pair.witness} that is "
                f"waited for{then} orders the two",
                f"a wait with acquire{then} for a barrier or an arrive of {pair.witness}; that arrive, with release, "
                "after its own wait",
            )
        if pair.partial is not None:
            release, mask = self._described(pair.partial.at, str(old.warp)), pair.partial.lanes
            lanes = f"lanes {mask:#010x}" if mask & (mask - 1) else f"lane {mask.bit_length() - 1}"
            return (
                f"only {lanes} executes {release}, which releases it, and no bar.warp.sync orders the accesses of the "
                "other lanes before that",
                f"<bar.warp.sync> in {old.warp} after {first}, before {self.line(pair.partial.at)}",
            )
        if kind in _EDGES:
            fields = {"name": name, "old": self._who(old), "new": self._who(new), "first": first, "second": second}
            return _EDGES[kind].message.format(**fields), _EDGES[kind].hint.format(**fields)
        hint = (
            f"an arrive of {self._who(old)} after {first} on an mbarrier (or named barrier) that {self._who(new)} "
            f"waits for{then}"
        )
        if old.warp.cta == new.warp.cta and self._is_plain(old) and self._is_plain(new):
            hint = f"<bar.sync> after {first}{then}, in all warps of the CTA; or {hint}"
        if ahead:
            hint += (
                f"; or, if {first} must read the value that {second} writes, a barrier by <bar.sync> "
                f"or an arrive and a wait after {second}, before {first}"
            )
        return f"no barrier, and no arrive after {first} that is waited for{then}, orders them", hint

    def _ran_ahead(self, pair: AccessPair) -> bool:
        """Return whether a read that is later in the code was executed before the write.

        It has run ahead of the write whose value it needs, or the write is of a loop's next iteration
        (``_comes_back``). The trace does not distinguish the two.
        """
        return not pair.old_writes and pair.new_writes and self._is_behind(pair.old.at, pair.new.at)

    def _comes_back(self, pair: AccessPair) -> bool:
        """Return whether the later access may be executed behind the earlier one's place, or again, as in a loop."""
        flow = self.grid.program.flow
        seen: set[int] = set()
        waiting = [pair.old.at, pair.new.at]
        while waiting:
            for at in flow.successors(waiting.pop()):
                if at == pair.new.at:
                    return True
                if at < flow.end and at not in seen:
                    seen.add(at)
                    waiting.append(at)
        return False

    def _is_behind(self, at: int, other: int) -> bool:
        """Return whether an instruction is later in the source; compilers move loads ahead."""
        first, second = (self.grid.kernel.instructions[each].location for each in (at, other))
        if first is not None and second is not None:
            (file, line), (other_file, other_line) = lines_of(first)[-1], lines_of(second)[-1]
            if file == other_file and line != other_line:
                return line > other_line
        return at > other

    def _is_plain(self, access: Access) -> bool:
        """Return whether an access is one of a thread through the generic proxy, which a barrier of the CTA orders."""
        instruction = self.grid.kernel.instructions[access.at]
        plain = instruction.root in _PLAIN and not instruction.has("async")
        return plain or instruction.parts[:2] == ("tcgen05", "alloc")

    def _note(self, pair: AccessPair) -> str:
        return f"the same between {self._describe(pair.old)} and {self._describe(pair.new)}: {pair.place}"

    def _describe(self, access: Access) -> str:
        return self._described(access.at, self._who(access))

    def _described(self, at: int, who: str) -> str:
        return f"{self.line(at)} ({_short(self.grid.kernel.instructions[at].parts)}) in {who}"

    def _who(self, access: Access) -> str:
        """Return the warp of an access; of ``wgmma`` the warpgroup, because its last warp makes the accesses of all."""
        of_group = self.grid.kernel.instructions[access.at].root == "wgmma"
        return access.warp.warpgroup if of_group else str(access.warp)

    def line(self, at: int) -> str:
        """Return the source line of an instruction, without its opcode."""
        return self.grid.place(at).split(" (")[0]

    def _detail(self, access: Access) -> str:
        box = access.detail
        if not isinstance(box, TmaBox) or box.region is None:
            return ""
        return f" ({box.region.place(box.region.start + box.offset)})"

    def _verb(self, access: Access, *, writes: bool) -> str:
        parts = self.grid.kernel.instructions[access.at].parts
        return _VERBS.get(".".join(parts[:2]), _VERBS.get(parts[0], "write" if writes else "read"))

    def _where(self, warp: WarpId, at: int) -> Where:
        instruction = self.grid.kernel.instructions[at]
        return Where(
            kernel=self.grid.kernel.name, cta=warp.cta, warp=warp.index, at=at, ptx_line=instruction.ptx_line,
            text=instruction.text, source=instruction.location,
        )  # fmt: skip


def _width(pair: AccessPair) -> int:
    """Return how wide an order two accesses need: 0 for lanes of a warp, 1 within a cluster, 2 beyond it."""
    if not pair.old_agent.kind == pair.new_agent.kind == "warp":
        return 1
    return 0 if pair.old_agent is pair.new_agent else 1 + pair.foreign


def _more(count: int) -> str:
    """Return the end of a note that counts further pairs."""
    return f", and {plural(count, 'more pair')} of these lines" if count else ""


def _with_note(finding: Finding, note: str, lines: Sequence[str] = ()) -> Finding:
    """Return a finding with a note, if it has room or the note names a line that the finding does not."""
    said = (finding.message, *finding.notes)
    new = any(not any(f"{line} (" in text for text in said) for line in lines)
    room = len(finding.notes) < (_MOST_NOTES if new else _NOTES)
    return replace(finding, notes=(*finding.notes, note)) if note and room else finding


def _issuer(access: Access, kind: str) -> int:
    """Return the warp of an access, or the first of its warpgroup, of which any warp may be the last to issue."""
    return access.warp.index & ~3 if kind == "wgmma" else access.warp.index


def _short(parts: tuple[str, ...]) -> str:
    if parts[:3] == ("cp", "async", "bulk"):
        return ".".join(parts[: 4 if parts[3:4] == ("tensor",) else 3])
    if parts[:4] == ("cp", "reduce", "async", "bulk"):
        return "cp.reduce.async.bulk"
    return ".".join(parts[:2])
