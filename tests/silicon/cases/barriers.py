"""mbarriers (phases, parities, transaction bytes, what a wait answers) and named barriers."""

from __future__ import annotations

from collections.abc import Iterator

from tests.silicon.cases.blocks import SEED, by_thread, flag
from tests.silicon.model import Case

__all__ = ["cases"]

INIT = "@%p0 mbarrier.init.shared.b64 [%r99], {count};\nbar.sync 0;\n"
OPEN = "the state of an mbarrier is opaque"


def wait(parity: int, label: str, at: int = 0) -> str:
    """Waits in a loop, because a wait may give up."""
    return f"{label}:\nmbarrier.try_wait.parity.shared.b64 %p9, [%r99+{at}], {parity};\n@!%p9 bra {label};\n"


def answer(register: str, parity: int, *, at: int = 0) -> str:
    """What ``test_wait`` answers now: it never waits, so its answer is defined where nothing is under way."""
    return f"mbarrier.test_wait.parity.shared.b64 %p8, [%r99+{at}], {parity};\n" + flag(register, "%p8")


def cases() -> Iterator[Case]:
    yield _parities()
    yield _states()
    yield _transactions()
    yield _many_phases()
    yield _drops()
    yield _pending()
    yield _invalidated()
    yield _named()
    yield _reductions()
    yield _producer()
    yield _warp_barrier()


def _parities() -> Case:
    """Fresh, after one phase, after two: both parities each time."""
    body, names = INIT.format(count=2), {}
    for phase in range(4):
        for parity in (0, 1):
            body += answer(f"%r{10 + 4 * phase + parity}", parity)
            names[f"after {phase} phases, parity {parity}"] = f"%r{10 + 4 * phase + parity}"
        body += "bar.sync 0;\n@%p0 mbarrier.arrive.shared.b64 _, [%r99];\nbar.sync 0;\n"
        for parity in (0, 1):
            body += answer(f"%r{12 + 4 * phase + parity}", parity)
            names[f"after {phase} phases and half, parity {parity}"] = f"%r{12 + 4 * phase + parity}"
        body += "bar.sync 0;\n@%p0 mbarrier.arrive.shared.b64 _, [%r99];\nbar.sync 0;\n"
        body += wait(phase % 2, f"W{phase}")
    return by_thread("barriers.mbarrier.parity", body, names, threads=64)


def _states() -> Case:
    """Each thread arrives and keeps its state: complete only when the last has arrived, and for ever after."""
    body = INIT.format(count=64)
    body += "setp.lt.u32 %p1, %r0, 32;\n@%p1 mbarrier.arrive.shared.b64 %rd1, [%r99];\nbar.sync 0;\n"
    body += "mov.u32 %r10, 0;\n@%p1 mbarrier.test_wait.shared.b64 %p2, [%r99], %rd1;\n@%p1 selp.u32 %r10, 1, 0, %p2;\n"
    body += "bar.sync 0;\n@!%p1 mbarrier.arrive.shared.b64 %rd1, [%r99];\nbar.sync 0;\n"
    body += "mbarrier.test_wait.shared.b64 %p3, [%r99], %rd1;\n" + flag("%r11", "%p3")
    body += (
        "mbarrier.arrive.shared.b64 %rd2, [%r99];\nW: mbarrier.try_wait.shared.b64 %p4, [%r99], %rd2;\n@!%p4 bra W;\n"
    )
    body += "mbarrier.test_wait.shared.b64 %p5, [%r99], %rd2;\n" + flag("%r12", "%p5")
    body += "cvt.u32.u64 %r13, %rd1; shr.u64 %rd3, %rd1, 32; cvt.u32.u64 %r14, %rd3;\n"
    names = {"half of them": "%r10", "all": "%r11", "the next phase": "%r12", "low": "%r13", "high": "%r14"}
    return by_thread("barriers.mbarrier.state", body, names, threads=64, open_={"low": OPEN, "high": OPEN})


