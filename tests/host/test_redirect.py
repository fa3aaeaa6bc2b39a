"""Host code of small kernels, compiled and launched in a worker without a driver."""

import re
import struct

import pytest

from pytest_nvfp4.driver import cubin
from pytest_nvfp4.driver.device_model import B200
from pytest_nvfp4.driver.launches import HostSideError, Launch, ModuleImage
from pytest_nvfp4.host import redirect
from tests.host.redirect_worker import PRELUDE, run_script

KERNELS = """
@cute.kernel
def add(x: cute.Tensor, n: cutlass.Int32, big: cutlass.Int64, flag: cutlass.Int8):
    tidx, _, _ = cute.arch.thread_idx()
    x[tidx] = x[tidx] + n + cutlass.Int32(big) + cutlass.Int32(flag)

@cute.jit
def twice(x: cute.Tensor, n: cutlass.Int32, s: cuda.CUstream):
    add(x, n, cutlass.Int64(n) * 1000000007, cutlass.Int8(-3)).launch(
        grid=[2 * n, n + 1, 3], block=[64, 2, 1], cluster=[2, 1, 1], use_pdl=True, stream=s, smem=2048
    )
    add(x, n + 1, cutlass.Int64(5), cutlass.Int8(1)).launch(grid=[n, 1, 1], block=[32, 1, 1], stream=s)
"""


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """One worker, one report of many launches (a worker costs seconds, most of it importing)."""
    body = (
        KERNELS
        + """
def show(launch):
    return {
        "kernel": launch.kernel, "grid": launch.grid, "block": launch.block, "cluster": launch.cluster,
        "smem": launch.dynamic_smem, "stream": launch.stream, "params": [p.hex() for p in launch.params],
        "pdl": launch.programmatic_dependent_launch, "coop": launch.cooperative, "ordinal": launch.ordinal,
        "ctas": launch.ctas, "threads": launch.threads,
        "ptx_has_entry": launch.module.ptx is not None and f".entry {launch.kernel}(" in launch.module.ptx,
        "ptx_has_nul": launch.module.ptx is not None and "\\0" in launch.module.ptx,
        "lines": launch.module.ptx.count(".loc"), "cubin": launch.module.cubin[:4].hex(),
        "sizes": launch.module.param_sizes[launch.kernel], "sha": launch.module.sha256,
    }

def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return [type(error).__name__, str(error), repr(error.__cause__), repr(error.__context__)]
    return None

x = torch.zeros(128, dtype=torch.int32, device="cuda")
tensor = from_dlpack(x)
stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
said["pointer"] = x.data_ptr()

compiled = cute.compile(twice, tensor, 4, stream)
said["compile_launches"] = len(launches)
compiled(tensor, 6, stream)
compiled(tensor, 7, cuda.CUstream(0x77))
said["compiled"] = [show(l) for l in launches]

launches.clear()
import warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    twice(tensor, 5, stream)
    cutlass.base_dsl.dsl.BaseDSL.print_warning(None, "of the DSL")
said["direct"] = [show(l) for l in launches]
said["warned"] = [str(each.message) for each in warned if issubclass(each.category, UserWarning)]

# an exception of the callback comes out as it went in
def failing(launch):
    try:
        raise OSError("root")
    except OSError as error:
        raise KeyError("from the callback") from error
on_launch = failing
said["raised"] = refused(compiled, tensor, 6, stream)
on_launch = lambda launch: (_ for _ in ()).throw(KeyboardInterrupt())
said["interrupted"] = refused(compiled, tensor, 6, stream)
launches.clear()
on_launch = launches.append
compiled(tensor, 6, stream)
said["after_exception"] = [l.ordinal for l in launches]

# the first launch raises: the second must not happen
seen = []
def first_only(launch):
    seen.append(launch.ordinal)
    raise ValueError("stop")
on_launch = first_only
refused(compiled, tensor, 6, stream)
said["launches_after_a_failure"] = len(seen)
on_launch = launches.append

said["zero_grid"] = refused(compiled, tensor, 0, stream)

@cute.jit
def odd_cluster(x: cute.Tensor, n: cutlass.Int32):
    add(x, n, cutlass.Int64(1), cutlass.Int8(1)).launch(grid=[n, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1])
said["odd_cluster"] = refused(odd_cluster, tensor, 3)
said["even_cluster"] = refused(odd_cluster, tensor, 4)
@cute.jit
def together(x: cute.Tensor, n: cutlass.Int32):
    add(x, n, cutlass.Int64(1), cutlass.Int8(1)).launch(grid=[n, 1, 1], block=[256, 1, 1], cooperative=True)
from cutlass.base_dsl.common import DSLCudaRuntimeError
said["together"] = refused(together, tensor, 148 * 8)
try:
    together(tensor, 148 * 8 + 1)
except DSLCudaRuntimeError as error:
    too_large = cudart.cudaError_t.cudaErrorCooperativeLaunchTooLarge
    said["not_together"] = [error.error_code == too_large, isinstance(error, LaunchRejectedError), str(error)]

@cute.jit
def wide(x: cute.Tensor, n: cutlass.Int32):
    add(x, n, cutlass.Int64(1), cutlass.Int8(1)).launch(grid=[1, 1, 1], block=[n, 1, 1], smem=1024 * n)
said["wide"] = refused(wide, tensor, 1056)
said["too_much_smem"] = refused(wide, tensor, 256)
said["fits"] = refused(wide, tensor, 224)

# all the shared memory that a CTA may have, and one byte more
@cute.kernel
def reverse(x: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cutlass.utils.SmemAllocator().allocate_array(cutlass.Int32, 32), cute.make_layout(32))
    staged[tidx] = x[tidx]
    cute.arch.barrier()
    x[tidx] = staged[31 - tidx]

@cute.jit
def full(x: cute.Tensor, size: cutlass.Int32):
    reverse(x).launch(grid=[1, 1, 1], block=[32, 1, 1], smem=size)
said["all_smem"] = refused(full, tensor, 232448)
said["one_byte_more"] = refused(full, tensor, 232449)

# a pointer argument, and no tensor at all
@cute.jit
def by_pointer(p: cute.Pointer, n: cutlass.Int32):
    t = cute.make_tensor(p, cute.make_layout((n,)))
    add(t, n, cutlass.Int64(1), cutlass.Int8(1)).launch(grid=[1, 1, 1], block=[32, 1, 1])
launches.clear()
pointer = make_ptr(cutlass.Int32, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
by_pointer(pointer, 128)
said["by_pointer"] = [struct.unpack("<Q", l.params[0][:8])[0] for l in launches]

# the same kernel name with another constant: each module keeps its own code
def constant(value):
    @cute.kernel
    def fill(t: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        t[tidx] = cutlass.Int32(value)
    @cute.jit
    def host(t: cute.Tensor):
        fill(t).launch(grid=[1, 1, 1], block=[32, 1, 1])
    return host
launches.clear()
from cutlass._mlir import execution_engine
levels = []
class Engine(execution_engine.ExecutionEngine.__mro__[1]):
    def __init__(self, *arguments, **named):
        levels.append(named["opt_level"])
        super().__init__(*arguments, **named)
execution_engine.ExecutionEngine.__bases__ = (Engine,)
first = cute.compile(constant(11111), tensor)
said["levels"] = levels
second = cute.compile(constant(22222), tensor)
first(tensor); second(tensor); first(tensor)
said["constants"] = [[str(v) in l.module.ptx for v in (11111, 22222)] for l in launches]
said["same_names"] = len({l.kernel for l in launches})

# device memory is memory
said["read_back"] = ctypes.c_int32.from_address(struct.unpack("<Q", launches[0].params[0][:8])[0]).value
"""
    )
    return run_script(body, tmp_path_factory.mktemp("redirect"))


