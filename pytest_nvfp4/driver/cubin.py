"""Reader of CUBINs: kernels, their parameter sizes, static shared memory, registers and local memory.

Host code embeds its CUBIN in a "fat binary" container. A CUBIN is a 64-bit ELF file. Kernel ``k`` has a section
``.text.k``; its ``.nv.info.k`` section is a list of attributes, of which each ``EIATTR_KPARAM_INFO`` describes one
parameter, or each ``EIATTR_KPARAM_INFO_V2`` if all have more than 4 KiB together. A function that is not inlined has
these sections, too; only a kernel's symbol is marked as an entry. The module's ``.nv.info`` has an
``EIATTR_REGCOUNT`` and an ``EIATTR_FRAME_SIZE`` for each function, by the symbol in the section header of ``.text.k``.
``cuobjdump -elf`` prints the names of the attribute numbers.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_ELF_MAGIC: Final = b"\x7fELF"
_EM_CUDA: Final = 190
_EIATTR_KPARAM_INFO: Final = 0x17
_EIATTR_KPARAM_INFO_V2: Final = 0x45
_EIATTR_CBANK_PARAM_SIZE: Final = 0x19
_EIATTR_REGCOUNT: Final = 0x2F
_EIATTR_FRAME_SIZE: Final = 0x11
_EIATTR_MAX_THREADS: Final = 0x05
_EIATTR_REQNTID: Final = 0x10
_EIATTR_REG_RECONFIG: Final = 0x54
_CTA_GROUPS: Final = {0x51: "cta_group::1", 0x52: "cta_group::2"}
"""EIATTR_TCGEN05_1CTA_USED and EIATTR_TCGEN05_2CTA_USED, and the modifiers of tcgen05 that they stand for."""
_EIFMT_SIZED: Final = 4
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_STO_CUDA_ENTRY: Final = 0x10
_HEADER_BYTES: Final = 64
FATBIN_MAGIC: Final = b"\x50\xed\x55\xba"
_FATBIN_ELF: Final = 2
_SHT_NOBITS: Final = 8
_RESERVED_SMEM: Final = "reserved.0"
_RESERVED_SMEM_BYTES: Final = 1024
_MAX_PARAM_BYTES: Final = (1 << 14) - 1
_MAX_IMAGE_BYTES: Final = 1 << 30


class CubinError(ValueError):
    """Bytes that are not a readable CUBIN."""


@dataclass(frozen=True, slots=True)
class CubinKernel:
    """A kernel of a CUBIN.

    Attributes:
        params: ``(offset, size)`` in bytes of each parameter, in order.
        static_smem: Static shared memory in bytes.
        registers: Registers per thread at the launch; None if the CUBIN has no count.
        local_bytes: Local memory per thread in bytes, that of spilled registers included; None if it has no count.
        threads: The only shape of a CTA with which it may be launched; None for any.
        most_threads: Threads of the largest CTA with which it may be launched (``__launch_bounds__``); None for any.
        cta_groups: Modifiers of its tcgen05 instructions: ``cta_group::1``.
        moves_registers: Whether its code has ``setmaxnreg``. ptxas drops it from a kernel whose registers nothing
            bounds (message C7508), or some of whose code needs more of them than it would have (C7507).
    """

    name: str
    params: tuple[tuple[int, int], ...]
    static_smem: int
    registers: int | None = None
    local_bytes: int | None = None
    threads: tuple[int, int, int] | None = None
    cta_groups: frozenset[str] = frozenset()
    moves_registers: bool = False
    most_threads: int | None = None


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    info: int


def image_at(address: int) -> bytes:
    """Copy the CUBIN or fat binary at ``address`` of this process, and return the CUBIN.

    ``cudaLibraryLoadData`` has no length argument, so the length is computed from the headers, as by the driver.

    Raises:
        CubinError: neither is there, or the fat binary does not have exactly one uncompressed CUBIN.
    """
    if ctypes.string_at(address, 4) == FATBIN_MAGIC:
        return _only_elf(address)
    header = ctypes.string_at(address, _HEADER_BYTES)
    _check_header(header)
    phoff, shoff = struct.unpack_from("<QQ", header, 32)
    phentsize, phnum, shentsize, shnum, _ = struct.unpack_from("<HHHHH", header, 54)
    size = max(_HEADER_BYTES, phoff + phentsize * phnum, shoff + shentsize * shnum)
    if size > _MAX_IMAGE_BYTES:
        raise CubinError(f"the ELF header at {address:#x} claims {size} bytes, which is not plausible for a CUBIN")
    image = ctypes.string_at(address, size)
    end = max((s.offset + s.size for s in _sections(image) if s.kind != _SHT_NOBITS), default=0)
    return image if end <= size else ctypes.string_at(address, end)


def _only_elf(address: int) -> bytes:
    _, _, header_size, body_size = struct.unpack("<IHHQ", ctypes.string_at(address, 16))
    if body_size > _MAX_IMAGE_BYTES:
        raise CubinError(f"the fat binary at {address:#x} claims {body_size} bytes, which is not plausible")
    body = ctypes.string_at(address + header_size, body_size)
    found = []
    at = 0
    while at < len(body):
        kind, _, entry_header, payload = struct.unpack_from("<HHIQ", body, at)
        if not entry_header:
            raise CubinError(f"the fat binary at {address:#x} is damaged at byte {header_size + at}")
        if kind == _FATBIN_ELF:
            found.append(body[at + entry_header : at + entry_header + payload])
        at += entry_header + payload
    if len(found) != 1:
        raise CubinError(f"the fat binary has {len(found)} CUBINs, expected one: compile for a single architecture")
    if found[0][:4] != _ELF_MAGIC:
        raise CubinError("the CUBIN in the fat binary is compressed: expected the DSL's uncompressed format")
    return found[0]


def parse(image: bytes) -> dict[str, CubinKernel]:
    """Parse the kernels of a CUBIN, by symbol.

    Raises:
        CubinError: not a GPU ELF file, truncated, or a kernel without parameter information.
    """
    _check_header(image)
    try:
        sections = _sections(image)
        smem = {s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")}
        reserved = _RESERVED_SMEM_BYTES if _RESERVED_SMEM in smem else 0
        functions = _functions(image, sections)
        registers = _counts(image, sections, _EIATTR_REGCOUNT)
        frames = _counts(image, sections, _EIATTR_FRAME_SIZE)
        kernels = {}
        for section in sections:
            if section.name.startswith(".nv.info."):
                name = section.name.removeprefix(".nv.info.")
                if name in functions:
                    continue
                blob = image[section.offset : section.offset + section.size]
                params = _params(name, blob)
                # From sm_90 on, a kernel's section includes the system's reserved shared memory of each CTA, 1024
                # bytes: 512 static bytes make a section of 1536 bytes, dynamic shared memory alone one of 1024.
                static = smem.get(name, 0)
                static -= reserved if static >= reserved else 0
                most = _threads(blob, _EIATTR_MAX_THREADS)
                kernels[name] = CubinKernel(
                    name=name,
                    params=params,
                    static_smem=static,
                    registers=registers.get(name),
                    local_bytes=frames.get(name),
                    threads=_threads(blob, _EIATTR_REQNTID),
                    cta_groups=frozenset(_CTA_GROUPS[at] for at, _, _ in _attributes(blob) if at in _CTA_GROUPS),
                    moves_registers=any(at == _EIATTR_REG_RECONFIG for at, _, _ in _attributes(blob)),
                    most_threads=None if most is None else math.prod(most),
                )
    except CubinError:
        raise
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise CubinError(f"the CUBIN of {len(image)} bytes is truncated or damaged ({error})") from error
    return kernels


def moved_registers(kernels: Mapping[str, CubinKernel]) -> dict[str, int]:
    """Return, by symbol, the registers per thread at the launch of the kernels that have ``setmaxnreg``."""
    return {
        name: kernel.registers
        for name, kernel in kernels.items()
        if kernel.moves_registers and kernel.registers is not None
    }


def _check_header(image: bytes) -> None:
    if image[:4] != _ELF_MAGIC or len(image) < _HEADER_BYTES:
        raise CubinError(f"the module image starts with {image[:4]!r}, expected an ELF file: is it a fatbin or PTX?")
    if image[4] != 2:
        raise CubinError("the module image is a 32-bit ELF file, a CUBIN is 64-bit")
    (machine,) = struct.unpack_from("<H", image, 18)
    if machine != _EM_CUDA:
        raise CubinError(f"the module image is an ELF file for machine {machine}, expected {_EM_CUDA} (CUDA)")


def _sections(image: bytes) -> list[_Section]:
    (shoff,) = struct.unpack_from("<Q", image, 40)
    shentsize, shnum, shstrndx = struct.unpack_from("<HHH", image, 58)
    raw = [struct.unpack_from("<IIQQQQII", image, shoff + i * shentsize) for i in range(shnum)]
    names = raw[shstrndx][4]
    found = []
    for name, kind, _, _, offset, size, _, info in raw:
        start = names + name
        found.append(_Section(image[start : image.index(b"\0", start)].decode(), kind, offset, size, info))
    return found


def _functions(image: bytes, sections: list[_Section]) -> set[str]:
    """Return the functions that are no kernels: debug builds inline none."""
    start, size = next(((each.offset, each.size) for each in sections if each.name == ".symtab"), (0, 0))
    found = set()
    for section in sections:
        at = _SYMBOL.size * (section.info & 0xFF_FFFF)
        if section.name.startswith(".text.") and at + _SYMBOL.size <= size:
            _, _, other, *_ = _SYMBOL.unpack_from(image, start + at)
            if not other & _STO_CUDA_ENTRY:
                found.add(section.name.removeprefix(".text."))
    return found


def _counts(image: bytes, sections: list[_Section], which: int) -> dict[str, int]:
    """Return a count of the module's by kernel; the lower three bytes of a section's info are the symbol's number."""
    counts: dict[int, int] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, _, payload in _attributes(image[section.offset : section.offset + section.size]):
                if attribute == which:
                    symbol, count = struct.unpack_from("<II", payload)
                    counts[symbol] = count
    named = ((s.name.removeprefix(".text."), s.info & 0xFF_FFFF) for s in sections if s.name.startswith(".text."))
    return {name: counts[symbol] for name, symbol in named if symbol in counts}


