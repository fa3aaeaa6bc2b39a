"""Triton kernels that a test runs in a process of its own: ``python triton_kernels.py FOLDER ARCH CASE ...``.

Each case returns what the test compares; the last line of the output has them as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host import redirect
from pytest_nvfp4.sim.fault import Fault

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.session import Session

FOLDER, ARCH, *CASES = sys.argv[1:] if __name__ == "__main__" else ("", "sm_100a")
if __name__ == "__main__":
    os.environ.update(redirect.environment(Path(FOLDER), arch=ARCH))
    os.environ["TRITON_CACHE_DIR"] = str(Path(FOLDER) / "cache")
    os.environ["PATH"] = "/nonexistent"  # no C compiler

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

M, N, K = 256, 256, 192


@triton.jit
def add(x, y, out, n, SCALE, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + i, i < n)
    b = tl.load(y + i, i < n)
    tl.store(out + i, a + b * SCALE, i < n)


@triton.jit
def beyond(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def total(x, out, BLOCK: tl.constexpr):
    value = tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)))
    tl.store(out, tl.load(out) + value)


@triton.jit
def accumulated(x, out, total, kept, lock, n, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    value = tl.zeros([BLOCK], tl.float32)
    for _ in range(0, n, BLOCK):
        value += tl.load(at)
        at += BLOCK
    tl.atomic_add(out, tl.sum(value))
    if n > 1:
        tl.store(total, tl.load(total) + n)
    tl.store(kept, tl.load(x))
    tl.atomic_cas(lock, 0, 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def spilling(x, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    value = tl.load(x + i)
    tl.store(out + i, value * tl.sum(value))


@triton.jit
def in_place(x, few, one):
    i = tl.arange(0, 16)
    tl.store(few + i, tl.load(few + i) * 2, i < 12)
    tl.store(one, tl.load(one) + tl.sum(tl.load(x + tl.arange(0, 128))))


@triton.jit
def in_place_and_elsewhere(one, out):
    value = tl.load(one)
    tl.store(one, value + 1)
    i = tl.arange(0, 128)
    tl.store(out + i, value + i)


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr = True):
    tl.static_assert(EVEN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + depth)[None, :])
        y = tl.load(b + (k + depth)[:, None] * N + columns[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.float16))


@triton.jit
def product_of_maps(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([row, k]), b.load([k, column]), acc)
    c.store([row, column], acc.to(tl.float16))


@triton.jit
def product_of_own_maps(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIAL: tl.constexpr):
    of_a = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    of_b = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    of_c = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=SPECIAL):
        acc = tl.dot(of_a.load([row, k]), of_b.load([k, column]), acc)
    of_c.store([row, column], acc.to(tl.float16))


@triton.jit
def scales(block, first, row, BR: tl.constexpr, BK: tl.constexpr):
    """Return the factors (BR, BK // 16) of rows in blocks of 128, each (K // 64, 32, 4, 4), from a block on."""
    inner = tl.arange(0, BK * 8)
    packed = tl.load(block + tl.arange(0, BR // 128)[:, None] * row + (first * 128 + inner)[None, :])
    return packed.reshape(BR // 128, BK // 64, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BR, BK // 16)


@triton.jit
def scaled(a, sa, b, sb, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    pairs = tl.arange(0, BK // 2)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * (K // 2) + (k // 2 + pairs)[None, :])
        y = tl.load(b + columns[:, None] * (K // 2) + (k // 2 + pairs)[None, :])
        x_scale = scales(sa + tl.program_id(0) * BM * (K // 16), k // 16, K * 8, BM, BK)
        y_scale = scales(sb + tl.program_id(1) * BN * (K // 16), k // 16, K * 8, BN, BK)
        acc = tl.dot_scaled(x, x_scale, "e2m1", y.T, y_scale, "e2m1", acc)
    tl.store(c + rows[:, None] * N + columns[None, :], acc.to(tl.float16))


tuned = triton.autotune(
    configs=[
        triton.Config({"BM": 256, "BN": 256, "BK": 256}, num_stages=4, num_warps=8),  # more shared memory than there is
        triton.Config({"BM": 64, "BN": 64, "BK": 64}, num_stages=2),
        triton.Config({"BM": 128, "BN": 64, "BK": 64}),
    ],
    key=["M", "N", "K"],
)(triton.heuristics({"EVEN": lambda values: values["K"] % values["BK"] == 0})(product))


def _operands() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    a, b = torch.randint(-4, 5, (M, K)).half(), torch.randint(-4, 5, (K, N)).half()
    c = torch.full((M, N), torch.nan, dtype=torch.float16, device="cuda")
    return a.cuda(), b.cuda(), c, (a.float() @ b.float()).half()


def _scaled_operand(rows: int, k: int) -> tuple[Any, Any, Any]:
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    packed = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
    scales = (torch.randint(1, 9, (rows, k // 16)) / 2).to(torch.float8_e4m3fn)
    elements = torch.stack([values[(packed & 15).long()], values[(packed >> 4).long()]], -1).reshape(rows, k)
    blocks = scales.view(rows // 128, 4, 32, k // 64, 4).permute(0, 3, 2, 1, 4).contiguous()
    return packed.cuda(), blocks.cuda(), elements * scales.float().repeat_interleave(16, 1)


def case_add(_: Session) -> Any:
    """Elements with a mask, a scalar in floating point."""
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.full((1000,), torch.nan, device="cuda")
    add[(4,)](x.cuda(), y.cuda(), out, 1000, 2.0, BLOCK=256)
    return torch.equal(out.cpu(), x + y * 2)


def case_beyond(_: Session) -> Any:
    """A load without a mask."""
    x, out = torch.ones(1000, device="cuda"), torch.empty(1024, device="cuda")
    try:
        beyond[(4,)](x, out, 1000, BLOCK=256)
    except Fault as fault:
        where = fault.finding().where
        assert where is not None
        return [str(fault), "" if where.source is None else f"{Path(where.source.file).name}:{where.source.line}"]
    return []


def case_total(session: Session) -> Any:
    """A sum over CTAs without an atomic."""
    x, out = torch.ones(1024, device="cuda"), torch.zeros(1, device="cuda")
    total[(8,)](x, out, BLOCK=128)
    return sorted({(f.kind, f.where.source.line) for f in session.findings if f.where and f.where.source})


def case_spills(_: Session) -> Any:
    """What ptxas says of a kernel, with few registers and with many."""
    x, out = torch.ones(128 * 128, device="cuda"), torch.empty(128 * 128, device="cuda")
    made = [spilling[(1,)](x, out, N=128, num_warps=4, maxnreg=most) for most in (64, 255)]
    few = spilling[(1,)](x, out, N=16, num_warps=4)
    return [[kernel.n_regs, kernel.n_spills] for kernel in (*made, few)]


def case_in_place(session: Session) -> Any:
    """Updates of few elements, which all warps load and one stores; then one whose old value all warps store."""
    x, few, one = torch.ones(128, device="cuda"), torch.ones(16, device="cuda"), torch.ones(1, device="cuda")
    in_place[(1,)](x, few, one)
    right = [few.cpu().tolist() == [2.0] * 12 + [1.0] * 4, one.item() == 129, len(session.findings)]
    in_place_and_elsewhere[(1,)](one, x)
    return right + sorted({(f.kind, f.where.source.line) for f in session.findings if f.where and f.where.source})


def case_product(_: Session) -> Any:
    """A GEMM on the tensor core."""
    a, b, c, want = _operands()
    product[(2, 2)](a, b, c, M, N, K, BM=128, BN=128, BK=64)
    return torch.equal(c.cpu(), want)


def case_pairs(_: Session) -> Any:
    """The same on pairs of CTAs."""
    a, b, c, want = _operands()
    product[(2, 2)](a, b, c, M, N, K, BM=128, BN=128, BK=64, num_ctas=2)
    return torch.equal(c.cpu(), want)


def case_maps(_: Session) -> Any:
    """Tensor maps that the host makes."""
    a, b, c, want = _operands()
    maps = [
        TensorDescriptor(of, list(of.shape), list(of.stride()), block)
        for of, block in ((a, [128, 64]), (b, [64, 128]), (c, [128, 128]))
    ]
    product_of_maps[(2, 2)](*maps, K, BM=128, BN=128, BK=64)
    return torch.equal(c.cpu(), want)


def case_own_maps(_: Session) -> Any:
    """Tensor maps that the kernel makes in scratch memory."""
    a, b, c, want = _operands()
    try:
        product_of_own_maps[(2, 2)](a, b, c, M, N, K, BM=128, BN=128, BK=64, SPECIAL=False)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    triton.set_allocator(lambda size, _align, _: torch.empty(size, dtype=torch.int8, device="cuda"))
    product_of_own_maps[(2, 2)](a, b, c, M, N, K, BM=128, BN=128, BK=64, SPECIAL=False)
    return [refused, torch.equal(c.cpu(), want)]


def case_special(_: Session) -> Any:
    """Specialised warps."""
    triton.set_allocator(lambda size, _align, _: torch.empty(size, dtype=torch.int8, device="cuda"))
    a, b, c, want = _operands()
    product_of_own_maps[(2, 2)](a, b, c, M, N, K, BM=128, BN=128, BK=64, SPECIAL=True)
    return torch.equal(c.cpu(), want)


def case_scaled(session: Session) -> Any:
    """NVFP4, with scale factors that are copied to tensor memory."""
    (a, sa, want_a), (b, sb, want_b) = _scaled_operand(128, 256), _scaled_operand(128, 256)
    c = torch.full((128, 128), torch.nan, dtype=torch.float16, device="cuda")
    scaled[(1, 1)](a, sa, b, sb, c, 128, 256, BM=128, BN=128, BK=128)
    want = (want_a @ want_b.T).half()
    copies = session.launches[-1].counters["tcgen05.cp.instructions"]
    return [torch.equal(c.cpu(), want), bool(want.abs().max() > 0), copies]


def case_profiled(_: Session) -> Any:
    """A session of Triton's profiler, in which a kernel is launched."""
    import triton.profiler as proton

    session = proton.start(f"{FOLDER}/profiled", hook="triton")
    x, out = torch.ones(16), torch.empty(16, device="cuda")
    with proton.scope("ours"):
        add[(1,)](x.cuda(), x.cuda(), out, 16, 1.0, BLOCK=16)
    proton.deactivate(session)
    proton.finalize()
    root = json.loads(Path(FOLDER, "profiled.hatchet").read_text())[0]
    return [out.tolist(), [[one["frame"]["name"], *one["metrics"]] for one in root["children"]]]


def case_tuned(session: Session) -> Any:
    """A kernel with configurations, and a measurement."""
    a, b, c, want = _operands()

    def call() -> None:
        tuned[lambda values: (M // values["BM"], N // values["BN"])](a, b, c, M, N, K)

    call()
    launched = len(session.launches)
    time = triton.testing.do_bench(call)
    return [torch.equal(c.cpu(), want), launched, str(time), len(session.launches), str(tuned.best_config)]


def case_unrestored(_: Session) -> Any:
    """Tuned kernels that add to an argument, with what restores it, and without; what is warned of, at which lines."""
    import warnings

    def configs(**options: Any) -> list[triton.Config]:
        return [triton.Config({"BLOCK": block}, **options) for block in (64, 128)]

    tuners = {
        "out": triton.autotune(configs(), key=["n"], reset_to_zero=["out"]),
        "none": triton.autotune(configs(), key=["n"]),
        "both": triton.autotune(configs(), key=["n"], reset_to_zero=["out"], restore_value=["total"]),
        "hook": triton.autotune(configs(), key=["n"], pre_hook=lambda *_, **__: None),
        "of configurations": triton.autotune(configs(pre_hook=lambda _: None), key=["n"]),
        "one": triton.autotune(configs()[:1], key=["n"]),
    }
    first = accumulated.fn.__code__.co_firstlineno
    warned: dict[str, list[Any]] = {}
    for name, tuner in tuners.items():
        kernel = tuner(accumulated)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in (128, 128, 256):
                lock = torch.zeros(1, dtype=torch.int32, device="cuda")
                kernel[(1,)](torch.ones(256, device="cuda"), *torch.zeros(3, 1, device="cuda"), lock, n)
        warned[name] = [[str(each.message), each.lineno - first] for each in caught if "autotune" in str(each.message)]
    return warned


def case_measured(_: Session) -> Any:
    """What code that measures asks the driver and nvidia-smi."""
    driver = triton.runtime.driver.active
    cache = driver.get_empty_cache_for_benchmark()
    driver.clear_cache(cache)
    return [str(cache.device), str(triton.testing.nvsmi(["clocks.max.sm", "clocks.sm"]))]


def case_wrapped(_: Session) -> Any:
    """Kernels of ``wrap_triton``: as they are, tuned, for another thread, and in operators with a derivative."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])(add)
    of_cpu, other = torch.randn(2, 100)
    there, other_there = of_cpu.cuda(), other.cuda()

    def launch(x: torch.Tensor, y: torch.Tensor, scale: float, kernel: Any = add, **options: int) -> torch.Tensor:
        out = torch.empty_like(x)
        wrapped = torch.library.wrap_triton(kernel)
        wrapped[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), scale, **options)
        return out

    def operator(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
        return launch(x, y, scale, BLOCK=128)

    def derivative(ctx: Any, grad: torch.Tensor) -> Any:
        return operator(grad, torch.zeros_like(grad), 1.0), operator(0 * grad, grad, ctx.scale), None

    def keep(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.scale = inputs[2]

    both = [
        torch.library.triton_op("tests_nvfp4::as_triton", operator, mutates_args=()),
        torch.library.custom_op("tests_nvfp4::as_custom", operator, mutates_args=(), device_types="cuda"),
    ]
    both[1].register_fake(lambda x, y, scale: torch.empty_like(x))
    right: list[Any] = []
    for each in both:
        each.register_autograd(derivative, setup_context=keep)
        leaves = [tensor.clone().requires_grad_() for tensor in (there, other_there)]
        torch.sin(each(leaves[0], leaves[1], 3.0)).sum().backward()
        wanted = [tensor.clone().requires_grad_() for tensor in (of_cpu, other)]
        torch.sin(wanted[0] + wanted[1] * 3.0).sum().backward()
        right.append([torch.allclose(a.grad.cpu(), b.grad) for a, b in zip(leaves, wanted, strict=True)])
        with FakeTensorMode():
            right.append(tuple(each(torch.empty(7), torch.empty(7), 1.0).shape))
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(operator(there, other_there, 3.0)))
    thread.start()
    thread.join()
    made += [operator(there, other_there, 3.0), launch(there, other_there, 3.0, tuned)]
    return right, [torch.equal(each.cpu(), torch.addcmul(of_cpu, other, torch.tensor(3.0))) for each in made]


def case_hooks(_: Session) -> Any:
    """A grid without CTAs, a tensor of the host, and hooks around launches."""
    seen: list[str] = []
    triton.knobs.runtime.launch_enter_hook = lambda of: seen.append(of.get()["name"])
    x = torch.ones(16)
    add[(0,)](x.cuda(), x.cuda(), x.cuda(), 16, 1.0, BLOCK=16)
    try:
        add[(1,)](x, x.cuda(), x.cuda(), 16, 1.0, BLOCK=16)
    except ValueError as error:
        seen.append(str(error))
    triton.knobs.runtime.launch_enter_hook = None
    return seen


def case_interpreted(_: Session) -> Any:
    """A kernel for Triton's interpreter."""
    triton.knobs.runtime.interpret = True
    try:
        triton.jit(add.fn)
    except HostSideError as error:
        return str(error)
    finally:
        triton.knobs.runtime.interpret = False
    return ""


def case_gluon(_: Session) -> Any:
    """A GEMM in Gluon."""
    from tests.host import gluon_kernels

    return gluon_kernels.run(wait=True)


def case_gluon_unordered(session: Session) -> Any:
    """The same without the wait for its copies."""
    from tests.host import gluon_kernels

    gluon_kernels.run(wait=False)
    return sorted({finding.kind for finding in session.findings})


def main() -> None:
    """Run the cases in one simulator each."""
    from pytest_nvfp4.device.worker.simulator import simulate
    from pytest_nvfp4.sim.races.access_pair import WARNING

    said: dict[str, Any] = {"version": triton.__version__}
    cases: dict[str, Callable[[Session], Any]] = {
        name.removeprefix("case_"): value for name, value in globals().items() if name.startswith("case_")
    }
    with simulate(arch=ARCH, races=True) as session:
        for name in CASES:
            del session.launches[:]
            session.faults.clear()
            try:
                result = cases[name](session)
            except Exception as error:  # the others run all the same
                result = f"{type(error).__name__}: {error}"
            said[name] = {
                "result": result,
                "findings": [str(finding) for finding in session.findings if finding.kind != WARNING],
                "launches": [
                    [one.launch.kernel, one.launch.grid, one.launch.block, one.launch.cluster]
                    for one in session.launches
                ],
            }
    add.device_caches.clear()
    gc.collect()  # the end of its kernels, behind that of the device
    said["after"] = [type(value).__module__ for value in vars(triton.runtime.driver).values()]
    sys.stdout.write(f"SAID {json.dumps(said)}\n")


if __name__ == "__main__":
    main()
