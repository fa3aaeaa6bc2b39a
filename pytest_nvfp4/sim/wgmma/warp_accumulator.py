"""A warp's accumulator, which is computed when one of its registers is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.deferred import Pending
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lanes import Bits
from pytest_nvfp4.sim.wgmma.fragments import accumulator_matrix, accumulator_registers, stack
from pytest_nvfp4.sim.wgmma.operation import WgmmaOperation, alike, product_of
from pytest_nvfp4.sim.wgmma.product import AccumulatorType, accumulate

if TYPE_CHECKING:
    from pytest_nvfp4.sim.wgmma.unit import WarpgroupMember


class WarpAccumulator:
    """A warp's accumulator: a start value and the operations added since.

    Attributes:
        start: Registers' values before the operations; None for zeros.
        tokens: Placeholders that the code's registers hold until a value is needed.
        values: The registers' values, None until they are computed.
        touched: Number of fences before the last read of a register, -1 if none followed the last operation.
    """

    __slots__ = ("accumulator", "member", "operations", "start", "tokens", "touched", "values")

    def __init__(
        self, member: WarpgroupMember, accumulator: AccumulatorType, count: int, start: Sequence[Bits] | None
    ) -> None:
        self.member = member
        self.accumulator = accumulator
        self.start = start
        self.operations: list[WgmmaOperation] = []
        self.tokens: list[Any] = [Pending(self, index) for index in range(count)]
        self.values: list[NDArray[np.uint32]] | None = None
        self.touched = -1

    def settle(self, index: int) -> Bits:
        """Return the value of a register after all operations. Raises Fault if they cannot have completed."""
        member = self.member
        last = self.operations[-1]
        if last.number >= member.complete:
            self._in_flight(last)
        self.touched = member.fences
        member.settled = self
        return self.now()[index]

    def _in_flight(self, last: WgmmaOperation) -> None:
        """Report a read before the wait; raise Fault if the operation has not even been performed."""
        member = self.member
        message = (
            f"accumulator registers are touched before wgmma.wait_group: {last.form.name} (number {last.number} of "
            f"this warp) may still write them; {member.complete_text()}"
        )
        hint = "commit the group and wait for it (wgmma.commit_group, wgmma.wait_group) before reading the accumulator"
        if last.number >= member.group.performed:
            raise Fault("wgmma", message, hint=hint)
        member.warp.cta.launch.report("wgmma", message, hint=hint)

    def now(self) -> list[NDArray[np.uint32]]:
        """Return the registers' values, computing them if necessary; zeros without data."""
        if self.values is None and self.member.warp.cta.launch.machine.without_data:
            self.start = self.values = [np.zeros(32, np.uint32) for _ in self.tokens]
        if self.values is None:
            # The operations stay: the number of the last one is compared with the completed ones at each read.
            self.start = self.values = list(accumulator_registers(self._matrix()))
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

    def extend(self, operation: WgmmaOperation) -> None:
        """Add an operation in place: existing tokens then stand for the new values."""
        if self.values is not None:
            self.start, self.values = self.values, None
            self.operations = []
        self.operations.append(operation)
        self.touched = -1

    def restart(self, operation: WgmmaOperation) -> None:
        """Start again from zeros with one operation, in place."""
        self.start = self.values = None
        self.operations = [operation]
        self.touched = -1
