"""Rules that the tcgen05 instructions share: ``.cta_group``, the CTA pair, one issuing lane, the order of a pipe."""

from __future__ import annotations

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp

_HINT = "issue it from one thread: <elect.sync>, or a comparison with the thread index"


class Pipe:
    """Pipe of a CTA: its ``.cta_group`` (0 until the first tcgen05 instruction) and its queue.

    The operations of one CTA execute in order. The CTAs of a pair share one queue, that of the even CTA.
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.group = 0
        self.queue: tuple[str, int, int] = ("tcgen05", id(cta.cluster), cta.rank)

    def set_group(self, group: int, *, what: str) -> None:
        """Set the ``.cta_group``. Raises Fault if the kernel used another one, or if the CTA has no peer."""
        if self.group:
            raise Fault(
                "cta-group",
                f"{what}: .cta_group::{group}, but an earlier tcgen05 instruction of the kernel has "
                f".cta_group::{self.group}",
                hint="use one .cta_group in all tcgen05 instructions of a kernel (PTX ISA, 'tcgen05.mma')",
            )
        if group == 2:
            if len(self.cta.cluster.ctas) % 2:
                raise Fault(
                    "cta-group",
                    f"{what}: .cta_group::2 in a cluster of {len(self.cta.cluster.ctas)} CTA(s); a pair is two CTAs "
                    "whose ranks differ in the last bit",
                    hint="launch with a cluster of an even number of CTAs",
                )
            self.queue = ("tcgen05", id(self.cta.cluster), self.cta.rank & ~1)
        self.group = group


def same_group(cta: Cta, group: int, *, what: str) -> Pipe:
    """Return the CTA's pipe. Raises Fault if the kernel used another ``.cta_group``."""
    pipe = cta.unit(Pipe)
    if pipe.group != group:
        pipe.set_group(group, what=what)
    return pipe


def pair_of(cta: Cta, group: int, *, what: str) -> tuple[Cta, ...]:
    """Return the CTAs that an operation works on, the even one first. Raises Fault if the peer has exited."""
    if group == 1:
        return (cta,)
    peer = cta.peer(cta.rank ^ 1, what=what)
    return (peer, cta) if cta.rank & 1 else (cta, peer)


def single_lane(w: Warp, mask: int, *, what: str) -> None:
    """Raise Fault if several lanes issue an operation."""
    if mask & (mask - 1):
        raise Fault("multi-lane", f"{_by_lanes(w, mask, what)}; each of them starts the whole operation", hint=_HINT)


def repeated_copy(w: Warp, mask: int, *, what: str) -> None:
    """Report a copy that several lanes issue with the same operands, and which has the same result once.

    Each thread starts a copy of its own (PTX ISA, "Issue granularity" of tcgen05), and a commit tracks the operations
    of its own thread. So nothing waits for the reads of the other lanes: no barrier shows that they have ended.
    """
    w.cta.launch.report(
        "multi-lane",
        f"{_by_lanes(w, mask, what)} with the same operands: each of them starts the whole copy, and a tcgen05.commit "
        "tracks those of its own thread alone; the others may still read their shared memory when it is filled again, "
        "and write TMEM when it is used for something else (the call went on with one copy)",
        hint=_HINT,
    )


def _by_lanes(w: Warp, mask: int, what: str) -> str:
    active = lanes(mask)
    listed = ", ".join(map(str, active[:4])) + (", ..." if len(active) > 4 else "")
    return f"{what}: issued by {len(active)} lanes of warp {w.index} ({listed})"


def group_of(ins: Instruction, *, ordered: bool = True) -> tuple[int, OpcodeReader]:
    """Return the ``.cta_group`` of an opcode and the reader of its other modifiers. Raises Unsupported."""
    read = OpcodeReader(ins, 2, ordered=ordered)
    return int(read.one("cta_group::1", "cta_group::2", anywhere=True)[-1]), read
