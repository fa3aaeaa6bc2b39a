"""A contract of the user's own as a ``Contract``: its inputs were drawn beforehand, and are looked up by a label."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pytest_nvfp4.contracts.base import Contract, RowChange
from pytest_nvfp4.contracts.own.packing import Array, unpack
from pytest_nvfp4.problem import Problem

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.call import Call, Tensor
    from pytest_nvfp4.numerics.judge import Reference

SETS: Final = 3
VARIANTS: Final = 2
"""Sets of inputs of a benchmark, and contents of each: visits of a set alternate between them at random."""
_MOST_AT_ONCE: Final = 64 << 20
"""Bytes of inputs whose references are computed together."""
_GUARD: Final = 512
_MOST_GUARD: Final = 1 << 20


@dataclass(slots=True)
class Given:
    """The draws of inputs of a job, and the references that were computed from them, by problem, family and label."""

    draws: Mapping[tuple[str, str, str], bytes]
    _inputs: dict[tuple[str, str, str], OwnInputs] = field(default_factory=dict)
    _references: dict[tuple[str, str, str], list[Reference]] = field(default_factory=dict)

    def inputs(self, problem: Problem, family: str, label: str) -> OwnInputs:
        """Return a draw. Raises KeyError if the job has none of this label."""
        key = problem.name, family, label
        if key not in self._inputs:
            self._inputs[key] = self._unpacked(problem, family, label)
        return self._inputs[key]

    def _unpacked(self, problem: Problem, family: str, label: str) -> OwnInputs:
        fields, arrays = unpack(self.draws[problem.name, family, label], source=f"the inputs of {problem.name}")
        return OwnInputs(problem, family, label, fields, arrays, self)

    def references(self, inputs: OwnInputs) -> list[Reference]:
        """Return the references of a draw. Raises ContractError.

        The contract's own process computes them once, with those of other draws of this label that are at hand: the
        process takes longer to start than most references.
        """
        key = inputs.problem.name, inputs.family, inputs.label
        if key not in self._references:
            from pytest_nvfp4.contracts.own.references import references

            several = {key: inputs}
            for other in self.draws:
                if other[2] == inputs.label and other not in self._references and other != key:
                    # A reference depends on the inputs and the name of the problem alone.
                    several[other] = self._unpacked(replace(inputs.problem, name=other[0]), *other[1:])
            if sum(map(_size, several.values())) > _MOST_AT_ONCE:
                several = {key: inputs}
            self._references.update(zip(several, references(list(several.values())), strict=True))
        return self._references[key]


@dataclass(frozen=True, slots=True, eq=False)
class OwnInputs:
    """One draw of inputs.

    Attributes:
        problem: Its problem.
        family: Its input family.
        label: Which draw it is.
        fields: ``inputs`` (name, kind and value of each), ``outputs`` (name, type, shape), ``destination``.
        arrays: The arrays among the inputs.
        given: The draws that it belongs to.
    """

    problem: Problem
    family: str
    label: str
    fields: dict[str, Any]
    arrays: list[Array]
    given: Given


class OwnContract(Contract):
    """The contract of an identity, ``FILE::NAME#HASH`` (see ``run.identity``)."""

    sets_of_inputs = SETS

    def __init__(self, identity: str) -> None:
        self.name = identity  # type: ignore[misc]

    def families(self) -> Mapping[str, Problem | None]:
        """See ``Contract``. Raises ContractError."""
        from pytest_nvfp4.contracts.own.run import own_problems

        return dict.fromkeys(own_problems(self.name).families)

    def family(self, name: str) -> str:
        """See ``Contract``. Raises ContractError."""
        known = tuple(self.families())
        return name if name in known else known[0]

    def violation(self, problem: Problem) -> str | None:  # noqa: ARG002
        """See ``Contract``: its problems are those that it lists."""
        return None

    def multiply_adds(self, problem: Problem) -> int:  # noqa: ARG002
        """See ``Contract``."""
        return 0

    def signature(self, problem: Problem) -> Call:
        """See ``Contract``; it is known of inputs alone."""
        raise NotImplementedError(f"the shapes of {problem.name} follow from its inputs")

    def generate(self, problem: Problem, family: str, *, blank: bool = False) -> OwnInputs:
        """See ``Contract``; inputs are drawn by the contract's process (``device.given``)."""
        raise NotImplementedError(f"the inputs of {problem.name} are drawn by its contract")

    def call(self, inputs: OwnInputs) -> Call:
        """See ``Contract``."""
        from pytest_nvfp4.contracts.call import At, Call

        tensors = [_input(array) for array in inputs.arrays]
        places = iter(range(len(tensors)))
        arguments = [At(next(places)) if kind == "array" else value for _, kind, value in inputs.fields["inputs"]]
        destination = inputs.fields["destination"]
        outputs = [_output(one, passed=destination) for one in inputs.fields["outputs"]]
        if destination:
            arguments += [At(len(tensors) + at) for at in range(len(outputs))]
        return Call((*tensors, *outputs), tuple(arguments), returns="any")

    def replayed(self, called: OwnInputs, other: OwnInputs) -> OwnInputs:  # noqa: ARG002
        """See ``Contract``: all arrays lie in device memory."""
        return other

    def changes(self, inputs: OwnInputs, *, index: int, visit: int, key: int) -> list[RowChange]:
        """See ``Contract``: the content that the visit has, and a row of each output to look at."""
        digest = hashlib.sha256(f"{key} {index} {visit} {inputs.problem.name}".encode()).digest()
        variant = digest[0] % VARIANTS
        other = inputs.given.inputs(inputs.problem, inputs.family, set_label(index, variant))
        found = [
            RowChange(-1, 0, bytes(array.data), tensor=at, offset=0, variant=variant)
            for at, array in enumerate(other.arrays)
        ]
        for group, output in enumerate(self.call(inputs).outputs):
            if output.size:
                row = int.from_bytes(digest[1:9], "little") % output.rows
                found.append(RowChange(group, row, b"", tensor=0, offset=0, variant=variant))
        return found

    def changed(self, inputs: OwnInputs, changes: Sequence[RowChange]) -> OwnInputs:
        """See ``Contract``: the last change counts."""
        if not changes:
            return inputs
        index = inputs.label.split("-")[1]
        return inputs.given.inputs(inputs.problem, inputs.family, set_label(int(index), changes[-1].variant))

    def references(self, inputs: OwnInputs) -> list[Reference]:
        """See ``Contract``. Raises ContractError."""
        return inputs.given.references(inputs)

    def changed_part(self, inputs: OwnInputs, change: RowChange, columns: slice) -> Reference:
        """See ``Contract``."""
        whole = self.references(self.changed(inputs, [change]))[change.group]
        return whole.part(slice(change.row, change.row + 1), columns)


