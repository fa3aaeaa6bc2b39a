"""mbarriers: what they need before they are used, and the full and empty barriers of pipelines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.silicon.sanitizer.program import Defect, Idiom, Said, Words
from tests.silicon.sanitizer.shared import place

__all__ = ["IDIOMS", "flipped", "wait"]

_L = np.arange(32)
_STEPS = 7


def wait(barrier: str, parity: int, label: str, order: str = "") -> str:
    """A loop around try_wait."""
    return f"{label}: mbarrier.try_wait.parity{order}.shared::cta.b64 %p1, [{barrier}], {parity}; @!%p1 bra {label};"


def flipped(line: str) -> str:
    """A wait for the other parity."""
    return re.sub(r", ([01]); @!", lambda found: f", {1 - int(found[1])}; @!", line)


def _counts(count: int) -> Callable[[str], str]:
    return lambda line: re.sub(r"\], \d+;", f"], {count};", line)


def _relaxed(line: str) -> str:
    line = line.replace("arrive.shared::cta", "arrive.relaxed.cta.shared::cta")
    return line.replace("try_wait.parity.shared", "try_wait.parity.relaxed.cta.shared")


def _mixed(x: Words) -> Words:
    total = np.zeros(32, np.uint32)
    for step in range(_STEPS):
        total = total * np.uint32(3) + x[32 * step + 31 - _L]
    return place(total, 32)


def _consumer(step: int, stages: int) -> list[str]:
    stage, parity = step % stages, step // stages & 1
    return [
        wait(f"%r3+{8 * stage}", parity, f"F{step}") + " //@full",
        f"ld.shared.b32 %r21, [%r9+{1024 + 128 * stage}]; //@drain",
        "mad.lo.u32 %r30, %r30, 3, %r21;",
        f"mbarrier.arrive.shared::cta.b64 _, [%r3+{64 + 8 * stage}]; //@release",
    ]


def _pipeline(stages: int, arrivals: int, producer: Callable[[int, int], list[str]]) -> str:
    lines = ["@!%p10 bra MADE;"]
    for stage in range(stages):
        lines.append(f"mbarrier.init.shared::cta.b64 [%r3+{8 * stage}], {arrivals}; //@init_full")
        lines.append(f"mbarrier.init.shared::cta.b64 [%r3+{64 + 8 * stage}], 32; //@init_empty")
    lines += ["fence.mbarrier_init.release.cluster; //@init_fence", "MADE: bar.sync 0; //@made"]
    lines += ["setp.ge.u32 %p2, %r0, 32;", "@%p2 bra TAKE;"]
    for step in range(_STEPS):
        lines.append(wait(f"%r3+{64 + 8 * (step % stages)}", step // stages & 1 ^ 1, f"E{step}") + " //@empty")
        lines += producer(step, step % stages)
    lines += ["bra END;", "TAKE: sub.u32 %r9, 252, %r5; add.u32 %r9, %r9, %r3;", "mov.u32 %r30, 0;"]
    for step in range(_STEPS):
        lines += _consumer(step, stages)
    return "\n".join([*lines, "st.global.b32 [%rd7], %r30;", "END:"])


def _written(step: int, stage: int) -> list[str]:
    return [
        f"ld.global.b32 %r20, [%rd6+{128 * step}];",
        f"st.shared.b32 [%r6+{1024 + 128 * stage}], %r20; //@fill",
        f"mbarrier.arrive.shared::cta.b64 _, [%r3+{8 * stage}]; //@arrive",
    ]


def _copied(step: int, stage: int) -> list[str]:
    return [
        f"cp.async.ca.shared.global [%r6+{1024 + 128 * stage}], [%rd6+{128 * step}], 4; //@fill",
        f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r3+{8 * stage}]; //@arrive",
    ]


def _bulk(step: int, stage: int) -> list[str]:
    return [
        f"@%p10 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+{8 * stage}], 128; //@arrive",
        f"add.u32 %r11, %r3, {1024 + 128 * stage}; add.u32 %r12, %r3, {8 * stage};"
        f" add.u64 %rd10, %rd100, {128 * step};",
        "@%p10 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd10], 128, [%r12]; //@fill",
    ]


_FULL = Said("race", ("fill", "drain"))
_OVER = Said("mbarrier", ("arrive",))
_TWICE = Said("race", ("fill",))
"""A copy that no wait orders after the last into the same stage: the pair that is told, the reader is a note."""


def _some(idiom: Idiom, *names: str) -> Idiom:
    """The same with these defects alone, because the others are those of other numbers of stages."""
    return replace(idiom, defects=tuple(defect for defect in idiom.defects if defect.name in names))


def _generic(stages: int) -> Idiom:
    return Idiom(
        f"a warp writes, another reads, {stages} stages with full and empty mbarriers",
        _pipeline(stages, 32, _written),
        _mixed,
        (
            Defect("no wait for full", {"full": ""}, _FULL, hangs=True),
            Defect("no wait for empty", {"empty": ""}, Said("deadlock", ("full",)), hangs=True),
            Defect("wrong parity of full", {"full": flipped}, Said("deadlock", ("empty",)), hangs=True),
            Defect("wrong parity of empty", {"empty": flipped}, Said("deadlock", ("empty",)), hangs=True),
            Defect("full counts an arrival more", {"init_full": _counts(33)}, Said("deadlock", ("full",)), hangs=True),
            Defect(
                "full counts half of the arrivals",
                {"init_full": _counts(16)},
                Said("mbarrier", ("arrive",)),
                hangs=True,
            ),
            Defect("the consumer does not release", {"release": ""}, Said("deadlock", ("empty",)), hangs=True),
            Defect("relaxed arrive at full", {"arrive": _relaxed}, _FULL),
            Defect("relaxed wait for full", {"full": _relaxed}, _FULL),
            Defect("relaxed wait for empty", {"empty": _relaxed}, _FULL),
            Defect("no barrier after mbarrier.init", {"made": "MADE:"}, Said("race", ("init_full",)), hangs=True),
            Defect("mbarriers are not initialised", {"init_full": ""}, Said("uninitialised", ("full",)), hangs=True),
        ),
    )


def _loaded(stages: int) -> Idiom:
    return Idiom(
        f"bulk copies load {stages} stages that a warp reads",
        _pipeline(stages, 1, _bulk),
        _mixed,
        (
            Defect("no wait for full", {"full": ""}, _FULL, hangs=True),
            Defect("no wait for empty", {"empty": ""}, _TWICE, hangs=True),
            Defect("wrong parity of full", {"full": flipped}, Said("deadlock", ("empty",)), hangs=True),
            Defect("wrong parity of empty", {"empty": flipped}, Said("deadlock", ("empty",)), hangs=True),
            Defect(
                "16 bytes fewer are expected",
                {"arrive": lambda line: line.replace("128;", "112;")},
                Said("deadlock", ("full",)),
                hangs=True,
            ),
            Defect(
                "16 bytes more are expected",
                {"arrive": lambda line: line.replace("128;", "144;")},
                Said("deadlock", ("full",)),
                hangs=True,
            ),
            Defect(
                "no bytes are expected",
                {"arrive": lambda line: line.replace("arrive.expect_tx", "arrive").replace(", 128;", ";")},
                _FULL,
                hangs=True,
            ),
            Defect("relaxed release of a stage", {"release": _relaxed}, _FULL),
        ),
    )


cp_async = Idiom(
    "cp.async arrives at the full mbarriers of 2 stages",
    _pipeline(2, 32, _copied),
    _mixed,
    (
        Defect("no wait for full", {"full": ""}, _FULL, hangs=True),
        Defect("no wait for empty", {"empty": ""}, _TWICE, hangs=True),
        Defect(
            "arrives before the copy is complete",
            {"arrive": lambda line: re.sub(r"\S+ \[(.*)\];", r"mbarrier.arrive.shared::cta.b64 _, [\1];", line)},
            _FULL,
        ),
    ),
)

_LIFE = """
@!%p10 bra MADE;
mbarrier.init.shared::cta.b64 [%r3], 64; //@init
MADE: bar.sync 0; //@made
ld.global.b32 %r20, [%rd6];
st.shared.b32 [%r6+1024], %r20; //@write
mbarrier.arrive.shared::cta.b64 %rd20, [%r3]; //@arrive
WAIT: mbarrier.try_wait.shared::cta.b64 %p1, [%r3], %rd20; @!%p1 bra WAIT; //@wait
xor.b32 %r9, %r5, 128; add.u32 %r9, %r9, %r3;
ld.shared.b32 %r21, [%r9+1024]; //@read
bar.sync 0; //@met
@%p10 mbarrier.inval.shared::cta.b64 [%r3]; //@inval
bar.sync 0;
@%p10 mbarrier.init.shared::cta.b64 [%r3], 64; //@reinit
bar.sync 0;
mbarrier.arrive.shared::cta.b64 %rd20, [%r3]; //@arrive_again
WAIT2: mbarrier.try_wait.shared::cta.b64 %p1, [%r3], %rd20; @!%p1 bra WAIT2; //@wait_again
st.global.b32 [%rd7], %r21;
"""
_T = np.arange(64)
life = Idiom(
    "an mbarrier as a barrier of the CTA, ended and made anew",
    _LIFE,
    lambda x: place(x[_T ^ 32]),
    (
        Defect("no wait", {"wait": ""}, Said("race", ("write", "read"))),
        Defect("used without mbarrier.init", {"init": ""}, Said("uninitialised", ("arrive",)), hangs=True),
        Defect("made anew without mbarrier.inval", {"inval": ""}, Said("mbarrier-reuse", ("reinit",))),
        Defect("used after mbarrier.inval", {"reinit": ""}, Said("mbarrier", ("arrive_again",)), hangs=True),
        Defect("ended while others still wait", {"met": ""}, Said("mbarrier", ("wait",)), hangs=True),
        Defect("made for no arrivals", {"init": "mov.u32 %r15, 0; mbarrier.init.shared::cta.b64 [%r3], %r15;"},
               Said("mbarrier", ("init",)), hangs=True),
        Defect("arrives twice", {"arrive": lambda line: line + " mbarrier.arrive.shared::cta.b64 _, [%r3];"},
               Said("race", ("write", "read")), hangs=True),
        Defect("a misaligned mbarrier", {"init": "mbarrier.init.shared::cta.b64 [%r3+4], 64;"},
               Said("misaligned", ("init",))),
    ),
)  # fmt: skip

IDIOMS = (
    _some(_generic(1), "no wait for full", "no wait for empty"),
    _generic(2),
    _some(_loaded(1), "no wait for full", "no wait for empty", "wrong parity of empty"),
    _loaded(2),
    _some(_loaded(3), "no wait for full", "no wait for empty"),
    cp_async,
    life,
)
