"""A contract of the user's own: what it lists, draws and expects; what it does wrong names its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4 import isolation
from pytest_nvfp4.contracts.own import run
from pytest_nvfp4.contracts.own.files import may_use_torch
from pytest_nvfp4.contracts.own.packing import Array, pack, unpack
from pytest_nvfp4.contracts.own.run import ContractError, identity, own_problems
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.given import given_of, outputs_of, with_given
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, Timing
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verify import Verifier
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.fork_server.compatibility import shared_environment
from pytest_nvfp4.numerics.judge import judge
from pytest_nvfp4.problem import ProblemError
from tests.contracts.own import own_cases, own_kernel

SCALE = """
import numpy as np

destination = True
problems = {"small": {"rows": 3, "columns": 40}}
benchmarks = []
tolerance = (1e-3, 0)


def inputs(problem, rng):
    return {"x": rng.standard_normal((problem["rows"], problem["columns"])).astype(np.float32), "factor": 2.5}


def reference(x, factor):
    return {"y": x * np.float32(factor)}
"""


def written(folder: Path, text: str = SCALE) -> str:
    """Write a contract, and return its place. Its name follows from its content, because identities are kept."""
    file = folder / f"c{abs(hash(text)):x}.py"
    file.write_text(text)
    return f"{file}::"


def job(folder: Path, text: str = SCALE, *, action: str = "verify") -> Job:
    """Return a job with what its contract has drawn."""
    kernel = folder / "k.py"
    kernel.write_text("def scale(x, factor, y): ...\n")
    spec, _ = own_kernel(kernel, "scale", arch="sm_100a")
    cases = tuple(own_cases(written(folder, text)))
    asked = Job(id="j", action=action, kernel=spec, cases=cases, row_key=7, timing=Timing(rounds=3))  # type: ignore[arg-type]
    return with_given(asked)


@pytest.mark.slow
def test_problems_and_calls_follow_from_the_file(tmp_path: Path) -> None:
    made = job(tmp_path)
    (case,) = made.cases
    assert dict(case.problem.axes) == {"rows": 3, "columns": 40}
    inputs = rotation.verified_inputs(case, key=7, given=made.given)
    call = contract_of(inputs.problem).call(inputs)
    assert [(one.name, one.dtype, one.shape, one.role) for one in call.tensors] == [
        ("x", "float32", (3, 40), "input"),
        ("y", "float32", (3, 40), "output"),
    ]
    assert call.arguments[1] == 2.5
    (output,) = outputs_of(made, 0)
    assert output.before % 512 == 0
    assert output.after >= 512
    assert output.describe is not None
    assert output.describe(4 * 41) == "y[1, 1]"


@pytest.mark.slow
def test_each_draw_is_another_one_and_a_simulation_repeats_its_own(tmp_path: Path) -> None:
    made = job(tmp_path)
    problem = made.cases[0].problem.problem()
    draws = [given_of(made.given).inputs(problem, "contract", label) for label in ("verify", "changed", "replay")]
    assert len({bytes(draw.arrays[0].data) for draw in draws}) == 3
    one, two = (job(tmp_path, action="simulate").given for _ in range(2))
    assert one == two
    bench = job(tmp_path, action="benchmark")
    base = rotation.set_inputs(bench.cases[0], 0, given=bench.given)
    seen = {
        bytes(rotation.inputs_at(bench.cases[0], index=0, visit=visit, key=7, base=base).arrays[0].data)
        for visit in range(12)
    }
    assert len(seen) == 2, "what a set holds changes between visits"


@pytest.mark.slow
def test_outputs_are_judged_by_the_reference_and_its_tolerance(tmp_path: Path) -> None:
    made = job(tmp_path)
    inputs = rotation.verified_inputs(made.cases[0], key=7, given=made.given)
    x = np.frombuffer(inputs.arrays[0].data, np.float32).reshape(3, 40)
    (reference,) = contract_of(inputs.problem).references(inputs)
    near = (x * np.float32(2.5) * np.float32(1.0005)).view(np.uint32)
    assert judge(near, reference).ok
    far = (x * np.float32(2.5) * np.float32(1.002)).view(np.uint32)
    verdict = judge(far, reference)
    assert verdict.mismatches == far.size
    assert str(verdict).startswith("y (3x40): 120 of 120 outputs wrong")
    assert "y[0, 0]: got" in str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ('problems = {"small": {"rows": 3, "columns": 40}}', "problems = {}", "at least one problem", None),
        ("benchmarks = []", 'benchmarks = ["tiny"]', "benchmarks names 'tiny'", None),
        ('    return {"x"', '    raise ValueError("no luck")\n    return {"x"', "ValueError: no luck", 11),
        ('    return {"y"', '    x[0] = np.nan\n    return {"y"', r"NaN in y\[0, 0\]", None),
        ("x * np.float32(factor)}", "str(x)}", "arrays or tensors", None),
        (".astype(np.float32)", ".astype(np.complex64)", "x has type complex64", None),
        ('problem["rows"], problem', "int(rng.integers(1, 99)), problem", "shapes or types for another seed", None),
        ("def reference(x, factor)", "def refrence(x, factor)", "has no reference", None),
        ("import numpy as np", "import numpy as np\n)", "SyntaxError", 3),
        ("import numpy as np", "import os, numpy as np\nos._exit(3)", "the contract's process", None),
    ],
)  # fmt: skip
def test_what_a_contract_does_wrong_is_told(tmp_path: Path, old: str, new: str, said: str, line: int | None) -> None:
    assert old in SCALE
    with pytest.raises(ContractError, match=said) as caught:
        job(tmp_path, SCALE.replace(old, new))
    assert caught.value.file.startswith(str(tmp_path))
    assert line is None or caught.value.line == line


def test_a_contract_that_is_replaced_during_the_run_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path)
    known = identity(place)
    Path(place.removesuffix("::")).write_text(SCALE.replace("2.5", "0.0"))
    with pytest.raises(ContractError, match="changed during the run"):
        own_problems(known)


def test_it_shares_a_fork_server_with_kernels_in_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(Exception):
        pass

    variables = []

    def stopped(*_: object, environ: dict[str, str], **__: object) -> None:
        variables.append(shared_environment(environ))
        raise Stopped

    asked = job(tmp_path)
    monkeypatch.setattr(isolation, "run", stopped)
    with pytest.raises(Stopped):
        own_problems(identity(written(tmp_path, SCALE + "# another one\n")))
    (tmp_path / "jobs").mkdir()
    with pytest.raises(Stopped):
        SimDevice().run(asked, folder=tmp_path / "jobs")
    assert variables[0] == variables[1]


@pytest.mark.slow
def test_a_contract_writes_nothing_beside_itself(tmp_path: Path) -> None:
    text = SCALE.replace("import numpy as np", "import numpy as np\nopen(__file__ + '.out', 'w').write('x')")
    with pytest.raises(ContractError, match=r"Permission|Read-only|denied"):
        job(tmp_path, text)


FAMILIES = {
    "a parameter": SCALE.replace("(problem, rng)", "(problem, rng, family)").replace(
        '"factor": 2.5', '"factor": {"two": 2.0, "three": 3.0}[family]'
    )
    + 'families = ["two", "three"]\n',
    "functions": SCALE.replace("def inputs(problem, rng)", "def made(problem, rng, factor)").replace("2.5", "factor")
    + 'families = {"two": lambda p, r: made(p, r, 2.0), "three": lambda p, r: made(p, r, 3.0)}\n',
}


@pytest.mark.parametrize("how", FAMILIES)
def test_each_input_family_is_drawn_and_judged(tmp_path: Path, how: str) -> None:
    made = job(tmp_path, FAMILIES[how])
    assert [case.family for case in made.cases] == ["two", "three"]
    for case, factor in zip(made.cases, (2.0, 3.0), strict=True):
        inputs = rotation.verified_inputs(case, key=7, given=made.given)
        contract = contract_of(inputs.problem)
        assert contract.call(inputs).arguments[1] == factor
        (reference,) = contract.references(inputs)
        x = np.frombuffer(inputs.arrays[0].data, np.float32).reshape(3, 40)
        assert judge((x * np.float32(factor)).view(np.uint32), reference).ok
    contract = contract_of(made.cases[0].problem.problem())
    assert [contract.family(name) for name in ("three", "nan_pad")] == ["three", "two"]


def test_one_process_draws_and_one_computes_for_all_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = run._ask

    def ask(contract: str, request: dict[str, Any], arrays: Any = ()) -> Any:
        asked.append(request["do"])
        return real(contract, request, arrays)

    monkeypatch.setattr(run, "_ask", ask)
    problems = ", ".join(f'"p{rows}": {{"rows": {rows}, "columns": 40}}' for rows in range(1, 6))
    made = job(tmp_path, SCALE.replace('"small": {"rows": 3, "columns": 40}', problems))
    for rows, case in enumerate(made.cases, start=1):
        inputs = rotation.verified_inputs(case, key=7, given=made.given)
        (reference,) = contract_of(inputs.problem).references(inputs)
        x = np.frombuffer(inputs.arrays[0].data, np.float32).reshape(rows, 40)
        assert judge((x * np.float32(2.5)).view(np.uint32), reference).ok
    assert asked == ["problems", "draw", "results"]


AXES = (
    SCALE
    + """