@pytest.mark.slow
def test_compiling_launches_nothing(launched):
    assert launched["compile_launches"] == 0


@pytest.mark.slow
def test_host_code_is_compiled_without_optimisation(launched):
    assert launched["levels"] == [0, 0], "the engines of the first and the second"


@pytest.mark.slow
def test_two_launches_arrive_in_order_with_dynamic_geometry(launched):
    first, second, third, fourth = launched["compiled"]
    assert (first["grid"], first["block"], first["cluster"]) == ([12, 7, 3], [64, 2, 1], [2, 1, 1])
    assert (second["grid"], second["block"], second["cluster"]) == ([6, 1, 1], [32, 1, 1], [1, 1, 1])
    assert third["grid"] == [14, 8, 3]
    assert fourth["grid"] == [7, 1, 1]
    assert [launch["ordinal"] for launch in launched["compiled"]] == [0, 1, 2, 3]
    assert first["ctas"] == 12 * 7 * 3
    assert first["threads"] == 128
    assert first["kernel"] != second["kernel"]


def test_attributes_stream_and_dynamic_smem(launched):
    first, second, third, _ = launched["compiled"]
    assert (first["pdl"], second["pdl"]) == (True, False)
    assert not first["coop"]
    assert (first["smem"], second["smem"]) == (2048, 0)
    assert (first["stream"], third["stream"]) == (0, 0x77)


