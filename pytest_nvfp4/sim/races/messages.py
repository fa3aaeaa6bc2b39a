"""Messages of findings about pairs of accesses: what is missing between them, and the instructions that order them."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.access_pair import (
    ALLOC_FENCE,
    COPY_FENCE,
    PENDING_LD,
    PROXY,
    WARNING,
    AccessPair,
)
from pytest_nvfp4.sim.races.names import WarpId
from pytest_nvfp4.sim.races.tensor_order import AFTER, BEFORE_SYNC, COMMIT, WAIT_LD, WAIT_ST
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.source import lines_of
from pytest_nvfp4.sim.run.wording import worded
from pytest_nvfp4.sim.tma.box import TmaBox

_PLAIN = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")
_VERBS = {"atom": "update", "red": "update", "tcgen05.dealloc": "free"}


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
        "cp.async.bulk.commit_group and <cp.async.bulk.wait_group.read 0> in the storing thread, and a barrier before "
        "{second}",
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
_REFILLED = _Template(
    "the copy completes phase {phase} of the {name}, and {second} is behind phase {waited} of it alone",
    "wait for phase {phase} of that mbarrier by <mbarrier.try_wait> before {second}; or, if {second} reads what phase "
    "{waited} brought, move the arrive of {new} that lets {old} fill the stage again behind {second}; or, if {first} "
    "belongs to phase {waited}, announce its bytes, too, in the expect_tx of that phase",
)
"""For a read that is behind an earlier phase of a copy's mbarrier.

It may want the later phase, or the earlier one, which was freed too early or was complete without this copy's bytes.
"""


class Messages:
    """Writes the findings of a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def finding(self, kind: str, message: str, hint: str, *, warp: WarpId, at: int) -> Finding:
        """Return a finding at an instruction of a warp; the hint is put in the words of the kernel's language."""
        instruction = self._grid.kernel.instructions[at]
        where = Where(
            kernel=self._grid.kernel.name, cta=warp.cta, warp=warp.index, at=at, ptx_line=instruction.ptx_line,
            text=instruction.text, source=instruction.location,
        )  # fmt: skip
        return Finding(kind, message, hint=worded(hint, self._grid.kernel), where=where)

    def of_pair(self, pair: AccessPair) -> Finding:
        """Return the finding about a pair of accesses, at the later one."""
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
        return self.finding(pair.kind, message, hint, warp=new.warp, at=new.at)

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
                "the barrier or arrive that frees the memory, which does not wait for loads"
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
                hint = f"if {line} updates one element in several threads, an <atom or red>; else {hint}"
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
                f"after {first}: a barrier of the CTA, then <fence.acq_rel.gpu> and an atomic, or <st.release.gpu>, "
                f"on a flag; before {second}: <ld.acquire.gpu> of the flag until it is set, then a barrier"
            )
            if ahead:
                hint += f"; or, if {first} must read the value that {second} writes, the same with {second} first"
            if pair.old_writes and pair.new_writes:
                hint = f"if one CTA should write it, correct the tile that {second} takes from <%ctaid>; else {hint}"
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
            edge = _EDGES[kind]
            if pair.waited and not pair.new_writes:
                edge = _REFILLED
                fields |= {"phase": str(old.tick - 1), "waited": str(pair.waited - 1)}
            return edge.message.format(**fields), edge.hint.format(**fields)
        hint = (
            f"an arrive of {self._who(old)} after {first} on an mbarrier (or named barrier) that {self._who(new)} "
            f"waits for{then}"
        )
        if old.warp.cta == new.warp.cta and self._is_threads(old) and self._is_threads(new):
            wait = " and its cp.async.wait_group" if self._has_wait(old) else ""
            hint = f"<bar.sync> after {first}{wait}{then}, in all warps of the CTA; or {hint}"
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
        flow = self._grid.program.flow
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
        first, second = (self._grid.kernel.instructions[each].location for each in (at, other))
        if first is not None and second is not None:
            (file, line), (other_file, other_line) = lines_of(first)[-1], lines_of(second)[-1]
            if file == other_file and line != other_line:
                return line > other_line
        return at > other

    def _is_threads(self, access: Access) -> bool:
        """Return whether an access is one of a thread through the generic proxy, which a barrier of the CTA orders."""
        instruction = self._grid.kernel.instructions[access.at]
        plain = instruction.root in _PLAIN and not instruction.has("async")
        return plain or instruction.parts[:2] == ("tcgen05", "alloc") or self._has_wait(access)

    def _has_wait(self, access: Access) -> bool:
        """Return whether an access is a ``cp.async``, which its thread waits for."""
        instruction = self._grid.kernel.instructions[access.at]
        return instruction.parts[:2] == ("cp", "async") and not instruction.has("bulk")

    def note(self, pair: AccessPair) -> str:
        """Return the note about a further pair of a finding."""
        return f"the same between {self._describe(pair.old)} and {self._describe(pair.new)}: {pair.place}"

    def _describe(self, access: Access) -> str:
        return self._described(access.at, self._who(access))

    def _described(self, at: int, who: str) -> str:
        return f"{self.line(at)} ({_short(self._grid.kernel.instructions[at].parts)}) in {who}"

    def _who(self, access: Access) -> str:
        """Return the warp of an access; of ``wgmma`` the warpgroup, because its last warp makes the accesses of all."""
        of_group = self._grid.kernel.instructions[access.at].root == "wgmma"
        return access.warp.warpgroup if of_group else str(access.warp)

    def line(self, at: int) -> str:
        """Return the source line of an instruction, without its opcode."""
        return self._grid.place(at).split(" (")[0]

    def _detail(self, access: Access) -> str:
        box = access.detail
        if not isinstance(box, TmaBox) or box.region is None:
            return ""
        return f" ({box.region.place(box.region.start + box.offset)})"

    def _verb(self, access: Access, *, writes: bool) -> str:
        parts = self._grid.kernel.instructions[access.at].parts
        return _VERBS.get(".".join(parts[:2]), _VERBS.get(parts[0], "write" if writes else "read"))


def _short(parts: tuple[str, ...]) -> str:
    if parts[:3] == ("cp", "async", "bulk"):
        return ".".join(parts[: 4 if parts[3:4] == ("tensor",) else 3])
    if parts[:4] == ("cp", "reduce", "async", "bulk"):
        return "cp.reduce.async.bulk"
    return ".".join(parts[:2])
