"""Small PTX programs for the race detector, and their findings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx

SMEM = "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.u32 %r3, smem; mov.u32 %r4, %ctaid.x;"
MINE = "shl.b32 %r5, %r2, 2; add.u32 %r6, %r3, %r5;"
"""%r0 thread, %r1 warp, %r2 lane, %r3 shared memory, %r4 CTA, %r6 the lane's word."""


_LOAD = re.compile(
    r"(?P<guard>@!?%p\d+ +)?(?:ld\.(?!param|local)|ldmatrix\.)[^;\[]* (?P<targets>\{[^}]*\}|%\w+), *\[[^;]*\];"
)
_BITS = {"r": 32, "rd": 64, "rs": 16, "f": 32, "fd": 64}


def used(body: str) -> str:
    """Return a program with a use of each loaded value, a store to local memory: a race with a dead value is none."""

    def with_use(load: re.Match[str]) -> str:
        guard = load["guard"] or ""
        targets = re.findall(r"%([a-z]+)(\d+)", load["targets"])
        return load[0] + "".join(f" {guard}st.local.b{_BITS[kind]} [own], %{kind}{n};" for kind, n in targets)

    text = _LOAD.sub(with_use, body)
    return text if text == body else ".local .align 8 .b8 own[8]; " + text


def finding_kinds(
    body: str, *, warnings: bool = False, asynchronous: Asynchronous | None = None, **kwargs: Any
) -> list[str]:
    """Return the kinds of the findings, and that of the fault that ended the kernel."""
    findings, kinds = findings_of(body, warnings=warnings, asynchronous=asynchronous, **kwargs)
    return [finding.kind for finding in findings] + kinds


def findings_of(
    body: str, *, warnings: bool = False, asynchronous: Asynchronous | None = None, as_it_is: bool = False,
    **kwargs: Any,
) -> tuple[list[Finding], list[str]]:  # fmt: skip
    """Return the findings, and the kind of the fault that ended the kernel; ``as_it_is``: without ``used``."""
    machine = Machine(model=for_arch("sm_100a"), asynchronous=asynchronous)
    machine.monitor = Detector(warnings=warnings)
    grids: list[Grid] = []
    kwargs.setdefault("shared", 8192)
    kwargs.setdefault("block", (64, 1, 1))
    kwargs.setdefault("buffers", {"x": np.zeros(1024, np.uint32), "y": np.zeros(1024, np.uint32)})
    kwargs.setdefault("processes", 1)
    kinds: list[str] = []
    try:
        run_ptx(SMEM + MINE + (body if as_it_is else used(body)), machine=machine, prepare=grids.append, **kwargs)
    except Fault as fault:
        kinds.append(fault.kind)
    return grids[0].findings, kinds


def by_warp(*bodies: str, tail: str = "") -> str:
    """Return a kernel in which each warp executes a body of its own."""
    lines = []
    for warp, body in enumerate(bodies):
        lines.append(f"setp.ne.u32 %p9, %r1, {warp}; @%p9 bra W{warp};\n{body}\nW{warp}:")
    return "\n".join(lines) + tail


PEER = (
    "xor.b32 %r10, %r4, 1; mapa.shared::cluster.u32 %r11, %r6, %r10; mad.lo.u32 %r11, %r1, 128, %r11;"
    "setp.eq.u32 %p3, %r1, 0;"
)
REACH = "st.shared::cluster.b32 [%r11+512], %r0;"
GATHER = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"
STAY = "barrier.cluster.arrive; barrier.cluster.wait;"


def pipeline(stages: int, *, steps: int = 9, drop: str = "", size: int = 512) -> str:
    """A producer that copies with one thread, a consumer warp, ``stages`` buffers; ``drop`` leaves out a part."""

    def wait(barrier: int, parity: int, name: str) -> str:
        return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3+{barrier}], {parity}; @!%p1 bra {name};"

    full = [8 * i for i in range(stages)]
    empty = [8 * (stages + i) for i in range(stages)]
    inits = "".join(f"mbarrier.init.shared::cta.b64 [%r3+{b}], 1;" for b in full)
    inits += "".join(f"mbarrier.init.shared::cta.b64 [%r3+{b}], 32;" for b in empty)
    begin = f"setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE; {inits} MADE:" + ("" if drop == "barrier" else "bar.sync 0;")
    producer, consumer = ["setp.ne.u32 %p7, %r2, 0; @%p7 bra SENT;"], []
    for step in range(steps):
        stage, parity = step % stages, step // stages & 1
        data = 1024 + size * stage
        if drop != "empty":
            producer.append(wait(empty[stage], parity ^ 1, f"E{step}"))
        producer.append(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{full[stage]}], {size};")
        producer.append(f"add.u32 %r11, %r3, {data}; add.u32 %r12, %r3, {full[stage]};")
        producer.append(
            f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd100], {size}, [%r12];"
        )
        if drop != "full":
            consumer.append(wait(full[stage], parity, f"F{step}"))
        consumer.append(f"ld.shared.b32 %r20, [%r6+{data}];")
        if drop != "release":
            order = ".relaxed.cta" if drop == "order" else ""
            consumer.append(f"mbarrier.arrive{order}.shared::cta.b64 _, [%r3+{empty[stage]}];")
    return begin + by_warp("\n".join([*producer, "SENT:"]), "\n".join(consumer))


