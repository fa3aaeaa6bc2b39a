"""The input families and the jobs of ``verify``'s items: large problems have a job of their own and two families."""

from __future__ import annotations

import json

import pytest

SHOWN = """
import json

def pytest_collection_finish(session):
    from pytest_nvfp4.plugin.checks import verify

    for item in session.items:
        cases = item.check._job_cases(item)
        print("SHOWN", json.dumps([item.case.problem.name, verify._batch(item), [case.family for case in cases]]))
"""
ALL = ["gpumode", "pow2_exact", "subnormal_out", "onehot", "nan_pad", "nan_isolated", "edge"]
TWO = ["gpumode", "nan_pad"]


def shown(pytester: pytest.Pytester, *args: str, device: str = "sim") -> dict[str, tuple[str, list[str]]]:
    """Return the job and the families of each item of ``verify`` of a kernel of ``nvfp4_gemm``, by problem."""
    pytester.makeconftest(SHOWN)
    pytester.makepyfile(kernel="def custom_kernel(data):\n    raise NotImplementedError\n")
    pytester.makepyprojecttoml('[[tool.pytest_nvfp4.kernel]]\npath = "kernel.py"\ncontract = "nvfp4_gemm"\n')
    lean = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider", f"--nvfp4-device={device}")
    result = pytester.runpytest_inprocess("kernel.py", "-k", "verify and not fitted", "--co", "-q", *lean, *args)
    lines = [json.loads(line.removeprefix("SHOWN ")) for line in result.outlines if line.startswith("SHOWN ")]
    return {name: (batch, families) for name, batch, families in lines}


def test_large_problems_have_two_families_and_a_job_of_their_own(pytester: pytest.Pytester) -> None:
    found = shown(pytester)
    assert found.pop("gpumode-0") == ("", ALL), "128x256x256 takes milliseconds"
    assert len(found) == 6
    assert all(each == ("large", TWO) for each in found.values())


def test_the_smallest_problem_has_all_families(pytester: pytest.Pytester) -> None:
    found = shown(pytester, "--nvfp4-problem=512x1536x7168", "--nvfp4-problem=256x7168x2048")
    assert found == {"512x1536x7168": ("large", TWO), "256x7168x2048": ("", ALL)}


def test_families_of_the_command_line_are_those_of_all_problems(pytester: pytest.Pytester) -> None:
    found = shown(pytester, "--nvfp4-family=edge")
    assert {tuple(families) for _, families in found.values()} == {("edge",)}


def test_a_gpu_has_one_job_with_all_families(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_nvfp4.plugin.devices.Devices.simulates", lambda *_: False)
    found = shown(pytester)
    assert len(found) == 7
    assert all(each == ("", ALL) for each in found.values())
