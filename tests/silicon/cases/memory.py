"""Loads and stores of every type, width and space; packed moves; asynchronous copies of a few bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.silicon.cases.blocks import PREAMBLE
from tests.silicon.model import Case, case, noise

__all__ = ["cases"]

TYPES = ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64")
WIDE = {"u8": ("rs", "r", "rd"), "s8": ("rs", "r", "rd"), "u16": ("rs", "r", "rd"), "s16": ("rs", "r", "rd"),
        "u32": ("r", "rd"), "s32": ("r", "rd"), "u64": ("rd",), "s64": ("rd",), "b8": ("rs", "r", "rd"),
        "b16": ("rs", "r", "rd"), "b32": ("r", "rd"), "b64": ("rd",), "f32": ("f",), "f64": ("fd",)}  # fmt: skip
"""Registers that may be wider than what is loaded: it is extended by its type."""
REGISTER_BITS = {"rs": 16, "r": 32, "rd": 64, "f": 32, "fd": 64}
TABLE = 4096


def cases() -> Iterator[Case]:
    for space in ("global", "shared", "generic"):
        yield _loads(f"memory.load.{space}", space)
        yield _stores(f"memory.store.{space}", space)
    yield _spellings()
    yield _constants()
    yield _local()
    yield _packed()
    yield _copies()
    yield _copies_by_predicate()


def _bits(kind: str) -> int:
    return int(kind[1:])


def _table(space: str) -> str:
    """%rd10 or %r10: the table, in the space; each lane at 32 bytes of its own."""
    copy = "\n".join(
        f"ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd11+{at}]; st.shared.v4.b32 [%r11+{at}], "
        "{%r20, %r21, %r22, %r23};"
        for at in range(0, TABLE, 512)
    )
    lines = "mul.wide.u32 %rd11, %r0, 16; add.u64 %rd11, %rd11, %rd101; shl.b32 %r11, %r0, 4;\n"
    if space == "global":
        return "mul.wide.u32 %rd10, %r0, 32; add.u64 %rd10, %rd10, %rd101;\n"
    lines += f"add.u32 %r11, %r11, %r99;\n{copy}\nbar.sync 0;\nshl.b32 %r10, %r0, 5; add.u32 %r10, %r10, %r99;\n"
    if space == "generic":
        lines += "cvt.u64.u32 %rd10, %r10; cvta.shared.u64 %rd10, %rd10;\n"
    return lines


def _address(space: str) -> str:
    return "%r10" if space.startswith("shared") else "%rd10"


def _dot(space: str) -> str:
    return "" if space == "generic" else f".{space}"


def _loads(name: str, space: str) -> Case:
    """Each lane's values to the output as 64 bits, extended as the register is."""
    body, at = PREAMBLE + _table(space), 0
    for kind in TYPES:
        for letter in WIDE[kind]:
            for count in (1, 2, 4):
                if count * _bits(kind) > 128:
                    continue
                names = [f"%{letter}{30 + i}" for i in range(count)]
                target = names[0] if count == 1 else f"{{{', '.join(names)}}}"
                vector = "" if count == 1 else f".v{count}"
                offset = 16 if count * _bits(kind) == 128 else count * _bits(kind) // 8
                body += f"ld{_dot(space)}{vector}.{kind} {target}, [{_address(space)}+{offset}];\n"
                for register in names:
                    size = REGISTER_BITS[letter] // 8
                    # Of a bit type in a wider register the ISA defines the low bits only (it extends by zeros there).
                    body += (
                        f"mad.lo.u32 %r50, %r0, {size}, {at}; cvt.u64.u32 %rd50, %r50; add.u64 %rd50, %rd50, %rd100;"
                    )
                    body += f"st.global.b{8 * size} [%rd50], {register};\n"
                    at += 32 * size
    return case(name, body, {"out": np.zeros(at, np.uint8), "in": noise(TABLE, 1)}, ("out",), shared=TABLE)


