"""Program that runs a contract of the user's own: it lists its problems, draws inputs, and computes references.

Arguments: the contract's file, the name of its class (empty for functions of the module), and a request as JSON. The
arrays of a request lie in the file ``request`` of the working folder. The result is that of ``packing.pack``; what
the contract raises is a field ``error`` of it, with the line of the contract's file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.contracts.own.packing import ITEMS, Array, pack, unpack
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.wall import enter_from_environment


class Wrong(Exception):
    """What a contract returned cannot be used."""


def main() -> None:
    """Enter the wall, load the contract, and do what is asked."""
    result = int(os.environ.pop(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter_from_environment(keep=(result,))
    file, name, request = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    with open(result, "wb") as pipe:
        try:
            contract = _Contract(Path(file), name)
            answer = contract.problems() if request["do"] == "problems" else contract.made(request)
        except BaseException as error:
            answer = pack({"error": _described(error, file)}, [])
        pipe.write(answer)


def _described(error: BaseException, file: str) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    text = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
    return {"message": text[:4000], "line": line}


class _Contract:
    """The contract: an instance of the user's class, or the user's module."""

    def __init__(self, file: Path, name: str) -> None:
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location("nvfp4_contract", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        found = getattr(module, name, None) if name else module
        if found is None:
            raise Wrong(f"it defines no {name}")
        self._own = found() if isinstance(found, type) else found
        for needed in ("problems", "inputs", "reference"):
            if not hasattr(self._own, needed):
                raise Wrong(
                    f"a contract needs problems, inputs and reference, and {name or 'the file'} has no {needed}"
                )

    def problems(self) -> bytes:
        """Return the problems, and which of them are benchmarks."""
        problems = self._problems()
        names = getattr(self._own, "benchmarks", ())
        unknown = [one for one in names if one not in problems]
        if unknown:
            raise Wrong(f"benchmarks names {unknown[0]!r}, which is none of its problems: {', '.join(problems)}")
        seed = getattr(self._own, "seed", 0)
        return pack({"problems": problems, "benchmarks": list(names), "seed": seed}, [])

    def _problems(self) -> dict[str, dict[str, Any]]:
        found = self._own.problems
        found = found() if callable(found) else found
        if not isinstance(found, Mapping) or not found:
            raise Wrong("problems must be a dict of at least one problem: {name: {axis: value}}")
        for name, axes in found.items():
            plain = isinstance(axes, Mapping) and all(
                isinstance(key, str) and isinstance(value, bool | int | float | str) for key, value in axes.items()
            )
            if not isinstance(name, str) or not plain:
                raise Wrong(f"problem {name!r} must be a dict of axes whose values are numbers, texts or bools")
        return {name: dict(axes) for name, axes in found.items()}

    def made(self, request: dict[str, Any]) -> bytes:
        """Return draws of inputs with their results' shapes, or the results of given inputs."""
        problems, arrays, parts = self._problems(), list[Array](), list[dict[str, Any]]()
        given = [] if request["do"] == "draw" else unpack(Path("request").read_bytes(), source="the request")[1]
        for one in request["parts"]:
            name = one["problem"]
            if name not in problems:
                raise Wrong(f"problems has no {name!r}; it has {', '.join(problems)}")
            if request["do"] == "draw":
                values = self._drawn(problems[name] | {"name": name}, int(one["seed"]))
                held = [value for value in values.values() if isinstance(value, Array)]
                arrays += held
                part: dict[str, Any] = {"inputs": [_json(key, value) for key, value in values.items()]}
                if one["results"]:
                    results = self._results(values)[0]
                    part["outputs"] = [[result.name, result.dtype, result.shape] for result in results]
                    part["destination"] = bool(getattr(self._own, "destination", False))
                parts.append(part)
            else:
                taken = iter(given[: one["arrays"]])
                given = given[one["arrays"] :]
                values = {key: next(taken) if kind == "array" else value for key, kind, value in one["inputs"]}
                results, bounds = self._results(values)
                arrays += results + bounds
                parts.append({"bounds": bool(bounds)})
        return pack({"parts": parts}, arrays)

    def _drawn(self, problem: dict[str, Any], seed: int) -> dict[str, Any]:
        import numpy as np

        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        made = self._own.inputs(problem, np.random.default_rng(seed))
        if not isinstance(made, Mapping) or not made:
            raise Wrong(
                f"inputs of {problem['name']} returned {type(made).__name__}, not a dict: {{name: array or number}}"
            )
        return {str(name): _value(str(name), value, "inputs") for name, value in made.items()}

    def _results(self, values: dict[str, Any]) -> tuple[list[Array], list[Array]]:
        """Return the results of the reference, and the bound of each, if there are any."""
        import numpy as np

        inputs = {name: _library(value) if isinstance(value, Array) else value for name, value in values.items()}
        returned = self._own.reference(**inputs)
        results = [_value(name, value, "reference") for name, value in _named(returned)]
        for result in results:
            if not isinstance(result, Array):
                raise Wrong("reference must return arrays or tensors")
        if not results:
            raise Wrong("reference returned nothing")
        tolerance = getattr(self._own, "tolerance", None)
        numbers = [_float64(value) for _, value in _named(returned)]
        for result, number in zip(results, numbers, strict=True):
            if np.isnan(number).any() and not getattr(self._own, "allow_nan", False):
                where = np.argwhere(np.isnan(number))[0].tolist()
                raise Wrong(f"reference returned NaN in {result.name}{where}; set allow_nan = True if that is meant")
        if tolerance is None or tolerance == 0:
            return results, []
        if callable(tolerance):
            bounds = [_float64(value) for _, value in _named(tolerance(**inputs))]
        else:
            relative, absolute = (tolerance, tolerance) if isinstance(tolerance, int | float) else tolerance
            bounds = [absolute + relative * np.abs(number) for number in numbers]
        if len(bounds) != len(results):
            raise Wrong(f"tolerance returned {len(bounds)} bounds for {len(results)} results")
        made = []
        for result, bound in zip(results, bounds, strict=True):
            whole = np.ascontiguousarray(np.broadcast_to(bound, result.shape))
            if not (whole >= 0).all() and not np.isnan(whole).any():
                raise Wrong(f"tolerance of {result.name} is negative")
            made.append(Array(result.name, "float64", result.shape, whole.tobytes()))
        return results, made


