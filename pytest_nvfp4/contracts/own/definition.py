"""A definition of flashinfer-bench (a kernel's axes, tensors and reference as JSON) as a contract of the user's own.

It has the attributes of a contract that is written in Python (``own.program``). Its problems are the workloads of a
file of JSON lines (``own.files``). Inputs are drawn as flashinfer-bench draws them: normal numbers, those of 8 bits
within 2, integers within 1024, or what ``custom_inputs_entrypoint`` returns or a file has. An error of at most 1e-2,
absolute or relative, is right, as is one within the tolerance of a workload. Integers and bools are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.contracts.own import safetensors
from pytest_nvfp4.contracts.own.files import RETURNING, tensors_of, workloads_of
from pytest_nvfp4.contracts.own.packing import ITEMS
from pytest_nvfp4.contracts.own.wrong import Wrong
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.door.models import validated

_MOST_BYTES: Final = 256 << 20
_ALIASES: Final = {"float8_e4m3": "float8_e4m3fn"}
_SMALL: Final = ("float8_e4m3fn", "float8_e5m2")
_ABSOLUTE = _RELATIVE = 1e-2
_TINY: Final = 1e-8
"""What a relative error is divided by where the reference is zero."""
_Size = Annotated[int, Field(ge=0, lt=1 << 48, strict=True)]
_Text = Annotated[str, Field(min_length=1)]
_Error = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    description: str | None = None


class _Constant(_Part):
    type: Literal["const"]
    value: _Size


class _Variable(_Part):
    type: Literal["var"]
    parent: str | None = None


class _Spec(_Part):
    shape: tuple[_Text, ...] | None
    dtype: _Text

    @property
    def kind(self) -> str:
        """Name of the type in torch."""
        return _ALIASES.get(self.dtype, self.dtype)


class _Random(_Part):
    type: Literal["random"]


class _Custom(_Part):
    type: Literal["custom"]


class _Scalar(_Part):
    type: Literal["scalar"]
    value: bool | int | float


class _Safetensors(_Part):
    type: Literal["safetensors"]
    path: str
    tensor_key: str


class _Tolerance(_Part):
    max_atol: _Error = _ABSOLUTE
    max_rtol: _Error = _RELATIVE
    required_matched_ratio: float = 1.0
    max_error_cap: float | None = None
    allow_negative_inf: bool = False


_Source: TypeAlias = Annotated[_Random | _Custom | _Scalar | _Safetensors, Field(discriminator="type")]


class _Workload(_Part):
    uuid: _Text
    axes: dict[_Text, _Size]
    inputs: dict[_Text, _Source]
    tolerance: _Tolerance | None = None


class _Fields(_Part):
    name: _Text
    op_type: str = ""
    type: str = ""
    tags: tuple[str, ...] | None = None
    axes: dict[_Text, Annotated[_Constant | _Variable, Field(discriminator="type")]]
    inputs: Annotated[dict[_Text, _Spec], Field(min_length=1)]
    outputs: Annotated[dict[_Text, _Spec], Field(min_length=1)]
    reference: _Text
    constraints: tuple[_Text, ...] | None = None
    custom_inputs_entrypoint: str | None = None


class Definition:
    """A definition with its workloads.

    Args:
        file: The definition.
        style: ``value_returning`` for kernels that return their outputs; empty for those that are given them.

    Raises:
        Wrong: It is malformed, or has what is not supported.
    """

    def __init__(self, file: Path, style: str) -> None:
        self.destination = style != RETURNING
        self._file = file
        self._fields = _read(_Fields, file.read_bytes(), "the definition")
        self._check()
        self._space: dict[str, Any] = {"__name__": "reference"}
        try:
            exec(compile(self._fields.reference, "reference", "exec"), self._space)
        except Exception as error:
            raise Wrong(f"its reference cannot be loaded: {type(error).__name__}: {error}") from error
        for name in ("run", self._fields.custom_inputs_entrypoint):
            if name is not None and not callable(self._space.get(name)):
                raise Wrong(f"reference defines no function {name}")
        self._workloads = self._read_workloads(workloads_of(file), file)
        self.problems = {one.uuid: dict(one.axes) for one in self._workloads.values()}
        self.benchmarks = list(self.problems)
        for name, axes in self.problems.items():
            self._require_constraints({**axes}, f"workload {name}", known=True)
        one = next(iter(self._workloads.values()))
        if self._variable and all(isinstance(source, _Random | _Scalar) for source in one.inputs.values()):
            most = {name: max(each[name] for each in self.problems.values()) for name in self._variable}
            self.axes = {name: range(1, max(2, value + 1)) for name, value in most.items()}

    def legal(self, problem: Mapping[str, Any]) -> bool:
        """Return whether axes satisfy those constraints that name axes alone."""
        try:
            self._require_constraints({name: problem[name] for name in self._variable}, "", known=True)
        except Wrong:
            return False
        return True

    def inputs(self, problem: Mapping[str, Any], rng: Any) -> dict[str, Any]:
        """Return a draw of inputs, as tensors and scalars."""
        import torch

        torch.manual_seed(int(rng.integers(1 << 62)))
        workload = self._workload(problem["name"])
        axes = self._constants() | {name: problem[name] for name in self._variable}
        shapes = {name: self._shape(spec, axes) for name, spec in self._fields.inputs.items()}
        self._require_size(shapes, axes)
        scalars = {name: one.value for name, one in workload.inputs.items() if isinstance(one, _Scalar)}
        custom: Mapping[str, Any] = {}
        if any(isinstance(source, _Custom) for source in workload.inputs.values()):
            entry = self._fields.custom_inputs_entrypoint
            if entry is None:
                raise Wrong("has inputs of type custom, and the definition no custom_inputs_entrypoint")
            custom = self._called(entry, {**axes, **scalars}, torch.device("cpu"))
        made: dict[str, Any] = {}
        for name, spec in self._fields.inputs.items():
            source = workload.inputs.get(name)
            if isinstance(source, _Safetensors):
                made[name] = self._stored(source)
            elif isinstance(source, _Scalar):
                made[name] = source.value
            elif isinstance(source, _Custom):
                if name not in custom:
                    raise Wrong(f"custom_inputs_entrypoint returns no {name}")
                made[name] = custom[name]
            else:
                made[name] = _random(spec.kind, shapes[name])
            if (shape := shapes[name]) is not None:
                _require(f"input {name}", made[name], spec.kind, shape)
        self._require_constraints({**axes, **made}, "the inputs", known=False)
        return made

    def reference(self, **inputs: Any) -> dict[str, Any]:
        """Return the outputs by name. Raises Wrong if they are not those of the definition."""
        import torch

        with torch.no_grad():
            found = self._called("run", *inputs.values())
        names = list(self._fields.outputs)
        if not isinstance(found, Mapping):
            several = list(found) if isinstance(found, list | tuple) else [found]
            if len(several) != len(names):
                raise Wrong(f"reference returns {len(several)} outputs, and the definition has {', '.join(names)}")
            found = dict(zip(names, several, strict=True))
        axes = self._constants()
        for name, value in inputs.items():
            shape = self._fields.inputs[name].shape
            axes |= dict(zip(shape, value.shape, strict=True)) if shape is not None else {}
        for name, spec in self._fields.outputs.items():
            if name not in found:
                raise Wrong(f"reference returns no {name}; it returns {', '.join(map(str, found))[:200]}")
            if all(axis in axes for axis in spec.shape or ()):
                _require(f"reference: {name}", found[name], spec.kind, self._shape(spec, axes) or ())
        return {name: found[name].contiguous() for name in names}

    def bounds(self, problem: str, numbers: Sequence[Any]) -> list[Any]:
        """Return the largest error of each element, for the outputs as fp64."""
        import numpy as np

        tolerance, made = self._workload(problem).tolerance, []
        for spec, number in zip(self._fields.outputs.values(), numbers, strict=True):
            size = np.abs(number)
            if spec.kind.startswith(("int", "uint", "bool")):
                bound = np.zeros_like(size)
            elif tolerance is None:
                bound = np.maximum(_ABSOLUTE, _RELATIVE * (size + _TINY))
            else:
                bound = tolerance.max_atol + tolerance.max_rtol * size
            made.append(np.where(np.isfinite(number), bound, 0.0))
        return made

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def _variable(self) -> list[str]:
        return [name for name, axis in self._fields.axes.items() if isinstance(axis, _Variable)]

    def _constants(self) -> dict[str, int]:
        return {name: axis.value for name, axis in self._fields.axes.items() if isinstance(axis, _Constant)}

    def _check(self) -> None:
        fields = self._fields
        if fields.op_type == "sampling":
            raise Wrong(
                "op_type sampling is not supported: its outputs are random, and are judged by their frequencies"
            )
        for name in sorted(set(fields.inputs) & set(fields.outputs)):
            raise Wrong(f"{name} is an input and an output")
        for name, spec in (fields.inputs | fields.outputs).items():
            if unknown := [axis for axis in spec.shape or () if axis not in fields.axes]:
                raise Wrong(f"the shape of {name} has {unknown[0]!r}, which is none of its axes")
            if spec.kind not in ITEMS:
                more = ": write float4_e2m1fn_x2, and its shape in pairs" if spec.kind == "float4_e2m1" else ""
                raise Wrong(
                    f"{name} has dtype {spec.dtype}, which is not supported{more}; known are {', '.join(ITEMS)}"
                )
        for name, spec in fields.outputs.items():
            if spec.shape is None:
                raise Wrong(f"output {name} is a scalar (shape null), which is not supported: give it the shape []")

    def _read_workloads(self, path: Path, file: Path) -> dict[str, _Workload]:
        if not path.is_file():
            if self._variable:
                raise Wrong(
                    f"its axes {', '.join(self._variable)} are variable and there are no workloads: write {path.name} "
                    f"beside {file.name}, with a line such as "
                    '{"uuid": "small", "axes": {"' + self._variable[0] + '": 8}, "inputs": {}}'
                )
            return {self._fields.name: _Workload(uuid=self._fields.name, axes={}, inputs={})}
        found: dict[str, _Workload] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            value = _json(line, where)
            if isinstance(value, dict) and "workload" in value:
                if value.get("definition", self._fields.name) != self._fields.name:
                    raise Wrong(
                        f"{where}: is a workload of {str(value['definition'])[:80]}, not of {self._fields.name}"
                    )
                value = value["workload"]
            one = _read(_Workload, value, where)
            self._check_workload(one, where)
            if found.setdefault(one.uuid, one) is not one:
                raise Wrong(f"{where}: two workloads have the uuid {one.uuid}")
        if not found:
            raise Wrong(f"{path.name} has no workload")
        return found

    def _check_workload(self, one: _Workload, where: str) -> None:
        if set(one.axes) != set(self._variable):
            raise Wrong(f"{where}: its axes are {sorted(one.axes)}, and the variable ones are {sorted(self._variable)}")
        if unknown := [name for name in one.inputs if name not in self._fields.inputs]:
            raise Wrong(f"{where}: {unknown[0]!r} is none of the inputs")
        for name, source in one.inputs.items():
            if isinstance(source, _Scalar) != (self._fields.inputs[name].shape is None) and not isinstance(
                source, _Random
            ):
                raise Wrong(f"{where}: input {name} is of type {source.type}, which does not fit its shape")
        if (tolerance := one.tolerance) is not None:
            for name, plain in (
                ("required_matched_ratio", 1.0),
                ("max_error_cap", None),
                ("allow_negative_inf", False),
            ):
                if getattr(tolerance, name) != plain:
                    raise Wrong(f"{where}: tolerance.{name} is not supported: every element is judged; leave it out")

    def _workload(self, name: str) -> _Workload:
        """Return the workload of a name; the first for a problem that is drawn."""
        return self._workloads.get(name) or next(iter(self._workloads.values()))

    def _stored(self, source: _Safetensors) -> Any:
        """Return a tensor of a file."""
        path = tensors_of(self._file, source.path)
        if path is None or path.suffix != ".safetensors":
            raise Wrong(f"path {source.path[:200]!r} is no .safetensors file in the folder of the trace")
        return safetensors.tensor(path, source.tensor_key)

    def _shape(self, spec: _Spec, axes: Mapping[str, int]) -> tuple[int, ...] | None:
        return None if spec.shape is None else tuple(axes[axis] for axis in spec.shape)

    def _require_size(self, shapes: Mapping[str, tuple[int, ...] | None], axes: Mapping[str, int]) -> None:
        """Raise Wrong if the inputs or the outputs are larger than what is sent, before anything has this size."""
        inputs = {name: (self._fields.inputs[name].kind, shape or ()) for name, shape in shapes.items()}
        outputs = {name: (spec.kind, self._shape(spec, axes) or ()) for name, spec in self._fields.outputs.items()}
        for what, tensors in (("inputs", inputs), ("outputs", outputs)):
            size = sum(ITEMS[kind] * math.prod(shape) for kind, shape in tensors.values())
            if size > _MOST_BYTES:
                raise Wrong(f"its {what} have {size:,} bytes, and at most {_MOST_BYTES:,} are used: make it smaller")

    def _require_constraints(self, values: dict[str, Any], where: str, *, known: bool) -> None:
        """Raise Wrong if a constraint is not met; if ``known``, leave out those that name other things than axes."""
        names = self._constants() | values
        for constraint in self._fields.constraints or ():
            try:
                met = bool(eval(compile(constraint, "constraint", "eval"), {}, names))
            except NameError as error:
                if known:
                    continue
                raise Wrong(f"constraint {constraint!r}: {error}") from error
            except Exception as error:
                raise Wrong(f"constraint {constraint!r}: {type(error).__name__}: {error}") from error
            if not met:
                raise Wrong(f"{where} violates the constraint {constraint!r}")

    def _called(self, name: str, *values: Any) -> Any:
        """Return what a function of the reference returns; its exceptions name the line of the reference."""
        import traceback

        try:
            return self._space[name](*values)
        except Exception as error:
            lines = [
                frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "reference"
            ]
            error.add_note(f"line {lines[-1] if lines else '?'} of reference")
            raise


def _json(data: bytes, source: str) -> Any:
    try:
        return read_json(data, source=source)
    except DoorError as error:
        raise Wrong(str(error)) from error


def _read(model: type[Any], value: object, source: str) -> Any:
    if isinstance(value, bytes):
        value = _json(value, source)
    try:
        return validated(model, value, source=source)
    except DoorError as error:
        raise Wrong(f"{error} (what is not named by the guide is not supported)") from error


def _random(kind: str, shape: tuple[int, ...] | None) -> Any:
    """Return random elements of a type, or a scalar if the shape is None."""
    import torch

    dtype = getattr(torch, kind)
    size = shape or ()
    if kind == "float4_e2m1fn_x2":  # every byte is two finite numbers
        made = torch.randint(0, 256, size, dtype=torch.uint8).view(dtype)
    elif kind == "float8_e8m0fnu":
        made = torch.randint(120, 135, size, dtype=torch.uint8).view(dtype)
    elif kind in _SMALL:
        made = torch.randn(size).clamp(-2.0, 2.0).to(dtype)
    elif dtype.is_floating_point:
        made = torch.randn(size, dtype=torch.float64 if kind == "float64" else torch.float32).to(dtype)
    else:
        least, most = {"bool": (0, 2), "int8": (-128, 128), "uint8": (0, 256)}.get(kind, (-1024, 1024))
        least = max(0, least) if kind.startswith("uint") else least
        made = torch.randint(least, most, size, dtype=torch.int64).to(dtype)
    return made.item() if shape is None else made


def _require(what: str, value: Any, kind: str, shape: tuple[int, ...]) -> None:
    """Raise Wrong if a value is not a tensor of this type and shape."""
    if not hasattr(value, "untyped_storage"):
        raise Wrong(f"{what} is a {type(value).__name__}, not a tensor")
    found = str(value.dtype).removeprefix("torch.")
    if (found, tuple(value.shape)) != (kind, shape):
        raise Wrong(f"{what} is {found} {list(value.shape)}, and the definition says {kind} {list(shape)}")
