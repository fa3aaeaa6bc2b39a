"""NVFP4 block-scaled GEMM for NVIDIA B200 (sm_100a), in CuTe DSL: weights on the MMA's M, K split within a cluster.

For every batch:  C = (A * SFA) @ (B * SFB)^T, with A (m, k), the tokens, and B (n, k), the weights, in E2M1, K-major,
one E4M3 scale per 16 elements of K, products summed in fp32 and stored once, rounded to nearest even, as fp16 C
[m, n, l], N-major, in place. The entry point, `custom_kernel(data)`, follows GPU MODE's `nvfp4_gemm`.

Status: *simulated*, from its PTX; the times below are *modelled*. It has **not been run on a B200**.

Tiles
    A CTA computes 128 rows of weights by 128 tokens, of one batch, 256 of K a stage. With 128 tokens there are fewer
    tiles than SMs, so that up to 4 CTAs, a cluster, have a part of K of the same tile each: 1, 2 or 4 parts, the most
    for which all CTAs run at once.

Warps (224 threads)
    0-3  epilogue, warp w on rows 32w .. 32w+31 of the weights
    4    mbarriers and TMEM; scale factors to TMEM (`tcgen05.cp`) and MMA
    5    TMA of weights and their scales
    6    TMA of tokens and their scales
    The launch is a programmatic dependent one: what precedes `griddepcontrol.wait` overlaps the kernel before.

Tensor maps
    The host code encodes 5 at each launch: both operands, their scales, and C; all batches are one matrix. Scales are
    64-bit words: 128 rows by 256 of K are 256 of them in a row. What a box has beyond k is zero.

Barriers
    full_mbar[s]   2 arrivals (expect_tx of warps 5 and 6) and the bytes of a stage
    empty_mbar[s]  1 arrival (tcgen05.commit)
    acc_mbar       1 arrival (tcgen05.commit): all MMAs of this part are done, its stages are free
    ready_mbar     1 arrival of each other CTA of the cluster, whose stages are free
    sums_mbar      1 arrival (expect_tx) and the bytes of the partial sums of the other CTAs

TMEM: 256 columns
    0..127 accumulator; 128..143 and 144..159 scales of weights and of tokens, 4 columns per MMA

Epilogue
    Each CTA of a cluster stores a slice of the tokens. It sends its partial sums of the other slices, in fp32, from
    registers to the stages of their CTAs (`st.async`), as soon as these are free, and adds what it receives to its own
    part, always in the same order. 32 tokens at a time: `tcgen05.ld.16x256b`, fp16, `stmatrix.trans` to 64-byte rows of
    shared memory, swizzled and free of bank conflicts, TMA store of 32 tokens by 32 rows of weights.

Modelled under GPU MODE's conditions on its benchmarks: 17.6, 9.4 and 7.6 us, geometric mean 10.8 (10.2 if launches
overlap); the best published times have a mean of 9.98.

Preconditions (`check_problem` raises ValueError): m % 128 == 0, n % 128 == 0 and k % 64 == 0, all positive. All tensors
dense and 16-byte aligned, batch by batch, scale factors in the 128x4 block layout.
"""

import array
import functools

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.base_dsl.typing import T
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before this name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

AB_DTYPE = cutlass.Float4E2M1FN
C_DTYPE = cutlass.Float16

SMS = 148
WEIGHTS = 128  # rows of B of a tile
TOKENS = 128  # rows of A of a tile
TILE_K = 256
MMA_K = 64
SF_BLOCK = 128  # rows of a block of scales
STAGES = 6
MOST_PARTS = 4  # of K: CTAs of a cluster, a power of two

# Bytes of a stage
VALUE_BYTES = 128 * TILE_K // 2
SF_BYTES = SF_BLOCK * TILE_K // 16

TMEM_COLUMNS = 256
SFB_COLUMN = TOKENS  # behind the accumulator
SFA_COLUMN = SFB_COLUMN + TILE_K // MMA_K * 4

CHUNK = 32  # tokens, and rows of weights, that a warp stores at once
CHUNK_BYTES = 4 * WEIGHTS * CHUNK  # of partial sums

EPILOGUE_WARPS, MMA_WARP, WEIGHTS_WARP, TOKENS_WARP = 4, 4, 5, 6
NUM_THREADS = 32 * 7
TMEM_BARRIER = 1

# The table for the host code
M, N, K, L, A, B, SFA, SFB, C = range(9)
COLUMNS = 9

