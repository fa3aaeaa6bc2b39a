"""NVFP4 grouped GEMM for sm_100a: tensor maps as parameters of the kernel. The second step to ``sm100.py``.

A CTA still computes one tile of 128x128, tokens on the MMA's M (``map_updates.py``), but nothing updates or acquires a
tensor map in the kernel: the host encodes a pair for each group into the kernel's parameters. The structure is that of
v1c of gau-nernst/gpu-mode-kernels; the code is our own. It was not run on a B200.

- 192 threads: warps 0-3 store, warp 4 issues MMAs, warp 5 loads. Six stages of 256 of K, one CTA an SM.
- Scales come by bulk copies: blocks of 128 rows by 256 of K are contiguous.
- Stores of 32 bytes into C, N-major, in place.
- ``persistent.py`` is this file with other constants.
"""

import functools

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import SmemAllocator
from task import input_t, output_t


def ceil_div(a, b):
    """Quotient, rounded up."""
    return (a + b - 1) // b


def pick(values, index):
    """The item at a run-time index."""
    chosen = values[0]
    for i in range(1, len(values)):
        chosen = cutlass.select_(index == i, values[i], chosen)
    return chosen


def map_type():
    """Type of a pointer to a tensor map."""
    descriptor = cute_nvgpu_ir.TmaDescriptorTiledType.get()
    return cute_ir.PtrType.get(descriptor, cute.AddressSpace.generic, 64)


def descriptor_address(atom):
    """Address of an atom's tensor map, a parameter of the kernel."""
    executable = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value)
    pointer = cute_nvgpu_ir.get_tma_desc_addr(map_type(), executable)
    return pointer.toint()


def descriptor_pointer(address):
    """Pointer to the tensor map at an address."""
    aligned = cute_ir.assume(cute_ir.ConstrainedIntType.get(64, 64), address.ir_value())
    return cute_ir.inttoptr(map_type(), aligned)


def scales_to_tmem(atom, shared, columns):
    """Copy of a stage's scales to tensor memory: (copy, sources of all stages, target)."""
    compact = cute.filter_zeros(columns)
    copy = tcgen05.make_s2t_copy(atom, compact)
    source = copy.get_slice(0).partition_S(cute.filter_zeros(shared))
    return copy, tcgen05.get_s2t_smem_desc_tensor(copy, source), copy.get_slice(0).partition_D(compact)


TILE_N = 128
STAGES = 6
MOST_CTAS = 0  # 0: as many as tiles
SORTED = False  # groups by falling m

TILE_M, TILE_K, MMA_K = 128, 256, 64
TILE = (TILE_M, TILE_N, TILE_K)
AB, SF, C = cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16
SF_VEC = 16
SF_BLOCK_BYTES = 128 * TILE_K // SF_VEC  # scales of 128 rows of a stage
STAGE_BYTES = (TILE_M + TILE_N) * TILE_K // 2 + (TILE_M + TILE_N) // 128 * SF_BLOCK_BYTES

ACCUMULATORS = 1 if MOST_CTAS == 0 else 2
SF_COLUMNS = (TILE_M + TILE_N) // 32 * (TILE_K // MMA_K)
TMEM_COLUMNS = 256 if ACCUMULATORS == 1 else 512
FIRST_SF_COLUMN = TILE_N if ACCUMULATORS == 1 else 512 - SF_COLUMNS
SECOND_ACCUMULATOR = FIRST_SF_COLUMN - TILE_N  # its first column; it overlaps the first accumulator's end
CHUNK = 16  # columns of a load of tensor memory, and 32 bytes of C
SHARED_CHUNKS = (TILE_N - SECOND_ACCUMULATOR) // CHUNK if ACCUMULATORS == 2 else TILE_N // CHUNK

EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
THREADS = 192


