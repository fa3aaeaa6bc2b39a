"""Suites of benchmarks: TOML files that name kernels, how they are called, and on what.

A file has tables ``[[case]]``. A case of the contract ``gpumode`` has problems; without ``kernel`` it stands for the
kernels that the command line or the settings name. A case of the contract ``operator`` calls a function of the kernel's
file with one matrix ``x`` for each shape and type, and compares what it returns with ``reference``, an expression in
``x`` and ``torch``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Name
from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.isolation.door.models import validated

_MOST_BYTES = 1 << 20
_SHAPE = re.compile(r"([1-9]\d{0,8})x([1-9]\d{0,8})")
_MOST_ELEMENTS = 1 << 32
Dtype = Literal["float16", "bfloat16", "float32", "int16", "int32"]
Expression = Annotated[str, Field(min_length=1, max_length=2000)]
Texts = Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)]


class SuiteError(ValueError):
    """A suite that does not exist or cannot be read."""


class SuiteCase(BaseModel):
    """Cases that share a kernel.

    Attributes:
        kernel: Path of its file, relative to the suite's file; those of this package are relative to the folder of the
            settings. None stands for the kernels of the command line or the settings.
        contract: How the kernel is called.
        problems: Names or shapes of problems (``gpumode``).
        call: Function of the kernel's file that takes a matrix (``operator``); so for all that follow.
        reference: What it must return: a Python expression of ``x`` and ``torch``.
        tolerance: Largest difference of an element, a number or an expression; with 0 the bits must be equal.
        shapes: Rows and columns of ``x``, such as ``1024x1024``.
        dtypes: Types of its elements.
        operations: Arithmetic operations for each element of ``x``.
    """

    model_config = STRICT

    kernel: Name | None = None
    contract: Literal["gpumode", "operator"] = "gpumode"
    problems: Texts | None = None
    call: Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,200}$")] | None = None
    reference: Expression | None = None
    tolerance: Annotated[float, Field(ge=0)] | Expression = 0.0
    shapes: Texts | None = None
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1, max_length=5)] = ("float16",)
    operations: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = {"kernel", "call", "reference", "shapes"} if self.contract == "operator" else {"problems"}
        foreign = {"problems"} if self.contract == "operator" else {"call", "reference", "shapes", "dtypes"}
        if missing := sorted(name for name in fields if getattr(self, name) is None):
            raise ValueError(f"a case of the contract {self.contract} needs {', '.join(missing)}")
        if wrong := sorted(foreign & self.model_fields_set):
            raise ValueError(f"a case of the contract {self.contract} has no {', '.join(wrong)}")
        for text in self.shapes or ():
            shape = _SHAPE.fullmatch(text)
            if shape is None or int(shape[1]) * int(shape[2]) > _MOST_ELEMENTS:
                raise ValueError(f"{text!r} is not ROWSxCOLUMNS such as 1024x1024, of at most 2^32 elements")
        return self

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Rows and columns of each shape."""
        found = [_SHAPE.fullmatch(text) for text in self.shapes or ()]
        return [(int(shape[1]), int(shape[2])) for shape in found if shape is not None]


class _SuiteFile(BaseModel):
    """The content of a file."""

    model_config = STRICT

    case: Annotated[tuple[SuiteCase, ...], Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite.

    Attributes:
        name: Its name: that of a suite of this package, or the stem of the file.
        case: Its cases, in order.
        file: Where it was read from; None for one of this package.
    """

    name: str
    case: tuple[SuiteCase, ...]
    file: Path | None = None

    @property
    def takes_kernels(self) -> bool:
        """Whether a case stands for the kernels of the command line."""
        return any(case.kernel is None for case in self.case)


def shipped_suites() -> tuple[str, ...]:
    """Return the names of the suites of this package."""
    folder = files(__package__).joinpath("suites")
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def load_suite(name: str) -> Suite:
    """Return the suite of a name or of a file.

    Raises:
        SuiteError: There is no such suite, or it is not valid; the message names the file, the value and the way out.
    """
    shipped = shipped_suites()
    if name in shipped:
        text = files(__package__).joinpath("suites", f"{name}.toml").read_text("utf-8")
        return parse_suite(text, name=name, source=f"the suite {name}")
    path = Path(name)
    if path.suffix != ".toml":
        raise SuiteError(f"{name!r} is no suite; give one of {', '.join(shipped)}, or a file *.toml")
    try:
        text = read_text(path, source=name, most=_MOST_BYTES)
    except OSError as error:
        raise SuiteError(f"{name}: cannot be read: {error.strerror or error}") from error
    except DoorError as error:
        raise SuiteError(str(error)) from error
    return parse_suite(text, name=path.stem, source=name, file=path.resolve())


def parse_suite(text: str, *, name: str, source: str, file: Path | None = None) -> Suite:
    """Return the suite of a TOML text. Raises SuiteError."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib raises both for numbers and nesting without end
        raise SuiteError(f"{source}: is not TOML: {error}") from error
    try:
        read = validated(_SuiteFile, data, source=source)
    except DoorError as error:
        raise SuiteError(f"{error}; `nvfp4 guide benchmark` has an example") from error
    assert isinstance(read, _SuiteFile)
    return Suite(name, read.case, file)