axes = {"rows": range(40, 0, -1), "columns": [40, 8]}


def legal(problem):
    return problem["rows"] != 7
"""
)


@pytest.mark.slow
def test_a_problem_is_named_by_its_axes(tmp_path: Path) -> None:
    contract = identity(written(tmp_path, AXES))
    listed = own_problems(contract)
    assert listed.axes == {"rows": range(1, 41), "columns": (40, 8)}
    drawn = listed.named("rows=9,columns=8")
    assert dict(drawn.axes) == {"rows": 9, "columns": 8}
    case = JobCase(problem=ProblemSpec.of(drawn), family="contract")
    spec = job(tmp_path).kernel
    made = with_given(Job(id="j", action="verify", kernel=spec, cases=(case,), row_key=7))
    inputs = rotation.verified_inputs(case, key=7, given=made.given)
    assert contract_of(drawn).call(inputs).outputs[0].shape == (9, 8)
    assert run.legal(contract, [drawn, listed.named("rows=7,columns=8")]) == [True, False]
    refused = JobCase(problem=ProblemSpec.of(listed.named("rows=7,columns=8")), family="contract")
    with pytest.raises(ContractError, match="problem rows=7,columns=8: legal returns False"):
        with_given(Job(id="j", action="verify", kernel=spec, cases=(refused,)))


@pytest.mark.parametrize(
    "name",
    ["rows=9", "rows=9,columns=9", "columns=8,rows=9", "rows=09x,columns=8", "rows=9,columns=8,", "rows=41,columns=8"],
)
def test_axes_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    listed = own_problems(identity(written(tmp_path, AXES)))
    with pytest.raises(ProblemError, match="it has small, or others by its axes, such as rows=1,columns=40"):
        listed.named(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("axes = 3", "axes must be a dict of values"),
        ('axes = {"rows": []}', "rows must be a range or a list"),
        ('axes = {"rows": [[1]]}', "has axes.rows"),
        ('families = "two"', "families must be a list of names"),
        ('families = ["a b"]', "has families"),
        ('seed = "0"', "has seed = '0'"),
        ('problems = {"b" * 300: {}}', "has problems"),
        ('problems = {"a": {"rows": float("inf")}}', "contains Infinity"),
    ],
)
def test_what_a_contract_lists_wrongly_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        own_problems(identity(written(tmp_path, f"{SCALE}\n{text}\n")))


NO_ANSWERS = (
    b"",
    b"{}\n",
    b'{"arrays": []}\nmore',
    b'{"arrays": [["x", "float32", [2], "numpy", true]]}\nabc',
    b'{"arrays": [["x", "object", [2], "numpy", true]]}\n',
    b'{"arrays": [["x", "float32", [-1], "numpy", true]]}\n',
)


@pytest.mark.parametrize("data", NO_ANSWERS)
def test_an_answer_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(DoorError):
        unpack(data, source="it")


def test_an_answer_is_read_as_it_was_written() -> None:
    fields, (array,) = unpack(pack({"a": 1}, [Array("x", "float16", (2, 3), bytes(12))]), source="it")
    assert fields["a"] == 1
    assert (array.name, array.dtype, array.shape, bytes(array.data)) == ("x", "float16", (2, 3), bytes(12))


RIGHT = "def scale(x, factor, y):\n    y.copy_(x * factor)\n"
CALLED = {
    "right": (RIGHT, "passed", ""),
    "a wrong factor": (RIGHT.replace("factor)", "2)"), "failed", "120 of 120 outputs wrong"),
    "an answer kept by address": (
        "KEPT = {}\ndef scale(x, factor, y):\n"
        "    y.copy_(KEPT.setdefault((x.data_ptr(), y.data_ptr()), (x * factor).clone()))\n",
        "failed",
        "outputs wrong",
    ),
    "inputs changed": (RIGHT + "    x.zero_()\n", "failed", "changed its inputs"),
    "another type returned": (RIGHT + "    return y.double()\n", "failed", "an output is torch.float64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLED)
def test_a_kernel_is_verified_under_it(tmp_path: Path, name: str) -> None:
    source, status, said = CALLED[name]
    kernel = tmp_path / "k.py"
    kernel.write_text(source)
    spec, base = KernelSpec.from_files(kernel, arch="sm_100a", entry="scale", torch_operators=True)
    device = LocalDevice(backend="host", probe_folder=tmp_path / "probe")
    cases = own_cases(written(tmp_path))
    (verdict,) = Verifier(device, folder=tmp_path / "jobs").verify(spec, cases, base=base, order_seed=3).verdicts
    assert verdict.status == status, verdict.findings
    assert said in "\n".join(map(str, verdict.findings))


@pytest.mark.parametrize(
    ("source", "may"),
    [
        ("import numpy as np\nimport math, json.decoder\nfrom os import path", False),
        ("def reference(x):\n    import torch.nn", True),
        ("from helper import reference", True),
        ("from . import helper", True),
        ("import (", False),
    ],
)
def test_a_contract_without_torch_starts_from_a_process_without_it(tmp_path: Path, source: str, may: bool) -> None:
    file = tmp_path / "contract.py"
    file.write_text(source)
    assert may_use_torch(str(file)) is may
    assert may_use_torch("definition.json")