# What does not depend on the address (PTX ISA, "Shared memory descriptor"): bytes from 8 rows to the next 8 in units of
# 16, version 1, and for operands swizzling of 128 bytes
OPERAND_DESCRIPTOR = 1024 >> 4 << 32 | 1 << 46 | 2 << 61
SCALES_DESCRIPTOR = 128 >> 4 << 32 | 1 << 46
# E2M1 by E2M1, scales E4M3 (PTX ISA, "Instruction descriptor")
INSTRUCTION_DESCRIPTOR = 1 << 7 | 1 << 10 | TOKENS >> 3 << 17 | WEIGHTS >> 4 << 24


def ceil_div(a, b):
    """Quotient of a >= 0 and b > 0, rounded up."""
    return (a + b - 1) // b


def ptx(code, constraints, *operands):
    """Issue PTX that returns nothing."""
    values = [operand.ir_value() for operand in operands]
    llvm.inline_asm(None, values, code, constraints, has_side_effects=True, asm_dialect=llvm.AsmDialect.AD_ATT)


def in_peer(address, rank):
    """The address of the same byte of shared memory in a CTA of the cluster."""
    values = [operand.ir_value() for operand in (address, rank)]
    code = "mapa.shared::cluster.u32 $0, $1, $2;"
    mapped = llvm.inline_asm(
        T.i32(), values, code, "=r,r,r", has_side_effects=False, asm_dialect=llvm.AsmDialect.AD_ATT
    )
    return Int32(mapped)


def descriptor(pointer, constant):
    """The shared memory descriptor of an address: PTX ISA, "Shared memory descriptor"."""
    return Int64(pointer.toint() >> 4) | Int64(constant)


def copy_scales(column, descriptor):
    """Copy a block of 128 scales by 4 from shared memory to TMEM."""
    ptx("tcgen05.cp.cta_group::1.32x128b.warpx4 [$0], $1;", "r,l", column, descriptor)


def multiply(column, a, b, sfa_column, sfb_column, accumulate):
    """Issue one MMA of 128 weights, 128 tokens and 64 of K; a and sfa are those of the MMA's M."""
    ptx(
        "{ .reg .pred p; setp.ne.b32 p, $6, 0; "
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [$0], $1, $2, $3, [$4], [$5], p; }",
        "r,l,l,r,r,r,r",
        column,
        a,
        b,
        Int32(INSTRUCTION_DESCRIPTOR),
        sfa_column,
        sfb_column,
        accumulate,
    )


def store_transposed(address, values):
    """Store four matrices of 8x8 halves, transposed; each lane gives the address of a row."""
    ptx(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};",
        "r,r,r,r,r",
        address,
        *values,
    )


def send(address, values, mbar):
    """Store four fp32 to shared memory of another CTA, whose mbarrier counts the bytes."""
    ptx(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$1, $2, $3, $4}, [$5];",
        "r,r,r,r,r,r",
        address,
        *values,
        mbar,
    )


def fence_tcgen05_after_sync():
    """Order the tcgen05 operations that follow behind the synchronisation that this thread has just passed."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)


def fence_tcgen05_before_sync():
    """Order this thread's earlier tcgen05 operations before the synchronisation that follows."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)


def swizzled(bits, rows, columns):
    """Layout of K-major rows in shared memory."""
    return cute.make_composed_layout(
        cute.make_swizzle(bits, 4, 3), 0, cute.make_layout((rows, columns), stride=(columns, 1))
    )


def both_sides(atom, shared, tensor, box, row, column):
    """Both sides of a copy of the box of a two-dimensional tensor that starts at a run-time row and column."""
    source = cute.local_tile(cute.domain_offset((row, column), tensor), box, (0, 0))
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(source, 0, 2)
    )


def load(atom, tensor, shared, box, row, column, mbar):
    """Copy one box to shared memory."""
    s, g = both_sides(atom, shared, tensor, box, row, column)
    cute.copy(atom, g, s, tma_bar_ptr=mbar)


