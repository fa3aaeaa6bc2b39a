"""Problems: the groups of a grouped GEMM and the seed of their inputs.

A problem is a list of groups, each ``C[m, n] = A[m, k] @ B[n, k]^T`` in NVFP4 with one scale factor for 16
elements of k. The named problems are the test and benchmark cases of GPU MODE's ``nvfp4_group_gemm`` leaderboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

_MOST = 2**31 - 1
"""Largest extent; the contract passes sizes as 32-bit integers."""
GPUMODE_SEED = 1111
"""Seed of GPU MODE's test cases."""
GROUP_GEMM = "nvfp4_group_gemm"
"""Name of the contract of problems that name no other one."""
Sizes: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""(m, n, k, l) of each group."""
Axis: TypeAlias = int | float | str | bool
"""A value by which a contract of the user's own describes its problem."""


class ProblemError(ValueError):
    """A problem is malformed or violates a kernel's contract."""


@dataclass(frozen=True, slots=True)
class Group:
    """One GEMM: ``m x n`` outputs of ``k`` products each, in ``l`` batches.

    Sizes are in elements. ``m`` may be zero (a group without rows); ``n``, ``k`` and ``l`` are positive.
    """

    m: int
    n: int
    k: int
    l: int = 1  # noqa: E741 - the contract's own name

    def __post_init__(self) -> None:
        for name, least in (("m", 0), ("n", 1), ("k", 1), ("l", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ProblemError(f"{name} = {value!r} of group {self} is not an integer")
            if not least <= value <= _MOST:
                limit = f"at least {least}" if value < least else f"at most {_MOST}"
                shown = value if abs(value) <= 10**20 else f"a number of {value.bit_length()} bits"
                raise ProblemError(f"{name} = {shown} of a group must be {limit}")

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.l}" if self.l != 1 else "")


@dataclass(frozen=True, slots=True)
class Problem:
    """Named list of groups with the seed of its inputs.

    The name appears in node ids: ``sm100.py::layouts[gpumode-0]``.

    Attributes:
        contract: Name of the contract whose problem it is (``contracts.registry``).
        axes: For a contract of the user's own, what describes the problem in place of groups.
    """

    name: str
    groups: tuple[Group, ...]
    seed: int = GPUMODE_SEED
    contract: str = GROUP_GEMM
    axes: tuple[tuple[str, Axis], ...] = ()

    def __post_init__(self) -> None:
        if not self.groups and "::" not in self.contract:
            raise ProblemError(f"problem {self.name!r} has no groups")

    @property
    def sizes(self) -> list[tuple[int, int, int, int]]:
        """``[(m, n, k, l), ...]`` as GPU MODE's ``custom_kernel`` receives them."""
        return [(g.m, g.n, g.k, g.l) for g in self.groups]

    @property
    def key(self) -> str:
        """Groups and seed as text, without the name: equal for equal work."""
        shown = [str(group) for group in self.groups] or [f"{name}={value!r}" for name, value in self.axes]
        contract = "" if self.contract == GROUP_GEMM else f"{self.contract}:"
        return f"{contract}{','.join(shown)}@{self.seed}"

    @property
    def work(self) -> int:
        """Number of multiplications."""
        return sum(group.m * group.n * group.k * group.l for group in self.groups)


def _problem(name: str, m: Sequence[int], n: Sequence[int], k: Sequence[int]) -> Problem:
    return Problem(name, tuple(Group(*sizes) for sizes in zip(m, n, k, strict=True)))


_TESTS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((96, 128), (128, 256), (256, 512)),
    ((256, 72), (512, 384), (256, 256)),
    ((128, 128), (128, 256), (512, 256)),
    ((80, 128, 256), (384, 256, 128), (256, 512, 256)),
    ((64, 72, 96), (128, 384, 512), (512, 512, 256)),
    ((64, 256, 128), (768, 128, 256), (512, 256, 512)),
    ((128, 128, 64), (256, 512, 512), (768, 256, 768)),
    ((128,) * 4, (128,) * 4, (512, 256, 512, 256)),
    ((40, 56, 384, 512), (512, 384, 256, 128), (256,) * 4),
    ((512, 384, 256, 128), (256,) * 4, (512, 768, 512, 768)),
)

_BENCHMARKS: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168),
    ((40, 76, 168, 72, 164, 148, 196, 160), 7168, 2048),
    ((192, 320), 3072, 4096),
    ((128, 384), 4096, 1536),
)

