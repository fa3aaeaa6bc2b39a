"""Softmax of the rows of a matrix for NVIDIA Hopper (sm_90a), in CuTe DSL: maximum and sum in one pass.

y[i, j] = exp(x[i, j] - max_i) / sum over j of exp(x[i, j] - max_i) for x, y (m, n) of fp16, bf16 or fp32, row-major.

Three layers: the kernel and its launch (`launch`), the operator `torch.ops.kernels_sm90.softmax_online` (with its fake
for tracing; `softmax` allocates and calls it), and what it must come near, `reference` (fp64, rounded once), within
TOLERANCE (relative, absolute). exp is 2 to the power of x log2 e by `ex2.approx.ftz`, whose bits PTX does not state, so
two devices may differ in the last place.

    relative  fp32: 2e-5. The exponent is at most 126 in magnitude before results vanish, and its two roundings of
              2^-24 each make 126 * 2^-23 * ln 2 = 1.1e-5 of the result; the sum, which is long but positive, and the
              approximation make a few 1e-7. fp16 and bf16: half a unit in the last place, and as much again where the
              fp32 result lies near the middle of two: 2^-10, 2^-7.
    absolute  2^-126 (fp32, bf16: what is smaller counts as 0), 2^-24 (fp16: the smallest subnormal)

One CTA takes one row. With E = 16 bytes / size of an element:

    1. Thread t of T takes vectors t, T + t, ... of E elements, and keeps the maximum so far and the sum of
       2^((x - maximum) log2 e) so far; when a vector raises the maximum, the sum is scaled first.
    2. Pairs (maximum, sum) are joined over the lanes of a warp by a butterfly, then over the warps through shared
       memory: (M, S) = (max(a, b), s_a 2^((a - M) log2 e) + s_b 2^((b - M) log2 e)). The order is fixed: runs repeat
       bit for bit.
    3. The row is read again (from L2), and written with one multiplication by 1 / sum.

While the maximum is -inf its place in the exponents is taken by 0: elements of -inf then count nothing, as they should.
A row of nothing but -inf, or with NaN or +inf, becomes NaN, as torch has it.

Preconditions (ValueError): a contiguous CUDA matrix, 16-byte aligned, n a multiple of E, not empty. Compile time: the
type of the elements. Run time: m, n, addresses.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings import driver
from cutlass import BFloat16, Float16, Float32, Int32, Int64

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

THREADS = 128
WARPS = THREADS // 32
VECTOR = 16  # bytes that a thread loads at once
LOG2_E = 1.4426950408889634

ELEMENTS = {torch.float16: Float16, torch.bfloat16: BFloat16, torch.float32: Float32}
TOLERANCE = {
    torch.float16: (2.0**-10, 2.0**-24),
    torch.bfloat16: (2.0**-7, 2.0**-126),
    torch.float32: (2e-5, 2.0**-126),
}
"""By type: relative and absolute."""


@cute.jit
def finite(maximum: Float32):
    """What stands for a maximum in exponents: 0 for -inf."""
    result = maximum
    if maximum == -Float32.inf:
        result = Float32(0.0)
    return result


@cute.jit
def power(x: Float32, maximum: Float32):
    """e^(x - maximum)."""
    return cute.arch.exp2((x - maximum) * Float32(LOG2_E))


@cute.jit
def join(a: Float32, sum_a: Float32, b: Float32, sum_b: Float32):
    """Maximum and sum over the elements of two parts."""
    maximum = cute.arch.fmax(a, b)
    base = finite(maximum)
    return maximum, sum_a * power(a, base) + sum_b * power(b, base)


@cute.jit
def butterfly(maximum: Float32, total: Float32, lanes: cutlass.Constexpr):
    """Join over groups of `lanes` neighbouring lanes, in every one of them."""
    offset = lanes // 2
    while cutlass.const_expr(offset > 0):
        other = cute.arch.shuffle_sync_bfly(maximum, offset=offset)
        other_total = cute.arch.shuffle_sync_bfly(total, offset=offset)
        maximum, total = join(maximum, total, other, other_total)
        offset //= 2
    return maximum, total


@cute.kernel
def softmax_kernel(x: cute.Tensor, y: cute.Tensor):
    """Softmax of row blockIdx.x. x and y are (m, vectors, E)."""
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    warp = thread // 32
    lane = thread % 32
    each = cute.size(x, mode=[2])
    vectors = cute.size(x, mode=[1])

    smem = SmemAllocator()
    maxima = smem.allocate_tensor(Float32, cute.make_layout(WARPS), byte_alignment=16)
    totals = smem.allocate_tensor(Float32, cute.make_layout(WARPS), byte_alignment=16)

    vector = cute.make_rmem_tensor(cute.make_layout(each), x.element_type)
    maximum = -Float32.inf
    total = Float32(0.0)
    for v in cutlass.range(thread, vectors, THREADS, unroll=2):
        cute.autovec_copy(x[(row, v, None)], vector)
        raised = maximum
        for e in cutlass.range_constexpr(each):
            raised = cute.arch.fmax(raised, vector[e].to(Float32))
        base = finite(raised)
        total = total * power(maximum, base)
        for e in cutlass.range_constexpr(each):
            total = total + power(vector[e].to(Float32), base)
        maximum = raised
    maximum, total = butterfly(maximum, total, 32)
    if lane == 0:
        maxima[warp] = maximum
        totals[warp] = total
    cute.arch.barrier()
    maximum, total = butterfly(maxima[lane % WARPS], totals[lane % WARPS], WARPS)

    scale = Float32(1.0) / total
    for v in cutlass.range(thread, vectors, THREADS, unroll=2):
        cute.autovec_copy(x[(row, v, None)], vector)
        for e in cutlass.range_constexpr(each):
            vector[e] = (power(vector[e].to(Float32), maximum) * scale).to(x.element_type)
        cute.autovec_copy(vector, y[(row, v, None)])


@cute.jit
def launch(x_pointer: cute.Pointer, y_pointer: cute.Pointer, m: Int32, n: Int32, stream: driver.CUstream):
    """Launch the kernel on x and y (m, n)."""
    each = VECTOR * 8 // x_pointer.dtype.width
    pitch = cute.assume(Int64(n), divby=each)
    layout = cute.make_layout((m, n // each, each), stride=(pitch, each, 1))
    softmax_kernel(cute.make_tensor(x_pointer, layout), cute.make_tensor(y_pointer, layout)).launch(
        grid=(m, 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def pointer(dtype, address):
    """A run-time argument: pointer to global memory."""
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=VECTOR)


@functools.cache
def compiled(dtype):
    """The compiled launcher for elements of a torch type."""
    unknown = pointer(ELEMENTS[dtype], 0)
    return cute.compile(launch, unknown, unknown, Int32(1), Int32(8), driver.CUstream(0))


def compile_kernel():
    """Compile for every type of element."""
    return [compiled(dtype) for dtype in ELEMENTS]


def check(x):
    """Raise ValueError for a matrix that the kernel does not take."""
    if not x.is_cuda:
        raise ValueError(f"softmax_online: a CUDA tensor is expected, not one on {x.device}")
    if x.ndim != 2 or not x.is_contiguous() or x.numel() == 0:
        raise ValueError(f"softmax_online: a contiguous matrix is expected, not {tuple(x.shape)}, strides {x.stride()}")
    if x.dtype not in ELEMENTS:
        raise ValueError(f"softmax_online: elements of {', '.join(map(str, ELEMENTS))} are expected, not {x.dtype}")
    each = VECTOR // x.element_size()
    if x.shape[1] % each or x.data_ptr() % VECTOR:
        raise ValueError(
            f"softmax_online: rows must be multiples of {each} elements and 16-byte aligned: {tuple(x.shape)} at "
            f"{x.data_ptr():#x}"
        )


@torch.library.custom_op("kernels_sm90::softmax_online", mutates_args={"out"})
def softmax_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write the softmax of x's rows to `out`; both as `softmax` has checked and made them."""
    element = ELEMENTS[x.dtype]
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    compiled(x.dtype)(pointer(element, x.data_ptr()), pointer(element, out.data_ptr()), *x.shape, stream)


@softmax_into.register_fake
def _(x, out):
    torch._check(out.shape == x.shape and out.dtype == x.dtype, lambda: "softmax_online: out must be like x")


def softmax(x):
    """The softmax of x's rows. Raises ValueError (see `check`)."""
    check(x)
    out = torch.empty_like(x)
    softmax_into(x, out)
    return out


def reference(x):
    """What `softmax` must come near, within TOLERANCE[x.dtype]."""
    return torch.softmax(x.double(), dim=1).to(x.dtype)
