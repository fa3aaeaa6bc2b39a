"""How many TMEM columns a compiled kernel uses, read from the layouts of its named tensors.

Two ways that share nothing but the kernel: the layouts of its tensors *in TMEM* say what they cover, and its MMA with
the layouts of its operands *in shared memory* says which tile it has, from which the formula of
`pytest_nvfp4.tmem.columns` gives the same numbers, or one of them is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import TypeInfo, dtype_bits, parse_type
from pytest_nvfp4.layout.measures import tmem_columns
from pytest_nvfp4.layout.roles import base_name, plain, top_modes
from pytest_nvfp4.layout.tree import Dynamic, leaves
from pytest_nvfp4.tmem.columns import HALVED_SFA, Columns, MmaTile, TmemError, allocation, columns

Role = Literal["acc", "SFA", "SFB"]

_ACC = re.compile(r"tCtAcc(\d*)(?:_fake|_base)?")
_SCALES = re.compile(r"tCt(?P<role>SF[AB])(\d*)(?:_compact)?")
_MMA = re.compile(
    r"\bmma(?P<bs>_bs)?<(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+), num_cta = (?P<ctas>\d)(?:.*?vec_size = (?P<vec>\d+))?"
)
_OPERAND = re.compile(r"(?:tC)?s(?P<op>[AB])\d*")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in TMEM under all the names that the kernel has for it.

    Attributes:
        role: What it is.
        names: Its names, the one with the most columns first.
        columns: From its first column to its last.
        stages: Of an accumulator, how many; 1 for others.
        step: Of staged accumulators, columns from one to the next; 0 for others.
    """

    role: Role
    names: tuple[str, ...]
    columns: int
    stages: int = 1
    step: int = 0


@dataclass(frozen=True)
class Usage:
    """What the layouts of a trace say.

    Attributes:
        tensors: The tensors that are known by name.
        unknown: Names of tensors in TMEM whose columns are not known, or that no rule knows, and their columns.
        tile: The tile as the MMA and shared memory have it; None where that is not plain.
        why_no_tile: Why not.
    """

    tensors: tuple[Tensor, ...]
    unknown: tuple[tuple[str, int | None], ...]
    tile: MmaTile | None
    why_no_tile: str

    @property
    def total(self) -> int:
        """Columns of all tensors that are known, side by side: the kernel uses at least so many.

        Where none is known by name, those of the largest.
        """
        if self.tensors:
            return sum(tensor.columns for tensor in self.tensors)
        return max((count for _, count in self.unknown if count is not None), default=0)

    @property
    def complete(self) -> bool:
        """Whether an accumulator is known, and nothing larger is left unexplained."""
        roles = {tensor.role for tensor in self.tensors}
        most = max((tensor.columns for tensor in self.tensors), default=0)
        return "acc" in roles and all(count is not None and count <= most for _, count in self.unknown)

    @property
    def allocation(self) -> int | None:
        """What would have to be allocated; None where it does not fit."""
        return allocation(self.total)

    def of(self, role: Role) -> int:
        """Columns of one role."""
        return sum(tensor.columns for tensor in self.tensors if tensor.role == role)

    @property
    def formula(self) -> Columns | None:
        """The columns of the tile by formula, with the stages that the accumulator has."""
        return None if self.tile is None else columns(self.tile)

    def disagreements(self) -> list[str]:
        """Where formula and layouts differ; nothing where there is no formula.

        Accumulators that overlap on purpose cover fewer columns than side by side, and are compared stage by stage.
        """
        found: list[str] = []
        need = self.formula
        if need is None:
            return found
        accumulators = [tensor for tensor in self.tensors if tensor.role == "acc"]
        for tensor in accumulators:
            stage = tensor.columns - (tensor.stages - 1) * tensor.step
            if stage != need.stage:
                found.append(f"{tensor.names[0]}: {stage} columns a stage by layout, {need.stage} by formula")
        for role, formula in (("SFA", need.sfa), ("SFB", need.sfb)):
            for tensor in self.tensors:
                if tensor.role == role and tensor.columns != formula:
                    doubled = role == "SFA" and self.tile is not None and self.tile.halved
                    why = f" ({HALVED_SFA})" if doubled and tensor.columns == 2 * formula else ""
                    found.append(f"{tensor.names[0]}: {tensor.columns} columns by layout, {formula} by formula{why}")
        return found


def usage(values: Iterable[tuple[str, str]]) -> Usage:
    """The TMEM of a kernel.

    Args:
        values: Names (with their scope) and types of everything that one kernel binds.
    """
    readable = list(_readable(values))
    found: dict[tuple[Role, str], list[tuple[str, TypeInfo, int]]] = {}
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
            found.setdefault(key, []).append((name, info, count))
    tensors = tuple(_tensor(key[0], _real(members)) for key, members in sorted(found.items()))
    known = {str(info) for members in found.values() for _, info, _ in members}
    types = {name: str(info) for name, info in readable}
    # A helper function has the same tensor under a name of its own.
    unknown = {name: count for name, count in unknown.items() if types[name] not in known}
    tile, why = _tile(readable, tensors)
    return Usage(tensors, tuple(unknown.items()), tile, why)


def of_kernel(values: Sequence[tuple[str, str]], kernel: str | None, *, alone: bool) -> list[tuple[str, str]]:
    """Those values that one kernel of a trace binds.

    Args:
        values: Everything that the trace has.
        kernel: The function of the kernel, as its machine code names it; None where that is not known.
        alone: It is the only kernel: then the values of helper functions are its own too.
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
    """Whether a name is CuTe's for a part of another tensor (``tDtAcc``, ``tTR_tAcc``, ``tCtSFA_compact_s2t``)."""
    return re.fullmatch(r"t[A-Z][A-Za-z0-9]*_?t[A-Z]\w*|tAcc\w*|tCt\w+", base_name(name)) is not None


def _real(members: list[tuple[str, TypeInfo, int]]) -> list[tuple[str, TypeInfo, int]]:
    """The members without layouts made before there was an address (``tCtAcc_fake``), which later ones replace."""
    placed = [member for member in members if not base_name(member[0]).endswith("_fake")]
    return placed or members


def _tensor(role: Role, members: list[tuple[str, TypeInfo, int]]) -> Tensor:
    members = sorted(members, key=lambda member: -member[2])
    _, info, count = members[0]
    stages, step = 1, 0
    if role == "acc" and info.layout is not None:
        modes = top_modes(plain(info.layout))
        shape, stride = (modes[3].shape, modes[3].stride) if len(modes) == 4 else (1, 0)
        if isinstance(shape, int) and isinstance(stride, int) and shape > 1:
            stages, step = shape, stride
    return Tensor(role, tuple(dict.fromkeys(name for name, _, _ in members)), count, stages, step)


def _tile(values: Sequence[tuple[str, TypeInfo]], tensors: Sequence[Tensor]) -> tuple[MmaTile | None, str]:
    # The pair's MMA has a second one beside it, of one CTA, that only lays out SFB.
    atoms = {
        found.groups()
        for name, info in values
        if "sfb" not in base_name(name) and (found := _MMA.search(str(info))) is not None
    }
    # All tcgen05 instructions of a kernel have one .cta_group, so beside a pair's MMA none of one CTA is executed.
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
        modes = top_modes(plain(info.layout))
        counts = [_size(mode.shape) for mode in modes[1:3]] if len(modes) >= 3 else [None]
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


def _size(shape: object) -> int | None:
    total = 1
    for leaf in leaves(shape):  # type: ignore[arg-type]
        if isinstance(leaf, Dynamic) or not isinstance(leaf, int):
            return None
        total *= leaf
    return total