GPUMODE: tuple[Problem, ...] = tuple(_problem(f"gpumode-{i}", m, n, k) for i, (m, n, k) in enumerate(_TESTS))
"""The ten official test cases, ``gpumode-0`` to ``gpumode-9``."""

GPUMODE_BENCH: tuple[Problem, ...] = tuple(
    _problem(f"gpumode-bench-{i}", m, (n,) * len(m), (k,) * len(m)) for i, (m, n, k) in enumerate(_BENCHMARKS)
)
"""The four official benchmark cases, ``gpumode-bench-0`` to ``gpumode-bench-3``."""

SETS: Mapping[str, tuple[Problem, ...]] = {"gpumode": GPUMODE, "gpumode-bench": GPUMODE_BENCH}
"""Problem sets by name."""

_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)(?:x(\d+))?")


def parse_shape(text: str, *, name: str | None = None) -> Problem:
    """Parse ``MxNxK[,MxNxK...]``, each optionally ``xL``; the problem's name is the text with ``+`` for ``,``.

    Raises:
        ProblemError: a part does not have this form.
    """
    groups = []
    for part in text.replace(" ", "").split(","):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise ProblemError(f"{part!r} in shape {text!r} is not MxNxK, such as 96x128x256 (several: 96x128x256,…)")
        groups.append(Group(*(int(number) for number in match.groups(default="1"))))
    return Problem(name or "+".join(str(group) for group in groups), tuple(groups))


def parse_table(name: str, table: Mapping[str, object]) -> Problem:
    """Parse a problem of ``[tool.pytest_nvfp4.problems]``: ``{ m = [96, 128], n = 128, k = [256, 512] }``.

    A single integer stands for every group. Raises ProblemError.
    """
    unknown = set(table) - {"m", "n", "k", "seed"}
    if unknown:
        raise ProblemError(f"problem {name!r}: unknown key {sorted(unknown)[0]!r}; known are m, n, k and seed")
    columns: dict[str, list[int]] = {}
    for key in ("m", "n", "k"):
        value = table.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            columns[key] = [value]
        elif isinstance(value, list) and value and all(type(item) is int for item in value):
            columns[key] = value
        else:
            raise ProblemError(f"problem {name!r}: {key} = {value!r} must be an integer or a list of integers")
    count = max(len(column) for column in columns.values())
    for key, column in columns.items():
        if len(column) == 1:
            columns[key] = column * count
        elif len(column) != count:
            raise ProblemError(f"problem {name!r}: {key} has {len(column)} entries where another list has {count}")
    seed = table.get("seed", GPUMODE_SEED)
    if type(seed) is not int:
        raise ProblemError(f"problem {name!r}: seed = {seed!r} must be an integer")
    groups = tuple(Group(*sizes) for sizes in zip(columns["m"], columns["n"], columns["k"], strict=True))
    return Problem(name, groups, seed)


def resolve(
    names: Iterable[str],
    *,
    own: Mapping[str, Problem] | None = None,
    sets: Mapping[str, tuple[Problem, ...]] = SETS,
    contract: str = GROUP_GEMM,
) -> tuple[Problem, ...]:
    """Return the problems of names: one of ``own``, a set, one problem of a set, or a shape ``MxNxK[,...]``.

    Keeps the order and drops repeats. ``sets`` are those of the contract that the problems belong to. Raises
    ProblemError for an unknown name.
    """
    own = own or {}
    singles = {problem.name: problem for members in sets.values() for problem in members}
    singles |= {name: replace(problem, contract=contract) for name, problem in own.items()}
    problems: dict[str, Problem] = {}
    for name in names:
        if name in singles:
            chosen: tuple[Problem, ...] = (singles[name],)
        elif name in sets:
            chosen = sets[name]
        elif _SHAPE.match(name):
            chosen = (replace(parse_shape(name), contract=contract),)
        else:
            ranges = [f"{members[0].name} … {members[-1].name}" for members in sets.values() if members]
            known = ", ".join([*own, *(name for name, members in sets.items() if members), *ranges])
            raise ProblemError(f"no problem is called {name!r}; known are {known}, or a shape such as 96x128x256")
        for problem in chosen:
            problems.setdefault(problem.name, problem)
    return tuple(problems.values())
