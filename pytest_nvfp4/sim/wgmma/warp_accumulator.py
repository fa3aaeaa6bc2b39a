"""A warp's accumulator, and when it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.deferred import Pending
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.wgmma.fragments import accumulator_matrix, accumulator_registers, stack
from pytest_nvfp4.sim.wgmma.operation import Operation, alike, product_of
from pytest_nvfp4.sim.wgmma.product import AccumulatorType, accumulate

if TYPE_CHECKING:
    from pytest_nvfp4.sim.wgmma.unit import WarpgroupMember

__all__ = ["WarpAccumulator"]


class WarpAccumulator:
    """A warp's accumulator: what it started from, and the operations that were added since."""

    __slots__ = ("accumulator", "member", "operations", "start", "tokens", "touched", "values")

    def __init__(
        self, member: WarpgroupMember, accumulator: AccumulatorType, count: int, start: Sequence[Bits] | None
    ) -> None:
        self.member = member
        self.accumulator = accumulator
        self.start = start
        self.operations: list[Operation] = []
        self.tokens: list[Any] = [Pending(self, index) for index in range(count)]
        self.values: list[NDArray[np.uint32]] | None = None
        self.touched = -1
        """The number of fences before the last look at a register, -1 if there was none since the last operation."""

    def settle(self, index: int) -> Bits:
        """The value of a register, after all its operations."""
        member = self.member
        last = self.operations[-1]
        if last.number >= member.complete:
            self._in_flight(last)
        self.touched = member.fences
        member.settled = self
        return self.now()[index]

    def _in_flight(self, last: Operation) -> None:
        member = self.member
        waited = member.complete_text()
        message = (
            f"accumulator registers are touched before wgmma.wait_group: {last.form.name} (number {last.number} of "
            f"this warp) may still write them; {waited}"
        )
        hint = "commit the group and wait for it (wgmma.commit_group, wgmma.wait_group) before reading the accumulator"
        if last.number >= member.group.performed:
            raise Fault("wgmma", message, hint=hint)
        member.warp.cta.launch.report("wgmma", message, hint=hint)

    def now(self) -> list[NDArray[np.uint32]]:
        """The registers' values, computed if they are not known."""
        if self.values is None:
            self.values = list(accumulator_registers(self._matrix()))
            self.start = self.values
            # The operations' operands are not needed again by this tile, but the last one says when it is complete.
        return self.values

    def _matrix(self) -> NDArray[Any]:
        value: NDArray[Any] | None = None
        if self.start is not None:
            value = accumulator_matrix(stack(self.start), self.accumulator.dtype)
            if not value.view(np.uint8).any():
                value = None
        quarter = self.member.quarter
        rows = slice(16 * quarter, 16 * quarter + 16)
        operations = self.operations
        begin = 0
        for end in range(1, len(operations) + 1):
            if end == len(operations) or not alike(operations[end].form, operations[begin].form):
                product = product_of(operations[begin:end])
                value = accumulate(
                    product, value, self.accumulator, rows=rows, saturate=operations[begin].form.saturate
                )
                begin = end
        assert value is not None
        return value

    def extend(self, operation: Operation) -> None:
        """Add an operation in place: whoever holds a token of this tile holds one of the new value."""
        if self.values is not None:
            self.start, self.values = self.values, None
            self.operations = []
        self.operations.append(operation)
        self.touched = -1

    def restart(self, operation: Operation) -> None:
        """Begin anew from zeros, in place."""
        self.start = self.values = None
        self.operations = [operation]
        self.touched = -1
