"""PTX with marks: regions of ``pytest_nvfp4.profiler``, and IKET's events as CuTe DSL 4.8.1 writes them."""

from __future__ import annotations

import struct


def region(kind: str, name: str) -> str:
    """A mark of a region, as the profiler emits it."""
    register = f"nvfp4_{kind}_{name.encode().hex()}"
    return f"{{ .reg .b32 {register}; mov.b32 {register}, 0; }}"


def _bytes(name: str, data: bytes) -> str:
    return f".visible .global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};"


def iket_globals(events: dict[int, tuple[int, str]]) -> str:
    """The variables that describe IKET's events: by number, the position in a range (0 mark, 1 push, 4 range)."""
    lines = [
        _bytes(
            f"__iket_evt_decl_e{number}_{number}_attrs",
            struct.pack("<7I", 60, number, 3, 0, position, 0, len(name)) + name.encode().ljust(32, b"\0"),
        )
        for number, (position, name) in events.items()
    ]
    return "\n".join([*lines, _bytes("__iket_meta_info", struct.pack("<12I", 48, 0, 5, 31, 32, 60, 0, 0, 3, 0, 0, 0))])


def iket(number: int, payload: str = "") -> str:
    """An event of IKET; its store goes to reserved shared memory."""
    extra = f"st.weak.shared.b32 [%ir+4], {payload};" if payload else ""
    return f"""{{
.reg .b32 %ir, %it;
mov.b32 %ir, %cluster_ctarank;
mov.u32 %it, %globaltimer_lo;
or.b32 %it, %it, {number};
mad.lo.u32 %ir, %ir, 0x1000000, 0x3F0;
st.weak.shared.u32 [%ir], %it;
{extra}
pmevent.mask {number};
}}"""
