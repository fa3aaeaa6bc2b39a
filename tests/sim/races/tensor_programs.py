"""PTX programs that use tensor memory, and what the race detector reports as missing."""

from __future__ import annotations

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx

NAMES = {
    "tcgen05.wait::ld of": "wait::ld",
    "tcgen05.wait::st of": "wait::st",
    "fence::before_thread_sync of": "before",
    "fence::after_thread_sync of": "after",
    "no pipelined pair": "commit",
    "without tcgen05.wait::ld": "use",
}
BEFORE = "tcgen05.fence::before_thread_sync;"
AFTER = "tcgen05.fence::after_thread_sync;"
WAIT_LD = "tcgen05.wait::ld.sync.aligned;"
WAIT_ST = "tcgen05.wait::st.sync.aligned;"
DESCRIPTOR = 1 << 46 | 8 << 32 | 8 << 16 | 2048 >> 4
"""Zeros at byte 1024 of the kernel's shared memory, not swizzled."""
INSTRUCTION = 1 << 4 | 8 << 24 | 1 << 17
"""f16 operands, an f32 accumulator of 128 by 8."""


def commit(barrier: int = 16) -> str:
    return f"@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+{barrier}];"


def wait(name: str, barrier: int = 16, parity: int = 0, order: str = "") -> str:
    return f"{name}: mbarrier.try_wait.parity{order}.shared::cta.b64 %p3, [%r3+{barrier}], {parity}; @!%p3 bra {name};"


def kernel(
    first: str, second: str, *, meet: str = "bar.sync 1, 64;", last: str = "", after: str = "", same: bool = False
) -> str:
    """Return a kernel that fills columns, executes ``first`` in warp 0, and behind ``meet`` ``second`` in warp 4.

    Warp 0 executes ``last`` before ``meet``, and warp 4 ``after`` behind it. With ``same`` warp 0 executes everything.
    What they load to ``%r20`` is stored at the end, and the deallocation is ordered.
    """
    one = "setp.eq.u32 %p1, %r2, 0;"
    begin = (
        ".local .align 4 .b8 own[4];"
        "mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.u32 %r3, smem; "
        f"mov.b32 %r20, 0; mov.b64 %rd10, {DESCRIPTOR}; mov.b32 %r31, {INSTRUCTION}; {one}"
        "shl.b32 %r5, %r0, 4; add.u32 %r6, %r3, %r5; mov.b32 %r30, 0;"
        "st.shared.v4.b32 [%r6+1024], {%r30,%r30,%r30,%r30}; st.shared.v4.b32 [%r6+3584], {%r30,%r30,%r30,%r30};"
        "setp.ne.u32 %p9, %r1, 0; @%p9 bra MADE;"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;"
        "@%p1 mbarrier.init.shared::cta.b64 [%r3+16], 1; @%p1 mbarrier.init.shared::cta.b64 [%r3+24], 1;"
        "@%p1 mbarrier.init.shared::cta.b64 [%r3+32], 32;"
        "fence.mbarrier_init.release.cluster; fence.proxy.async;"
        f"MADE: fence.proxy.async; bar.sync 0; {AFTER} ld.shared.b32 %r7, [%r3]; add.u32 %r9, %r7, 16;"
    )
    fill = (
        "setp.ge.u32 %p8, %r1, 4; @%p8 bra FILLED; and.b32 %r10, %r1, 3; shl.b32 %r10, %r10, 21; add.u32 %r11, %r7,"
        " %r10;"
        "tcgen05.st.sync.aligned.32x32b.x16.b32 [%r11], {%r30,%r30,%r30,%r30,%r30,%r30,%r30,%r30,%r30,%r30,%r30,%r30,"
        "%r30,%r30,%r30,%r30};"
        f"{WAIT_ST} {BEFORE} FILLED: bar.sync 0; {AFTER}"
    )
    if same:
        body = f"setp.ne.u32 %p9, %r1, 0; @%p9 bra W4; {first} {last} {second} W4:"
    else:
        body = (
            f"setp.ne.u32 %p9, %r1, 0; @%p9 bra W0; {first} {last} {meet} W0:"
            f"setp.ne.u32 %p9, %r1, 4; @%p9 bra W4; {meet} {after} {second} W4:"
        )
    issuer = 0 if same else 4
    end = (
        f"setp.ne.u32 %p9, %r1, {issuer}; @%p9 bra D0; {commit(24)} {wait('DONE', 24)} {AFTER} D0:"
        f"{WAIT_LD} st.local.b32 [own], %r20; {WAIT_ST} {BEFORE} bar.sync 0; {AFTER}"
        "setp.ne.u32 %p9, %r1, 0; @%p9 bra GONE; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 32; GONE:"
    )
    return begin + fill + body + end


def judged(body: str, *, warnings: bool = True) -> tuple[set[str], list[str]]:
    """Return what is missing according to the warnings, and the kinds of the other findings."""
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector(warnings=warnings)
    grids: list[Grid] = []
    kinds: list[str] = []
    try:
        run_ptx(body, machine=machine, prepare=grids.append, shared=8192, block=(160, 1, 1), processes=1)
    except Fault as fault:
        kinds.append(fault.kind)
    found: set[str] = set()
    for finding in grids[0].findings:
        if finding.kind == "race-warning":
            found |= {name for words, name in NAMES.items() if words in finding.message}
        elif finding.kind != "commit":  # that a warp leaves its MMAs to another's commit is no matter of order
            kinds.append(finding.kind)
    return found, kinds
