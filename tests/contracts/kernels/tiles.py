"""Kernels of GPU MODE's tasks gemm and dual_gemm, by tcgen05: a CTA computes one 128 x 128 tile of a batch of C.

``silu(A B1^T) * (A B2^T)`` has two accumulators over the same A. There is one stage of shared memory: warp 0 loads a
k-tile, waits for it, multiplies, and waits for the end of its MMAs.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before the name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

FP4, SCALE, HALF = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
VECTOR, TILE, DEPTH, STEP = 16, 128, 256, 64
TILER = (TILE, TILE, DEPTH)
ONE_SIDE = TILE * DEPTH // 2 + TILE * DEPTH // VECTOR
THREADS = 128
COLUMNS = 512


def operand(address, scales, rows, k, batches):
    """Return an operand (rows, k, l) and its scale factors."""
    layout = cute.make_layout((rows, k, batches), stride=(k, 1, rows * k))
    values = cute.make_tensor(address, layout)
    return values, cute.make_tensor(scales, blockscaled_utils.tile_atom_to_shape_SF(values.shape, VECTOR))


def silu(x):
    return x * (1.0 / (1.0 + cute.math.exp(-x, fastmath=True)))


@cute.kernel
def tile_kernel(
    mma: cute.TiledMma,
    atoms: list,
    tensors: list,
    values_layout: list,
    scales_layout: list,
    c: cute.Tensor,
    k_tiles: Int32,
    operands: cutlass.Constexpr[int],
):
    thread, _, _ = cute.arch.thread_idx()
    x, y, batch = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    sides = 1 + operands

    smem = SmemAllocator()
    full = smem.allocate_array(Int64, 1)
    empty = smem.allocate_array(Int64, 1)
    done = smem.allocate_array(Int64, 1)
    tmem_address = smem.allocate_array(Int32, 1)
    values, scales = [], []
    for side in cutlass.range_constexpr(sides):
        layout = values_layout[min(side, 1)]
        values.append(smem.allocate_tensor(FP4, layout.outer, byte_alignment=1024, swizzle=layout.inner))
        scales.append(smem.allocate_tensor(SCALE, scales_layout[min(side, 1)], byte_alignment=128))

    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init(empty, 1)
            cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(COLUMNS, tmem_address)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
    cute.arch.sync_threads()
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)

    slice_ = mma.get_slice(0)
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
    fragment = mma.make_fragment_C(mma.partition_shape_C((TILE, TILE)))
    accumulators = []
    for _ in cutlass.range_constexpr(operands):
        accumulators.append(cute.make_tensor(tmem, fragment.layout))
        tmem = tmem + tcgen05.find_tmem_tensor_col_offset(accumulators[-1])

    if warp == 0:
        whole = cute.make_layout(1)
        loads = []
        for side in cutlass.range_constexpr(sides):
            for kind in cutlass.range_constexpr(2):
                at = 2 * side + kind
                tiled = cute.local_tile(tensors[at], (TILE, DEPTH), (None, None, None))
                parts = slice_.partition_A(tiled) if side == 0 else slice_.partition_B(tiled)
                shared = values[side] if kind == 0 else scales[side]
                inside, outside = cpasync.tma_partition(
                    atoms[at], 0, whole, cute.group_modes(shared, 0, 3), cute.group_modes(parts, 0, 3)
                )
                if cutlass.const_expr(kind == 1):
                    inside, outside = cute.filter_zeros(inside), cute.filter_zeros(outside)
                loads.append((atoms[at], outside[None, x if side == 0 else y, None, batch], inside[None, 0]))

        copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SCALE)
        moves, places = [], []
        for side in cutlass.range_constexpr(sides):
            shape = cute.slice_(scales_layout[min(side, 1)], (None, None, None, 0))
            if cutlass.const_expr(side == 0):
                place = blockscaled_utils.make_tmem_layout_sfa(mma, TILER, VECTOR, shape)
            else:
                place = blockscaled_utils.make_tmem_layout_sfb(mma, TILER, VECTOR, shape)
            target = cute.make_tensor(cute.recast_ptr(tmem, dtype=SCALE), place)
            tmem = tmem + tcgen05.find_tmem_tensor_col_offset(target)
            compact = cute.filter_zeros(target)
            s2t = tcgen05.make_s2t_copy(copy, compact)
            part = s2t.get_slice(0)
            source = tcgen05.get_s2t_smem_desc_tensor(s2t, part.partition_S(cute.filter_zeros(scales[side])))
            moves.append((s2t, source[None, None, None, None, 0], part.partition_D(compact)))
            places.append(target)
        left = mma.make_fragment_A(values[0])
        rights = [mma.make_fragment_B(values[side]) for side in range(1, sides)]

        parity = Int32(0)
        mma.set(tcgen05.Field.ACCUMULATE, False)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, sides * ONE_SIDE)
            for index in cutlass.range_constexpr(2 * sides):
                cute.copy(loads[index][0], loads[index][1][None, k_tile], loads[index][2], tma_bar_ptr=full)
            cute.arch.mbarrier_wait(full, parity)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            for index in cutlass.range_constexpr(sides):
                cute.copy(moves[index][0], moves[index][1], moves[index][2])
            for block in cutlass.range_constexpr(DEPTH // STEP):
                mma.set(tcgen05.Field.SFA, places[0][None, None, block].iterator)
                for index in cutlass.range_constexpr(operands):
                    mma.set(tcgen05.Field.SFB, places[1 + index][None, None, block].iterator)
                    cute.gemm(
                        mma,
                        accumulators[index],
                        left[None, None, block, 0],
                        rights[index][None, None, block, 0],
                        accumulators[index],
                    )
                mma.set(tcgen05.Field.ACCUMULATE, True)
            with cute.arch.elect_one():
                tcgen05.commit(empty)
            cute.arch.mbarrier_wait(empty, parity)
            parity ^= 1
        with cute.arch.elect_one():
            tcgen05.commit(done)

    tile = slice_.partition_C(cute.local_tile(c, (TILE, TILE, 1), (x, y, batch))[None, None, 0])
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(TILE), tcgen05.Pack.NONE), Float32)
    t2r = tcgen05.make_tmem_copy(load, accumulators[0])
    mine = t2r.get_slice(thread)
    target = mine.partition_D(tile)
    registers = [cute.make_rmem_tensor(target.shape, Float32) for _ in range(operands)]
    out = cute.make_rmem_tensor(target.shape, HALF)
    cute.arch.mbarrier_wait(done, 0)
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
    for at in cutlass.range_constexpr(operands):
        cute.copy(t2r, mine.partition_S(accumulators[at]), registers[at])
    cute.arch.fence_view_async_tmem_load()
    if cutlass.const_expr(operands == 2):
        out.store((silu(registers[0].load()) * registers[1].load()).to(HALF))
    else:
        out.store(registers[0].load().to(HALF))
    cute.autovec_copy(out, target)
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
    cute.arch.sync_threads()
    if warp == 0:
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
        first = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
        cute.arch.dealloc_tmem(first, COLUMNS)


@cute.jit
def launch(
    addresses: list,
    c_address: cute.Pointer,
    m: Int32,
    n: Int32,
    k: Int32,
    batches: Int32,
    operands: cutlass.Constexpr[int],
):
    """Launch one CTA for each tile; ``addresses`` are those of A and its scale factors, then of each B and its own."""
    k = cute.assume(k, divby=DEPTH)
    n = cute.assume(n, divby=TILE)
    op = tcgen05.MmaMXF4NVF4Op(SCALE, (TILE, TILE, STEP), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    mma = cute.make_tiled_mma(op)
    values = [make(mma, TILER, FP4, 1) for make in (sm100_utils.make_smem_layout_a, sm100_utils.make_smem_layout_b)]
    makers = (blockscaled_utils.make_smem_layout_sfa, blockscaled_utils.make_smem_layout_sfb)
    scales = [make(mma, TILER, VECTOR, 1) for make in makers]
    tma = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = (None, None, None, 0)
    atoms, tensors = [], []
    for side in cutlass.range_constexpr(1 + operands):
        make = cute.nvgpu.make_tiled_tma_atom_A if side == 0 else cute.nvgpu.make_tiled_tma_atom_B
        pair = operand(addresses[2 * side], addresses[2 * side + 1], m if side == 0 else n, k, batches)
        at = min(side, 1)
        for tensor, layout, kind in ((pair[0], values[at], None), (pair[1], scales[at], cutlass.Int16)):
            options = {} if kind is None else {"internal_type": kind}
            atom, seen = make(tma, tensor, cute.slice_(layout, stage), TILER, mma, **options)
            atoms.append(atom)
            tensors.append(seen)
    c = cute.make_tensor(c_address, cute.make_layout((m, n, batches), stride=(n, 1, m * n)))
    tile_kernel(mma, atoms, tensors, values, scales, c, k // DEPTH, operands).launch(
        grid=(m // TILE, n // TILE, batches), block=(THREADS, 1, 1)
    )


def pointer(dtype, tensor):
    """Return a run-time argument: a pointer to global memory."""
    address = 512 if tensor is None else tensor.data_ptr()
    return cute.runtime.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=32)


@functools.cache
def compiled(operands):
    """Compile the launcher for a number of B."""
    addresses = [pointer(kind, None) for _ in range(1 + operands) for kind in (FP4, SCALE)]
    return cute.compile(launch, addresses, pointer(HALF, None), *[Int32(1)] * 4, operands)


def compute(a, rights, scales, c):
    """Compute C of A, each B, and the reordered scale factors of A and of each B."""
    m, half, batches = a.shape
    pairs = zip((a, *rights), scales, strict=True)
    addresses = [pointer(kind, one) for pair in pairs for kind, one in zip((FP4, SCALE), pair, strict=True)]
    compiled(len(rights))(addresses, pointer(HALF, c), m, rights[0].shape[0], 2 * half, batches)
    return c
