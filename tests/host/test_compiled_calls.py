"""Compiled host code that encodes tensor maps, is refused, and takes TVM-FFI's placeholders."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.driver.tensormap import ElementType, Swizzle, decode
from tests.host.redirect_worker import run_script

MAPS = """
import cutlass.experimental.cuda as cuda
from cutlass.cute.runtime import make_fake_compact_tensor

@cute.kernel
def use(tensor_map: cutlass.GridConstant[cuda.TensorMap], n: cutlass.Int64):
    pass

@cute.jit
def go(t: cute.Tensor, n: cutlass.Int64):
    described = cuda.create_tensor_map_tiled(
        global_address=t.iterator.toint(), dtype=t.element_type, global_dims=[t.shape[1], n],
        global_strides=[t.shape[1] * 2 // 16], box_dims=[64, 32], swizzle=cuda.TensorMapSwizzle.s128b,
    )
    use(described, n).launch(grid=[1, 1, 1], block=[32, 1, 1])

rows, columns = cute.sym_int64(), cute.sym_int64(divisibility=8)
fake = make_fake_compact_tensor(cutlass.Float16, (rows, columns), stride_order=(1, 0), assumed_align=16)
t = torch.zeros(96, 192, dtype=torch.float16, device="cuda")
said["pointer"] = t.data_ptr()
compiled = cute.compile(go, fake, cute.sym_int64(divisibility=2), options="--enable-tvm-ffi")
compiled(t, 1 << 31)
said["params"] = [p.hex() for p in launches[-1].params]
launches.clear()
try:
    compiled(t, 0)
except LaunchRejectedError as error:
    said["refused"] = [str(error), error.error_code, len(launches)]
cute.compile(go, fake, cutlass.Int64, options="--enable-tvm-ffi")(t, 3)
said["afterwards"] = [p.hex() for p in launches[-1].params]
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    pytest.importorskip("cutlass.experimental.cuda", reason="the DSL has it since 4.8")
    return run_script(MAPS, tmp_path_factory.mktemp("maps"))


@pytest.mark.slow
def test_host_code_encodes_a_tensor_map(said: dict[str, Any]) -> None:
    described = decode(bytes.fromhex(said["params"][0]))
    assert described.address == said["pointer"]
    assert (described.dims, described.strides, described.box) == ((192, 1 << 31), (384,), (64, 32))
    assert (described.element_type, described.swizzle) == (ElementType.F16, Swizzle.B128)


def test_a_symbol_for_a_number_takes_the_numbers_of_the_calls(said: dict[str, Any]) -> None:
    numbers = [struct.unpack("<q", bytes.fromhex(said[call][1])) for call in ("params", "afterwards")]
    assert numbers == [(1 << 31,), (3,)]


def test_a_refused_tensor_map_is_an_exception_and_not_an_abort(said: dict[str, Any]) -> None:
    message, code, launched = said["refused"]
    assert message.startswith("CUDA_ERROR_INVALID_VALUE: cuTensorMapEncodeTiled: ")
    assert "size 0 of dimension 1" in message
    assert (code, launched) == (1, 0)


@pytest.mark.slow
def test_a_pointer_of_a_refused_call_is_never_used(tmp_path: Path) -> None:
    """Host code that asserts success goes on to its end after a failed call, and launches nothing."""
    said = run_script(
        """
import itertools

from pytest_nvfp4.driver.device_model import B200
from pytest_nvfp4.host.compiled_calls import HostCalls
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.stashed import Stashed

stashed = Stashed()
modules = LoadedModules(B200, side.device, itertools.count(1))
calls = HostCalls(B200, side.device, modules, stashed).callbacks([])
def call(name, *args):
    return calls[name](*args, *[None] * (12 - len(args)))
said["fine"] = [call("cuda_dialect_assert_success", 0), stashed.pending]
said["null"] = [call("_cuTensorMapEncodeTiled", None, 6, 2, None), type(stashed.take()).__name__]
said["error"] = [call("cuda_dialect_assert_success", 7) != 0, str(stashed.take())]
call("_cuLibraryGetManaged")
said["first"] = [call("cuda_dialect_assert_success", 999) != 0, call("_cudaDeviceSynchronize"), str(stashed.take())]
""",
        tmp_path,
    )
    assert said["fine"] == [0, False]
    assert said["null"] == [999, "LaunchRejectedError"]
    assert said["error"] == [True, "a CUDA call of the compiled host code returned error 7"]
    assert said["first"][1] == 999
    assert "cuLibraryGetManaged" in said["first"][2]
