"""Roles of the modes of a named layout, such as ``(MMA, MMA_M, MMA_K, STAGE)``.

A role follows from the variable's name *and* its type. CuTe's naming convention defines names such as ``tCgSFA`` (its
tutorial "0x_gemm_tutorial.md": ``tXyZ`` is partitioning ``tX`` of tensor ``Z`` in memory ``y``), and NVIDIA's Blackwell
examples and GPU MODE's template document the modes of each. A rule applies only if the memory space and the number of
modes agree with it. If no rule applies, or the rules are ambiguous, the role is unknown; it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.irtypes import TypeInfo
from pytest_nvfp4.layout.notation import AnyLayout, ComposedLayout, Layout
from pytest_nvfp4.layout.tree import Tree

Path = tuple[int, ...]

_GROUPED = "NVIDIA CUTLASS examples/python/CuTeDSL/blackwell/grouped_blockscaled_gemm.py"
_TEMPLATE = "GPU MODE's nvfp4_group_gemm template"
_SF_ATOM = "cuBLAS 128x4 block-scaling layout: CuTe's atom ((32,4),(16,4)):((16,4),(0,1))"


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of one layout's modes.

    Attributes:
        modes: one role per top-level mode.
        inner: known roles of nested modes, by path; ``(0, 1)`` is the second part of the first mode.
        source: source of the rule.
    """

    modes: tuple[str, ...]
    source: str
    inner: Mapping[Path, str] = field(default_factory=dict)

    def at(self, path: Path) -> str | None:
        """Return the role of the mode at ``path``: or of the nearest enclosing mode."""
        if not path or path[0] >= len(self.modes):
            return None
        for depth in range(len(path), 1, -1):
            if (role := self.inner.get(path[:depth])) is not None:
                return f"{self.modes[path[0]]}.{role}"
        return self.modes[path[0]]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Roles by number of modes for matching names; ``{X}`` in a role is M for operand A and N for B."""

    name: re.Pattern[str]
    families: frozenset[str]
    spaces: frozenset[str | None]
    roles: Mapping[int, tuple[str, ...]]
    source: str
    first: tuple[str, ...] = ()


def _rule(
    name: str, where: str, roles: tuple[str, ...], source: str, *, families: str = "memref", first: str = ""
) -> _Rule:
    """Make a rule from comma-separated ``roles``, one list for each number of modes."""
    by_rank = {len(names): names for names in (tuple(text.split(",")) for text in roles)}
    spaces = frozenset(None if space == "-" else space for space in where.split())
    parts = tuple(first.split(",")) if first else ()
    return _Rule(re.compile(name), frozenset(families.split()), spaces, by_rank, source, parts)


_OPERAND = r"(?P<op>SF[AB]|[AB])\d*"
_LOWER = r"(?P<op>sf[ab]|[ab])\d*"
# Coordinate tensors print no space; a layout alone has none.
_RULES = (
    _rule(
        rf"s{_OPERAND}",
        "smem",
        ("MMA,MMA_{X},MMA_K,STAGE",),
        f"{_GROUPED}: 'Setup smem tensor A/B/SFA/SFB'",
        first="{X},K",
    ),
    _rule(
        rf"{_LOWER}_smem(?:_layout)?(?:_staged)?",
        "-",
        ("MMA,MMA_{X},MMA_K", "MMA,MMA_{X},MMA_K,STAGE"),
        "cutlass.utils make_smem_layout_a/b and make_smem_layout_sfa/sfb; the slice of one stage has no STAGE",
        families="layout composed_layout",
        first="{X},K",
    ),
    _rule(
        rf"tCr{_OPERAND}",
        "- smem",
        ("MMA,MMA_{X},MMA_K,STAGE",),
        f"{_GROUPED}: make_fragment_A/B",
        families="smem_desc_view",
    ),
    _rule(
        rf"m{_OPERAND}(?:_(?:mkl|nkl)\d*)?",
        "gmem -",
        ("{X},K,L",),
        f"{_TEMPLATE}: a and b are (M|N, K, L), the scales ((Atom,Rest),(Atom,Rest),L)",
        families="memref coord_tensor",
        first="Atom_{X},Rest_{X}",
    ),
    _rule(
        r"(?P<op>sf[ab])\d*_layout",
        "-",
        ("{X},K,L",),
        f"{_TEMPLATE}: tile_atom_to_shape_SF, ((Atom,Rest),(Atom,Rest),L)",
        families="layout",
        first="Atom_{X},Rest_{X}",
    ),
    _rule(
        r"m(?:C|D)(?:_mnl?)?",
        "gmem -",
        ("M,N,L", "M,N"),
        f"{_TEMPLATE}: c is (M, N, L)",
        families="memref coord_tensor",
    ),
    _rule(
        rf"g{_OPERAND}(?:_(?:mkl|nkl)\d*)?",
        "gmem -",
        ("b{X},bK,Rest{X},RestK,RestL", "b{X},bK,RestK"),
        f"{_GROUPED}: local_tile; three modes once the M|N and L tiles are fixed",
        families="memref coord_tensor",
    ),
    _rule(
        r"g(?:C|D)(?:_mnl)?",
        "gmem -",
        ("bM,bN,RestM,RestN,RestL", "bM,bN"),
        f"{_GROUPED}: local_tile; two modes once the tile is fixed",
        families="memref coord_tensor",
    ),
    _rule(
        rf"tCg{_OPERAND}",
        "gmem -",
        ("MMA,MMA_{X},MMA_K,Rest{X},RestK,RestL", "MMA,MMA_{X},MMA_K,RestK"),
        f"{_GROUPED}: thr_mma.partition_A/B",
        families="memref coord_tensor",
        first="{X},K",
    ),
    _rule(
        r"tCg(?:C|D)",
        "gmem -",
        ("MMA,MMA_M,MMA_N,RestM,RestN,RestL", "MMA,MMA_M,MMA_N"),
        f"{_GROUPED}: thr_mma.partition_C",
        families="memref coord_tensor",
        first="M,N",
    ),
    _rule(
        rf"t[AB]s{_OPERAND}",
        "smem",
        ("TMA,STAGE",),
        f"{_GROUPED}: cpasync.tma_partition, ((atom_v, rest_v), STAGE)",
        first="atom_v,rest_v",
    ),
    _rule(
        rf"t[AB]g{_OPERAND}(?:_slice)?",
        "gmem -",
        ("TMA,Rest{X},RestK,RestL", "TMA,RestK"),
        f"{_GROUPED}: cpasync.tma_partition, ((atom_v, rest_v), RestM|N, RestK, RestL)",
        families="memref coord_tensor",
        first="atom_v,rest_v",
    ),
    _rule(
        r"tCtAcc\d*(?:_fake|_base)?",
        "tmem",
        ("MMA,MMA_M,MMA_N", "MMA,MMA_M,MMA_N,STAGE"),
        f"{_GROUPED}: make_fragment_C; the accumulator stages come last",
        first="M,N",
    ),
    _rule(
        r"tCt(?P<op>SF[AB])\d*(?:_compact)?",
        "tmem",
        ("MMA,MMA_{X},MMA_K",),
        f"{_GROUPED}: make_tmem_layout_sfa/sfb",
        first="{X},K",
    ),
    _rule(
        r"tCt(?P<op>SF[AB])\d*_layout(?:_mma)?",
        "-",
        ("MMA,MMA_{X},MMA_K",),
        f"{_GROUPED}: make_tmem_layout_sfa/sfb",
        families="layout",
        first="{X},K",
    ),
    _rule(
        r"tCs(?P<op>SF[AB])\d*_compact",
        "smem",
        ("MMA,MMA_{X},MMA_K,STAGE",),
        f"{_GROUPED}: filter_zeros of sSFA/sSFB",
        first="{X},K",
    ),
    _rule(
        r"tCs(?P<op>SF[AB])\d*_compact_s2t_?|tSs(?P<op2>SF[AB])\d*",
        "smem -",
        ("S2T,Rest_Tiler,MMA_{X},MMA_K,STAGE",),
        f"{_GROUPED}: partition_S of the smem-to-TMEM copy, ((ATOM_V, REST_V), Rest_Tiler, MMA_MN, MMA_K, STAGE)",
        families="memref smem_desc_view",
        first="ATOM_V,REST_V",
    ),
    _rule(
        r"tCt(?P<op>SF[AB])\d*_compact_s2t|tSt(?P<op2>SF[AB])\d*",
        "tmem",
        ("S2T,Rest_Tiler,MMA_{X},MMA_K",),
        f"{_GROUPED}: partition_D of the smem-to-TMEM copy",
        first="ATOM_V,REST_V",
    ),
    _rule(
        # Four modes have two readings (the template divides no epilogue tile; CUTLASS groups the subtiles): unknown.
        r"tTR_tAcc(?:_base)?",
        "tmem",
        ("T2R,T2R_M,T2R_N", "T2R,T2R_M,T2R_N,EPI_M,EPI_N", "T2R,T2R_M,T2R_N,EPI_M,EPI_N,STAGE"),
        f"{_GROUPED}: epilog_tmem_copy_and_partition",
    ),
    _rule(
        r"tTR_g(?:C|D)",
        "gmem -",
        ("T2R,T2R_M,T2R_N,EPI_M,EPI_N", "T2R,T2R_M,T2R_N,EPI_M,EPI_N,RestM,RestN,RestL"),
        f"{_GROUPED}: epilog_tmem_copy_and_partition",
        families="memref coord_tensor",
    ),
    _rule(r"tTR_r(?:Acc|C|D)", "rmem", ("T2R,T2R_M,T2R_N",), f"{_GROUPED}: epilog_tmem_copy_and_partition"),
    _rule(
        r"tD(?:tAcc|gC|rAcc|rC)",
        "tmem gmem rmem",
        ("T2R,T2R_REST", "T2R,T2R_REST,MMA_M,MMA_N"),
        f"{_TEMPLATE}: partition_S/D of the accumulator's MMA mode, or of all three: one copy's values, then a mode of "
        "copies for each mode that was partitioned",
    ),
    _rule(r"tRS_s(?:C|D)", "smem", ("R2S,R2S_M,R2S_N,PIPE_D",), f"{_GROUPED}: epilog_smem_copy_and_partition"),
    _rule(r"tRS_r(?:Acc|C|D)", "rmem", ("R2S,R2S_M,R2S_N",), f"{_GROUPED}: epilog_smem_copy_and_partition (retile)"),
    _rule(
        r"bSG_s(?:C|D)",
        "smem",
        ("TMA,EPI_STAGE",),
        "cpasync.tma_partition of sC (EPI_TILE_M, EPI_TILE_N, STAGE) with its first two modes grouped",
        first="ATOM_V,REST_V",
    ),
    _rule(
        r"bSG_g(?:C|D)",
        "gmem -",
        ("TMA,EPI_M,EPI_N", "TMA,EPI_M,EPI_N,RestM,RestN,RestL"),
        f"{_GROUPED}: epilog_gmem_copy_and_partition",
        families="memref coord_tensor",
        first="ATOM_V,REST_V",
    ),
    _rule(r"s(?:C|D)", "smem", ("EPI_TILE_M,EPI_TILE_N,STAGE",), "cutlass.utils make_smem_layout_epi"),
    _rule(
        r"(?:c|d|epi)_smem_layout(?:_staged)?",
        "-",
        ("EPI_TILE_M,EPI_TILE_N,STAGE",),
        "cutlass.utils make_smem_layout_epi",
        families="layout composed_layout",
    ),
)


def base_name(name: str) -> str:
    """Return the variable in a listing's name: ``kernel.self.sA[0]#2`` is ``sA``."""
    last = name.rpartition(".")[2]
    return re.split(r"[\[#@ ]", last, maxsplit=1)[0]


