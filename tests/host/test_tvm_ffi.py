"""Kernels that ask for TVM-FFI, called as TVM-FFI lets them be called."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_nvfp4.host import tvm_ffi
from tests.host.ffi import Compiled, Tensor, bytes_of, packed
from tests.host.redirect_worker import run_script

POINTER = SimpleNamespace(memspace="gmem", dtype="f16")
WIDE = SimpleNamespace(width=64)


def test_a_tensor_gives_its_dynamic_extents_and_strides() -> None:
    argument = tvm_ffi.converted(Compiled((64, None, 16), (None, 16, 1)), Tensor((64, 5, 16), (80, 16, 1)))
    # the group of strides begins at a multiple of its own alignment
    assert bytes_of(argument, 24)[:12] == packed((5, 4))
    assert bytes_of(argument, 24)[16:] == (80).to_bytes(8, "little")
    argument = tvm_ffi.converted(Compiled((None, None), (WIDE, 1)), Tensor((7, 9), (9, 1)))
    assert bytes_of(argument, 24) == packed((7, 4), (9, 4), (9, 8))
    assert bytes_of(tvm_ffi.converted(Compiled((8,), (1,)), Tensor((8,), (1,))), 8) == packed()


def test_packed_fp4_counts_elements() -> None:
    """torch sees [m, k / 2] bytes where the DSL sees [m, k] elements."""
    argument = tvm_ffi.converted(Compiled((None, None), (None, 1), bits=4), Tensor((6, 128), (128, 1), size=1))
    assert bytes_of(argument, 24) == packed((6, 4), (256, 4), (256, 8))


def test_a_number_for_a_pointer_is_an_address() -> None:
    assert bytes_of(tvm_ffi.converted(POINTER, 0x1122334455667788), 8) == packed()


def test_members_of_tuples_are_converted_and_the_rest_is_left_alone() -> None:
    pair = namedtuple("pair", "p n")
    made = tvm_ffi.converted((POINTER, 3), pair(0x1122334455667788, 4))
    assert type(made) is pair
    assert (bytes_of(made.p, 8), made.n) == (packed(), 4)
    pair.__c_pointers__ = lambda self: [member.__c_pointers__()[0] for member in self]  # type: ignore[attr-defined]
    made = tvm_ffi.converted((POINTER, POINTER), pair(0x1122334455667788, 4))
    assert [bytes_of(member, 8) for member in made] == [packed(), (4).to_bytes(8, "little")]
    for value in (None, 3, 2.5, "text", object()):
        assert tvm_ffi.converted(None, value) is value


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1, 2), {}, {"a": 1, "b": 2}),
        ((1,), {"b": 2}, {"a": 1, "b": 2}),
        ((1, "s", 2), {}, {"a": 1, "stream": "s", "b": 2}),
        ((1,), {}, {"a": 1}),
    ],
)
def test_the_stream_of_the_environment_is_filled_in(
    args: tuple[object, ...], kwargs: dict[str, object], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_ffi, "_stream", lambda value: ("stream", value))
    compiled_for = {"a": None, "stream": SimpleNamespace(use_tvm_ffi_env_stream=True), "b": None}
    found = tvm_ffi.arguments(["a", "stream", "b"], compiled_for, args, kwargs)
    assert found == {"stream": ("stream", 0), **expected}


@pytest.mark.parametrize(("cuda", "stream"), [(True, 77), (False, 0), (None, 0)])
def test_the_stream_of_the_environment_is_the_one_that_torch_works_on(
    cuda: bool | None, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SimpleNamespace(
        Tensor=SimpleNamespace, cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=77))
    )
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    monkeypatch.setattr(tvm_ffi, "_stream", lambda value: ("stream", value))
    compiled_for = {"a": None, "stream": SimpleNamespace(use_tvm_ffi_env_stream=True)}
    argument = 1 if cuda is None else SimpleNamespace(is_cuda=cuda)
    found = tvm_ffi.arguments(["a", "stream"], compiled_for, (argument,), {})
    assert found["stream"] == ("stream", stream)


def test_too_many_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="1 arguments too many: the function takes a"):
        tvm_ffi.arguments(["a"], {}, (1, 2), {})


@pytest.mark.slow
def test_a_kernel_is_launched_with_the_bytes_it_reads(tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    said = run_script(
        """
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream, make_ptr

