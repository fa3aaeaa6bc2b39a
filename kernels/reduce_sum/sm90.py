"""Sums of the rows of a matrix for NVIDIA Hopper (sm_90a), in CuTe DSL: warp shuffles, shared memory, a cluster.

y[i] = sum over j of x[i, j] for x (m, n) of fp16, bf16 or fp32, row-major, and y (m) in fp32.

Three layers: the kernel and its launch (`launch`), the operator `torch.ops.kernels_sm90.reduce_sum` (with its fake for
tracing; `row_sums` allocates and calls it), and what it must equal:

    `ordered_reference`   the same additions in the same order, in torch: equal bit for bit (tolerance 0), but for NaN,
                          whose payload is not stated
    `reference`           sums in fp64, rounded once. Within n * 2^-24 * sum |x[i, j]| of it (a bound on any order)

The order of the additions, all in fp32 and rounded to nearest even, is a function of n alone, so that runs repeat bit
for bit, whatever the schedule. A cluster of CLUSTER CTAs sums one row. With E = 16 bytes / size of an element, T
threads in a CTA, and vector v = elements E v .. E v + E - 1:

    1. Thread t of CTA r takes vectors CLUSTER T i + T r + t for i = 0, 1, ... and adds element e of each to its e-th
       accumulator, which starts from +0.
    2. The accumulators of a thread are added pairwise: e with e + E/2, then e with e + E/4, ...
    3. Lanes of a warp: butterfly, lane l with l XOR 16, then 8, 4, 2, 1.
    4. Warps of a CTA: their sums go through shared memory to one warp, which adds w with w XOR T/64, ..., 1.
    5. CTAs of the cluster: each writes its sum to the shared memory of CTA 0, which adds them by rising rank.

Preconditions (ValueError): a contiguous CUDA matrix, 16-byte aligned, n a multiple of E, not empty. Compile time: the
type of the elements. Run time: m, n, addresses.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings import driver
from cutlass import BFloat16, Float16, Float32, Int32, Int64
from cutlass._mlir.dialects import llvm

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

CLUSTER = 2  # CTAs that share a row
THREADS = 256
WARPS = THREADS // 32
VECTOR = 16  # bytes that a thread loads at once

ELEMENTS = {torch.float16: Float16, torch.bfloat16: BFloat16, torch.float32: Float32}


def store_to_cta(address, rank, value):
    """Store an fp32 at a shared-memory address of this CTA in the same place of CTA `rank` of the cluster."""
    llvm.inline_asm(
        None,
        [address.ir_value(), rank.ir_value(), value.ir_value()],
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, $0, $1;\nst.shared::cluster.f32 [remote], $2;\n}",
        "r,r,f,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def butterfly(value, lanes):
    """The sum over groups of `lanes` neighbouring lanes, in every one of them."""
    offset = lanes // 2
    while offset:
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
        offset //= 2
    return value


@cute.kernel
def reduce_kernel(x: cute.Tensor, y: cute.Tensor):
    """Sum row blockIdx.x / CLUSTER. x is (m, vectors, E)."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = block // CLUSTER
    rank = cute.arch.block_idx_in_cluster()
    warp = thread // 32
    lane = thread % 32
    each = cute.size(x, mode=[2])

    smem = SmemAllocator()
    of_warps = smem.allocate_tensor(Float32, cute.make_layout(WARPS), byte_alignment=16)
    of_ctas = smem.allocate_tensor(Float32, cute.make_layout(CLUSTER), byte_alignment=16)
    # A CTA may only be written to once it has started.
    cute.arch.cluster_arrive_relaxed()

    vector = cute.make_rmem_tensor(cute.make_layout(each), x.element_type)
    sums = cute.make_rmem_tensor(cute.make_layout(each), Float32)
    for e in cutlass.range_constexpr(each):
        sums[e] = Float32(0.0)
    for v in cutlass.range(rank * THREADS + thread, cute.size(x, mode=[1]), CLUSTER * THREADS, unroll=4):
        cute.autovec_copy(x[(row, v, None)], vector)
        for e in cutlass.range_constexpr(each):
            sums[e] = sums[e] + vector[e].to(Float32)
    partial = [sums[e] for e in range(each)]
    while cutlass.const_expr(len(partial) > 1):
        half = len(partial) // 2
        partial = [partial[e] + partial[e + half] for e in range(half)]
    of_warp = butterfly(partial[0], 32)
    if lane == 0:
        of_warps[warp] = of_warp
    cute.arch.barrier()
    cute.arch.cluster_wait()
    if warp == 0:
        of_cta = butterfly(of_warps[lane % WARPS], WARPS)
        if lane == 0:
            store_to_cta((of_ctas.iterator + rank).toint(), Int32(0), of_cta)
    # The sums have arrived at CTA 0, which stays until then; nobody writes to another CTA after this.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0 and thread == 0:
        total = of_ctas[0]
        for other in cutlass.range_constexpr(1, CLUSTER):
            total = total + of_ctas[other]
        y[row] = total