def peeked(peek: int, wait: int) -> str:
    """A warp tests a barrier at which another arrives, and waits for it where the test did not hold."""
    init = "setp.ne.u32 %p8, %r0, 0; @%p8 bra MADE; mbarrier.init.shared::cta.b64 [%r3], 32; MADE: bar.sync 0;"
    test = f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r3], {peek}; @%p1 bra SEEN;"
    block = f"T: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], {wait}; @!%p1 bra T; SEEN:"
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];"
    return init + by_warp("st.shared.b32 [%r6+512], %r0;" + arrive, test + block + "ld.shared.b32 %r20, [%r6+512];")


def stored(
    *,
    fence: str = "fence.proxy.async.shared::cta;",
    meet: str = "bar.sync 0;",
    commit: str = "cp.async.bulk.commit_group;",
    wait: str = "cp.async.bulk.wait_group.read 0;",
    again: str = "bar.sync 0;",
) -> str:
    """Both warps write, the first stores it all, both write again."""
    mine = "shl.b32 %r5, %r0, 2; add.u32 %r7, %r3, %r5;"
    send = (
        "setp.ne.u32 %p8, %r0, 0; @%p8 bra SENT; add.u32 %r11, %r3, 1024;"
        f"cp.async.bulk.global.shared::cta.bulk_group [%rd100], [%r11], 256; {commit} {wait} SENT:"
    )
    write = "st.shared.b32 [%r7+1024], %r0;"
    return mine + write + fence + meet + send + again + write + "bar.sync 0; cp.async.bulk.wait_group 0;"


def gathered(write: str, wait: str, fence: str) -> str:
    """Both warps fill shared memory, and one stores it all by a bulk copy."""
    return (
        "shl.b32 %r5, %r0, 2; add.u32 %r7, %r3, %r5; cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd100, %rd5;"
        f"{write} {wait} {fence} bar.sync 0; setp.ne.u32 %p8, %r0, 0; @%p8 bra SENT; add.u32 %r11, %r3, 1024;"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd101], [%r11], 256; cp.async.bulk.commit_group;"
        "cp.async.bulk.wait_group 0; SENT:"
    )


def flags(release: str, acquire: str) -> str:
    """CTA 0 writes data and raises a flag; CTA 1 waits for the flag and reads."""
    data = "shl.b32 %r5, %r0, 2; cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd100, %rd5;"
    one = "setp.ne.u32 %p8, %r0, 0;"
    fence = "fence.acq_rel.gpu;" if "relaxed" in acquire else ""
    return data + one + (
        "setp.ne.u32 %p7, %r4, 0; @%p7 bra READER; st.global.b32 [%rd6], %r0; bar.sync 0; @%p8 bra END;"
        f"mov.u32 %r10, 1; {release} bra END; READER: @%p8 bra SEEN;"
        f"SPIN: {acquire} setp.eq.u32 %p6, %r11, 0; @%p6 bra SPIN; {fence}"
        "SEEN: bar.sync 0; ld.global.b32 %r20, [%rd6]; END:"
    )  # fmt: skip


def counted(release: str, acquire: str) -> str:
    """Each thread writes and makes a fence, one counts; who counts last reads, each thread behind its own fence."""
    return (
        "shl.b32 %r5, %r0, 2; cvt.u64.u32 %rd5, %r5; add.u64 %rd6, %rd100, %rd5; setp.eq.u32 %p8, %r0, 0;"
        "mad.lo.u32 %r9, %r4, 256, %r5; cvt.u64.u32 %rd5, %r9; add.u64 %rd7, %rd100, %rd5;"
        f"st.global.b32 [%rd7], %r0; {release} bar.sync 0; @%p8 atom.global.add.u32 %r10, [%rd101], 1;"
        "@%p8 st.shared.b32 [%r3+512], %r10; bar.sync 0; ld.shared.b32 %r10, [%r3+512];"
        f"setp.ne.u32 %p7, %r10, 1; @%p7 bra END; {acquire} ld.global.b32 %r20, [%rd6]; END:"
    )