def roles_of(name: str, info: TypeInfo) -> Roles | None:
    """Return the roles of a named layout's modes, or ``None`` if no rule applies."""
    if info.layout is None:
        return None
    layout = plain(info.layout)
    for rule, operand in _rules_for(base_name(name)):
        if info.family not in rule.families or info.space not in rule.spaces:
            continue
        roles = rule.roles.get(len(modes(layout)))
        if roles is None:
            return None
        letter = "N" if operand.upper().endswith("B") else "M"
        named = tuple(role.replace("{X}", letter) for role in roles)
        inner = _inner(rule, layout, letter=letter, scales=operand.upper().startswith("SF"))
        return Roles(named, rule.source + (f"; {_SF_ATOM}" if len(inner) > 2 else ""), inner)
    return None


@lru_cache(maxsize=4096)
def _rules_for(base: str) -> tuple[tuple[_Rule, str], ...]:
    """Return the rules whose name matches, each with its operand in the name (``SFA``), or ``""``."""
    matches = ((rule, rule.name.fullmatch(base)) for rule in _RULES)
    return tuple(
        (rule, next((text for text in match.groupdict().values() if text), ""))
        for rule, match in matches
        if match is not None
    )


def _inner(rule: _Rule, layout: Layout, *, letter: str, scales: bool) -> dict[Path, str]:
    """Return the roles inside the first mode: the rule's parts, and the scale-factor atom."""
    first = modes(layout)[0].shape
    parts = tuple(part.replace("{X}", letter) for part in rule.first)
    if not isinstance(first, tuple) or len(first) != len(parts) or not parts:
        return {}
    inner: dict[Path, str] = {(0, at): part for at, part in enumerate(parts)}
    if scales and parts == (letter, "K"):
        inner.update(_atom(first, letter))
    return inner