@cute.kernel
def sum_up(a: cute.Tensor, b: cute.Tensor, p: cute.Tensor, n: cutlass.Int32):
    # What a kernel does not read may be zeros.
    b[1, 0] = a[1, 0, 0] + p[0] + n + a.shape[1] + b.shape[0] + b.shape[1]

@cute.jit
def go(a: cute.Tensor, b: cute.Tensor, p: cute.Pointer, n: cutlass.Int32, stream: cuda.CUstream):
    flat = cute.make_tensor(p, cute.make_layout(4))
    sum_up(a, b, flat, n).launch(grid=[a.shape[1], b.shape[1], 1], block=[32, 1, 1], stream=stream)

rows = cute.sym_int32()
compiled = cute.compile(
    go,
    make_fake_compact_tensor(cutlass.Float32, (64, rows, 16), stride_order=(2, 1, 0)),
    make_fake_compact_tensor(cutlass.Float32, (rows, cute.sym_int32(divisibility=8)), stride_order=(1, 0)),
    make_ptr(cutlass.Float32, 0, cute.AddressSpace.gmem, assumed_align=16),
    cutlass.Int32(1),
    make_fake_stream(use_tvm_ffi_env_stream=True),
    options="--enable-tvm-ffi",
)
a, b = torch.zeros(64, 5, 16, device="cuda"), torch.zeros(16, 32, device="cuda")
compiled(a, b, 0x1230, 7)
launch = launches[-1]
said["grid"] = launch.grid
said["params"] = [p.hex() for p in launch.params]
said["pointers"] = [t.data_ptr() for t in (a, b)]
said["without"] = side.without_tvm_ffi
from_dlpack(a, enable_tvm_ffi=True)  # needs tvm_ffi elsewhere
""",
        tmp_path,
    )
    first, second, pointer, number = (bytes.fromhex(text) for text in said["params"])
    assert said["grid"] == [5, 32, 1]
    assert first[:12] == said["pointers"][0].to_bytes(8, "little") + (5).to_bytes(4, "little")
    assert first[16:24] == (80).to_bytes(8, "little")
    assert second[8:24] == b"".join(n.to_bytes(size, "little") for n, size in ((16, 4), (32, 4), (32, 8)))
    assert (pointer[:8], number[:4]) == ((0x1230).to_bytes(8, "little"), (7).to_bytes(4, "little"))
    assert said["without"]


@pytest.mark.slow
def test_exported_host_code_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")
    said = run_script(
        """
from pathlib import Path

@cute.kernel
def nothing(n: cutlass.Int32):
    pass

@cute.jit
def go(n: cutlass.Int32):
    nothing(n).launch(grid=[1, 1, 1], block=[32, 1, 1])

def refusal(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except HostSideError as error:
        return str(error)

plain = cute.compile(go, cutlass.Int32(1))
said["plain"] = refusal(plain.export_to_c, file_path=".", file_name="plain", function_prefix="plain")
said["written"] = Path("plain.o").exists()
said["load"] = refusal(cute.runtime.load_module, "./plain.o")
compiled = cute.compile(go, cutlass.Int32(1), options="--enable-tvm-ffi")
said["tvm_ffi"] = refusal(compiled.export_to_c, "./k.o", function_name="k")
compiled(1)
said["launches"] = len(launches)
""",
        tmp_path,
    )
    assert said["plain"] is None
    assert said["written"]
    assert "load_module of ./plain.o has no stand-in without a GPU" in said["load"]
    assert "export_to_c of a function with --enable-tvm-ffi has no stand-in without a GPU" in said["tvm_ffi"]
    assert said["launches"] == 1
