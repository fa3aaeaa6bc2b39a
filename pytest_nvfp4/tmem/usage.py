"""TMEM columns of a compiled kernel, read from the layouts of its named tensors.

The columns come from two independent sources: the layouts of its tensors *in TMEM*, and the formula of
`pytest_nvfp4.tmem.columns` for the tile of its MMA and of its operands' layouts *in shared memory*. If they differ, one
of them is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.measures import tmem_columns
from pytest_nvfp4.layout.roles import base_name, plain
from pytest_nvfp4.layout.tree import Tree, leaves
from pytest_nvfp4.tmem.columns import HALVED_SFA, Columns, MmaTile, TmemError, allocation, columns

Role = Literal["acc", "SFA", "SFB"]

_ACC = re.compile(r"tCtAcc(\d*)(?:_fake|_base)?")
_SCALES = re.compile(r"tCt(?P<role>SF[AB])(\d*)(?:_compact)?")
_MMA = re.compile(
    r"\bmma(?P<bs>_bs)?<(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+), num_cta = (?P<ctas>\d)(?:.*?vec_size = (?P<vec>\d+))?"
)
_OPERAND = re.compile(r"(?:tC)?s(?P<op>[AB])\d*")


@dataclass(frozen=True, slots=True)
class TmemTensor:
    """Tensor in TMEM with all of its names in the kernel.

    Attributes:
        role: Accumulator, SFA or SFB.
        names: Its names, the one with the most columns first.
        columns: Number of columns from its first to its last.
        stages: Number of accumulators; 1 for other roles.
        step: Columns from one accumulator stage to the next; 0 without stages.
    """

    role: Role
    names: tuple[str, ...]
    columns: int
    stages: int = 1
    step: int = 0


@dataclass(frozen=True)
class Usage:
    """TMEM of a kernel according to its layouts.

    Attributes:
        tensors: Tensors recognised by name.
        unknown: Names and columns of other tensors in TMEM; None for unknown columns.
        tile: Tile of the MMA and shared memory; None if it cannot be derived.
        why_no_tile: Reason why there is no tile.
    """

    tensors: tuple[TmemTensor, ...]
    unknown: tuple[tuple[str, int | None], ...]
    tile: MmaTile | None
    why_no_tile: str

    @property
    def total(self) -> int:
        """Columns of all recognised tensors side by side, a lower bound of what the kernel uses.

        Without recognised tensors, the columns of the largest.
        """
        if self.tensors:
            return sum(tensor.columns for tensor in self.tensors)
        return max((count for _, count in self.unknown if count is not None), default=0)

    @property
    def complete(self) -> bool:
        """Whether an accumulator is recognised and no other tensor is larger."""
        roles = {tensor.role for tensor in self.tensors}
        most = max((tensor.columns for tensor in self.tensors), default=0)
        return "acc" in roles and all(count is not None and count <= most for _, count in self.unknown)

    @property
    def allocation(self) -> int | None:
        """Smallest sufficient allocation; None if it does not fit."""
        return allocation(self.total)

    def of(self, role: Role) -> int:
        """Return the columns of one role."""
        return sum(tensor.columns for tensor in self.tensors if tensor.role == role)

    @property
    def formula(self) -> Columns | None:
        """Columns of the tile by formula, with the accumulator's stages."""
        return None if self.tile is None else columns(self.tile)

    def disagreements(self) -> list[str]:
        """Return the differences between formula and layouts; empty without a formula.

        Accumulators may overlap on purpose, so they are compared stage by stage and not by their sum.
        """
        differences: list[str] = []
        need = self.formula
        if need is None:
            return differences
        accumulators = [tensor for tensor in self.tensors if tensor.role == "acc"]
        for tensor in accumulators:
            stage = tensor.columns - (tensor.stages - 1) * tensor.step
            if stage != need.stage:
                differences.append(f"{tensor.names[0]}: {stage} columns a stage by layout, {need.stage} by formula")
        for role, formula in (("SFA", need.sfa), ("SFB", need.sfb)):
            for tensor in self.tensors:
                if tensor.role == role and tensor.columns != formula:
                    doubled = role == "SFA" and self.tile is not None and self.tile.halved
                    why = f" ({HALVED_SFA})" if doubled and tensor.columns == 2 * formula else ""
                    counts = f"{tensor.columns} columns by layout, {formula} by formula"
                    differences.append(f"{tensor.names[0]}: {counts}{why}")
        return differences


def usage(values: Iterable[tuple[str, str]]) -> Usage:
    """Return the TMEM usage of a kernel from the names (with their scope) and types of its values."""
    readable = list(_readable(values))
    by_tensor: dict[tuple[Role, str], list[tuple[str, TypeInfo, int]]] = {}
    unknown: dict[str, int | None] = {}
    for name, info in readable:
        if info.space != "tmem" or info.family != "memref":
            continue
        count = tmem_columns(info)
        key = _key(name)
        if key is None or count is None:
            if key is not None or not _is_view(name):
                unknown[name] = count
        else:
            by_tensor.setdefault(key, []).append((name, info, count))
    tensors = tuple(_tensor(key[0], _real(members)) for key, members in sorted(by_tensor.items()))
    known = {str(info) for members in by_tensor.values() for _, info, _ in members}
    types = {name: str(info) for name, info in readable}
    # A helper function binds the same tensor to its own parameter name.
    unknown = {name: count for name, count in unknown.items() if types[name] not in known}
    tile, why = _tile(readable, tensors)
    return Usage(tensors, tuple(unknown.items()), tile, why)


