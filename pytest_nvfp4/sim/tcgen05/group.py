"""What the tcgen05 instructions have in common: ``.cta_group``, the CTA pair, one issuing lane, the order of a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.ptx.syntax import Instruction

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.warp import Warp

__all__ = ["Pipe", "expect", "group_of", "pair_of", "peer_of", "same_group", "single_lane"]


class Pipe:
    """A CTA's part in the tensor core: its ``.cta_group`` (0 until the first tcgen05 instruction) and its queue.

    The operations of one CTA happen in order; those of a pair in one order, of its even CTA.
    """

    __slots__ = ("cta", "group", "queue")

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.group = 0
        self.queue: tuple[str, int, int] = ("tcgen05", id(cta.cluster), cta.rank)

    def set_group(self, group: int, *, what: str) -> None:
        """Note the ``.cta_group``. Raises Fault if it differs from the kernel's, or a pair is missing."""
        if self.group:
            raise Fault(
                "cta-group",
                f"{what}: .cta_group::{group}, and an earlier tcgen05 instruction of the kernel has "
                f".cta_group::{self.group}",
                hint="all tcgen05 instructions of a kernel have the same .cta_group (PTX ISA, 'tcgen05.mma')",
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
    """The CTA's pipe, after checking that the kernel keeps to one ``.cta_group``."""
    pipe = cta.unit(Pipe)
    if pipe.group != group:
        pipe.set_group(group, what=what)
    return pipe


def peer_of(cta: Cta, *, what: str, exited: bool = False) -> Cta:
    """The other CTA of the pair. Raises Fault if it has exited (unless that is allowed)."""
    if exited:
        return cta.cluster.ctas[cta.rank ^ 1]
    return cta.peer(cta.rank ^ 1, what=what)


def pair_of(cta: Cta, group: int, *, what: str) -> tuple[Cta, ...]:
    """The CTAs that an operation works on, the even one first."""
    if group == 1:
        return (cta,)
    peer = cta.peer(cta.rank ^ 1, what=what)
    return (peer, cta) if cta.rank & 1 else (cta, peer)


def single_lane(w: Warp, mask: int, *, what: str) -> None:
    """Check that one lane issues. Raises Fault."""
    if mask & (mask - 1):
        raise Fault(
            "multi-lane",
            f"{what}: issued by {mask.bit_count()} lanes of warp {w.index} ({_few(mask)}); each of them starts the "
            "whole operation",
            hint="issue it from one thread: elect.sync (cute.arch.elect_one), or a thread index that is compared",
        )


def _few(mask: int) -> str:
    active = lanes(mask)
    return ", ".join(map(str, active[:4])) + (", ..." if len(active) > 4 else "")


def group_of(ins: Instruction, *, skip: int = 2) -> tuple[int, tuple[str, ...]]:
    """The ``.cta_group`` of an opcode and the parts after its name without it. Raises Unsupported."""
    parts = ins.parts[skip:]
    found = [part for part in parts if part.startswith("cta_group::")]
    if len(found) != 1 or found[0] not in ("cta_group::1", "cta_group::2"):
        raise Unsupported(f"{ins.opcode}: it needs one .cta_group::1 or .cta_group::2")
    return int(found[0][-1]), tuple(part for part in parts if part is not found[0])


def expect(ins: Instruction, count: int) -> None:
    """Check the number of operands. Raises Unsupported."""
    if len(ins.operands) != count:
        raise Unsupported(f"{ins.opcode}: {len(ins.operands)} operands; {count} are known")
