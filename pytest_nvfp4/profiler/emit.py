"""The device code of regions: PTX that a region adds to the kernel that is being compiled.

Each channel that a kernel uses (``records``) has two values at the kernel's entry: the address of its warp's slice (0
in lanes that do not record, and in warps without a slice) and a counter of events. The counter is a stack variable,
which LLVM keeps in a register; so regions need neither shared memory nor a variable that loops must carry, and values
made inside a region are usable behind it. An event reads the clocks, and stores 16 bytes and the count, without a
branch and without waiting for either.

Every event also defines a register ``nvfp4_KIND_NAME`` (the name in hexadecimal) that nothing reads. ptxas removes it;
in PTX it says where regions begin and end, which the simulator and the time model read (``sim.ptx.marks``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol

from pytest_nvfp4.profiler.records import (
    EVENT_WORDS,
    HEAD_WORDS,
    HEADER_WORDS,
    MOST_REGIONS,
    Kind,
    slice_words,
    tag,
)

Scope = Literal["warp", "elected", "block"]
_SCOPES = ("warp", "elected", "block")
LONGEST_NAME = 60
"""Bytes of a region's name in UTF-8."""

_ENTRY = """{{
.reg .pred mine, first;
.reg .b32 n, t, l, c, g, h, s, gx, gy, gz, bx, by, bz;
.reg .b64 w, cta;
mov.u32 gx, %nctaid.x; mov.u32 gy, %nctaid.y; mov.u32 gz, %nctaid.z;
mov.u32 bx, %ntid.x; mov.u32 by, %ntid.y; mov.u32 bz, %ntid.z;
mov.u32 t, %ctaid.z; mov.u32 l, %ctaid.y; mad.lo.u32 t, t, gy, l;
mov.u32 l, %ctaid.x; cvt.u64.u32 w, l; mad.wide.u32 cta, t, gx, w;
mul.lo.u32 n, bx, by; mad.lo.u32 n, n, bz, 31; shr.u32 n, n, 5;
mov.u32 t, %tid.z; mov.u32 l, %tid.y; mad.lo.u32 t, t, by, l;
mov.u32 l, %tid.x; mad.lo.u32 t, t, bx, l; shr.u32 l, t, 5;
cvt.u64.u32 w, n; mul.lo.u64 cta, cta, w; cvt.u64.u32 w, l; add.u64 w, cta, w;
mov.u64 $0, 0;
setp.lt.u64 mine, w, {slices};
@mine mad.lo.u64 $0, w, {slice_bytes}, $1;
and.b32 l, t, 31;
setp.eq.and.u32 mine, l, 0, mine;
mov.u32 s, %smid; mov.u32 c, %clock; mov.u32 g, %globaltimer_lo; mov.u32 h, %globaltimer_hi; mov.u32 n, 0;
@mine st.global.v4.b32 [$0], {{n, s, c, g}};
mov.u32 s, 1;
@mine st.global.v4.b32 [$0+16], {{h, s, n, n}};
{after}
}}"""
_CHANNELS = (
    # Other lanes than 0 get no address, and the first warp describes the launch.
    """setp.eq.and.u64 first, w, 0, mine;
@!mine mov.u64 $0, 0;
@first st.global.v4.b32 [$1+-{header_bytes}], {{gx, gy, gz, bx}};
@first st.global.v2.b32 [$1+-{header_bytes}+16], {{by, bz}};
@first red.relaxed.gpu.global.add.u32 [$1+-{header_bytes}+24], s;""",
    # A lane that is elected later counts on from what lane 0 has stored.
    "bar.warp.sync 0xFFFFFFFF;",
)
_LANES = {
    "warp": "setp.ne.u64 p, $2, 0; mov.u32 l, $3;",
    "block": """setp.ne.u64 p, $2, 0; mov.u32 l, %tid.x; mov.u32 t, %tid.y; or.b32 l, l, t; mov.u32 t, %tid.z;
or.b32 l, l, t; setp.eq.and.u32 p, l, 0, p; mov.u32 l, $3;""",
    "elected": """setp.ne.u64 p, $2, 0; activemask.b32 l; mov.u32 t, %lanemask_lt; and.b32 l, l, t;
setp.eq.and.u32 p, l, 0, p; mov.u32 l, %laneid; shl.b32 l, l, 25; or.b32 l, l, $3;""",
}
_EVENT = """{{
.reg .pred p, q;
.reg .b32 c, g, l, t, nvfp4_{kind}_{name};
.reg .b64 a;
{lane}
@p mov.b32 nvfp4_{kind}_{name}, 0;
mov.u32 c, %clock; mov.u32 g, %globaltimer_lo;
setp.lt.and.u32 q, $1, {events}, p;
mad.wide.u32 a, $1, {event_bytes}, $2;
@q st.global.v4.b32 [a+{head_bytes}], {{c, g, l, $4}};
mov.u32 $0, $1;
@p add.u32 $0, $0, 1;
@p st.global.b32 [$2], $0;
}}"""