def _transactions() -> Case:
    """Bytes may come before or after they are expected, and a phase needs bytes and arrivals both."""
    body, names, at = INIT.format(count=1), {}, 10
    arrive = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r99], {n};\n"
    expect = "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r99], {n};\n"
    complete = "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r99], {n};\n"
    alone = "@%p0 mbarrier.arrive.shared.b64 _, [%r99];\n"
    for phase, steps in enumerate(
        (
            [arrive.format(n=48), complete.format(n=16), complete.format(n=32)],
            [expect.format(n=64), complete.format(n=32), alone, complete.format(n=32)],
            [complete.format(n=16), arrive.format(n=16)],
            [expect.format(n=1000), complete.format(n=1000), alone],
            [arrive.format(n=0)],
            [arrive.format(n=1048575), complete.format(n=1048575)],
        )
    ):
        for number, step in enumerate(steps):
            body += f"bar.sync 0;\n{step}bar.sync 0;\n"
            last = number == len(steps) - 1
            if last:
                body += wait(phase % 2, f"W{phase}")
            body += answer(f"%r{at}", phase % 2)
            names[f"phase {phase} after step {number}"] = f"%r{at}"
            at += 1
    return by_thread("barriers.mbarrier.transactions", body, names)


def _many_phases() -> Case:
    """A ring of two barriers between a warp that writes and one that reads."""
    body = """
@%p0 mbarrier.init.shared.b64 [%r99], 32; @%p0 mbarrier.init.shared.b64 [%r99+8], 32;
bar.sync 0;
shl.b32 %r10, %r98, 2; add.u32 %r10, %r10, %r99;
mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 1; setp.lt.u32 %p1, %r0, 32;
LOOP:
and.b32 %r14, %r11, 1; xor.b32 %r15, %r14, 1;
@!%p1 bra READ;
EMPTY: mbarrier.try_wait.parity.shared.b64 %p2, [%r99+8], %r15;
@!%p2 bra EMPTY;
mad.lo.u32 %r16, %r11, 100, %r98; st.shared.b32 [%r10+64], %r16;
mbarrier.arrive.shared.b64 _, [%r99];
bra NEXT;
READ: mbarrier.try_wait.parity.shared.b64 %p2, [%r99], %r14;
@!%p2 bra READ;
ld.shared.b32 %r16, [%r10+64]; mad.lo.u32 %r12, %r12, 31, %r16;
mbarrier.arrive.shared.b64 _, [%r99+8];
NEXT:
add.u32 %r11, %r11, 1; setp.lt.u32 %p3, %r11, 37; @%p3 bra LOOP;
"""
    return by_thread("barriers.mbarrier.ring", body, ["%r12", "%r11"], threads=64)


def _drops() -> Case:
    """``arrive_drop`` lowers the count of the phases that follow."""
    body, names = INIT.format(count=3), {}
    for at, step in enumerate(
        (
            "mbarrier.arrive_drop.shared.b64 %rd1, [%r99];",
            "mbarrier.arrive.shared.b64 _, [%r99], 2;",  # ends phase 0
            "mbarrier.arrive.shared.b64 _, [%r99];",
            "mbarrier.arrive.shared.b64 _, [%r99];",  # ends phase 1, of two
            "mbarrier.arrive_drop.shared.b64 %rd1, [%r99];",
            "mbarrier.arrive.shared.b64 _, [%r99];",  # ends phase 2
            "mbarrier.arrive.shared.b64 _, [%r99];",  # ends phase 3, of one
        )
    ):
        body += f"bar.sync 0;\n@%p0 {step}\nbar.sync 0;\n"
        for parity in (0, 1):
            body += answer(f"%r{10 + 2 * at + parity}", parity)
            names[f"after step {at}, parity {parity}"] = f"%r{10 + 2 * at + parity}"
    return by_thread("barriers.mbarrier.drop", body, names)


def _pending() -> Case:
    """``pending_count`` of the states of ``arrive.noComplete``: what was pending before."""
    body, names = INIT.format(count=10), {}
    for at, count in enumerate((1, 4, 2, 1)):
        body += f"@%p0 mbarrier.arrive.noComplete.shared.b64 %rd1, [%r99], {count};\n@!%p0 mov.b64 %rd1, 0;\n"
        body += f"mov.u32 %r{10 + at}, 0;\n@%p0 mbarrier.pending_count.b64 %r{10 + at}, %rd1;\n"
        names[f"{count} at step {at}"] = f"%r{10 + at}"
    return by_thread("barriers.mbarrier.pending_count", body, names)


