"""A definition of flashinfer-bench as a contract: its workloads, draws and tolerances; what it lacks is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.contracts.own import run
from pytest_nvfp4.contracts.own.run import ContractError, identity, own_problems
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.given import with_given
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.numerics.judge import judge
from pytest_nvfp4.settings import SettingsError, load
from tests.contracts.own import own_cases, own_kernel

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

REFERENCE = """
import torch

def weights(axes, device):
    return {"weight": torch.full((axes["width"],), axes["shift"], dtype=torch.float32, device=device)}

def run(x, weight, shift):
    total = x.float() * weight + shift
    return total.to(torch.float16), total.argmax(dim=1).to(torch.int32)
"""
DEFINITION: dict[str, Any] = {
    "name": "shifted_w16",
    "op_type": "elementwise",
    "tags": ["status:draft"],
    "description": "A product and a sum.",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 16, "description": "Columns."}},
    "constraints": ["rows % 2 == 0", "weight.numel() == width"],
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["width"], "dtype": "float32"},
        "shift": {"shape": None, "dtype": "float32"},
    },
    "outputs": {
        "y": {"shape": ["rows", "width"], "dtype": "float16"},
        "top": {"shape": ["rows"], "dtype": "int32"},
    },
    "reference": REFERENCE,
}
WORKLOAD: dict[str, Any] = {
    "uuid": "w-8",
    "axes": {"rows": 8},
    "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}, "shift": {"type": "scalar", "value": 2.0}},
}
TIGHT = {**WORKLOAD, "uuid": "tight", "tolerance": {"max_atol": 1e-6, "max_rtol": 0.0}}
Change = Callable[[dict[str, Any], list[dict[str, Any]]], object]


def written(folder: Path, change: Change = lambda *_: None) -> str:
    """Write a changed definition with its workloads, and return its place."""
    definition, workloads = json.loads(json.dumps([DEFINITION, [WORKLOAD, TIGHT]]))
    change(definition, workloads)
    (folder / "d.json").write_text(json.dumps(definition))
    if workloads:
        (folder / "d.jsonl").write_text("\n".join(map(json.dumps, workloads)) + "\n")
    run.identity.cache_clear()
    return f"{folder / 'd.json'}::"


def drawn(folder: Path, place: str) -> Job:
    (folder / "k.py").write_text("def run(x, weight, shift, y, top): ...\n")
    spec, _ = own_kernel(folder / "k.py", "run", arch="sm_100a")
    return with_given(Job(id="j", action="verify", kernel=spec, cases=tuple(own_cases(place)), row_key=7))


def test_its_workloads_are_called_with_destinations_and_judged(tmp_path: Path) -> None:
    place = written(tmp_path, lambda _, workloads: workloads.__setitem__(0, {"workload": workloads[0]}))
    listed = own_problems(identity(place))
    assert list(listed.problems) == list(listed.benchmarks) == ["w-8", "tight"]
    assert listed.axes == {"rows": range(1, 9)}
    made = drawn(tmp_path, place)
    for case in made.cases:
        inputs = rotation.verified_inputs(case, key=7, given=made.given)
        contract = contract_of(inputs.problem)
        call = contract.call(inputs)
        assert [(one.name, one.dtype, one.shape) for one in call.tensors] == [
            *(("x", "bfloat16", (8, 16)), ("weight", "float32", (16,))),
            *(("y", "float16", (8, 16)), ("top", "int32", (8,))),
        ]
        assert call.arguments[2] == 2.0
        assert len(call.arguments) == 5
        reference, top = contract.references(inputs)
        assert judge(reference.want, reference).ok
        assert judge((reference.want.view(np.float16) + np.float16(0.008)).view(np.uint16), reference).ok == (
            case.problem.name == "w-8"
        )
        assert not judge((reference.want.view(np.float16) * 2 + 1).view(np.uint16), reference).ok
        assert not judge(top.want + top.want.dtype.type(1), top).ok, "integers are exact"


def test_a_kernel_may_return_its_outputs(tmp_path: Path) -> None:
    made = drawn(tmp_path, written(tmp_path) + "value_returning")
    inputs = rotation.verified_inputs(made.cases[0], key=7, given=made.given)
    assert len(contract_of(inputs.problem).call(inputs).arguments) == 3


def test_inputs_may_be_those_of_its_own_function(tmp_path: Path) -> None:
    def custom(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        definition["custom_inputs_entrypoint"] = "weights"
        workloads[0]["inputs"]["weight"] = {"type": "custom"}

    place = written(tmp_path, custom)
    assert own_problems(identity(place)).axes is None
    made = drawn(tmp_path, place)
    inputs = rotation.verified_inputs(made.cases[0], key=7, given=made.given)
    assert set(np.frombuffer(inputs.arrays[1].data, np.float32)) == {2.0}


def test_inputs_may_be_tensors_of_a_file_which_is_part_of_its_identity(tmp_path: Path) -> None:
    folder = tmp_path / "definitions" / "op"
    blob = tmp_path / "blob" / "rows.safetensors"
    for each in (folder, blob.parent):
        each.mkdir(parents=True)
    header = b'{"rows":{"dtype":"BF16","shape":[8,16],"data_offsets":[0,256]}}'
    blob.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f" * 128)
    place = written(folder, stored("./blob/rows.safetensors"))
    first = identity(place)
    made = drawn(folder, place)
    inputs = rotation.verified_inputs(made.cases[0], key=7, given=made.given)
    assert bytes(inputs.arrays[0].data) == b"\x80\x3f" * 128
    blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
    run.identity.cache_clear()
    assert identity(place) != first


def test_drawn_problems_obey_the_constraints(tmp_path: Path) -> None:
    contract = identity(written(tmp_path))
    listed = own_problems(contract)
    problems = [listed.named(f"rows={rows}") for rows in (1, 2, 3, 4)]
    assert run.legal(contract, problems) == [False, True, False, True]


def test_workloads_lie_beside_it_or_in_the_layout_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "definitions" / "op").mkdir(parents=True)
    (tmp_path / "workloads" / "op").mkdir(parents=True)
    place = written(tmp_path / "definitions" / "op")
    (tmp_path / "definitions/op/d.jsonl").rename(tmp_path / "workloads/op/d.jsonl")
    run.identity.cache_clear()
    first = identity(place)
    assert list(own_problems(first).problems) == ["w-8", "tight"]
    with (tmp_path / "workloads/op/d.jsonl").open("a") as file:
        file.write("\n")
    run.identity.cache_clear()
    assert identity(place) != first, "workloads are part of its identity"


def put(*path: Any, value: Any) -> Change:
    def change(definition: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
        at: Any = workloads if path[0] == "workloads" else definition
        for key in path[path[0] == "workloads" : -1]:
            at = at[key]
        at[path[-1]] = value

    return change


def stored(path: str) -> Change:
    """Take the first workload's x from a file."""
    return put("workloads", 0, "inputs", "x", value={"type": "safetensors", "path": path, "tensor_key": "rows"})