def test_parameters_are_the_bytes_the_kernel_reads(launched):
    first, second, *_ = launched["compiled"]
    for launch, n, big, flag in ((first, 6, 6 * 1000000007, -3), (second, 7, 5, 1)):
        raw = [bytes.fromhex(p) for p in launch["params"]]
        assert [len(p) for p in raw] == launch["sizes"] == [8, 4, 8, 1]
        values = [struct.unpack(code, p)[0] for code, p in zip(("<Q", "<i", "<q", "<b"), raw, strict=True)]
        assert values == [launched["pointer"], n, big, flag]


def test_the_module_comes_along(launched):
    for launch in launched["compiled"]:
        assert launch["cubin"] == b"\x7fELF".hex()
        assert launch["ptx_has_entry"]
        assert not launch["ptx_has_nul"]
        assert launch["lines"] > 0
    assert len({launch["sha"] for launch in launched["compiled"]}) == 1


def test_a_jit_function_called_directly_launches_too(launched):
    assert [launch["grid"] for launch in launched["direct"]] == [[10, 6, 3], [5, 1, 1]]
    assert all(launch["ptx_has_entry"] for launch in launched["direct"])
    assert launched["warned"] == ["of the DSL"]  # nothing of the PTX, which is kept for the simulator


def test_an_exception_of_the_callback_is_raised_unchanged(launched):
    kind, message, cause, context = launched["raised"]
    assert (kind, message) == ("KeyError", "'from the callback'")
    assert cause == context == "OSError('root')"
    assert launched["interrupted"][0] == "KeyboardInterrupt"
    assert launched["launches_after_a_failure"] == 1
    assert len(launched["after_exception"]) == 2, "the exception must not stick"


def test_launches_a_driver_refuses_are_refused(launched):
    assert "cudaErrorInvalidConfiguration" in launched["zero_grid"][1]
    assert "cudaErrorInvalidClusterSize" in launched["odd_cluster"][1]
    assert "not a multiple of the cluster" in launched["odd_cluster"][1]
    assert launched["even_cluster"] is None
    assert launched["together"] is None
    assert launched["not_together"][:2] == [True, True]
    assert "1185 CTAs of 256 threads" in launched["not_together"][2]
    assert "cudaErrorInvalidConfiguration" in launched["wide"][1]
    assert "dynamic shared memory" in launched["too_much_smem"][1]
    assert launched["fits"] is None
    assert launched["all_smem"] is None
    assert "232449 bytes of dynamic shared memory" in launched["one_byte_more"][1]