def _invalidated() -> Case:
    """After ``inval`` the memory is memory again, and may become another barrier."""
    body = (
        INIT.format(count=5)
        + """
bar.sync 0;
@%p0 mbarrier.inval.shared.b64 [%r99];
@%p0 st.shared.b64 [%r99], 0x1234567887654321;
bar.sync 0;
ld.shared.v2.b32 {%r10, %r11}, [%r99];
bar.sync 0;
@%p0 mbarrier.init.shared.b64 [%r99], 32;
bar.sync 0;
mbarrier.arrive.shared.b64 _, [%r99];
"""
        + wait(0, "W")
        + answer("%r12", 0)
        + answer("%r13", 1)
    )
    return by_thread("barriers.mbarrier.inval", body, ["%r10", "%r11", "%r12", "%r13"])


def _named() -> Case:
    """Several barriers at once among subsets of four warps, in every spelling."""
    body = """
shr.u32 %r2, %r0, 5; and.b32 %r3, %r2, 1; add.u32 %r4, %r3, 3;
shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r99; mov.u32 %r20, 0;
"""
    for step, text in enumerate(
        (
            "bar.sync 0;", "barrier.sync 0;", "barrier.cta.sync.aligned 5;", "bar.cta.sync 7, 128;",
            "bar.sync %r4, 64;", "barrier.sync.aligned %r4, 64;",
        )
    ):  # fmt: skip
        distance = 64 if "%r4" in text else 32
        body += f"mad.lo.u32 %r6, %r0, 11, {step}; st.shared.b32 [%r5], %r6;\n{text}\n"
        body += (
            f"xor.b32 %r7, %r0, {distance}; shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r99; ld.shared.b32 %r8, [%r7];\n"
        )
        body += f"mad.lo.u32 %r20, %r20, 13, %r8;\n{text}\n"
    return by_thread("barriers.named", body, ["%r20"], threads=128)


def _reductions() -> Case:
    """``bar.red`` and ``barrier.red`` of all threads and of two groups of them."""
    body = SEED + "shr.u32 %r2, %r0, 5; and.b32 %r3, %r2, 1; add.u32 %r4, %r3, 1;\n"
    body += "and.b32 %r5, %r1, 3; setp.eq.u32 %p1, %r5, 0; setp.lt.u32 %p2, %r0, 200; setp.gt.u32 %p3, %r0, 200;\n"
    names, at = {}, 10
    for where in ("0", "3, 128", "%r4, 64"):
        for root in ("bar", "barrier"):
            suffix = ".aligned" if root == "barrier" else ""
            for value in ("%p1", "!%p1", "%p2", "%p3"):
                body += f"{root}.red{'' if root == 'bar' else suffix}.popc.u32 %r{at}, {where}, {value};\n".replace(
                    "barrier.red.aligned.popc", "barrier.red.popc.aligned"
                )
                names[f"{root}.popc {where} {value}"] = f"%r{at}"
                at += 1
                for op in ("and", "or"):
                    body += f"{root}.red.{op}{suffix}.pred %p4, {where}, {value};\n" + flag(f"%r{at}", "%p4")
                    names[f"{root}.{op} {where} {value}"] = f"%r{at}"
                    at += 1
                at += 10 if 90 <= at < 100 else 0
    return by_thread("barriers.named.red", body, names, threads=128)


def _producer() -> Case:
    """``bar.arrive`` on one side, ``bar.sync`` on the other."""
    body = """
setp.lt.u32 %p1, %r0, 32; mov.u32 %r5, 0; mov.u32 %r6, 0;
LOOP:
@%p1 bra PRODUCE;
bar.sync 1, 64;
ld.shared.b32 %r7, [%r99]; mad.lo.u32 %r6, %r6, 31, %r7;
bar.arrive 2, 64;
bra NEXT;
PRODUCE:
@%p0 st.shared.b32 [%r99], %r5;
bar.arrive 1, 64;
bar.sync 2, 64;
NEXT:
add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 9; @%p2 bra LOOP;
"""
    return by_thread("barriers.named.arrive", body, ["%r6"], threads=64)


def _warp_barrier() -> Case:
    """``bar.warp.sync`` after lanes took different ways, with memory between them."""
    body = """
shl.b32 %r2, %r98, 2; add.u32 %r2, %r2, %r99; and.b32 %r3, %r98, 3; mov.u32 %r4, %r98;
setp.eq.u32 %p1, %r3, 0; @%p1 bra JOIN;
L: mul.lo.u32 %r4, %r4, 3; sub.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra L;
JOIN:
st.shared.b32 [%r2], %r4;
bar.warp.sync -1;
xor.b32 %r5, %r98, 17; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r99; ld.shared.b32 %r6, [%r5];
"""
    return by_thread("barriers.warp", body, ["%r4", "%r6"])
