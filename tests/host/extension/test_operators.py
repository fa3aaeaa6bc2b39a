import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host import torch_cuda
from pytest_nvfp4.host.extension.operators import Operators
from pytest_nvfp4.host.stashed import Stashed
from pytest_nvfp4.host.tensor import HostCudaTensor
from tests.host.extension import sources


@pytest.fixture
def stashed() -> Stashed:
    return Stashed()


@pytest.fixture
def operators(stashed: Stashed) -> Iterator[Operators]:
    with ExitStack() as stack, torch_cuda.install():
        made = Operators(stashed)
        made.start(stack)
        yield made


def _library(stack: ExitStack, name: str, kind: str = "DEF") -> torch.library.Library:
    library = torch.library.Library(name, kind)
    stack.callback(library._destroy)
    return library


def test_a_kernel_for_cuda_gets_the_device_tensors(operators: Operators) -> None:
    def kernel(a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        assert isinstance(a, HostCudaTensor)
        assert a.is_cuda
        c.copy_(a + 1)
        return torch.zeros_like(a)

    with ExitStack() as stack:
        with operators.registering("e"):
            library = _library(stack, "nvfp4_e1")
            library.define("f(Tensor a, Tensor(a!) c) -> Tensor")
            library.impl("f", kernel, "CUDA")
        a, c = torch.ones(3, device="cuda"), torch.empty(3, device="cuda")
        result = torch.ops.nvfp4_e1.f(a, c)
        assert (c.tolist(), result.tolist()) == ([2.0] * 3, [0.0] * 3)
        assert isinstance(result, HostCudaTensor)
        with pytest.raises(NotImplementedError, match="'CPU' backend"):
            torch.ops.nvfp4_e1.f(a.cpu(), a.cpu())


@pytest.mark.usefixtures("operators")
def test_an_operator_of_another_library_is_refused() -> None:
    with ExitStack() as stack:
        library = _library(stack, "nvfp4_e2")
        library.define("f(Tensor a) -> Tensor")
        library.impl("f", torch.clone, "CUDA")
        with pytest.raises(HostSideError, match="nvfp4_e2::f has no stand-in"):
            torch.ops.nvfp4_e2.f(torch.ones(3, device="cuda"))


def test_an_operator_of_torch_is_not_replaced(operators: Operators) -> None:
    def register(stack: ExitStack) -> None:
        with operators.registering("e"):
            _library(stack, "aten", "FRAGMENT").define("nvfp4_new(Tensor a) -> Tensor")
            _library(stack, "aten", "IMPL").impl("nvfp4_new", torch.clone, "CUDA")

    with ExitStack() as stack, pytest.raises(HostSideError, match=r"the extension e registers .*aten::nvfp4_new"):
        register(stack)


def test_a_call_raises_what_a_stand_in_has_raised(operators: Operators, stashed: Stashed) -> None:
    def kernel(a: torch.Tensor) -> torch.Tensor:
        stashed.keep(ValueError("in C"))
        return a.clone()

    with ExitStack() as stack:
        with operators.registering("e"):
            library = _library(stack, "nvfp4_e3")
            library.define("f(Tensor a) -> Tensor")
            library.impl("f", kernel, "CompositeExplicitAutograd")
        a = torch.ones(3, device="cuda")
        with pytest.raises(ValueError, match="in C"):
            torch.ops.nvfp4_e3.f(a)
        with pytest.raises(ValueError, match="in C"):
            torch.ops.nvfp4_e3.f.default(a)


def test_the_end_restores_torch() -> None:
    before = torch._ops.OpOverload.__call__, torch._ops.OpOverloadPacket.__call__
    with ExitStack() as stack:
        Operators(Stashed()).start(stack)
        assert torch._ops.OpOverload.__call__ is not before[0]
    assert (torch._ops.OpOverload.__call__, torch._ops.OpOverloadPacket.__call__) == before
    assert HostCudaTensor.extension_operators == frozenset()


@pytest.mark.slow  # torch's headers take the better part of a minute
@sources.needs_nvcc
def test_operators_of_a_library_that_load_inline_builds(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    environ = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_DUMP_DIR": str(tmp_path / "dump")}
    environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.host.extension.operators_worker"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout)
    assert Path(made["returned"]).name == "nvfp4-tried.so"
    assert made["into"] == [i + 1.5 for i in range(40)]
    assert made["inference"] == [i + 2.5 for i in range(40)]
    assert made["plus"] == [[i + 9.0 for i in range(40)], "cuda:0", True]
    assert made["optional"] == 110.0
    assert made["host"] == [0.0, 0.0]
    assert made["filled"] == [[0.5] * 3, "cuda:0"]
    assert "outside every tensor" in made["beyond"]
    assert made["after"] == ""
    assert "into takes device tensors" in made["unlike"]
    assert made["nowhere"].startswith("NotImplementedError: ")