class Recorder(Protocol):
    """Where a session keeps the buffers of kernels."""

    slices: int
    events: int

    def buffer(self, kernel: str) -> tuple[int, int, dict[str, int]]:
        """Return the number of a kernel that is being compiled, the address of its buffer, and its regions."""


class Switch:
    """Whether regions record, in this process: kernels are traced by plain functions that no session is given to."""

    recorder: ClassVar[Recorder | None] = None
    kernels: ClassVar[dict[int, _Kernel]] = {}


@dataclass(slots=True)
class _Kernel:
    """A kernel while it is compiled: by channel, the address of the slice and the stack variable of the counter."""

    recorder: Recorder
    address: int
    regions: dict[str, int]
    channels: dict[int, tuple[Any, Any]] = field(default_factory=dict)


class region:
    """A region of a kernel: a context manager, ``region_start`` and ``region_stop`` without one.

    Args:
        name: What it is called; at most 60 bytes.
        scope: Who records: ``warp`` (lane 0 of each warp that enters it), ``elected`` (the lowest active lane, for code
            of one elected lane), or ``block`` (the first thread of each CTA).
        value: An integer to keep with the begin, such as the number of a tile: a Python or DSL integer, of 32 bits.

    Raises ValueError for a name or scope that cannot be.
    """

    __dsl_trace_time_ctxmgr__ = True  # CuTe DSL: enter and leave when the kernel is traced

    def __init__(self, name: str, *, scope: Scope = "warp", value: Any = None) -> None:
        _check(name, scope)
        self._name, self._scope, self._value = name, scope, value

    def __enter__(self) -> None:
        _event(Kind.BEGIN, self._name, self._scope, self._value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            _event(Kind.END, self._name, self._scope, None)


def region_start(name: str, *, scope: Scope = "warp", value: Any = None) -> None:
    """Begin a region where a ``with`` does not fit; ``region_stop`` of the same name and scope ends it."""
    _check(name, scope)
    _event(Kind.BEGIN, name, scope, value)


def region_stop(name: str, *, scope: Scope = "warp") -> None:
    """End a region that ``region_start`` began."""
    _check(name, scope)
    _event(Kind.END, name, scope, None)


def region_mark(name: str, *, scope: Scope = "warp", value: Any = None) -> None:
    """Record a moment."""
    _check(name, scope)
    _event(Kind.MARK, name, scope, value)


def _check(name: str, scope: str) -> None:
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME
        or not name.isprintable()
    ):
        raise ValueError(f"region {name!r}: a name is printable text of 1 to {LONGEST_NAME} bytes")
    if scope not in _SCOPES:
        raise ValueError(f"region {name!r}: scope {scope!r} must be one of {', '.join(_SCOPES)}")