def signature_of(problem: Problem) -> Call:
    """Return a call on the first draw of a problem. Raises ContractError."""
    from pytest_nvfp4.contracts.own.packing import pack
    from pytest_nvfp4.contracts.own.run import drawing, drawn

    contract = OwnContract(problem.contract)
    family = next(iter(contract.families()))
    request = drawing(problem, family, seed=problem.seed, results=True)
    ((answer, arrays),) = drawn(problem.contract, [request])
    key = problem.name, family, set_label(0)
    return contract.call(Given({key: pack(answer.model_dump(), arrays)}).inputs(problem, *key[1:]))


def set_label(index: int, variant: int = 0) -> str:
    """Return the label of one content of a set of a benchmark; a simulation has the first."""
    return f"set-{index}-{variant}"


def _size(inputs: OwnInputs) -> int:
    return sum(array.size for array in inputs.arrays)


def _input(array: Array) -> Tensor:
    import numpy as np

    from pytest_nvfp4.contracts.call import Tensor, row_major

    data = np.frombuffer(array.data, dtype=np.uint8)
    describe = _described(array.name, array.shape, array.size)
    strides = row_major(array.shape)
    return Tensor(
        array.name,
        array.dtype,
        array.shape,
        strides,
        array.size,
        device=array.device,
        data=data,
        after=_GUARD,
        guard=0xFF,
        describe=describe,
    )


def _output(described: Sequence[Any], *, passed: bool) -> Tensor:
    from pytest_nvfp4.contracts.call import Tensor, row_major
    from pytest_nvfp4.numerics.elements import element

    name, dtype, shape = str(described[0]), str(described[1]), tuple(described[2])
    kind = element(dtype)
    size = math.prod(shape) * kind.item
    columns = max(1, shape[-1]) if shape else 1
    row = columns * kind.item
    # Rows in front keep the alignment of a whole tensor; very long ones have no guard there.
    rows = _GUARD // math.gcd(_GUARD, row)
    before = rows * row if passed and rows * row <= _MOST_GUARD else 0
    return Tensor(
        name,
        dtype,
        shape,
        row_major(shape),
        size,
        role="output",
        columns=columns,
        poison=kind.poison.to_bytes(kind.item, "little"),
        before=before,
        after=-(-_GUARD // row) * row if passed else 0,
        passed=passed,
        describe=_described(name, shape, size),
    )


def _described(name: str, shape: tuple[int, ...], size: int) -> Any:
    item = max(1, size // max(1, math.prod(shape)))

    def describe(offset: int) -> str:
        at, place = offset // item, []
        for extent in reversed(shape):
            at, index = divmod(at, max(1, extent))
            place.append(index)
        return f"{name}[{', '.join(map(str, reversed(place)))}]"

    return describe
