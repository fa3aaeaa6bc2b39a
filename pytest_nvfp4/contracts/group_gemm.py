"""GPU MODE's ``nvfp4_group_gemm``: ``custom_kernel(data)`` with the tensors of all groups, and the list of C back.

``data`` is ``(abc, plain scales, reordered scales, sizes)``: ``a [m, k//2, l]`` and ``b [n, k//2, l]`` are
float4_e2m1fn_x2 and K-major, ``c [m, n, l]`` is float16 and N-major, plain scales ``[m|n, k//16, l]`` are float8_e4m3fn
on the CPU, reordered scales are ``[32, 4, rest_m, 4, rest_k, l]`` on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.contracts.base import Contract, RowChange
from pytest_nvfp4.problem import GPUMODE, GPUMODE_BENCH, GROUP_GEMM, Group, Problem, Sizes

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.call import Call, Tensor
    from pytest_nvfp4.numerics.arrays import Mask
    from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
    from pytest_nvfp4.numerics.judge import Reference

_EACH = 7
"""Tensors of a group: A, B, SFA, SFB, C, and the plain scale factors."""


class GroupGemm(Contract):
    """The contract of ``nvfp4_group_gemm``; its inputs are ``numerics.inputs.ProblemInput``."""

    name = GROUP_GEMM
    compiles = True
    own_shapes = True
    tests = GPUMODE
    benchmarks = GPUMODE_BENCH

    def violation(self, problem: Problem) -> str | None:
        """See ``Contract``: l = 1, k % 256 == 0, n % 128 == 0."""
        for index, group in enumerate(problem.groups):
            if group.l != 1:
                return f"group {index} ({group}): l must be 1"
            if group.k % 256:
                return f"group {index} ({group}): k must be a multiple of 256"
            if group.n % 128:
                return f"group {index} ({group}): n must be a multiple of 128"
        return None

    def other_sizes(self, sizes: Sizes, *, groups: int, taken: Iterable[Sizes]) -> Sizes | None:
        """See ``Contract``.

        The contract leaves the number of rows free, and each other size is that of some group, so that a multiple of
        some number stays one. There are fewer rows than in any group, if possible, so that what a kernel keeps of them
        is too little.
        """
        rows = [m for m, *_ in sizes if m]
        if not rows:
            return None
        n, k, batch = (min(group[axis] for group in sizes) for axis in (1, 2, 3))
        known = set(taken)
        least = min(rows)
        candidates = (((m, n, k, batch),) * groups for m in (max(1, least // 2), least, 2 * least, 4 * least))
        return next((other for other in candidates if other not in known), None)

    def drawn(self, problem: Problem) -> Problem:
        """See ``Contract``."""
        return problem

    def fitted(self, groups: Sequence[Group]) -> Problem:
        """See ``Contract``: the groups themselves."""
        return Problem("+".join(map(str, groups)), tuple(groups))

    def multiply_adds(self, problem: Problem) -> int:
        """See ``Contract``: m n k, summed over the groups."""
        return problem.work

    def traffic(self, problem: Problem) -> tuple[int, int]:
        """See ``Contract``: a group without rows needs neither its B nor its scale factors."""
        from pytest_nvfp4.contracts.operands import operand_bytes

        read = sum(g.l * operand_bytes(g.m + g.n, g.k) for g in problem.groups if g.m)
        return read, sum(2 * g.m * g.n * g.l for g in problem.groups)

    def spec(self, problem: Problem) -> dict[str, object]:
        """See ``Contract``: ``m: [96, 128]; n: [128, 256]; k: [256, 512]; g: 2``."""
        sizes: dict[str, object] = {name: [getattr(group, name) for group in problem.groups] for name in "mnk"}
        return {**sizes, "g": len(problem.groups)}

    def signature(self, problem: Problem) -> Call:
        """See ``Contract``."""
        tensors = [tensor for at, group in enumerate(problem.groups) for tensor in _tensors(at, group, None)]
        return _call(problem, tensors)

    def generate(self, problem: Problem, family: str, *, blank: bool = False) -> ProblemInput:
        """See ``Contract``."""
        from pytest_nvfp4.numerics.families import family as named

        return named(family).generate(problem, blank=blank)

    def call(self, inputs: ProblemInput) -> Call:
        """See ``Contract``."""
        made = zip(inputs.problem.groups, inputs.groups, strict=True)
        return _call(inputs.problem, [tensor for at, pair in enumerate(made) for tensor in _tensors(at, *pair)])

    def replayed(self, called: ProblemInput, other: ProblemInput) -> ProblemInput:
        """See ``Contract``: A and B of ``other``, because the host has the scale factors of the call."""
        pairs = zip(called.groups, other.groups, strict=True)
        groups = tuple(dataclasses.replace(group, a=new.a, b=new.b) for group, new in pairs)
        return dataclasses.replace(called, groups=groups)

    def tagged(self, inputs: ProblemInput) -> ProblemInput | None:
        """See ``Contract``."""
        return inputs

    def changes(self, inputs: ProblemInput, *, index: int, visit: int, key: int) -> list[RowChange]:
        """See ``Contract``: one row of A of each group that has rows."""
        from pytest_nvfp4.numerics.rows import changed_row

        made = []
        for number, group in enumerate(inputs.groups):
            if group.group.m:
                row, data = changed_row(group.a, seeds=(key, inputs.problem.seed, index, visit, number))
                made.append(RowChange(number, row, data, tensor=_EACH * number, offset=row * len(data)))
        return made

    def changed(self, inputs: ProblemInput, changes: Sequence[RowChange]) -> ProblemInput:
        """See ``Contract``."""
        from pytest_nvfp4.numerics.rows import with_row

        groups = list(inputs.groups)
        for change in changes:
            group = groups[change.group]
            groups[change.group] = dataclasses.replace(group, a=with_row(group.a, change.row, change.data))
        return dataclasses.replace(inputs, groups=tuple(groups))

    def references(self, inputs: ProblemInput) -> list[Reference]:
        """See ``Contract``."""
        from pytest_nvfp4.numerics.judge import Reference

        return [Reference.of(group.exact()) for group in inputs.groups]

    def changed_part(self, inputs: ProblemInput, change: RowChange, columns: slice) -> Reference:
        """See ``Contract``."""
        import numpy as np

        from pytest_nvfp4.numerics.judge import Reference
        from pytest_nvfp4.numerics.oracle import exact_product

        group = inputs.groups[change.group]
        exact = exact_product(
            a=np.frombuffer(change.data, dtype=np.uint8)[None, :],
            b=group.b[columns],
            sfa=group.sfa[change.row : change.row + 1],
            sfb=group.sfb[columns],
        )
        return Reference.of(exact)

    def explain(self, inputs: ProblemInput, output: int, got: Any, wrong: Mask) -> Sequence[object]:
        """See ``Contract``."""
        from pytest_nvfp4.numerics.diagnose import explain

        return explain(inputs, output, got, wrong)


def _call(problem: Problem, tensors: list[Tensor]) -> Call:
    from pytest_nvfp4.contracts.call import At, Call

    firsts = range(0, len(tensors), _EACH)
    abc = [(At(at), At(at + 1), At(at + 4)) for at in firsts]
    plain = [(At(at + 5), At(at + 6)) for at in firsts]
    reordered = [(At(at + 2), At(at + 3)) for at in firsts]
    return Call(tuple(tensors), ((abc, plain, reordered, problem.sizes),))


def _tensors(index: int, sizes: Group, made: GroupInput | None) -> list[Tensor]:
    """Return the tensors of a group, with the contents and the guard memory of its inputs."""
    from pytest_nvfp4.contracts import operands as op

    of = f"of group {index}"
    m, n, k, batches = sizes.m, sizes.n, sizes.k, sizes.l
    if made is None:
        a = b = sfa = sfb = plain_a = plain_b = guard = None
    else:
        a, b, guard = made.a, made.b, made.guard
        sfa, sfb, plain_a, plain_b = made.sfa_flat(), made.sfb_flat(), made.sfa, made.sfb
    return [
        op.packed(f"A {of}", m, k, batches, data=a, guard=guard),
        op.packed(f"B {of}", n, k, batches, data=b, guard=guard),
        op.scales(f"SFA {of}", m, k, batches, data=sfa, guard=guard),
        op.scales(f"SFB {of}", n, k, batches, data=sfb, guard=guard),
        op.half_output(f"C {of}", m, n, batches, guard=guard),
        op.plain_scales(f"plain SFA {of}", m, k, batches, data=plain_a),
        op.plain_scales(f"plain SFB {of}", n, k, batches, data=plain_b),
    ]
