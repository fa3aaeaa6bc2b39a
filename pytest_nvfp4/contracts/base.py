"""What a contract is: problems, the tensors of a call, and the results that are right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pytest_nvfp4.problem import Group, Problem, ProblemError, Sizes

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.call import Call
    from pytest_nvfp4.numerics.arrays import Mask
    from pytest_nvfp4.numerics.inputs import ProblemInput
    from pytest_nvfp4.numerics.judge import Reference


class Inputs(Protocol):
    """The contents of the tensors of a call; what it is made of is the contract's own."""

    @property
    def problem(self) -> Problem:
        """Its problem."""

    @property
    def family(self) -> str:
        """Name of the family that it was made by."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one input by which one row of an output changes.

    Attributes:
        group: Index of the output.
        row: The row of it, and of the input.
        data: The new bytes.
        tensor: Index of the changed tensor among those of the call.
        offset: Bytes of that tensor before them.
        variant: Which of several contents the inputs have then, if all of them change. Such a change of an input has no
            output (``group`` is -1), and the changes of outputs have no data.
    """

    group: int
    row: int
    data: bytes
    tensor: int
    offset: int
    variant: int = 0


class Contract(ABC):
    """A contract. An instance has no state, imports quickly, and loads numpy in its methods only.

    Attributes:
        name: Its name in settings and problems, such as ``nvfp4_group_gemm``.
        tests: The official test problems.
        benchmarks: The official benchmark problems.
        function: The function of the kernel's file that is called.
        compiles: Whether ``compile_kernel(problem_sizes)`` of the kernel's file is called first, if there is one.
        own_shapes: Whether input families may have problems of their own, and the far end of a large output is examined
            (``worker.far_end``).
        sets_of_inputs: Most sets of inputs that a benchmark has.
        most: Largest number of multiply-adds of an official problem that takes the simulator seconds.
    """

    name: ClassVar[str]
    function: ClassVar[str] = "custom_kernel"
    compiles: ClassVar[bool] = False
    own_shapes: ClassVar[bool] = False
    sets_of_inputs: ClassVar[int] = 8
    most: ClassVar[int] = 2**32
    tests: tuple[Problem, ...] = ()
    benchmarks: tuple[Problem, ...] = ()

    @property
    def sets(self) -> Mapping[str, tuple[Problem, ...]]:
        """Problem sets by the name that stands for them in settings and options."""
        return {"gpumode": self.tests, "gpumode-bench": self.benchmarks}

    def families(self) -> Mapping[str, Problem | None]:
        """Return the input families that a check runs by default, each with its own problem if it has one."""
        from pytest_nvfp4.numerics.families import default_families

        found = {family.name: family.shapes for family in default_families()}
        return found if self.own_shapes else {name: shapes for name, shapes in found.items() if shapes is None}

    def family(self, name: str) -> str:
        """Return the input family that a name stands for: itself, or the first of a contract that has others."""
        return name

    # ---- problems ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def violation(self, problem: Problem) -> str | None:
        """Return the rule of the contract that a problem violates; None if it violates none."""

    def require(self, problem: Problem) -> None:
        """Raise ProblemError if a problem violates the contract: no kernel under it has to compute it."""
        if (violation := self.violation(problem)) is not None:
            raise ProblemError(f"problem {problem.name!r} violates the contract {self.name}: {violation}")

    @property
    def checked(self) -> tuple[Problem, ...]:
        """The official tests that are verified by default: those that take seconds."""
        return self.tests

    def other_sizes(self, sizes: Sizes, *, groups: int, taken: Iterable[Sizes]) -> Sizes | None:  # noqa: ARG002
        """Return small sizes of another problem of ``groups`` groups that every kernel of ``sizes`` takes, or None.

        ``taken`` are sizes that it must not be.
        """
        return None

    def drawn(self, problem: Problem) -> Problem | None:  # noqa: ARG002
        """Return a drawn list of groups as a problem of the contract; None if problems are not to be searched."""
        return None

    def fitted(self, groups: Sequence[Group]) -> Problem | None:  # noqa: ARG002
        """Return a problem with as many tiles as groups have (``device.fitted_problem``); None if none is to be fitted.

        It has as many steps of k as the largest of them.
        """
        return None

    @abstractmethod
    def multiply_adds(self, problem: Problem) -> int:
        """Return the multiply-adds that a problem needs; 0 if kernels may need fewer."""

    def traffic(self, problem: Problem) -> tuple[int, int]:  # noqa: ARG002
        """Return the bytes that every kernel reads and writes in device memory; 0 where kernels may need fewer."""
        return 0, 0

    def spec(self, problem: Problem) -> Mapping[str, object]:
        """Return a problem in the terms of its author, without its seed."""
        return dict(problem.axes)

    # ---- calls -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def signature(self, problem: Problem) -> Call:
        """Return the tensors of a call without their contents, and its arguments."""

    @abstractmethod
    def generate(self, problem: Problem, family: str, *, blank: bool = False) -> Inputs:
        """Return inputs of a problem, which follow from its seed; if ``blank``, without large contents.

        Raises NumericsError.
        """

    @abstractmethod
    def call(self, inputs: Any) -> Call:
        """Return the tensors of a call with these inputs, and its arguments."""

    def working_set(self, inputs: Any) -> int:
        """Return the bytes of the inputs in device memory that a kernel reads."""
        return sum(tensor.size for tensor in self.call(inputs).tensors if tensor.device and tensor.role != "output")

    def replayed(self, called: Any, other: Any) -> Any:
        """Return ``other`` inputs with those contents of ``called`` that the caller gives in host memory."""
        raise NotImplementedError

    def tagged(self, inputs: Any) -> ProblemInput | None:  # noqa: ARG002
        """Return the operands of block-scaled products whose contents may be replaced by tags; None without them."""
        return None

    # ---- changes -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def changes(self, inputs: Any, *, index: int, visit: int, key: int) -> list[RowChange]:
        """Return changes that follow from set, visit and key, which no kernel can know (``device.rotation``)."""

    @abstractmethod
    def changed(self, inputs: Any, changes: Sequence[RowChange]) -> Any:
        """Return inputs with changes."""

    # ---- results -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def references(self, inputs: Any) -> list[Reference]:
        """Return the reference of each output, with the rows and columns of its memory."""

    @abstractmethod
    def changed_part(self, inputs: Any, change: RowChange, columns: slice) -> Reference:
        """Return the reference of some columns of the changed row, after the change."""

    def explain(self, inputs: Any, output: int, got: Any, wrong: Mask) -> Sequence[object]:  # noqa: ARG002
        """Return what may explain the wrong elements of an output, as texts."""
        return ()

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def with_seed(self, problem: Problem, family: str, seed: int, *, blank: bool = False) -> Inputs:
        """Return inputs of a problem for another seed."""
        return self.generate(replace(problem, seed=seed), family, blank=blank)


Registry = Mapping[str, Callable[[], Contract]]