def test_pointer_arguments_and_equal_kernel_names(launched):
    assert launched["by_pointer"] == [launched["pointer"]]
    assert launched["same_names"] == 1
    assert launched["constants"] == [[True, False], [False, True], [True, False]]
    assert launched["read_back"] == 0, "no launch executed: the tensor still holds its zeros"


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    """Driver calls, benchmark and occupancy, in one worker."""
    body = (
        KERNELS
        + """
import math
import cutlass.utils as utils
from cutlass.cute import testing

def refused(call, *args, **kwargs):
    try:
        return call(*args, **kwargs) and None
    except Exception as error:
        return [type(error).__name__, str(error)]

def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]

info = utils.HardwareInfo()
said["clusters"] = [info.get_max_active_clusters(size) for size in (1, 2, 4)]
said["sms"] = info.get_device_multiprocessor_count()
said["l2"] = info.get_l2_cache_size_in_bytes()
said["hardware_launches"] = len(launches)
said["current"] = 0 not in (int(ok(cuda.cuCtxGetCurrent())), int(cutlass.cuda.initialize_cuda_context()))

ok(cuda.cuInit(0))
device = ok(cuda.cuDeviceGet(0))
said["count"] = ok(cuda.cuDeviceGetCount())
said["name"] = ok(cuda.cuDeviceGetName(64, device)).decode()
said["context"] = int(ok(cuda.cuDevicePrimaryCtxRetain(device))) != 0
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(device))))
said["context_version"] = ok(cuda.cuCtxGetApiVersion(ok(cuda.cuCtxGetCurrent())))
said["capability"] = [
    ok(cuda.cuDeviceGetAttribute(a, device)) for a in (
        cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
]
said["error_name"] = ok(cuda.cuGetErrorName(cuda.CUresult.CUDA_ERROR_INVALID_VALUE)).decode()
memory = ok(cuda.cuMemAlloc(1024))
said["aligned"] = int(memory) % 256
said["poison"] = ctypes.string_at(int(memory), 1024) == b"\\xff" * 1024
ok(cuda.cuMemsetD32Async(memory, 0x01020304, 4, cuda.CUstream(0)))
host = bytearray(16)
ok(cuda.cuMemcpyDtoH(host, memory, 16))
said["copied"] = host.hex()
ok(cuda.cuMemFree(memory))
said["double_free"] = refused(cuda.cuMemFree, memory)
said["unmodelled"] = refused(cuda.cuMemcpyPeer, 1, 2, 3, 4, 5)
said["unmodelled_runtime"] = refused(cudart.cudaGraphInstantiate, None, 0)
said["unknown_attribute"] = refused(
    cuda.cuDeviceGetAttribute, cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PITCH, device)
stream = ok(cuda.cuStreamCreate(0))
start, end = ok(cuda.cuEventCreate(0)), ok(cuda.cuEventCreate(0))
ok(cuda.cuEventRecord(start, stream)); ok(cuda.cuEventRecord(end, stream)); ok(cuda.cuEventSynchronize(end))
said["elapsed_is_nan"] = math.isnan(ok(cuda.cuEventElapsedTime(start, end)))

@cute.jit
def reverse(source: cute.Tensor, target: cute.Tensor):
    for i in cutlass.range(cute.size(source)):
        target[cute.size(source) - 1 - i] = source[i]

source, target = torch.arange(16.0), torch.zeros(16)
reverse(from_dlpack(source), from_dlpack(target))
said["host_only"] = torch.equal(target, source.flip(0))

x = torch.zeros(128, dtype=torch.int32, device="cuda")
compiled = cute.compile(twice, from_dlpack(x), 4, stream)
launches.clear()
time = testing.benchmark(
    compiled, kernel_arguments=testing.JitArguments(from_dlpack(x), 1, stream), warmup_iterations=2, iterations=10)
said["benchmark_is_nan"] = math.isnan(time)
said["benchmark_launches"] = len(launches)
said["tune"] = refused(testing.tune, lambda: None, params_dict={})
said["installed_twice"] = refused(redirect.install, print)

real = cuda.cuMemcpyPeer
redirected.close()
side.close()
said["restored"] = cuda.cuMemcpyPeer is not real
said["cuda_gone"] = refused(compiled, from_dlpack(x), 1, stream) is not None
with redirect.install(launches.append):
    launches.clear()
    again = cute.compile(twice, from_dlpack(torch.zeros(8, dtype=torch.int32)), 4, stream)
    again(from_dlpack(torch.zeros(8, dtype=torch.int32)), 2, stream)
    said["installed_again"] = len(launches)
"""
    )
    return run_script(body, tmp_path_factory.mktemp("driver"))


@pytest.mark.slow
def test_hardware_info_answers_for_the_modelled_device(called):
    assert called["sms"] == B200.sm_count
    assert called["l2"] == B200.l2_bytes
    assert called["clusters"] == [148, 74, 37]
    assert called["hardware_launches"] == 0


@pytest.mark.slow
def test_driver_calls_answer_and_memory_works(called):
    assert called["count"] == 1
    assert called["name"] == "NVIDIA B200"
    assert called["context"]
    assert called["current"]
    assert called["capability"] == [10, 0]
    assert called["context_version"] == 3020
    assert called["error_name"] == "CUDA_ERROR_INVALID_VALUE"
    assert called["aligned"] == 0
    assert called["poison"]
    assert called["copied"] == "04030201" * 4


def test_what_has_no_stand_in_is_an_error_with_its_name(called):
    assert called["unmodelled"][0] == "HostSideError"
    assert "cuda.bindings.driver.cuMemcpyPeer" in called["unmodelled"][1]
    assert "cudaGraphInstantiate" in called["unmodelled_runtime"][1]
    assert "MAX_PITCH" in called["unknown_attribute"][1]
    assert "not a live device allocation" in called["double_free"][1]
    assert "run times" in called["tune"][1]


def test_a_function_without_a_kernel_runs_on_the_host(called):
    assert called["host_only"]


def test_no_time_is_invented(called):
    assert called["elapsed_is_nan"]
    assert called["benchmark_is_nan"]
    assert called["benchmark_launches"] == 2, "benchmark runs the function once, for its effect"


def test_stand_ins_are_installed_once_and_removed(called):
    assert "already installed" in called["installed_twice"][1]
    assert called["restored"]
    assert called["cuda_gone"]
    assert called["installed_again"] == 2