WRONG: dict[str, tuple[Change, str]] = {
    "an unknown field": (put("tests", value=[]), "has the unknown field tests"),
    "an axis of another type": (put("axes", "rows", value={"type": "expr", "expression": "2"}), "axes.rows"),
    "an axis that is too large": (put("axes", "width", "value", value=1 << 60), "axes.width"),
    "a negative axis": (put("workloads", 0, "axes", "rows", value=-2), "axes.rows"),
    "sampling": (put("op_type", value="sampling"), "op_type sampling is not supported"),
    "halves of bytes": (put("inputs", "x", "dtype", value="float4_e2m1"), "write float4_e2m1fn_x2"),
    "a complex type": (put("inputs", "x", "dtype", value="complex64"), "dtype complex64, which is not supported"),
    "an unknown axis": (put("outputs", "y", "shape", value=["rows", "depth"]), "'depth', which is none of its axes"),
    "a scalar output": (put("outputs", "top", "shape", value=None), "output top is a scalar"),
    "no run": (put("reference", value="def runs(): ..."), "reference defines no function run"),
    "a reference that does not parse": (put("reference", value="def run(:"), "cannot be loaded: SyntaxError"),
    "a constraint that is not met": (put("workloads", 0, "axes", "rows", value=7), "violates the constraint 'rows % 2"),
    "a constraint that fails": (put("constraints", value=["rows / 0"]), "'rows / 0': ZeroDivisionError"),
    "other axes": (put("workloads", 0, "axes", value={"row": 8}), r"its axes are \['row'\]"),
    "two of one name": (put("workloads", 0, "uuid", value="tight"), "two workloads have the uuid tight"),
    "a ratio": (
        put("workloads", 1, "tolerance", "required_matched_ratio", value=0.9),
        "line 2: tolerance.required_matched_ratio is not supported",
    ),
    "no workloads": (lambda _, workloads: workloads.clear(), "write d.jsonl beside d.json"),
    "a file of tensors that is not there": (stored("blob/none.safetensors"), "problem w-8: none.safetensors cannot be"),
    "a file of tensors outside": (stored("../x.safetensors"), r"'\.\./x.safetensors' is no .safetensors file in the"),
    "any file as tensors": (stored("d.json"), "'d.json' is no .safetensors file"),
    "a billion rows": (put("workloads", 0, "axes", "rows", value=10**9), "w-8: its inputs have 32,000,000,068 bytes"),
    "a reference that raises": (
        put("reference", value=REFERENCE.replace("    total =", "    assert 0, 'no'\n    total =")),
        "problem w-8: line 8 of reference: AssertionError: no",
    ),
    "an output of another type": (
        put("reference", value=REFERENCE.replace("to(torch.float16)", "double()")),
        r"y is float64 \[8, 16\], and the definition says float16 \[8, 16\]",
    ),
    "an output too few": (
        put("reference", value=REFERENCE.replace(", total.argmax(dim=1).to(torch.int32)", "")),
        "reference returns 1 outputs, and the definition has y, top",
    ),
    "a result that is no number": (
        put("reference", value=REFERENCE.replace("+ shift", "+ float('nan')")),
        r"NaN in y\[0, 0\]",
    ),
    "its process ends": (put("reference", value="import os\nos._exit(0)"), "the contract's process"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_or_not_supported_is_named(tmp_path: Path, case: str) -> None:
    change, said = WRONG[case]
    with pytest.raises(ContractError, match=said) as caught:
        drawn(tmp_path, written(tmp_path, change))
    assert caught.value.file.startswith(str(tmp_path))


def test_a_reference_that_never_returns_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_DEADLINE_S", 20.0)
    with pytest.raises(ContractError, match="the contract's process"):
        drawn(tmp_path, written(tmp_path, put("reference", value="import time\n\ndef run(*_):\n    time.sleep(600)\n")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nest|deep"),
        ('{"name": 1' + " " * (5 << 20) + "}", "cannot be read"),
        ('{"name": "a", "name": "b"}', "repeated key"),
        ("{", "brackets do not match"),
        ("", "JSON"),
    ],
)
def test_json_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "d.json").write_text(text)
    run.identity.cache_clear()
    with pytest.raises(ContractError, match=said):
        own_problems(identity(f"{tmp_path / 'd.json'}::"))


def test_settings_name_it(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "k.py").write_text("def run(x, weight, shift, y, top): ...\n")
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\ncontract = "d.json{}"\n'
    for name in ("", "::value_returning"):
        (tmp_path / "pyproject.toml").write_text(table.format(name))
        (found,) = load(tmp_path).for_kernel(tmp_path / "k.py")
        assert found.called == "run"
        assert [problem.name for problem in found.with_own_problems().verify or ()] == ["w-8", "tight"]
    (tmp_path / "pyproject.toml").write_text(table.format("::Other"))
    with pytest.raises(SettingsError, match=r"a definition stands alone, or d\.json::value_returning"):
        load(tmp_path)
