"""Matrix transpose for NVIDIA Hopper (sm_90a), in CuTe DSL: TMA in, swizzled shared memory, TMA out.

y = x^T for x (m, n) and y (n, m), both row-major, of 16-bit or 32-bit elements. Exact: only bits move, so NaN payloads
and signed zeros arrive as they are.

Three layers: the kernel and its launch (`launch`), the operator `torch.ops.kernels_sm90.copy_transpose` (with its fake
for tracing; `transpose` allocates and calls it), and what it must equal, `reference`, bit for bit (tolerance 0).

One CTA moves one tile of T x T elements, T = 128 bytes / size: 64 x 64 of 16 bits, 32 x 32 of 32 bits. A row of a tile
is one row of the 128-byte swizzle, in which 16-byte chunk c of row r lies at chunk c XOR r % 8.

    1. One thread issues one TMA load of the tile; the box may leave x, and what lies outside arrives as zeros.
    2. 64 threads transpose blocks of E x E elements in registers, E = 16 bytes / size: E loads and stores of 16 bytes.
       Thread p takes block column j = p % 8 and block row i = j XOR p / 8. Eight neighbouring threads, which shared
       memory serves together, then touch eight different chunks, both when they read row e of block (i, j)
       (chunk j XOR (E i + e) % 8) and when they write row e of block (j, i) (chunk i XOR (E j + e) % 8): no bank
       conflicts.
    3. A proxy fence and a barrier, and one thread issues one TMA store; elements outside y are not written.

Preconditions (ValueError): a contiguous CUDA matrix, 16-byte aligned, m and n multiples of 16 bytes / size (strides of
a tensor map), not empty. Compile time: the element's size. Run time: m, n, addresses.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings import driver
from cutlass import Int32, Int64, Uint16, Uint32
from cutlass.cute.nvgpu import cpasync

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

ROW = 128  # bytes of a row of a tile: the width of the swizzle
CHUNK = 16  # bytes that the swizzle keeps together
CHUNKS = ROW // CHUNK
THREADS = CHUNKS * CHUNKS  # one for each block
TOLERANCE = 0.0

ELEMENTS = {2: Uint16, 4: Uint32}
"""The type that stands for an element of a size in bytes."""


@cute.kernel
def transpose_kernel(
    load: cute.CopyAtom,
    x: cute.Tensor,
    store: cute.CopyAtom,
    y: cute.Tensor,
    tile_layout: cute.ComposedLayout,
    element: cutlass.Constexpr,
):
    """Transpose tile (blockIdx.y, blockIdx.x) of x."""
    each = CHUNK * 8 // element.width  # elements of a chunk, rows and columns of a block
    tile = ROW * 8 // element.width
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()

    smem = SmemAllocator()
    source = smem.allocate_tensor(element, tile_layout.outer, byte_alignment=1024, swizzle=tile_layout.inner)
    target = smem.allocate_tensor(element, tile_layout.outer, byte_alignment=1024, swizzle=tile_layout.inner)
    barrier = smem.allocate_array(Int64, 1)

    x_tile = cute.local_tile(x, (tile, tile), (row, column))
    y_tile = cute.local_tile(y, (tile, tile), (column, row))
    one = cute.make_layout(1)
    to_source, from_x = cpasync.tma_partition(
        load, 0, one, cute.group_modes(source, 0, 2), cute.group_modes(x_tile, 0, 2)
    )
    from_target, to_y = cpasync.tma_partition(
        store, 0, one, cute.group_modes(target, 0, 2), cute.group_modes(y_tile, 0, 2)
    )

    if thread == 0:
        cpasync.prefetch_descriptor(load)
        cpasync.prefetch_descriptor(store)
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()
    if thread < 32:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, tile * ROW)
        cute.copy(load, from_x, to_source, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)

    j = thread % CHUNKS
    i = j ^ (thread // CHUNKS)
    block = cute.make_rmem_tensor(cute.make_layout((each, each), stride=(each, 1)), element)
    turned = cute.make_rmem_tensor(cute.make_layout((each, each), stride=(each, 1)), element)
    for e in cutlass.range_constexpr(each):
        cute.autovec_copy(cute.local_tile(source, (1, each), (each * i + e, j)), block[(e, None)])
    for e in cutlass.range_constexpr(each):
        for f in cutlass.range_constexpr(each):
            turned[(e, f)] = block[(f, e)]
    for e in cutlass.range_constexpr(each):
        cute.autovec_copy(turned[(e, None)], cute.local_tile(target, (1, each), (each * j + e, i)))

    # The TMA unit must see what was just written.
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier()
    if thread < 32:
        # Unlike a load, which elects by itself, a store is issued by every thread that comes here.
        with cute.arch.elect_one():
            cute.copy(store, from_target, to_y)
            cute.arch.cp_async_bulk_commit_group()
            # The CTA's shared memory may go to another CTA as soon as it ends.
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def launch(
    x_pointer: cute.Pointer,
    y_pointer: cute.Pointer,
    m: Int32,
    n: Int32,
    element: cutlass.Constexpr,
    stream: driver.CUstream,
):
    """Launch the kernel on x (m, n) and y (n, m)."""
    tile = ROW * 8 // element.width
    x = cute.make_tensor(x_pointer, cute.make_layout((m, n), stride=(n, 1)))
    y = cute.make_tensor(y_pointer, cute.make_layout((n, m), stride=(m, 1)))
    tile_layout = cute.make_composed_layout(
        cute.make_swizzle(3, 4, 3), 0, cute.make_layout((tile, tile), stride=(tile, 1))
    )
    load, x_coordinates = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, tile_layout, (tile, tile))
    store, y_coordinates = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, tile_layout, (tile, tile))
    transpose_kernel(load, x_coordinates, store, y_coordinates, tile_layout, element).launch(
        grid=(cute.ceil_div(n, tile), cute.ceil_div(m, tile), 1), block=(THREADS, 1, 1), stream=stream
    )


@functools.cache
def compiled(size):
    """The compiled launcher for elements of `size` bytes."""
    element = ELEMENTS[size]
    pointer = cute.runtime.make_ptr(element, 0, cute.AddressSpace.gmem, assumed_align=16)
    return cute.compile(launch, pointer, pointer, Int32(64), Int32(64), element, driver.CUstream(0))


def compile_kernel():
    """Compile for 16-bit and for 32-bit elements."""
    return [compiled(size) for size in ELEMENTS]


def check(x):
    """Raise ValueError for a matrix that the kernel does not take."""
    if not x.is_cuda:
        raise ValueError(f"copy_transpose: a CUDA tensor is expected, not one on {x.device}")
    if x.ndim != 2 or not x.is_contiguous() or x.numel() == 0:
        raise ValueError(f"copy_transpose: a contiguous matrix is expected, not {tuple(x.shape)}, strides {x.stride()}")
    if x.element_size() not in ELEMENTS:
        raise ValueError(f"copy_transpose: elements of 2 or 4 bytes are expected, not {x.dtype}")
    multiple = CHUNK // x.element_size()
    if x.shape[0] % multiple or x.shape[1] % multiple or x.data_ptr() % CHUNK:
        raise ValueError(
            f"copy_transpose: both sizes must be multiples of {multiple} and the address of 16, for a tensor map's "
            f"strides: {tuple(x.shape)} at {x.data_ptr():#x}"
        )


@torch.library.custom_op("kernels_sm90::copy_transpose", mutates_args={"out"})
def transpose_into(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write x^T to `out`; both as `transpose` has checked and made them."""
    m, n = x.shape
    element = ELEMENTS[x.element_size()]
    pointers = [
        cute.runtime.make_ptr(element, t.data_ptr(), cute.AddressSpace.gmem, assumed_align=16) for t in (x, out)
    ]
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    compiled(x.element_size())(*pointers, m, n, stream)


@transpose_into.register_fake
def _(x, out):
    torch._check(out.shape == (x.shape[1], x.shape[0]), lambda: "copy_transpose: out must be (n, m)")


def transpose(x):
    """x^T as a new contiguous tensor. Raises ValueError (see `check`)."""
    check(x)
    out = torch.empty((x.shape[1], x.shape[0]), dtype=x.dtype, device=x.device)
    transpose_into(x, out)
    return out


def reference(x):
    """What `transpose` must equal bit for bit."""
    return x.t().contiguous()
