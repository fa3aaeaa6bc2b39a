"""Program that runs a contract of the user's own: it lists its problems, draws inputs, and computes references.

Arguments: the contract's file, and the name of its class (empty for functions of the module). The request and its
arrays lie in the file ``request`` of the working folder. The result is that of ``packing.pack`` (``own.answers``); what
the contract raises is a field ``error`` of it, with the line of the contract's file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.contracts.own.files import is_definition
from pytest_nvfp4.contracts.own.packing import ITEMS, Array, pack, unpack
from pytest_nvfp4.contracts.own.wrong import Wrong
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE
from pytest_nvfp4.isolation.wall import enter_from_environment

_FAMILY = "contract"
"""Name of the one input family of a contract that lists none."""
_ENOUGH_BYTES = 256 << 20
"""Bytes of arrays after which the rest of a request is left to another process."""


def main() -> None:
    """Enter the wall, load the contract, do what is asked, and exit without running the contract's exit handlers."""
    result = int(os.environ.pop(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter_from_environment(keep=(result,))
    file, name = sys.argv[1], sys.argv[2]
    fields, arrays = unpack(Path("request").read_bytes(), source="the request")
    request = fields["request"]
    if (torch := sys.modules.get("torch")) is not None:  # for the reference; its variables are those of the simulator
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    with open(result, "wb") as pipe:
        try:
            contract = _Contract(Path(file), name)
            if request["do"] == "problems":
                answer = pack(contract.listed(), [])
            elif request["do"] == "legal":
                answer = pack({"legal": [contract.admits(axes) for axes in request["problems"]]}, [])
            else:
                answer = _answered(contract, request["parts"], arrays)
        except BaseException as error:
            answer = pack({"error": _described(error, file)}, [])
        pipe.write(answer)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)  # the interpreter's shutdown would free all that the fork server has imported, which takes 0.25 s


def _described(error: BaseException, file: str) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    text = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
    text = "".join(f"{note}: " for note in reversed(getattr(error, "__notes__", ()))) + text
    return {"message": text[:4000], "line": line}


def _answered(contract: _Contract, parts: list[dict[str, Any]], given: list[Array]) -> bytes:
    """Return the answers to the first parts of a request: all of them, unless their arrays are large."""
    answers, arrays = list[dict[str, Any]](), list[Array]()
    for part in parts:
        try:
            if "seed" in part:
                answer, made = contract.drawn(part)
            else:
                answer, made = contract.results(part, given[: part["arrays"]])
                given = given[part["arrays"] :]
        except Exception as error:
            error.add_note(f"problem {part['problem']}")
            raise
        answers.append({**answer, "arrays": len(made)})
        arrays += made
        if sum(array.size for array in arrays) > _ENOUGH_BYTES:
            break
    return pack({"parts": answers}, arrays)


class _Contract:
    """The contract: an instance of the user's class, or the user's module."""

    def __init__(self, file: Path, name: str) -> None:
        if is_definition(file.name):
            from pytest_nvfp4.contracts.own.definition import Definition

            self._own: Any = Definition(file, name)
            return
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
        by_function = isinstance(getattr(self._own, "families", None), Mapping)
        for needed in ("problems", "reference") if by_function else ("problems", "inputs", "reference"):
            if not hasattr(self._own, needed):
                raise Wrong(
                    f"a contract needs problems, inputs and reference, and {name or 'the file'} has no {needed}"
                )

    def listed(self) -> dict[str, Any]:
        """Return what the contract lists (``axes.Listed``)."""
        problems = self._problems()
        names = getattr(self._own, "benchmarks", ())
        unknown = [one for one in names if one not in problems]
        if unknown:
            raise Wrong(f"benchmarks names {unknown[0]!r}, which is none of its problems: {', '.join(problems)}")
        return {
            "problems": problems,
            "benchmarks": list(names),
            "seed": getattr(self._own, "seed", 0),
            "families": self._families() or [_FAMILY],
            "axes": self._axes(),
            "restricted": hasattr(self._own, "legal"),
        }

    def _families(self) -> list[str]:
        """Return the names of the input families; none if ``inputs`` takes none."""
        found = getattr(self._own, "families", ())
        if isinstance(found, str) or not isinstance(found, Iterable):
            raise Wrong("families must be a list of names, or a dict of functions like inputs: {name: function}")
        return [str(name) for name in found]

    def _axes(self) -> dict[str, Any] | None:
        """Return the values of the axes of problems that may be drawn."""
        found = getattr(self._own, "axes", None)
        if found is None:
            return None
        if not isinstance(found, Mapping) or not found:
            raise Wrong("axes must be a dict of values: {axis: range(1, 300), other: [64, 128]}")
        made: dict[str, Any] = {}
        for name, values in found.items():
            if not isinstance(values, range | list | tuple) or not values:
                raise Wrong(f"axes: {name} must be a range or a list of at least one value")
            if isinstance(values, range):
                least, most = sorted((values[0], values[-1]))
                made[str(name)] = {"least": least, "most": most, "step": abs(values.step)}
            else:
                made[str(name)] = list(values)
        return made

    def admits(self, axes: dict[str, Any]) -> bool:
        """Return whether drawn axes are a problem of the contract."""
        return not hasattr(self._own, "legal") or bool(self._own.legal(_named_axes(axes)))

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

    def drawn(self, one: dict[str, Any]) -> tuple[dict[str, Any], list[Array]]:
        """Return inputs of a problem, with their results' shapes if they are asked for (``answers.Drawn``)."""
        problems, name = self._problems(), one["problem"]
        if name not in problems and not self.admits(one["axes"]):
            raise Wrong("legal returns False")
        values = self._drawn(problems.get(name, one["axes"]) | {"name": name}, one["family"], int(one["seed"]))
        outputs = None
        if one["results"]:
            outputs = [[result.name, result.dtype, result.shape] for result in self._results(values, name)[0]]
        answer = {
            "inputs": [_json(key, value) for key, value in values.items()],
            "outputs": outputs,
            "destination": bool(getattr(self._own, "destination", False)),
        }
        return answer, [value for value in values.values() if isinstance(value, Array)]

    def results(self, one: dict[str, Any], given: list[Array]) -> tuple[dict[str, Any], list[Array]]:
        """Return the results of given inputs, and their bounds (``answers.Computed``)."""
        taken = iter(given)
        values = {key: next(taken) if kind == "array" else value for key, kind, value in one["inputs"]}
        results, bounds = self._results(values, one["problem"])
        return {"bounds": bool(bounds)}, results + bounds

    def _drawn(self, problem: dict[str, Any], family: str, seed: int) -> dict[str, Any]:
        import numpy as np

        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
        rng = np.random.default_rng(seed)
        families = getattr(self._own, "families", ())
        if isinstance(families, Mapping):
            made = families[family](problem, rng)
        else:
            made = self._own.inputs(problem, rng, *([family] if families else []))
        if not isinstance(made, Mapping) or not made:
            raise Wrong(
                f"inputs of {problem['name']} returned {type(made).__name__}, not a dict: {{name: array or number}}"
            )
        return {str(name): _value(str(name), value, "inputs") for name, value in made.items()}

    def _results(self, values: dict[str, Any], problem: str) -> tuple[list[Array], list[Array]]:
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
        if hasattr(self._own, "bounds"):
            bounds = self._own.bounds(problem, numbers)
        elif tolerance is None or tolerance == 0:
            return results, []
        elif callable(tolerance):
            bounds = [_float64(value) for _, value in _named(tolerance(**inputs))]
        else:
            relative, absolute = (tolerance, tolerance) if isinstance(tolerance, int | float) else tolerance
            finite = [np.where(np.isfinite(number), np.abs(number), 0.0) for number in numbers]
            bounds = [absolute + relative * number for number in finite]
        if len(bounds) != len(results):
            raise Wrong(f"tolerance returned {len(bounds)} bounds for {len(results)} results")
        made = []
        for result, bound in zip(results, bounds, strict=True):
            whole = np.ascontiguousarray(np.broadcast_to(bound, result.shape))
            if not (whole >= 0).all() and not np.isnan(whole).any():
                raise Wrong(f"tolerance of {result.name} is negative")
            made.append(Array(result.name, "float64", result.shape, whole.tobytes()))
        return results, made


def _named_axes(axes: dict[str, Any]) -> dict[str, Any]:
    return axes | {"name": ",".join(f"{name}={value}" for name, value in axes.items())}


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