def _attributes(blob: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield ``(attribute, inline value, payload)`` of a ``.nv.info`` section."""
    at = 0
    while at < len(blob):
        form, attribute, value = struct.unpack_from("<BBH", blob, at)
        at += 4
        length = value if form == _EIFMT_SIZED else 0
        yield attribute, value, blob[at : at + length]
        at += length


def _threads(blob: bytes, which: int) -> tuple[int, int, int] | None:
    for attribute, _, payload in _attributes(blob):
        if attribute == which:
            x, y, z = struct.unpack_from("<III", payload)
            return x, y, z
    return None


def _params(name: str, blob: bytes) -> tuple[tuple[int, int], ...]:
    found: dict[int, tuple[int, int]] = {}
    total = 0
    most = _MAX_PARAM_BYTES
    for attribute, value, payload in _attributes(blob):
        if attribute == _EIATTR_KPARAM_INFO:
            _, ordinal, offset, flags = struct.unpack_from("<IHHI", payload)
            found[ordinal] = (offset, flags >> 18)
        elif attribute == _EIATTR_KPARAM_INFO_V2:
            _, ordinal, offset, flags = struct.unpack_from("<IHHI", payload)
            found[ordinal] = (offset, flags & 0xFFFF)
            most = 0xFFFF
        elif attribute == _EIATTR_CBANK_PARAM_SIZE:
            total = value
    if sorted(found) != list(range(len(found))):
        raise CubinError(f"kernel {name} describes parameters {sorted(found)}: one is missing")
    params = tuple(found[i] for i in range(len(found)))
    starts = [offset for offset, _ in params[1:]] + [total]
    if any(start - offset > most for (offset, _), start in zip(params, starts, strict=False)):
        raise CubinError(f"kernel {name}: a parameter exceeds the {most} bytes that its record can express")
    end = max((offset + size for offset, size in params), default=0)
    if end > total:
        raise CubinError(f"kernel {name}: the parameters end at byte {end}, but the parameter area has {total} bytes")
    return params