@pytest.mark.slow
def test_a_tensor_map_parameter_describes_its_tensor(tmp_path):
    body = """
from cutlass.cute.nvgpu import cpasync
from pytest_nvfp4.driver import tensormap

@cute.kernel
def prefetch(atom: cute.CopyAtom, t: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    if tidx == 0:
        cpasync.prefetch_descriptor(atom)

@cute.jit
def host(p: cute.Pointer, m: cutlass.Int32, n: cutlass.Int32):
    x = cute.make_tensor(p, cute.make_layout((m, n), stride=(n, 1)))
    rows = cute.make_layout((64, 64), stride=(64, 1))
    staged = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, rows)
    atom, t = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, staged, (64, 64))
    prefetch(atom, t).launch(grid=[1, 1, 1], block=[32, 1, 1])

x = torch.empty(300, 192, dtype=torch.float16, device="cuda")
compiled = cute.compile(host, make_ptr(cutlass.Float16, 0, cute.AddressSpace.gmem, assumed_align=16), 1, 64)
for m, n in ((300, 192), (17, 64), (17, 64)):
    compiled(make_ptr(cutlass.Float16, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=16), m, n)
    ctypes.CDLL(None).strtod(b"1" * (400 + 300 * len(launches)), None)  # leaves something else on the stack
said["alike"] = launches[1].params == launches[2].params
said["rest"] = [p[64:].hex() for p in launches[1].params if tensormap.looks_like_tensormap(p)]
maps = [tensormap.decode(p) for l in launches for p in l.params if tensormap.looks_like_tensormap(p)]
said["maps"] = [
    [m.element_type.name, m.dims, m.strides, m.box, m.swizzle.name, m.address == x.data_ptr()] for m in maps
]
"""
    said = run_script(body, tmp_path)
    assert said["maps"] == [
        ["F16", [192, 300], [384], [64, 64], "B128", True],
        *[["F16", [64, 17], [128], [64, 64], "B128", True]] * 2,
    ]
    assert said["alike"]
    assert said["rest"] == ["00" * 64], "compiled host code passes what its stack held"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"CUTE_DSL_DRYRUN": "1"}, "CUTE_DSL_DRYRUN is set"),
        ({"CUTE_DSL_ARCH": ""}, "CUTE_DSL_ARCH is not set"),
        ({"CUTE_DSL_DUMP_DIR": "/nonexistent/folder"}, "does not exist"),
    ],
)
def test_an_environment_that_cannot_launch_is_refused(change, message, monkeypatch, tmp_path):
    for name, value in {**redirect.environment(tmp_path), **change}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HostSideError, match=re.escape(message)):
        redirect.install(print)


def test_importing_the_module_does_not_import_cutlass(tmp_path):
    prelude = "import json, sys\nsaid = {}\n"
    body = "from pytest_nvfp4.host import redirect\nsaid['m'] = [m for m in ('cutlass', 'torch') if m in sys.modules]"
    assert run_script(body, tmp_path, prelude=prelude) == {"m": []}


@pytest.mark.slow
def test_a_dry_run_really_launches_nothing(tmp_path):
    """Why the variable is refused: with it the compiled function is not even made."""
    prelude = PRELUDE.replace(
        "side = redirect.install", "redirect._check_environment = lambda: None\nside = redirect.install"
    )
    body = (
        KERNELS
        + """
x = torch.zeros(128, dtype=torch.int32, device="cuda")
twice(from_dlpack(x), 4, cuda.CUstream(0))
said["launches"] = len(launches)
"""
    )
    assert run_script(body, tmp_path, environment={"CUTE_DSL_DRYRUN": "1"}, prelude=prelude) == {"launches": 0}


def test_a_launch_needs_nothing_but_the_standard_library():
    image = ModuleImage(cubin=b"abc", ptx=None, param_sizes={"k": (4,)})
    launch = Launch(
        kernel="k",
        grid=(4, 2, 1),
        block=(128, 1, 1),
        cluster=(2, 1, 1),
        dynamic_smem=0,
        stream=0,
        params=(b"\1\0\0\0",),
        attributes={6: struct.pack("<i", 1).ljust(64, b"\0")},
        module=image,
        ordinal=0,
    )
    assert launch.programmatic_dependent_launch
    assert not launch.cooperative
    assert launch.ctas == 8
    assert len(image.sha256) == 64


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (b"PTX!" + bytes(100), "expected an ELF"),
        (b"\x7fELF\x01" + bytes(100), "32-bit"),
        (b"\x7fELF\x02" + bytes(13) + struct.pack("<H", 62) + bytes(80), "machine 62"),
        (b"\x7fELF\x02" + bytes(13) + struct.pack("<H", 190) + b"\xff" * 80, "truncated"),
    ],
)
def test_damaged_modules_are_named(image, said):
    with pytest.raises(cubin.CubinError, match=said):
        cubin.parse(image)
