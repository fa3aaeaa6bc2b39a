"""Syntax tree of a PTX module: plain frozen values without text to interpret.

Source of the grammar: PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Instruction Operands".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_nvfp4.finding import Location


@dataclass(frozen=True, slots=True)
class Register:
    """A register of the kernel. ``slot`` numbers it from 0 in its kernel; ``bits`` is 1 for a predicate."""

    name: str
    slot: int
    bits: int
    negated: bool = False
    """True for ``!%p`` as an operand."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. ``value`` is its integer value, or the bit pattern of a floating-point literal (``0f...``, ``0d...``).

    ``bits`` is 32 or 64 for a floating-point literal and 0 for an integer, whose width is its use's.
    """

    value: int
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, by name without its percent sign: ``tid.x``, ``laneid``, ``clusterid.y``."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or parameter, or the name of a function, plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the code: the index of the instruction that it precedes (or the number of instructions)."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that is discarded."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]``. The base is a register, a symbol or an immediate; ``offset`` is in bytes."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, ...}``, never nested."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """``[tensorMap, {c0, c1, ...}]`` and ``[tensorMap, {...}, {...}]``: a tensor map's address and its coordinates."""

    base: Register | Symbol | Immediate
    offset: int
    vectors: tuple[Vector, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``a|b``: two results of one instruction (``setp``, ``shfl.sync``, ``elect.sync``)."""

    first: Register | Sink
    second: Register | Sink


Operand = Register | Immediate | Special | Symbol | Label | Sink | Address | Vector | TensorAddress | Pair


@dataclass(frozen=True, slots=True)
class Guard:
    """``@%p`` or ``@!%p`` before an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction. ``opcode`` is its whole dotted name; ``parts`` is that name split at single dots.

    ``shared::cta`` and the like stay one part. ``index`` counts the kernel's instructions from 0; ``ptx_line`` counts
    the module's lines from 1.
    """

    opcode: str
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None
    index: int
    ptx_line: int
    text: str = field(repr=False, default="")
    location: Location | None = field(repr=False, default=None)

    @property
    def root(self) -> str:
        """First part of the opcode: ``add``, ``tcgen05``."""
        return self.parts[0]

    def has(self, part: str) -> bool:
        """Return whether a modifier is present."""
        return part in self.parts


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter: ``size`` and ``align`` in bytes, ``offset`` in the parameter block."""

    name: str
    size: int
    align: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable outside registers. ``space`` is shared, global, const or local; ``size`` 0 for ``extern .shared x[]``.

    ``data`` holds the initial bytes of a global or constant (zeros where none are given), and ``addresses`` the byte
    offsets at which it has the address of a variable instead: offset, its name, and what is added.
    """

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""
    external: bool = False
    addresses: tuple[tuple[int, str, int], ...] = ()

    def initial(self, placed: Mapping[str, int]) -> bytes:
        """Return the initial bytes, where variables lie at the addresses ``placed``."""
        data = bytearray(self.data)
        for offset, name, added in self.addresses:
            data[offset : offset + 8] = ((placed[name] + added) & (1 << 64) - 1).to_bytes(8, "little")
        return bytes(data)

    @property
    def is_placed(self) -> bool:
        """Whether it has an address in device memory: its module's own, in global or constant memory."""
        return self.space in ("global", "const") and not self.external


@dataclass(frozen=True, slots=True)
class Kernel:
    """An ``.entry``. Missing performance directives are None."""

    name: str
    parameters: tuple[Parameter, ...]
    instructions: tuple[Instruction, ...]
    registers: tuple[Register, ...]
    """Registers by slot."""
    variables: tuple[Variable, ...]
    """Shared and local variables declared in the body, and the ``.param`` of its calls (module-level ones are the
    module's). A name that occurs twice gets ``@1``, ``@2`` ... appended, in the operands too."""
    required_threads: tuple[int, int, int] | None = None
    maximum_threads: tuple[int, int, int] | None = None
    required_cluster: tuple[int, int, int] | None = None
    explicit_cluster: bool = False
    directives: Mapping[str, str] = field(default_factory=dict)
    """Other directives by name without the dot (``minnctapersm``, ``maxnreg``, ``pragma`` ...)."""
    noreturn: frozenset[str] = frozenset()
    """External functions that never return."""
    llvm: bool = False
    """Whether the module's first comment names LLVM, by which Triton compiles, and not NVIDIA's compiler."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed PTX file."""

    version: str
    target: str
    kernels: Mapping[str, Kernel]
    variables: tuple[Variable, ...]
    """Module-level variables: shared, global, const."""
    externals: tuple[str, ...] = ()
    """Declared functions without a body (``vprintf``, ``__assertfail``)."""