def of_kernel(values: Sequence[tuple[str, str]], kernel: str | None, *, alone: bool) -> list[tuple[str, str]]:
    """Return the values that one kernel of a trace binds.

    Args:
        values: All values of the trace.
        kernel: Name of the kernel's function in its machine code; None if unknown.
        alone: Whether it is the only kernel, so that values of helper functions belong to it too.
    """
    if alone or kernel is None:
        return list(values)
    return [(name, text) for name, text in values if kernel in name.split(".")[:-1]]


def _readable(values: Iterable[tuple[str, str]]) -> Iterable[tuple[str, TypeInfo]]:
    for name, text in values:
        if "tmem" not in text and "mma" not in text and "smem" not in text:
            continue
        try:
            yield name, parse_type(text)
        except LayoutError:
            continue


def _key(name: str) -> tuple[Role, str] | None:
    base = base_name(name)
    if (found := _ACC.fullmatch(base)) is not None:
        return "acc", found[1]
    if (found := _SCALES.fullmatch(base)) is not None:
        return ("SFA" if found["role"] == "SFA" else "SFB"), found[2]
    return None


def _is_view(name: str) -> bool:
    """Whether CuTe's naming makes this a view of another tensor (``tDtAcc``, ``tTR_tAcc``, ``tCtSFA_compact_s2t``)."""
    return re.fullmatch(r"t[A-Z][A-Za-z0-9]*_?t[A-Z]\w*|tAcc\w*|tCt\w+", base_name(name)) is not None


def _real(members: list[tuple[str, TypeInfo, int]]) -> list[tuple[str, TypeInfo, int]]:
    """Drop layouts without an address (``tCtAcc_fake``) if later ones replace them."""
    placed = [member for member in members if not base_name(member[0]).endswith("_fake")]
    return placed or members


def _tensor(role: Role, members: list[tuple[str, TypeInfo, int]]) -> TmemTensor:
    members = sorted(members, key=lambda member: -member[2])
    _, info, count = members[0]
    stages, step = 1, 0
    if role == "acc" and info.layout is not None:
        parts = modes(plain(info.layout))
        shape, stride = (parts[3].shape, parts[3].stride) if len(parts) == 4 else (1, 0)
        if isinstance(shape, int) and isinstance(stride, int) and shape > 1:
            stages, step = shape, stride
    return TmemTensor(role, tuple(dict.fromkeys(name for name, _, _ in members)), count, stages, step)


def _tile(values: Sequence[tuple[str, TypeInfo]], tensors: Sequence[TmemTensor]) -> tuple[MmaTile | None, str]:
    # A kernel with a 2-CTA MMA has a second tiled MMA of one CTA that only lays out SFB.
    atoms = {
        found.groups()
        for name, info in values
        if "sfb" not in base_name(name) and (found := _MMA.search(str(info))) is not None
    }
    # All tcgen05 instructions of a kernel have one .cta_group (PTX ISA): with a 2-CTA MMA, none of 1 CTA is executed.
    atoms = {atom for atom in atoms if atom[4] == "2"} or atoms
    if len(atoms) != 1:
        return None, "no MMA is among its values" if not atoms else "several MMAs are among its values"
    scaled, m, n, k, ctas, vector = next(iter(atoms))
    if not scaled or vector is None:
        return None, "its MMA is not block-scaled"
    rests: dict[str, set[tuple[int, int]]] = {"A": set(), "B": set()}
    for name, info in values:
        found = _OPERAND.fullmatch(base_name(name))
        if found is None or info.space != "smem" or info.layout is None or dtype_bits(info.dtype) != 4:
            continue
        parts = modes(plain(info.layout))
        counts = [_size(mode.shape) for mode in parts[1:3]] if len(parts) >= 3 else [None]
        if None not in counts:
            rests[found["op"]].add((counts[0] or 1, counts[1] or 1))
    if any(len(each) != 1 for each in rests.values()):
        return None, "the operands' tiles in shared memory (sA, sB) are not among its values, or differ"
    (rows, steps), (across, _) = next(iter(rests["A"])), next(iter(rests["B"]))
    stages = max((tensor.stages for tensor in tensors if tensor.role == "acc"), default=1)
    try:
        tile = MmaTile(int(m) * rows, int(n) * across, int(k) * steps, int(ctas), stages, int(vector))
    except TmemError as error:
        return None, str(error)
    return tile, ""


def _size(shape: Tree) -> int | None:
    sizes = [leaf for leaf in leaves(shape) if isinstance(leaf, int)]
    return prod(sizes) if len(sizes) == len(leaves(shape)) else None
