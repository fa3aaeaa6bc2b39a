"""An executed request of the kernel's process, as its observers see it.

``server.Server.observer`` gets every request that touches device memory, after it was executed and before its reply is
sent, so that what an observer records is complete when the kernel's process continues. A request that raised an error
is reported too if it may have changed memory (a launch that a fault stopped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.driver.user_line import UserLine

if TYPE_CHECKING:
    from pytest_nvfp4.machine.wire import Message


class Kind(StrEnum):
    """What a request is."""

    ALLOCATE = "allocate"
    FREE = "free"
    COPY = "copy"
    """``cudaMemcpy`` and its relatives, in any direction."""
    FILL = "fill"
    """``cudaMemset`` and its relatives."""
    OPERATOR = "operator"
    """An operator of torch with a tensor on the device among its operands or results."""
    READ = "read"
    """The host reads device memory by other means (``tolist``, ``repr``, an untyped storage)."""
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Executed:
    """An executed request.

    Attributes:
        kind: What it is.
        what: Its name in the user's terms: ``cuMemcpyHtoD``, ``torch's copy_``, the symbol of a kernel.
        reads: Device memory that it read. Empty for a launch, which reads what its code reads.
        selects: How many of the last of them select places or counts (``torch_effects.Effects``).
        writes: Device memory that it wrote; for an allocation or a free, the block. Empty for a launch.
        from_host: Bytes that came from the kernel's process: of tensors in host memory, scalars that depend on nothing
            else, patterns, parameters of a launch.
        to_host: Number of bytes of device memory, or computed from it, that the reply returns to the kernel's process;
            a scalar and a shape that depends on data count too.
        line: The user's line that requested it, as the kernel's process claims; None if unknown.
        launch: The launch, for ``Kind.LAUNCH``.
        operator: ``aten::mm``, for ``Kind.OPERATOR``. The overload of one with a reduction follows a
            point: ``aten::scatter.reduce``.
        converts: Whether an operator's result has values of another format than its operands, other than a wider or
            narrower integer.
        message: The request itself, as received; ``server.Server.execute`` executes it again.
    """

    kind: Kind
    what: str
    reads: tuple[Extent, ...] = ()
    selects: int = 0
    writes: tuple[Extent, ...] = ()
    from_host: Sequence[bytes | memoryview] = ()
    to_host: int = 0
    line: UserLine | None = None
    launch: Launch | None = None
    operator: str = ""
    converts: bool = False
    message: Message | None = None


class Observer(Protocol):
    """Observer of executed requests."""

    def executed(self, request: Executed) -> None:
        """Record an executed request."""


class NoObserver:
    """Records nothing."""

    def executed(self, request: Executed) -> None:
        """See ``Observer``."""