@cute.jit
def launch(x_pointer: cute.Pointer, y_pointer: cute.Pointer, m: Int32, n: Int32, stream: driver.CUstream):
    """Launch the kernel on x (m, n) and y (m)."""
    each = VECTOR * 8 // x_pointer.dtype.width
    pitch = cute.assume(Int64(n), divby=each)
    x = cute.make_tensor(x_pointer, cute.make_layout((m, n // each, each), stride=(pitch, each, 1)))
    y = cute.make_tensor(y_pointer, cute.make_layout((m,)))
    reduce_kernel(x, y).launch(grid=(m * CLUSTER, 1, 1), block=(THREADS, 1, 1), cluster=(CLUSTER, 1, 1), stream=stream)


def pointer(dtype, address, align):
    """A run-time argument: pointer to global memory."""
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)


@functools.cache
def compiled(dtype):
    """The compiled launcher for elements of a torch type."""
    return cute.compile(
        launch, pointer(ELEMENTS[dtype], 0, VECTOR), pointer(Float32, 0, 4), Int32(1), Int32(8), driver.CUstream(0)
    )


def compile_kernel():
    """Compile for every type of element."""
    return [compiled(dtype) for dtype in ELEMENTS]


def check(x):
    """Raise ValueError for a matrix that the kernel does not take."""
    if not x.is_cuda:
        raise ValueError(f"reduce_sum: a CUDA tensor is expected, not one on {x.device}")
    if x.ndim != 2 or not x.is_contiguous() or x.numel() == 0:
        raise ValueError(f"reduce_sum: a contiguous matrix is expected, not {tuple(x.shape)}, strides {x.stride()}")
    if x.dtype not in ELEMENTS:
        raise ValueError(f"reduce_sum: elements of {', '.join(map(str, ELEMENTS))} are expected, not {x.dtype}")
    each = VECTOR // x.element_size()
    if x.shape[1] % each or x.data_ptr() % VECTOR:
        raise ValueError(
            f"reduce_sum: rows must be multiples of {each} elements and 16-byte aligned: {tuple(x.shape)} at "
            f"{x.data_ptr():#x}"
        )


@torch.library.custom_op("kernels_sm90::reduce_sum", mutates_args={"out"})
def row_sums_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sums of x's rows to `out`; both as `row_sums` has checked and made them."""
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    compiled(x.dtype)(
        pointer(ELEMENTS[x.dtype], x.data_ptr(), VECTOR), pointer(Float32, out.data_ptr(), 4), *x.shape, stream
    )


@row_sums_into.register_fake
def _(x, out):
    torch._check(out.shape == (x.shape[0],), lambda: "reduce_sum: out must be (m)")
    torch._check(out.dtype == torch.float32, lambda: "reduce_sum: out must be float32")


def row_sums(x):
    """The sums of x's rows, fp32. Raises ValueError (see `check`)."""
    check(x)
    out = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    row_sums_into(x, out)
    return out


def reference(x):
    """What the sums are, rounded once."""
    return x.double().sum(dim=1).float()


def tolerance(x):
    """By how much each sum may differ from `reference`: a bound on the error of any order of additions in fp32."""
    return x.double().abs().sum(dim=1) * x.shape[1] * 2.0**-24


def halves(values):
    """Sum over the last dimension, a power of two, by adding its upper half to its lower half until one is left."""
    while values.shape[-1] > 1:
        lower, upper = values.chunk(2, dim=-1)
        values = lower + upper
    return values[..., 0]


def ordered_reference(x):
    """What `row_sums` must equal bit for bit: its order of additions, step by step (see above)."""
    m, n = x.shape
    each = VECTOR // x.element_size()
    step = CLUSTER * THREADS * each
    # Elements that are not there count as +0, which changes no sum that starts from +0.
    padded = torch.nn.functional.pad(x.float(), (0, -n % step)).view(m, -1, CLUSTER, WARPS, 32, each)
    sums = torch.zeros_like(padded[:, 0])
    for i in range(padded.shape[1]):
        sums = sums + padded[:, i]
    of_ctas = halves(halves(halves(sums)))
    total = of_ctas[:, 0]
    for rank in range(1, CLUSTER):
        total = total + of_ctas[:, rank]
    return total