def _stores(name: str, space: str) -> Case:
    """Narrow stores of wide registers, single and in vectors, next to each other."""
    body = PREAMBLE + _table("shared" if space != "global" else space)
    body += "mul.wide.u32 %rd12, %r0, 32; add.u64 %rd12, %rd12, %rd102;\n"
    body += "ld.global.b64 %rd30, [%rd12]; ld.global.b64 %rd31, [%rd12+8]; ld.global.b64 %rd32, [%rd12+16];\n"
    body += "ld.global.b64 %rd33, [%rd12+24];\n"
    if space == "shared":
        # Loaded for themselves: the driver's compiler (CUDA 13.0) packs {%rs33, %rs30} for a store in place, into the
        # register that %r33 still needs, where both are parts of %rd33.
        for i in range(4):
            body += f"ld.volatile.global.b32 %r{30 + i}, [%rd12+{8 * i}];"
            body += f"ld.volatile.global.b16 %rs{30 + i}, [%rd12+{8 * i}];"
            body += f"ld.volatile.global.f32 %f{30 + i}, [%rd12+{8 * i}];"
            body += f"ld.volatile.global.f64 %fd{30 + i}, [%rd12+{8 * i}];\n"
    for i in range(4 if space != "shared" else 0):
        body += f"cvt.u32.u64 %r{30 + i}, %rd{30 + i}; cvt.u16.u64 %rs{30 + i}, %rd{30 + i};"
        body += f"mov.b32 %f{30 + i}, %r{30 + i}; mov.b64 %fd{30 + i}, %rd{30 + i};\n"
    if space == "generic":
        body += "cvt.u64.u32 %rd10, %r10; cvta.shared.u64 %rd10, %rd10;\n"
    forms = [(kind, letter, count) for kind in TYPES for letter in WIDE[kind] for count in (1, 2, 4)]
    forms = [form for form in forms if form[2] * _bits(form[0]) <= 128]
    for number, (kind, letter, count) in enumerate(forms):
        names = [f"%{letter}{30 + (number + i) % 4}" for i in range(count)]
        source = names[0] if count == 1 else f"{{{', '.join(names)}}}"
        size = count * _bits(kind) // 8
        offset = number * 7 % (32 // size) * size
        vector = "" if count == 1 else f".v{count}"
        body += f"st{_dot(space)}{vector}.{kind} [{_address(space)}+{offset}], {source};\n"
        # What each store left of the lane's 32 bytes.
        for part in (0, 16):
            body += f"ld{_dot(space)}.v2.b64 {{%rd40, %rd41}}, [{_address(space)}+{part}];"
            body += f"mad.lo.u32 %r50, %r0, 32, {number * 1024 + part}; cvt.u64.u32 %rd50, %r50;"
            body += "add.u64 %rd50, %rd50, %rd100; st.global.v2.b64 [%rd50], {%rd40, %rd41};\n"
    buffers = {"out": np.zeros(len(forms) * 1024, np.uint8), "in": noise(TABLE, 2), "values": noise(1024, 3)}
    return case(name, body, buffers, ("out",), shared=TABLE)


def _spellings() -> Case:
    body, at = PREAMBLE + _table("shared") + _table("global"), 0
    loads = [
        "ld.global.nc.b32", "ld.volatile.global.b32", "ld.relaxed.gpu.global.b32", "ld.acquire.gpu.global.b32",
        "ld.acquire.sys.global.b32", "ld.global.L1::no_allocate.b32", "ld.global.nc.L1::no_allocate.b32",
        "ld.global.ca.b32", "ld.global.cg.b32", "ld.global.cs.b32", "ld.global.lu.b32", "ld.global.cv.b32",
        "ld.global.L2::128B.b32", "ld.weak.global.b32", "ld.shared::cta.b32", "ld.volatile.shared.b32",
        "ld.relaxed.cta.shared.b32", "ld.acquire.cta.shared.b32", "ld.shared::cluster.b32", "ld.b32",
    ]  # fmt: skip
    for text in loads:
        body += f"{text} %r30, [{'%r10' if 'shared' in text else '%rd10'}+4];\nst.global.b32 [%rd99+{at}], %r30;\n"
        at += 128
    for text in ("st.volatile.global.b32", "st.relaxed.gpu.global.b32", "st.release.gpu.global.b32",
                 "st.release.sys.global.b32", "st.global.wb.b32", "st.global.cg.b32", "st.global.cs.b32",
                 "st.global.wt.b32", "st.weak.global.b32", "st.global.L1::no_allocate.b32", "st.b32"):  # fmt: skip
        body += f"add.u32 %r30, %r0, {at};\n{text} [%rd99+{at}], %r30;\n"
        at += 128
    return case(
        "memory.spellings", body, {"out": np.zeros(at, np.uint8), "in": noise(TABLE, 4)}, ("out",), shared=TABLE
    )


def _constants() -> Case:
    """Initialised variables in constant and global space, and parameters."""
    body = PREAMBLE.replace("mov.u32 %r99, smem;\n", "")
    body += """
mov.u64 %rd10, table; mul.wide.u32 %rd11, %r0, 4; add.u64 %rd10, %rd10, %rd11;
ld.const.b32 %r10, [%rd10];
mov.u64 %rd12, numbers; add.u64 %rd12, %rd12, %rd11;
ld.global.b32 %r11, [%rd12];
ld.const.v4.b32 {%r12, %r13, %r14, %r15}, [table+16];
ld.param.b32 %r16, [v0]; ld.param.u16 %r17, [v0]; ld.param.s8 %r18, [v0+3];
ld.const.s16 %r19, [table+2];
"""
    body += "\n".join(f"st.global.b32 [%rd99+{128 * i}], %r{10 + i};" for i in range(10))
    made = case("memory.constants", body, {"out": np.zeros(1280, np.uint8)}, ("out",), values=(0x8765_C321,))
    values = noise(32, 5, np.uint32)
    tables = "".join(
        f".{space} .align 16 .b32 {name}[32] = {{{', '.join(str(v) for v in values[::step])}}};\n"
        for space, name, step in (("const", "table", 1), ("global", "numbers", -1))
    )
    before, after = made.ptx.split(".extern .shared", 1)
    object.__setattr__(made, "ptx", before + tables + ".extern .shared" + after)
    return made


def _local() -> Case:
    """Local memory is each thread's own."""
    body = (
        PREAMBLE
        + """
mov.u64 %rd10, stack;
mul.lo.u32 %r10, %r0, 7; st.local.b32 [%rd10], %r10; st.local.v2.b32 [%rd10+8], {%r0, %r10};
and.b32 %r11, %r0, 1; mul.wide.u32 %rd11, %r11, 4; add.u64 %rd11, %rd11, %rd10;
ld.local.b32 %r12, [%rd11+8]; ld.local.u8 %r13, [%rd10];
cvta.local.u64 %rd12, %rd10; ld.b32 %r14, [%rd12];
st.global.b32 [%rd99], %r12; st.global.b32 [%rd99+128], %r13; st.global.b32 [%rd99+256], %r14;
"""
    )
    made = case("memory.local", body, {"out": np.zeros(384, np.uint8)}, ("out",))
    object.__setattr__(made, "ptx", made.ptx.replace(".reg .pred", ".local .align 16 .b8 stack[64];\n.reg .pred", 1))
    return made


def _packed() -> Case:
    """Moves between registers of 16 to 128 bits and their parts."""
    body = (
        PREAMBLE
        + _table("global")
        + """
ld.global.v2.b64 {%rd20, %rd21}, [%rd10]; ld.global.v2.b64 {%rd22, %rd23}, [%rd10+16];
mov.b64 {%r20, %r21}, %rd20; mov.b64 {%rs20, %rs21, %rs22, %rs23}, %rd21; mov.b32 {%rs24, %rs25}, %r20;
mov.b64 %rd24, {%rs23, %rs22, %rs21, %rs20}; mov.b64 %rd25, {%r21, %r20}; mov.b32 %r22, {%rs25, %rs24};
mov.b128 %q0, {%rd20, %rd21}; mov.b128 {%rd26, %rd27}, %q0;
ld.global.b128 %q1, [%rd10+16]; mov.b128 {%rd28, %rd29}, %q1;
mov.b64 {_, %r23}, %rd22;
mul.wide.u32 %rd30, %r0, 64; add.u64 %rd30, %rd30, %rd100;
st.global.v2.b64 [%rd30], {%rd24, %rd25}; st.global.v2.b64 [%rd30+16], {%rd26, %rd27};
st.global.b128 [%rd30+32], %q1; st.global.v2.b32 [%rd30+48], {%r22, %r23}; st.global.b64 [%rd30+56], %rd29;
"""
    )
    made = case("memory.packed", body, {"out": np.zeros(2048, np.uint8), "in": noise(1024, 6)}, ("out",))
    object.__setattr__(made, "ptx", made.ptx.replace(".reg .pred", ".reg .b128 %q<4>;\n.reg .pred", 1))
    return made


_ZERO = "st.shared.v4.b32 [%r10], {%r9, %r9, %r9, %r9}; st.shared.v4.b32 [%r10+16], {%r9, %r9, %r9, %r9};\n"


def _copied(number: int) -> str:
    text = "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n"
    for part in (0, 16):
        text += f"ld.shared.v2.b64 {{%rd40, %rd41}}, [%r10+{part}];"
        text += f"mad.lo.u32 %r50, %r0, 32, {number * 1024 + part}; cvt.u64.u32 %rd50, %r50;"
        text += "add.u64 %rd50, %rd50, %rd100; st.global.v2.b64 [%rd50], {%rd40, %rd41};\n"
    return text


def _copies() -> Case:
    """``cp.async`` of 4, 8 and 16 bytes, whole and with less of a source than that."""
    body = PREAMBLE + "mul.wide.u32 %rd10, %r0, 32; add.u64 %rd10, %rd10, %rd101;\n"
    body += "shl.b32 %r10, %r0, 5; add.u32 %r10, %r10, %r99; mov.u32 %r9, 0x5a5a5a5a;\n"
    number = 0
    for how, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for of in ("", *(f", {n}" for n in (0, 1, 3, size // 2, size - 1, size)), ", %r12"):
            body += f"rem.u32 %r12, %r0, {size + 1};\n" if of == ", %r12" else ""
            body += f"{_ZERO}cp.async.{how}.shared.global [%r10+16], [%rd10+{16 - size}], {size}{of};\n"
            body += _copied(number)
            number += 1
    buffers = {"out": np.zeros(1024 * number, np.uint8), "in": noise(1024, 7)}
    return case("memory.cp_async", body, buffers, ("out",), shared=1024)


def _copies_by_predicate() -> Case:
    """``ignore-src``, hints, waiting for all, for all but one, and through an mbarrier."""
    body = PREAMBLE + "mul.wide.u32 %rd10, %r0, 32; add.u64 %rd10, %rd10, %rd101;\n"
    body += "shl.b32 %r10, %r0, 5; add.u32 %r10, %r10, %r99; mov.u32 %r9, 0x5a5a5a5a;\n"
    body += "@%p0 mbarrier.init.shared.b64 [%r99+1024], 32;\nbar.sync 0;\nsetp.gt.u32 %p1, %r0, 11;\n"
    body += _ZERO + "cp.async.ca.shared.global [%r10], [%rd10], 8, %p1;\n" + _copied(0)
    body += _ZERO + "cp.async.cg.shared.global.L2::128B [%r10], [%rd10], 16;\ncp.async.commit_group;\n"
    body += "cp.async.ca.shared.global [%r10+16], [%rd10+16], 4; cp.async.commit_group; cp.async.wait_group 1;\n"
    body += "cp.async.wait_all;\n" + _copied(1)
    body += _ZERO + "cp.async.cg.shared.global [%r10+16], [%rd10], 16;\n"
    body += "cp.async.mbarrier.arrive.noinc.shared.b64 [%r99+1024];\n"
    body += "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r99+1024], 0;\n@!%p2 bra W;\n" + _copied(2)
    buffers = {"out": np.zeros(3072, np.uint8), "in": noise(1024, 8)}
    return case("memory.cp_async.more", body, buffers, ("out",), shared=1040)
