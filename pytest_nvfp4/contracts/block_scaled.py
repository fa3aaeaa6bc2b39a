"""What GPU MODE's NVFP4 tasks on one problem (m, n, k, l) have in common.

``data`` is ``(a, *b, plain scales, reordered scales, c)``: ``a [m, k//2, l]`` and each ``b [n, k//2, l]`` are
float4_e2m1fn_x2 and K-major, plain scales ``[m|n, k//16, l]`` and reordered ones ``[32, 4, rest, 4, rest_k, l]`` are
float8_e4m3fn, those of A before those of each B, and ``c [m, n, l]`` is float16 and N-major. All are on the device. The
kernel returns c, or a tensor like it.

The inputs are ``numerics.inputs.ProblemInput`` with one group for each B of each batch; groups of a batch share A.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_nvfp4.contracts.base import Contract, RowChange
from pytest_nvfp4.problem import Group, Problem, Sizes

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.call import Call, Tensor
    from pytest_nvfp4.numerics.arrays import Bytes, Mask
    from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
    from pytest_nvfp4.numerics.judge import Reference
    from pytest_nvfp4.numerics.oracle import Exact


class BlockScaled(Contract):
    """A task on one problem, of which c is a function of A's products with one or several B.

    Attributes:
        operands: Names of the B.
        multiples: What m, n and k are multiples of.
        input_families: The input families that show faults of c; one problem is enough for each of them.
    """

    operands: ClassVar[tuple[str, ...]] = ("B",)
    multiples: ClassVar[tuple[int, int, int]] = (128, 128, 256)
    input_families: ClassVar[tuple[str, ...]] = (
        *("gpumode", "pow2_exact", "subnormal_out", "onehot", "nan_pad", "nan_isolated", "edge"),
    )

    @property
    def checked(self) -> tuple[Problem, ...]:
        """See ``Contract``: those that the simulator and the oracle take seconds for, each size once."""
        by_sizes = {tuple(problem.sizes): problem for problem in reversed(self.tests)}
        return tuple(one for one in self.tests if one in by_sizes.values() and self.multiply_adds(one) <= self.most)

    def families(self) -> Mapping[str, Problem | None]:
        """See ``Contract``."""
        return dict.fromkeys(self.input_families)

    def reference(self, products: Sequence[Exact]) -> Reference:
        """Return the reference of a batch of c, given the product with each B; the product itself if there is one B."""
        from pytest_nvfp4.numerics.judge import Reference

        (product,) = products
        return Reference.of(product)

    def rows_of_b(self, sizes: Group) -> int:
        """Return the rows that each B has in memory, the padding included."""
        return sizes.n

    def violation(self, problem: Problem) -> str | None:
        """See ``Contract``."""
        if len(problem.groups) != 1:
            return f"it has {len(problem.groups)} groups, and the contract one problem m x n x k x l"
        (sizes,) = problem.groups
        for name, multiple in zip("mnk", self.multiples, strict=True):
            value = getattr(sizes, name)
            if not value or value % multiple:
                return f"{sizes}: {name} must be a multiple of {multiple}"
        return None

    def other_sizes(self, sizes: Sizes, *, groups: int, taken: Iterable[Sizes]) -> Sizes | None:
        """See ``Contract``: other numbers of rows."""
        if groups != 1:
            return None
        ((m, n, k, batches),) = sizes
        known, step = set(taken), self.multiples[0]
        others = (((rows, n, k, batches),) for rows in (m // 2, m + step, 2 * m) if rows and rows % step == 0)
        return next((other for other in others if other not in known), None)

    def drawn(self, problem: Problem) -> Problem:
        """See ``Contract``: a batch for each of up to four groups, all of the sizes of the first, rounded up."""
        first = problem.groups[0]
        m, n, k = (
            max(1, -(-getattr(first, name) // step)) * step for name, step in zip("mnk", self.multiples, strict=True)
        )
        sizes = Group(m, self.columns(n), k, min(4, len(problem.groups)))
        return Problem(str(sizes), (sizes,), problem.seed, self.name)

    def fitted(self, groups: Sequence[Group]) -> Problem:
        """See ``Contract``: the tiles of all groups side by side, in whole rows of 128."""
        m = max(group.m for group in groups)
        sizes = Group(-(-m // _TILE) * _TILE, sum(group.n for group in groups if group.m), max(g.k for g in groups))
        return Problem(str(sizes), (sizes,), contract=self.name)

    def columns(self, n: int) -> int:
        """Return the columns of c that are nearest to ``n``."""
        return n

    def multiply_adds(self, problem: Problem) -> int:
        """See ``Contract``."""
        return problem.work * len(self.operands)

    def traffic(self, problem: Problem) -> tuple[int, int]:
        """See ``Contract``: the rows of each B that count."""
        from pytest_nvfp4.contracts.operands import operand_bytes

        (sizes,) = problem.groups
        rows = sizes.m + sizes.n * len(self.operands)
        return sizes.l * operand_bytes(rows, sizes.k), 2 * sizes.m * sizes.n * sizes.l

    def spec(self, problem: Problem) -> Mapping[str, object]:
        """See ``Contract``: ``m: 128; n: 256; k: 256; l: 1``."""
        (sizes,) = problem.groups
        return {name: getattr(sizes, name) for name in "mnkl"}

    def signature(self, problem: Problem) -> Call:
        """See ``Contract``."""
        return self._call(problem, None)

    def generate(self, problem: Problem, family: str, *, blank: bool = False) -> ProblemInput:
        """See ``Contract``: each B of each batch is drawn as a group of its own."""
        from pytest_nvfp4.numerics.families import family as named
        from pytest_nvfp4.numerics.inputs import ProblemInput

        (sizes,) = problem.groups
        drawn = Group(sizes.m, self.rows_of_b(sizes), sizes.k)
        groups = (drawn,) * (sizes.l * len(self.operands))
        made = named(family).generate(dataclasses.replace(problem, groups=groups), blank=blank).groups
        return ProblemInput(problem, family, tuple(_sharing_a(made, len(self.operands))))

    def call(self, inputs: ProblemInput) -> Call:
        """See ``Contract``."""
        return self._call(inputs.problem, inputs)

    def replayed(self, called: ProblemInput, other: ProblemInput) -> ProblemInput:
        """See ``Contract``: the host has no part of the inputs."""
        return dataclasses.replace(other, problem=called.problem)

    def tagged(self, inputs: ProblemInput) -> ProblemInput | None:
        """See ``Contract``: an A that several B share would have several tags."""
        return inputs if len(self.operands) == 1 else None

    def changes(self, inputs: ProblemInput, *, index: int, visit: int, key: int) -> list[RowChange]:
        """See ``Contract``: one row of A, of any batch."""
        import numpy as np

        from pytest_nvfp4.numerics.rows import changed_row

        rows = np.concatenate([batch[0].a for batch in self._batches(inputs)])
        row, data = changed_row(rows, seeds=(key, inputs.problem.seed, index, visit, 0))
        return [RowChange(0, row, data, tensor=0, offset=row * len(data))]

    def changed(self, inputs: ProblemInput, changes: Sequence[RowChange]) -> ProblemInput:
        """See ``Contract``."""
        from pytest_nvfp4.numerics.rows import with_row

        groups, each = list(inputs.groups), len(self.operands)
        for change in changes:
            batch, row = divmod(change.row, inputs.problem.groups[0].m)
            a = with_row(groups[batch * each].a, row, change.data)
            for at in range(batch * each, (batch + 1) * each):
                groups[at] = dataclasses.replace(groups[at], a=a)
        return dataclasses.replace(inputs, groups=tuple(groups))

    def references(self, inputs: ProblemInput) -> list[Reference]:
        """See ``Contract``: the batches of c, one below the other."""
        from pytest_nvfp4.numerics.judge import Reference

        columns = slice(inputs.problem.groups[0].n)
        batches = [self.reference([_product(g, columns) for g in batch]) for batch in self._batches(inputs)]
        return [Reference.stacked(batches)]

    def changed_part(self, inputs: ProblemInput, change: RowChange, columns: slice) -> Reference:
        """See ``Contract``."""
        import numpy as np

        batch, row = divmod(change.row, inputs.problem.groups[0].m)
        data = np.frombuffer(change.data, dtype=np.uint8)[None, :]
        groups = self._batches(inputs)[batch]
        changed = [dataclasses.replace(g, a=data, sfa=g.sfa[row : row + 1]) for g in groups]
        return self.reference([_product(g, columns) for g in changed])

    def explain(self, inputs: ProblemInput, output: int, got: Any, wrong: Mask) -> Sequence[object]:  # noqa: ARG002
        """See ``Contract``: the first wrong batch, if c is linear in a product."""
        from pytest_nvfp4.numerics.diagnose import explain
        from pytest_nvfp4.numerics.inputs import ProblemInput

        if len(self.operands) != 1:
            return ()
        m, n, k = (getattr(inputs.problem.groups[0], name) for name in "mnk")
        batch = int(wrong.any(axis=1).argmax()) // m
        rows, alone = slice(batch * m, (batch + 1) * m), Group(m, n, k)
        groups = tuple(dataclasses.replace(g, group=alone, b=g.b[:n], sfb=g.sfb[:n]) for g in inputs.groups)
        problem = dataclasses.replace(inputs.problem, groups=(alone,) * len(groups))
        return explain(ProblemInput(problem, inputs.family, groups), batch, got[rows], wrong[rows])

    def _batches(self, inputs: ProblemInput) -> list[tuple[GroupInput, ...]]:
        """Return the groups of each batch."""
        return _runs(inputs.groups, len(self.operands))

    def _call(self, problem: Problem, inputs: ProblemInput | None) -> Call:
        """Return the tensors ``a, *b, *reordered scales, c, *plain scales``, with the contents of inputs."""
        from pytest_nvfp4.contracts.call import At, Call

        count = 1 + len(self.operands)
        tensors = tuple(self._tensors(problem.groups[0], inputs))
        ab, reordered, c, plain = range(count), range(count, 2 * count), 2 * count, range(2 * count + 1, 3 * count + 1)
        data = tuple(At(at) for at in (*ab, *plain, *reordered, c))
        return Call(tensors, (data,), returns="tensor")

    def _tensors(self, sizes: Group, inputs: ProblemInput | None) -> Iterator[Tensor]:
        """Yield the tensors in the order of ``_call``, batches in the order of memory."""
        import numpy as np

        from pytest_nvfp4.contracts import operands as op
        from pytest_nvfp4.numerics.inputs import Guard

        m, n, k, batches = sizes.m, sizes.n, sizes.k, sizes.l
        made = None if inputs is None else self._batches(inputs)
        guard = Guard() if made is None else made[0][0].guard
        # C begins at an address that is as aligned as that of a whole tensor, also where its rows are short.
        around = max(guard.c_rows_after, -(-_ALIGNED // (2 * n)))
        guard = dataclasses.replace(guard, c_rows_before=around, c_rows_after=around)

        def memory(of: str, operand: int) -> Bytes | None:
            if made is None:
                return None
            side = "a" if operand == 0 else "b"
            parts = [_part(batch[max(0, operand - 1)], of.format(side)) for batch in made]
            return np.concatenate([part.reshape(-1) for part in parts])

        every = [("A", m), *((name, self.rows_of_b(sizes)) for name in self.operands)]
        for at, (name, rows) in enumerate(every):
            yield op.packed(name, rows, k, batches, data=memory("{}", at), guard=guard)
        for at, (name, rows) in enumerate(every):
            yield op.scales(f"SF{name}", rows, k, batches, data=memory("sf{}_flat", at), guard=guard)
        yield op.half_output("C", m, n, batches, guard=guard)
        for at, (name, rows) in enumerate(every):
            data = memory("sf{}", at)
            yield op.plain_scales(f"plain SF{name}", rows, k, batches, data=data, device=True, guard=guard)


_TILE = 128
"""Rows and columns of the smallest tile."""
_ALIGNED = 512
"""Alignment of whole tensors in bytes (c10/cuda/CUDACachingAllocator, kMinBlockSize)."""


def _part(group: GroupInput, name: str) -> Bytes:
    """Return an array of a group by its name, or what a method of that name returns."""
    value: Any = getattr(group, name)
    made: Bytes = value() if callable(value) else value
    return made


def _runs(groups: Sequence[GroupInput], each: int) -> list[tuple[GroupInput, ...]]:
    return [tuple(groups[at : at + each]) for at in range(0, len(groups), each)]


def _sharing_a(groups: Sequence[GroupInput], each: int) -> Iterator[GroupInput]:
    """Yield groups, of which each run of ``each`` has the A of its first."""
    for run in _runs(groups, each):
        first = run[0]
        for group in run:
            yield dataclasses.replace(group, a=first.a, sfa=first.sfa, sfa_reordered=first.sfa_reordered)


def _product(group: GroupInput, columns: slice) -> Exact:
    """Return the exact product of a group's A with some rows of its B."""
    from pytest_nvfp4.numerics.oracle import exact_product

    return exact_product(a=group.a, b=group.b[columns], sfa=group.sfa, sfb=group.sfb[columns])