def copy_bulk(shared, address, size, mbar):
    """Copy bytes to shared memory; one thread issues it."""
    llvm.inline_asm(
        None,
        [shared.ir_value(), address.ir_value(), Int32(size).ir_value(), mbar.ir_value()],
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
        "r,l,r,r,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


@cute.jit
def find_tile(groups: tuple[tuple[Int64, ...], ...], first_tiles: tuple[Int32, ...], tile: Int32):
    """Group of a tile, its m, n and k, and the tile's coordinates in it."""
    group = Int32(0)
    for g in cutlass.range_constexpr(1, len(groups)):
        group = cutlass.select_(tile >= first_tiles[g], Int32(g), group)
    in_group = tile - pick(first_tiles[: len(groups)], group)
    m, n, k = (Int32(pick([one[i] for one in groups], group)) for i in range(3))
    tiles_m = ceil_div(m, TILE_M)
    y = in_group // tiles_m
    return group, m, n, k, in_group - y * tiles_m, y


@cute.kernel
def group_gemm_kernel(
    tiled_mma: cute.TiledMma,
    a_atoms: tuple[cute.CopyAtom, ...],
    b_atoms: tuple[cute.CopyAtom, ...],
    mA_mkl: cute.Tensor,
    mB_nkl: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    sfa_layout: cute.Layout,
    sfb_layout: cute.Layout,
    groups: tuple[tuple[Int64, ...], ...],
    first_tiles: tuple[Int32, ...],
):
    """Work through tiles, of which ``first_tiles`` holds the first of each group and last the number of all."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tiles = first_tiles[len(groups)]

    smem = SmemAllocator()
    full_mbar = smem.allocate_array(Int64, STAGES)
    empty_mbar = smem.allocate_array(Int64, STAGES)
    acc_full = smem.allocate_array(Int64, 1)
    acc_empty = smem.allocate_array(Int64, 1)
    tmem_address = smem.allocate_array(Int32, 1)
    sA = smem.allocate_tensor(AB, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(AB, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    sSFA = smem.allocate_tensor(SF, sfa_layout, byte_alignment=128)
    sSFB = smem.allocate_tensor(SF, sfb_layout, byte_alignment=128)

    if warp == MMA_WARP:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full_mbar + stage, 1)
                cute.arch.mbarrier_init(empty_mbar + stage, 1)
            cute.arch.mbarrier_init(acc_full, 1)
            cute.arch.mbarrier_init(acc_empty, EPILOGUE_WARPS)
        cute.arch.mbarrier_init_fence()
        cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
    cute.arch.sync_threads()
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
    tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
    acc_layout = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C(TILE[:2])).layout

    if warp == TMA_WARP:
        thr_mma = tiled_mma.get_slice(0)
        gA = cute.local_tile(mA_mkl, (TILE_M, TILE_K), (None, None, None))
        gB = cute.local_tile(mB_nkl, (TILE_N, TILE_K), (None, None, None))
        one = cute.make_layout(1)
        tAsA, tAgA = cpasync.tma_partition(
            a_atoms[0], 0, one, cute.group_modes(sA, 0, 3), cute.group_modes(thr_mma.partition_A(gA), 0, 3)
        )
        tBsB, tBgB = cpasync.tma_partition(
            b_atoms[0], 0, one, cute.group_modes(sB, 0, 3), cute.group_modes(thr_mma.partition_B(gB), 0, 3)
        )
        a_maps = [descriptor_address(atom) for atom in a_atoms]
        b_maps = [descriptor_address(atom) for atom in b_atoms]
        sfa_start, sfb_start = sSFA.iterator.toint(), sSFB.iterator.toint()
        stage = Int32(0)
        parity = Int32(1)
        tile = cta
        while tile < tiles:
            group, _, _, k, x, y = find_tile(groups, first_tiles, tile)
            a_map = descriptor_pointer(pick(a_maps, group))
            b_map = descriptor_pointer(pick(b_maps, group))
            row_bytes = Int64(k // TILE_K) * SF_BLOCK_BYTES
            sfa = pick([one[5] for one in groups], group) + Int64(x) * row_bytes
            sfb = pick([one[6] for one in groups], group) + Int64(y * (TILE_N // 128)) * row_bytes
            for k_tile in cutlass.range(k // TILE_K, unroll=1):
                cute.arch.mbarrier_wait(empty_mbar + stage, parity)
                mbar = full_mbar + stage
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(mbar, STAGE_BYTES)
                    source = Int64(k_tile) * SF_BLOCK_BYTES
                    copy_bulk(sfa_start + stage * SF_BLOCK_BYTES, sfa + source, SF_BLOCK_BYTES, mbar.toint())
                    for block in cutlass.range_constexpr(TILE_N // 128):
                        target = sfb_start + (stage * (TILE_N // 128) + block) * SF_BLOCK_BYTES
                        # A last tile of 128 columns has no second block of scales: its own again keep the count.
                        inside = y * (TILE_N // 128) + block < Int32(pick([one[1] for one in groups], group)) // 128
                        offset = cutlass.select_(inside, block * row_bytes, Int64(0))
                        copy_bulk(target, sfb + offset + source, SF_BLOCK_BYTES, mbar.toint())
                cute.copy(a_atoms[0], tAgA[None, x, k_tile, 0], tAsA[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=a_map)
                cute.copy(b_atoms[0], tBgB[None, y, k_tile, 0], tBsB[None, stage], tma_bar_ptr=mbar, tma_desc_ptr=b_map)
                stage += 1
                if stage == STAGES:
                    stage = Int32(0)
                    parity ^= 1
            tile += ctas

    if warp == MMA_WARP:
        tCrA = tiled_mma.make_fragment_A(sA)
        tCrB = tiled_mma.make_fragment_B(sB)
        one_stage = (None, None, None, 0)
        sfa_columns = blockscaled_utils.make_tmem_layout_sfa(
            tiled_mma, TILE, SF_VEC, cute.slice_(sfa_layout, one_stage)
        )
        sfb_columns = blockscaled_utils.make_tmem_layout_sfb(
            tiled_mma, TILE, SF_VEC, cute.slice_(sfb_layout, one_stage)
        )
        sfa_ptr = tmem_ptr + FIRST_SF_COLUMN
        tCtSFA = cute.make_tensor(cute.recast_ptr(sfa_ptr, dtype=SF), sfa_columns)
        sfb_ptr = sfa_ptr + tcgen05.find_tmem_tensor_col_offset(tCtSFA)
        tCtSFB = cute.make_tensor(cute.recast_ptr(sfb_ptr, dtype=SF), sfb_columns)
        s2t_atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), SF)
        copies = [scales_to_tmem(s2t_atom, sSFA, tCtSFA), scales_to_tmem(s2t_atom, sSFB, tCtSFB)]

        stage = Int32(0)
        parity = Int32(0)
        done = Int32(0)
        tile = cta
        while tile < tiles:
            _, _, _, k, _, _ = find_tile(groups, first_tiles, tile)
            if cutlass.const_expr(ACCUMULATORS == 2):
                # The columns that both accumulators have are loaded (the first tile finds a fresh barrier).
                cute.arch.mbarrier_wait(acc_empty, (done & 1) ^ 1)
                nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            tCtAcc = cute.make_tensor(tmem_ptr + (done & 1) * SECOND_ACCUMULATOR, acc_layout)
            tiled_mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(k // TILE_K, unroll=1):
                cute.arch.mbarrier_wait(full_mbar + stage, parity)
                nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
                for copy, source, target in copies:
                    cute.copy(copy, source[None, None, None, None, stage], target)
                for k_block in cutlass.range_constexpr(TILE_K // MMA_K):
                    tiled_mma.set(tcgen05.Field.SFA, tCtSFA[None, None, k_block].iterator)
                    tiled_mma.set(tcgen05.Field.SFB, tCtSFB[None, None, k_block].iterator)
                    block = (None, None, k_block, stage)
                    cute.gemm(tiled_mma, tCtAcc, tCrA[block], tCrB[block], tCtAcc)
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, True)
                with cute.arch.elect_one():
                    tcgen05.commit(empty_mbar + stage)
                stage += 1
                if stage == STAGES:
                    stage = Int32(0)
                    parity ^= 1
            with cute.arch.elect_one():
                tcgen05.commit(acc_full)
            done += 1
            tile += ctas

    if warp < EPILOGUE_WARPS:
        acc = cute.make_tensor(tmem_ptr, acc_layout)
        chunks = cute.zipped_divide(acc, ((TILE_M, CHUNK),))
        load = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), Float32), chunks[None, 0]
        )
        tDtAcc = load.get_slice(thread).partition_S(chunks)
        registers = cute.make_rmem_tensor(cute.make_layout(((CHUNK, 1), 1)), Float32)
        values = cute.make_rmem_tensor(cute.make_layout(CHUNK), C)
        done = Int32(0)
        tile = cta
        while tile < tiles:
            group, m, n, _, x, y = find_tile(groups, first_tiles, tile)
            row = x * TILE_M + thread
            # 64 bits: m * n may exceed 2^31 elements.
            target = pick([one[7] for one in groups], group) + (Int64(row) * Int64(n) + Int64(y * TILE_N)) * 2
            columns = n - y * TILE_N
            accumulator = done & 1
            # The chunks that both accumulators have are the first one's last and the second one's first.
            first = Int32(0)
            if cutlass.const_expr(ACCUMULATORS == 2):
                first = (1 - accumulator) * (TILE_N // CHUNK - SHARED_CHUNKS)
            cute.arch.mbarrier_wait(acc_full, done & 1)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            for i in cutlass.range(TILE_N // CHUNK, unroll=1):
                chunk = (first + i) % (TILE_N // CHUNK)
                source = cute.make_tensor(
                    tDtAcc[None, None, chunk].iterator + accumulator * SECOND_ACCUMULATOR,
                    tDtAcc[None, None, 0].layout,
                )
                cute.copy(load, source, registers)
                cute.arch.fence_view_async_tmem_load()
                if cutlass.const_expr(ACCUMULATORS == 2):  # noqa: SIM102 (decided when tracing)
                    if i == SHARED_CHUNKS - 1:
                        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive(acc_empty)
                values.store(registers.load().to(C).reshape(CHUNK))
                if row < m and chunk * CHUNK < columns:
                    pointer = cute.make_ptr(
                        C, target + Int64(chunk * CHUNK * 2), cute.AddressSpace.gmem, assumed_align=32
                    )
                    cute.autovec_copy(values, cute.make_tensor(pointer, cute.make_layout(CHUNK)))
            done += 1
            tile += ctas
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)

    cute.arch.sync_threads()
    if warp == MMA_WARP:
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
        cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS)


@cute.jit
def launch(groups: tuple[tuple[Int64, ...], ...], first_tiles: tuple[Int32, ...], ctas: Int32):
    """Encode the maps of all groups and launch. A group: m, n, k, addresses of A, B, SFA, SFB, C."""
    operation = tcgen05.MmaMXF4NVF4Op(SF, (TILE_M, TILE_N, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    tiled_mma = cute.make_tiled_mma(operation)
    a_layout = sm100_utils.make_smem_layout_a(tiled_mma, TILE, AB, STAGES)
    b_layout = sm100_utils.make_smem_layout_b(tiled_mma, TILE, AB, STAGES)
    sfa_layout = blockscaled_utils.make_smem_layout_sfa(tiled_mma, TILE, SF_VEC, STAGES)
    sfb_layout = blockscaled_utils.make_smem_layout_sfb(tiled_mma, TILE, SF_VEC, STAGES)
    stage = (None, None, None, 0)
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    a_loads, b_loads = [], []
    for m, n, k, a_address, b_address, *_ in groups:
        extent = cute.assume(Int32(k), divby=TILE_K)
        a, b = (
            cute.make_tensor(
                cute.make_ptr(AB, address, cute.AddressSpace.gmem, assumed_align=16),
                cute.make_layout((Int32(rows), extent, 1), stride=(extent, 1, Int32(rows) * extent)),
            )
            for rows, address in ((m, a_address), (n, b_address))
        )
        a_loads.append(cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(a_layout, stage), TILE, tiled_mma))
        b_loads.append(cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(b_layout, stage), TILE, tiled_mma))
    group_gemm_kernel(
        tiled_mma,
        tuple(atom for atom, _ in a_loads),
        tuple(atom for atom, _ in b_loads),
        a_loads[0][1],
        b_loads[0][1],
        a_layout,
        b_layout,
        sfa_layout,
        sfb_layout,
        groups,
        first_tiles,
    ).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1))


def arguments(rows):
    """Run-time arguments for rows of m, n, k and addresses."""
    first = [0]
    for m, n, *_ in rows:
        first.append(first[-1] + ceil_div(m, TILE_M) * ceil_div(n, TILE_N))
    ctas = min(first[-1], MOST_CTAS or first[-1])
    groups = tuple(tuple(Int64(value) for value in row) for row in rows)
    return groups, tuple(Int32(value) for value in first), Int32(ctas)


@functools.cache
def compiled(count):
    """The launcher for a number of groups."""
    return cute.compile(launch, *arguments([(TILE_M, TILE_N, TILE_K, 0, 0, 0, 0, 0)] * count))


def compile_kernel(problem_sizes):
    """Compile for a number of groups."""
    return compiled(len(problem_sizes))


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    rows = [
        (m, n, k, a.data_ptr(), b.data_ptr(), sfa.data_ptr(), sfb.data_ptr(), c.data_ptr())
        for (m, n, k, _), (a, b, c), (sfa, sfb) in zip(problem_sizes, abc_tensors, sf_tensors, strict=True)
        if m
    ]
    if SORTED:
        rows.sort(key=lambda row: -row[0])
    if rows:
        compiled(len(rows))(*arguments(rows))
    return [c for _, _, c in abc_tensors]