def _json(name: str, value: Any) -> list[Any]:
    return [name, "array", None] if isinstance(value, Array) else [name, "value", value]


def _named(returned: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(returned, Mapping):
        return [(str(name), value) for name, value in returned.items()]
    if isinstance(returned, list | tuple):
        return [(f"out{at}", value) for at, value in enumerate(returned)]
    return [("out", returned)]


def _value(name: str, value: Any, where: str) -> Any:
    """Return a value as an array or a JSON value."""
    import numpy as np

    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
        import torch

        tensor = value.detach().cpu().contiguous()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        array = Array(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), data, "torch")
    elif isinstance(value, np.ndarray):
        kind = value.dtype.newbyteorder("=")
        array = Array(name, kind.name, value.shape, np.ascontiguousarray(value).astype(kind).tobytes())
    elif isinstance(value, np.generic):
        return _value(name, value.item(), where)
    elif value is None or isinstance(value, bool | int | float | str):
        return value
    else:
        raise Wrong(f"{where}: {name} is a {type(value).__name__}; arrays, tensors, numbers and texts can be used")
    if array.dtype not in ITEMS:
        raise Wrong(f"{where}: {name} has type {array.dtype}; known are {', '.join(ITEMS)}")
    return array


def _library(array: Array) -> Any:
    """Return an array as the library's that it came from."""
    import numpy as np

    if array.library == "torch":
        import torch

        raw = torch.frombuffer(bytearray(array.data), dtype=torch.uint8) if len(array.data) else torch.empty(0)
        kind = getattr(torch, array.dtype)
        return raw.view(kind).reshape(array.shape) if len(array.data) else torch.empty(array.shape, dtype=kind)
    try:
        kind = np.dtype(array.dtype)
    except TypeError:
        import ml_dtypes

        kind = np.dtype(getattr(ml_dtypes, array.dtype))
    return np.frombuffer(array.data, dtype=kind).reshape(array.shape).copy()


def _float64(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "untyped_storage"):
        return value.detach().cpu().double().numpy()
    return np.asarray(value).astype(np.float64)


if __name__ == "__main__":
    main()