def _atom(first: tuple[Tree, ...], letter: str) -> dict[Path, str]:
    """Return the roles of the scale-factor atom's modes; none for any other shape than the known atom."""
    rows, blocks = first
    roles: dict[Path, str] = {}
    # ((32,4), Rest): the atom's 128 rows, then more of them (or TMEM's four copies).
    if isinstance(rows, tuple) and len(rows) == 2 and rows[0] == (32, 4):
        roles |= {(0, 0, 0): f"{letter} rows of the atom", (0, 0, 1): f"{letter} beyond the atom"}
        roles |= {(0, 0, 0, 0): f"{letter} % 32", (0, 0, 0, 1): f"{letter} // 32 % 4"}
    elif rows == (32, 4):
        roles |= {(0, 0, 0): f"{letter} % 32", (0, 0, 1): f"{letter} // 32 % 4"}
    else:
        return {}
    if isinstance(blocks, tuple) and len(blocks) == 2 and blocks[1] == 4 and blocks[0] in {16, 1}:
        roles |= {(0, 1, 0): "K within a block of 16", (0, 1, 1): "K block % 4"}
    return roles


def plain(layout: AnyLayout) -> Layout:
    """Return the innermost outer layout, without swizzles, offsets and compositions."""
    while isinstance(layout, ComposedLayout):
        layout = layout.outer
    return layout