def _event(kind: Kind, name: str, scope: Scope, value: Any) -> None:
    recorder = Switch.recorder
    if recorder is None:
        return
    function = _function()
    if function is None:  # host code, which a GPU cannot time
        raise RuntimeError(
            f"region {name!r} is not inside a kernel: regions are for the code of @cute.kernel functions"
        )
    number, kernel = _kernel(function, recorder)
    known = kernel.regions.setdefault(name, len(kernel.regions))
    if known >= MOST_REGIONS:
        raise RuntimeError(f"a kernel has at most {MOST_REGIONS} regions")
    channel = int(scope == "elected")
    for needed in (0, channel):  # the first channel describes the launch
        if needed not in kernel.channels:
            kernel.channels[needed] = _begin(function, number, kernel, needed)
    address, counter = kernel.channels[channel]
    ir, llvm = import_module("cutlass._mlir.ir"), import_module("cutlass._mlir.dialects.llvm")
    word = ir.IntegerType.get_signless(32)
    text = _EVENT.format(
        kind=kind.name.lower(),
        name=name.encode().hex(),
        lane=_LANES[scope],
        events=recorder.events,
        event_bytes=4 * EVENT_WORDS,
        head_bytes=4 * HEAD_WORDS,
    )
    count = llvm.load(word, counter)
    operands = [count, address, _constant(word, tag(kind, known)), _word(value, word)]
    llvm.store(_assembly(word, text, "=&r,r,l,r,r", operands), counter)


def _function() -> Any:
    """Return the operation of the kernel that is being traced, or None outside of one."""
    ir = import_module("cutlass._mlir.ir")
    try:
        above = ir.InsertionPoint.current.block.owner.operation
    except ValueError:  # nothing is being compiled
        return None
    found = None
    while above.parent is not None:
        found, above = above, above.parent.operation
        if above.name == "gpu.module":
            return found
    return None


def _kernel(function: Any, recorder: Recorder) -> tuple[int, _Kernel]:
    """Return a kernel by its number, which the comment of its first instruction holds; make one at its first region."""
    entry = function.regions[0].blocks[0]
    for operation in entry.operations:
        text = str(operation.attributes["asm_string"]) if "asm_string" in operation.attributes else ""
        if "// nvfp4 regions " in text:
            number = int(text.split("// nvfp4 regions ")[1].split()[0])
            return number, Switch.kernels[number]
    name = str(function.attributes["sym_name"]).strip('"')
    number, address, regions = recorder.buffer(name)
    made = Switch.kernels[number] = _Kernel(recorder, address, regions)
    return number, made


def _begin(function: Any, number: int, kernel: _Kernel, channel: int) -> tuple[Any, Any]:
    """Add a channel at the entry of a kernel, and return the address of its slice and its counter."""
    ir, llvm = import_module("cutlass._mlir.ir"), import_module("cutlass._mlir.dialects.llvm")
    word, wide = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
    size, header = 4 * slice_words(kernel.recorder.events), 4 * HEADER_WORDS
    own = channel * kernel.recorder.slices * size
    text = _ENTRY.format(
        slices=kernel.recorder.slices, slice_bytes=size, after=_CHANNELS[channel].format(header_bytes=header)
    )
    with ir.InsertionPoint.at_block_begin(function.regions[0].blocks[0]):
        base = _constant(wide, kernel.address + header + own)
        address = _assembly(wide, f"// nvfp4 regions {number} \n{text}", "=&l,l", [base])
        counter = llvm.alloca(ir.Type.parse("!llvm.ptr"), _constant(word, 1), word)
        llvm.store(_constant(word, 0), counter)
    return address, counter


def _assembly(result: Any, text: str, constraints: str, operands: list[Any]) -> Any:
    llvm = import_module("cutlass._mlir.dialects.llvm")
    return llvm.inline_asm(
        result,
        operands,
        text,
        f"{constraints},~{{memory}}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def _constant(kind: Any, value: int) -> Any:
    ir, arith = import_module("cutlass._mlir.ir"), import_module("cutlass._mlir.dialects.arith")
    signed = value - (1 << kind.width) if value >> kind.width - 1 else value
    return arith.constant(kind, ir.IntegerAttr.get(kind, signed))


def _word(value: Any, kind: Any) -> Any:
    """Return a value of the kernel as a word."""
    if value is None or isinstance(value, int):
        return _constant(kind, (value or 0) & 0xFFFFFFFF)
    return import_module("cutlass").Int32(value).ir_value()
