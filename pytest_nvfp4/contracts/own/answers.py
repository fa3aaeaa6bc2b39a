"""What the process of a contract of the user's own answers (``own.program``), as it comes through the door."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pytest_nvfp4.contracts.own.axes import Integer, Range

_Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)]
_Number = Annotated[float, Field(strict=True)]
_Value: TypeAlias = Annotated[bool, Field(strict=True)] | Annotated[int, Field(strict=True)] | _Number | str
_Count = Annotated[int, Field(ge=0, le=10_000, strict=True)]
_Shape = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 48, strict=True)], ...], Field(max_length=16)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listed(_Answer):
    """What a contract lists.

    Attributes:
        arrays: None.
        problems: The axes of each problem.
        benchmarks: Names of the problems that are timed.
        seed: Seed of the inputs of simulations.
        families: Names of the input families.
        axes: The values of each axis of other problems; None if it lists none.
        restricted: Whether only some combinations of them are problems.
    """

    arrays: tuple[()]
    problems: Annotated[dict[_Name, dict[_Name, _Value]], Field(min_length=1)]
    benchmarks: tuple[_Name, ...]
    seed: Integer
    families: Annotated[tuple[_Word, ...], Field(min_length=1)]
    axes: dict[_Word, Range | Annotated[tuple[_Value, ...], Field(min_length=1)]] | None
    restricted: bool


class Legal(_Answer):
    """Which problems a contract admits."""

    arrays: tuple[()]
    legal: tuple[Annotated[bool, Field(strict=True)], ...]


class Drawn(_Answer):
    """One draw of inputs.

    Attributes:
        arrays: Number of its arrays.
        inputs: Name and value of each; ``array`` stands for the next array.
        outputs: Name, type and shape of each output; None if they were not asked for.
        destination: Whether the outputs are passed to the kernel.
    """

    arrays: _Count
    inputs: tuple[tuple[_Name, Literal["array", "value"], _Value | None], ...]
    outputs: tuple[tuple[_Name, _Word, _Shape], ...] | None
    destination: bool


class Computed(_Answer):
    """Results of one draw, and as many bounds if there are any; ``arrays`` counts both."""

    arrays: _Count
    bounds: bool
