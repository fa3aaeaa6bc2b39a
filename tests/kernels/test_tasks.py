"""The kernels of GPU MODE's tasks on one problem: exact, free of races, and what a call costs the host."""

from __future__ import annotations

import array
import ast
import ctypes
import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_nvfp4.contracts.registry import contract_named
from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.problem import Group, Problem

KERNELS = Path(__file__).parents[2] / "kernels"
needs_dsl = pytest.mark.skipif(
    not all(importlib.util.find_spec(package) for package in ("cutlass", "torch")), reason="needs the DSL and torch"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel, and what it is run on.

    Attributes:
        task: The task.
        operands: Tensors of values, or of scales.
        parts: Parts of K of the benchmarks.
        problems: Problems of each number of parts, some with several batches.
        few_stages: A change to the file after which a small problem refills all stages.
        small: That problem.
    """

    task: str
    operands: int
    parts: tuple[int, ...]
    problems: tuple[Group, ...]
    few_stages: tuple[str, str]
    small: Group

    @property
    def path(self) -> Path:
        return KERNELS / self.task / "sm100.py"


ALL = (
    Kernel(
        "nvfp4_gemm",
        2,
        (2, 4, 2),
        (Group(384, 256, 256, 2), Group(128, 256, 512), Group(256, 128, 1792, 2)),
        ("STAGES = 6\n", "STAGES = 3\n"),
        Group(128, 128, 7168),
    ),
    Kernel(
        "nvfp4_dual_gemm",
        3,
        (2, 1, 2, 1),
        (Group(256, 384, 256, 2), Group(256, 128, 768, 2)),
        ("STAGES = 4\n", "STAGES = 2\n"),
        Group(128, 128, 2560),
    ),
    Kernel(
        "nvfp4_gemv",
        2,
        (4, 1, 1),
        (Group(256, 1, 64, 3), Group(128, 1, 576, 2), Group(128, 1, 1856), Group(128, 1, 3072, 2)),
        ("STAGES = 5\n", "STAGES = 2\n"),
        Group(128, 1, 10240),
    ),
)
kernels = pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.task)


def run(kernel: Kernel, group: Group, folder: Path, *, path: Path | None = None, schedule: str = "eager"):
    """Simulate a kernel on a problem, and judge its outputs."""
    spec, base = KernelSpec.from_files(path or kernel.path, arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(Problem("p", (group,), 7, kernel.task)), family="nan_pad")
    (done,) = simulate(
        SimDevice(), spec, [case], folder=folder / "jobs", base=base, outputs=True, races=True, schedule=schedule
    )
    return done


@pytest.mark.slow
@needs_dsl
@pytest.mark.parametrize(
    ("kernel", "group"),
    [pytest.param(kernel, group, id=f"{kernel.task}-{group}") for kernel in ALL for group in kernel.problems],
)
def test_a_kernel_is_exact_and_free_of_races(kernel, group, tmp_path):
    done = run(kernel, group, tmp_path)
    assert (done.status, done.findings) == ("passed", ())


@pytest.mark.slow
@needs_dsl
@kernels
@pytest.mark.parametrize("schedule", ["lazy", "1"])
def test_a_kernel_is_exact_in_other_schedules(kernel, schedule, tmp_path):
    old, new = kernel.few_stages
    text = kernel.path.read_text()
    assert text.count(old) == 1
    path = tmp_path / "sm100.py"
    path.write_text(text.replace(old, new))
    done = run(kernel, kernel.small, tmp_path, path=path, schedule=schedule)
    assert (done.status, done.findings) == ("passed", ())


@kernels
def test_a_kernel_is_submittable(kernel):
    text = kernel.path.read_text()
    assert "stream" not in text.lower()  # GPU MODE refuses a file with this word
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", ())]
        )
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= {"array", "functools", "cutlass", "task"}


class Tensor:
    """A tensor on the device, by its shape and address."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def host(kernel: Kernel, launched: Callable[[int, list[int]], None]) -> tuple[SimpleNamespace, list[int]]:
    """The host code of a kernel without the DSL, and the parts that it compiles.

    ``launched`` gets the parts and the table of each launch.
    """
    compiled: list[int] = []
    namespace = {"array": array, "functools": functools, "input_t": None, "output_t": None, "cutlass": None}
    functions = ("ceil_div", "parts_of", "check_problem", "launcher", "custom_kernel")
    for node in ast.parse(kernel.path.read_text()).body:
        constant = isinstance(node, ast.Assign) and "DTYPE" not in ast.unparse(node)
        if constant or (isinstance(node, ast.FunctionDef) and node.name in functions):
            exec(compile(ast.Module([node], []), str(kernel.path), "exec"), namespace)

    def compile_for(parts: int):
        compiled.append(parts)
        count = namespace["C"] + 1
        return lambda address: launched(parts, list((ctypes.c_int64 * count).from_address(address)))

    namespace.update(compiled=compile_for, host_pointer=lambda address: address)
    return SimpleNamespace(**namespace), compiled


def data_of(kernel: Kernel, group: Group, first: int) -> tuple[Tensor, ...]:
    """The argument of `custom_kernel`: tensors at addresses from ``first`` on, 4096 bytes apart."""
    shapes = [(group.m, group.k // 2, group.l)] + [(max(group.n, 128), group.k // 2, group.l)] * (kernel.operands - 1)
    shapes += [()] * (2 * kernel.operands) + [(group.m, group.n, group.l)]
    return tuple(Tensor(first + 4096 * at, shape) for at, shape in enumerate(shapes))


@kernels
def test_a_second_call_compiles_nothing_and_has_the_new_addresses(kernel):
    launches: list[list[int]] = []
    code, compiled = host(kernel, lambda _, table: launches.append(table))
    group = kernel.problems[0]
    calls: list[str] = []

    def count(_frame, event: str, _argument) -> None:
        calls.extend([event] if event in ("call", "c_call") else [])

    for first in (1 << 20, 1 << 30):
        data = data_of(kernel, group, first)
        calls.clear()
        sys.setprofile(count)
        try:
            returned = code.custom_kernel(data)
        finally:
            sys.setprofile(None)
        assert returned is data[-1]
        used = [*data[: kernel.operands], *data[2 * kernel.operands :]]
        assert launches[-1][-len(used) :] == [tensor.address for tensor in used]
        assert launches[-1][0] == group.m
        assert launches[-1][2:4] == [group.k, group.l]
    assert len(compiled) == 1
    # Python and C functions of the second call, those of this test's launcher among them
    assert len(calls) <= 30


@kernels
def test_parts_of_k_fill_the_device_once(kernel):
    code, compiled = host(kernel, lambda *_: None)
    for problem in contract_named(kernel.task).benchmarks:
        (group,) = problem.groups
        code.custom_kernel(data_of(kernel, group, 4096))
    assert tuple(compiled) == kernel.parts


@kernels
@pytest.mark.parametrize("axis", ["m", "k"])
def test_sizes_that_are_no_multiples_are_refused(kernel, axis):
    code, _ = host(kernel, lambda *_: None)
    sizes = {"m": 128, "n": kernel.problems[0].n, "k": 256, "l": 1}
    with pytest.raises(ValueError, match="this kernel needs m a multiple of 128"):
        code.custom_kernel(data_of(kernel, Group(**(sizes | {axis: sizes[axis] + 2})), 4096))