class Gemm:
    """The kernel for a number of parts of K."""

    def __init__(self, parts):
        self.parts = parts
        self.slice = TOKENS // parts  # tokens that a CTA of the cluster stores

    @cute.jit
    def __call__(self, table_ptr: cute.Pointer):
        """Encode the tensor maps and launch a cluster for each tile. The table is in the host's memory."""
        table = cute.make_tensor(table_ptr, cute.make_layout(COLUMNS))
        m, n, batches = (Int32(table[i]) for i in (M, N, L))
        k = cute.assume(Int32(table[K]), divby=MMA_K)
        plain = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        block = cute.make_layout((1, TILE_K), stride=(TILE_K, 1))
        operands = []
        for values_at, scales_at, rows in ((B, SFB, batches * n), (A, SFA, batches * m)):
            values = self.tensor(AB_DTYPE, table[values_at], rows, k)
            # A block of 128 rows has k 64-bit words of scales.
            scales = self.tensor(Int64, table[scales_at], rows // SF_BLOCK, k)
            box = (128, TILE_K)
            operands.append(cpasync.make_tiled_tma_atom(plain, values, swizzled(3, *box), box))
            operands.append(cpasync.make_tiled_tma_atom(plain, scales, block, (1, TILE_K)))
        c = self.tensor(C_DTYPE, table[C], batches * m, cute.assume(n, divby=WEIGHTS))
        box = (CHUNK, CHUNK)
        operands.append(cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), c, swizzled(2, *box), box))
        self.kernel(
            tuple(one[0] for one in operands),
            tuple(one[1] for one in operands),
            ceil_div(k, TILE_K),
            m // TOKENS,
            n // WEIGHTS,
        ).launch(
            grid=(n // WEIGHTS * self.parts, batches * m // TOKENS, 1),
            block=(NUM_THREADS, 1, 1),
            cluster=(self.parts, 1, 1),
            use_pdl=True,
        )

    def tensor(self, dtype, address, rows, columns):
        """A row-major tensor in global memory."""
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))

    @cute.kernel
    def kernel(
        self,
        atoms: tuple[cute.CopyAtom, ...],
        coords: tuple[cute.Tensor, ...],
        k_tiles: Int32,
        rows_of_tiles: Int32,
        columns_of_tiles: Int32,
    ):
        """Compute one part of K of one tile, and store a slice of the tile (see the module's docstring)."""
        thread, _, _ = cute.arch.thread_idx()
        x, y, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        lane = thread % 32
        batch = y // rows_of_tiles
        column = x // self.parts * WEIGHTS
        weights_row = batch * columns_of_tiles * WEIGHTS + column
        token = y * TOKENS
        first, last = rank * k_tiles // self.parts, (rank + 1) * k_tiles // self.parts

        smem = SmemAllocator()
        full_mbar = smem.allocate_array(Int64, STAGES)
        empty_mbar = smem.allocate_array(Int64, STAGES)
        acc_mbar = smem.allocate_array(Int64, 1)
        ready_mbar = smem.allocate_array(Int64, 1)
        sums_mbar = smem.allocate_array(Int64, 1)
        tmem_address = smem.allocate_array(Int32, 1)

        def staged(rows, row, stages):
            return cute.make_layout((rows, row, stages), stride=(row, 1, rows * row))

        swizzle = cute.make_swizzle(3, 4, 3)
        sB = smem.allocate_tensor(AB_DTYPE, staged(WEIGHTS, TILE_K, STAGES), 1024, swizzle)
        sA = smem.allocate_tensor(AB_DTYPE, staged(TOKENS, TILE_K, STAGES), 1024, swizzle)
        sSFB = smem.allocate_tensor(Int64, staged(1, TILE_K, STAGES), 128)
        sSFA = smem.allocate_tensor(Int64, staged(1, TILE_K, STAGES), 128)
        # When all MMAs are done, the stages of B hold partial sums of other CTAs, and those of A hold C.
        sums = sB.iterator.toint()
        sC = cute.make_tensor(
            cute.recast_ptr(sA.iterator, cute.make_swizzle(2, 4, 3), dtype=C_DTYPE),
            staged(CHUNK, CHUNK, EPILOGUE_WARPS * (TOKENS // CHUNK)),
        )

        if warp == MMA_WARP:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(STAGES):
                    cute.arch.mbarrier_init(full_mbar + stage, 2)
                    cute.arch.mbarrier_init(empty_mbar + stage, 1)
                cute.arch.mbarrier_init(acc_mbar, 1)
                cute.arch.mbarrier_init(ready_mbar, max(self.parts - 1, 1))
                cute.arch.mbarrier_init(sums_mbar, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive()
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.cluster_wait()

        for side in cutlass.range_constexpr(2):
            if warp == (WEIGHTS_WARP, TOKENS_WARP)[side]:
                row = (weights_row, token)[side]
                cute.arch.griddepcontrol_wait()
                for k_tile in cutlass.range(first, last, unroll=1):
                    stage = (k_tile - first) % STAGES
                    cute.arch.mbarrier_wait(empty_mbar + stage, (k_tile - first) // STAGES & 1 ^ 1)
                    mbar = full_mbar + stage
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(mbar, VALUE_BYTES + SF_BYTES)
                    at = k_tile * TILE_K
                    values, scales = (sB, sSFB) if side == 0 else (sA, sSFA)
                    load(atoms[2 * side], coords[2 * side], values[None, None, stage], (128, TILE_K), row, at, mbar)
                    load(
                        atoms[2 * side + 1],
                        coords[2 * side + 1],
                        scales[None, None, stage],
                        (1, TILE_K),
                        row // SF_BLOCK,
                        at,
                        mbar,
                    )

        if warp == MMA_WARP:
            cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)
            cute.arch.relinquish_tmem_alloc_permit()
            fence_tcgen05_before_sync()
        if warp <= MMA_WARP:
            cute.arch.barrier(barrier_id=TMEM_BARRIER, number_of_threads=32 * (EPILOGUE_WARPS + 1))
            fence_tcgen05_after_sync()

        if warp == MMA_WARP:
            tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            words = cute.make_layout((128, TILE_K // MMA_K * 4), stride=(1 << 16, 1))
            tCtSFB, tCtSFA = (cute.make_tensor(tmem_ptr + at, words) for at in (SFB_COLUMN, SFA_COLUMN))
            acc, sfb_column, sfa_column = (one.toint() for one in (tmem_ptr, tCtSFB.iterator, tCtSFA.iterator))
            b_first, a_first = (descriptor(s.iterator, OPERAND_DESCRIPTOR) for s in (sB, sA))
            sfb_first, sfa_first = (descriptor(s.iterator, SCALES_DESCRIPTOR) for s in (sSFB, sSFA))
            for k_tile in cutlass.range(last - first, unroll=1):
                stage = k_tile % STAGES
                cute.arch.mbarrier_wait(full_mbar + stage, k_tile // STAGES & 1)
                fence_tcgen05_after_sync()
                # In units of 16 bytes
                values, scales = Int64(stage * (VALUE_BYTES // 16)), Int64(stage * (SF_BYTES // 16))
                with cute.arch.elect_one():
                    for i in cutlass.range_constexpr(TILE_K // MMA_K):
                        copy_scales(sfb_column + 4 * i, sfb_first + scales + 32 * i)
                        copy_scales(sfa_column + 4 * i, sfa_first + scales + 32 * i)
                    for i in cutlass.range_constexpr(TILE_K // MMA_K):
                        multiply(
                            acc,
                            b_first + values + MMA_K // 2 // 16 * i,
                            a_first + values + MMA_K // 2 // 16 * i,
                            sfb_column + 4 * i,
                            sfa_column + 4 * i,
                            k_tile if i == 0 else Int32(1),
                        )
                    tcgen05.commit(empty_mbar + stage)
            with cute.arch.elect_one():
                tcgen05.commit(acc_mbar)

        if warp < EPILOGUE_WARPS:
            tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            # 16 columns of 32 lanes: a thread has rows lane // 4 (+ 8, 16, 24), tokens 2 * (lane % 4) (+ 1, 8, 9)
            ld_atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition.x2, tcgen05.Pack.NONE), Float32)
            tCtAcc = cute.make_tensor(tmem_ptr, cute.make_layout((WEIGHTS, TOKENS), stride=(1 << 16, 1)))
            tile = cute.local_tile(tCtAcc, (WEIGHTS, 16), (0, 0))
            ld = tcgen05.make_tmem_copy(ld_atom, tile)
            source = ld.get_slice(thread).partition_S(tile)
            registers = [cute.make_rmem_tensor(ld.get_slice(thread).partition_D(tile).shape, Float32) for _ in range(2)]
            chunks = self.slice // CHUNK

            if cutlass.const_expr(self.parts > 1) and thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(sums_mbar, (self.parts - 1) * chunks * CHUNK_BYTES)
            cute.arch.mbarrier_wait(acc_mbar, 0)
            fence_tcgen05_after_sync()
            if cutlass.const_expr(self.parts > 1):
                # The stages of this CTA may be overwritten.
                if warp == 0:
                    with cute.arch.elect_one():
                        for step in cutlass.range_constexpr(1, self.parts):
                            cute.arch.mbarrier_arrive(ready_mbar, (rank + step) % self.parts)
                cute.arch.mbarrier_wait(ready_mbar, 0)
                for step in cutlass.range_constexpr(1, self.parts):
                    peer = (rank + step) % self.parts
                    target = in_peer(sums + (step - 1) * chunks * CHUNK_BYTES + thread * 16, peer)
                    counted = in_peer(sums_mbar.toint(), peer)
                    for chunk in cutlass.range_constexpr(chunks):
                        self.load_chunk(ld, source, peer * self.slice + chunk * CHUNK, registers)
                        for i in cutlass.range_constexpr(8):
                            values = [cute.recast_tensor(registers[i // 4], Int32)[4 * (i % 4) + j] for j in range(4)]
                            send(target + chunk * CHUNK_BYTES + i * 2048, values, counted)

            for chunk in cutlass.range_constexpr(chunks):
                at = rank * self.slice + chunk * CHUNK
                self.load_chunk(ld, source, at, registers)
                if cutlass.const_expr(self.parts > 1):
                    if cutlass.const_expr(chunk == 0):
                        cute.arch.mbarrier_wait(sums_mbar, 0)
                    for step in cutlass.range_constexpr(1, self.parts):
                        self.add_chunk(sums + ((step - 1) * chunks + chunk) * CHUNK_BYTES + thread * 16, registers)
                c = sC[None, None, warp * (TOKENS // CHUNK) + chunk]
                for half in cutlass.range_constexpr(2):
                    halves = cute.make_rmem_tensor(registers[half].layout, C_DTYPE)
                    halves.store(registers[half].load().to(C_DTYPE))
                    words = cute.recast_tensor(halves, Int32)
                    for i in cutlass.range_constexpr(2):
                        row = half * 16 + 8 * i + lane % 8
                        store_transposed(
                            c.iterator.toint() + row * 64 + (lane // 8 ^ lane % 8 // 2) * 16,
                            [words[4 * lanes + 2 * i + h] for lanes in range(2) for h in range(2)],
                        )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                s, g = both_sides(atoms[4], c, coords[4], (CHUNK, CHUNK), token + at, column + warp * 32)
                cute.copy(atoms[4], s, g)
                cute.arch.cp_async_bulk_commit_group()
            fence_tcgen05_before_sync()
            cute.arch.cp_async_bulk_wait_group(0)

        if warp <= MMA_WARP:
            cute.arch.barrier(barrier_id=TMEM_BARRIER, number_of_threads=32 * (EPILOGUE_WARPS + 1))
        if warp == MMA_WARP:
            fence_tcgen05_after_sync()
            cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address), TMEM_COLUMNS)

    def load_chunk(self, copy, tile, column, registers):
        """Copy 32 columns of the accumulator to registers."""
        for half in range(2):
            at = cute.assume(Int32(column + 16 * half), divby=16)
            cute.copy(copy, cute.make_tensor(tile.iterator + at, tile.layout), registers[half])
        cute.arch.fence_view_async_tmem_load()

    def add_chunk(self, address, registers):
        """Add partial sums in shared memory to registers."""
        pointer = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=16)
        partial = cute.make_tensor(pointer, cute.make_layout((4, 4, 2), stride=(1, 512, 2048)))
        for half in range(2):
            fragment = cute.make_rmem_tensor(registers[half].layout, Float32)
            flat = cute.make_tensor(fragment.iterator, cute.make_layout((4, 4)))
            cute.autovec_copy(partial[None, None, half], flat)
            registers[half].store(registers[half].load() + fragment.load())


def parts_of(m, n, k, batches):
    """Return the number of parts of K, so that CTAs fill the device's SMs once."""
    tiles = batches * (m // TOKENS) * (n // WEIGHTS)
    parts = 1
    while 2 * parts <= MOST_PARTS and 2 * parts * tiles <= SMS and 2 * parts <= ceil_div(k, TILE_K):
        parts *= 2
    return parts


def check_problem(m, n, k, batches):
    """Raise ValueError for sizes for which this kernel would read or write out of bounds, or leave C unwritten."""
    if m <= 0 or n <= 0 or k <= 0 or batches <= 0 or m % TOKENS or n % WEIGHTS or k % MMA_K:
        raise ValueError(
            f"(m, n, k, l) = ({m}, {n}, {k}, {batches}); this kernel needs m a multiple of {TOKENS}, n of {WEIGHTS} "
            f"and k of {MMA_K}, all positive"
        )


def host_pointer(address):
    """A run-time argument: pointer to int64 in the host's memory."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)


@functools.cache
def compiled(parts):
    """The launcher for a number of parts of K; its argument is a run-time value."""
    return cute.compile(Gemm(parts), host_pointer(0))


@functools.cache
def launcher(m, n, k, batches):
    """The launcher for a problem."""
    check_problem(m, n, k, batches)
    return compiled(parts_of(m, n, k, batches))


def custom_kernel(data: input_t) -> output_t:
    """Compute C in place and return it; `data` is as GPU MODE's task defines it."""
    a, b, _, _, sfa, sfb, c = data
    m, n, batches = c.shape
    k = 2 * a.shape[1]
    table = array.array("q", [m, n, k, batches, *(tensor.data_ptr() for tensor in (a, b, sfa, sfb, c))])
    launcher(m, n, k, batches)(host_pointer(table.buffer_info()[0]))
    return c
