"""NVFP4 block-scaled grouped GEMM for NVIDIA B200 (sm_100a), in CuTe DSL: pairs of CTAs, weights on the MMA's M.

For every group g:  C_g = (A_g * SFA_g) @ (B_g * SFB_g)^T, with A (m, k), the tokens, and B (n, k), the weights, in
E2M1, K-major, one E4M3 scale per 16 elements of K, products summed in fp32 and stored once, rounded to nearest even, as
fp16 C (m, n), N-major, in place. The entry points, `custom_kernel(data)` and `compile_kernel(problem_sizes)`, follow
GPU MODE's `nvfp4_group_gemm`.

Status: *simulated*, from its PTX; the figures below are counted in the simulator or *modelled*. It has **not been run
on a B200**.

Tiles
    A pair of CTAs (`cta_group::2`) computes 256 rows of weights by up to 256 tokens, 256 of K a stage. The weights lie
    on the MMA's M: each is loaded once for a tile, and one MMA has any multiple of 16 tokens (a run-time field of the
    instruction descriptor), so that ragged groups cost 6 % of padding where M = 128 costs up to 39 %. Tiles have 256
    tokens, or 128 where wider ones would leave pairs without a tile. Tiles of a group start at multiples of 128 tokens,
    where a block of scales starts.

Schedule
    Static and persistent: item i of a launch is a tile; the groups follow each other by falling m, and within a group
    the columns of weights vary fastest. Pair p has one item a round, p first. If all groups have the same columns of
    weights, the number of pairs is a multiple of them, and a pair stays in its column; every second round goes through
    the tokens backwards, so that who had the largest tile gets the smallest next. A launch has up to 8 groups: their
    sizes, first items and tensor maps are parameters of the kernel, 1 KiB a group; it is compiled for 2, 4 and 8. More
    groups are several launches, each of which overlaps the one before.

Warps (224 threads)
    0-3  epilogue, warp w on rows 32w .. 32w+31 of the CTA's 128 rows of weights
    4    mbarriers and TMEM; in the first CTA of the pair scale factors to TMEM (`tcgen05.cp`) and MMA
    5    TMA of weights and their scales
    6    TMA of tokens and their scales
    The launch is a programmatic dependent one: what precedes `griddepcontrol.wait` in warps 5 and 6 overlaps the kernel
    before. With `WEIGHTS_WAIT = False` the first weights are loaded then, too; that is right only if no kernel that
    was launched just before writes them, as the PTX ISA makes the writes of the kernel before visible at the wait and
    not earlier. GPU MODE's tests clone all inputs just before a call, so there it is a race. Its timing loop clears L2
    between the clones and the calls, and no call writes weights: there it would be none.

Host code
    What depends on the sizes alone is kept: the order of the groups, the schedule, the table that the launcher reads,
    its packed arguments. A later call writes the addresses into the table and launches: no address is kept, so that
    none can be stale. The key is the sizes, the device of C, and the thread, since a launcher reads its table without
    the interpreter's lock. A call of 8 groups is 64 tensor maps and one launch for the driver.

Tensor maps
    The launcher encodes 8 a group at each launch from its table of addresses: weights, their scales, scales of tokens,
    C, and tokens in boxes of 8, 16, 32 and 64 rows, of which a stage takes those that make up its rows. The last box is
    the largest, so none lies wholly beyond m (but for m <= 8). Scales are 64-bit words: 128 rows by 256 of K are 256
    of them in a row. Each CTA loads half of the tokens' scales and multicasts it to both.

Barriers
    full_mbar[s]       first CTA of the pair: 1 arrival (expect_tx of warp 5) and the bytes of both CTAs
    empty_mbar[s]      1 arrival in each CTA (tcgen05.commit, multicast); waited on by warps 5 and 6
    acc_full_mbar[a]   1 arrival in each CTA (tcgen05.commit, multicast); waited on by the epilogue
    acc_empty_mbar[a]  first CTA of the pair: 8 arrivals, one of each epilogue warp of both

TMEM: all 512 columns
    0..463    accumulators: those of even tiles from column 0 on, those of odd tiles up to column 463. They overlap only
              if two tiles in succession have more than 464 tokens; then the MMA waits for the epilogue before it
    464..479  scales of weights, 4 columns per MMA
    480..511  scales of tokens, 4 or 8 columns per MMA

Epilogue
    32 tokens at a time: `tcgen05.ld.16x256b`, fp16, `stmatrix.trans` to 64-byte rows of shared memory, swizzled and
    free of bank conflicts, TMA store of 32 tokens by 32 rows of weights. The store drops tokens from m on. No barrier
    joins the warps; the next tile's loads and MMAs run meanwhile.

Counted in the simulator on GPU MODE's four benchmarks: bytes loaded 1.48, 1.53, 3.25 and 2.82 times the different ones
(1.3 to 2.1 times less than 128x128 tiles of one CTA); 128, 112, 120 and 128 CTAs, one wave.
Modelled under GPU MODE's conditions: 28.9, 17.8, 8.5 and 7.1 us, geometric mean 13.3 (10.2 right behind a call like it,
whose end its first instructions overlap; 12.6 if only the gap between launches shrinks); 40.5, 25.8, 11.9 and 7.9 us
for 128x128 tiles of one CTA, a tile a CTA. Tried on the first two and dropped, modelled: 128
tokens a tile 29.2 and 17.4 us (the second problem 2 % faster, with more bytes); every round in the same order 29.1 and
18.0; three stages 29.6 and 19.1; one buffer of C a warp 29.0 and 18.0. An epilogue that the next tile's MMA waits for:
28.9 and 19.0. Tried on the last two: the next chunk's `tcgen05.ld` before this one's store, 0.03 us faster; a launcher
for 8 groups alone, whose search for a tile's group is longer, 8.7 and 7.3.

Preconditions (`check_problem` raises ValueError): l == 1, n % 128 == 0, k % 256 == 0 and k > 0; m >= 0 is free.
All tensors dense and 16-byte aligned, scale factors in the 128x4 block layout, padded to 128 rows; what the padding
holds never reaches C.
"""

import array
import functools
import threading

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from task import input_t, output_t

try:
    from cutlass.memory import SmemAllocator
except ImportError:  # before this name moved, 4.4 among them
    from cutlass.utils import SmemAllocator

AB_DTYPE = cutlass.Float4E2M1FN
C_DTYPE = cutlass.Float16

SMS = 148
WEIGHTS_WAIT = True  # whether weights, too, wait for the end of the kernel before
WEIGHTS = 256  # rows of B of a tile, two CTAs of 128
CTA_WEIGHTS = 128
TILE_K = 256
MMA_K = 64
SF_BLOCK = 128  # rows of a block of scales
MOST_TOKENS = 256  # of a tile: 128 or 256
STAGES = {128: 7, 256: 5}  # by tokens of a tile
GROUPS = (2, 4, 8)  # of a launch that is compiled
GROUPS_PER_LAUNCH = GROUPS[-1]

# Bytes of a stage, in each CTA
A_BYTES = CTA_WEIGHTS * TILE_K // 2
SF_BYTES = SF_BLOCK * TILE_K // 16
ROW_BYTES = TILE_K // 2

BOXES = (8, 16, 32, 64)  # rows of tokens of one copy

TMEM_COLUMNS = 512
SFA_COLUMN = 464
SFB_COLUMN = SFA_COLUMN + TILE_K // MMA_K * 4
ACC_COLUMNS = SFA_COLUMN

CHUNK = 32  # tokens, and rows of weights, that a warp stores at once
C_BUFFERS = {128: 3, 256: 4}

EPILOGUE_WARPS, MMA_WARP, WEIGHTS_WARP, TOKENS_WARP = 4, 4, 5, 6
NUM_THREADS = 32 * 7
TMEM_BARRIER = 1

# Columns of int64, an item a group, in the table for the launcher; first those that depend on sizes alone
M, N, K, A, B, C, SFA, SFB = range(8)
COLUMNS = 8

# What does not depend on the address (PTX ISA, "Shared memory descriptor"): bytes from 8 rows to the next 8 in units of
# 16, version 1, and for operands swizzling of 128 bytes
OPERAND_DESCRIPTOR = 1024 >> 4 << 32 | 1 << 46 | 2 << 61
SCALES_DESCRIPTOR = 128 >> 4 << 32 | 1 << 46
# E2M1 by E2M1, scales E4M3, M = 256; N // 8 goes to bit 17 (PTX ISA, "Instruction descriptor")
INSTRUCTION_DESCRIPTOR = 1 << 7 | 1 << 10 | WEIGHTS >> 4 << 24


def ceil_div(a, b):
    """Quotient of a >= 0 and b > 0, rounded up."""
    return (a + b - 1) // b


def select(condition, chosen, other):
    """One of two Int32 or Int64 values at run time."""
    return type(chosen)(cutlass.select_(condition, chosen, other))


def pick(values, index):
    """The item at a run-time index."""
    chosen = values[0]
    for i in range(1, len(values)):
        chosen = select(index == i, values[i], chosen)
    return chosen


def map_type():
    """Type of a pointer to a tensor map."""
    descriptor = cute_nvgpu_ir.TmaDescriptorTiledType.get()
    return cute_ir.PtrType.get(descriptor, cute.AddressSpace.generic, 64)


def map_address(atom):
    """Address of an atom's tensor map, a parameter of the kernel."""
    executable = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value)
    return Int64(cute_nvgpu_ir.get_tma_desc_addr(map_type(), executable).toint())


def map_pointer(address):
    """Pointer to the tensor map at an address."""
    aligned = cute_ir.assume(cute_ir.ConstrainedIntType.get(64, 64), address.ir_value())
    return cute_ir.inttoptr(map_type(), aligned)


def ptx(code, constraints, *operands):
    """Issue PTX that returns nothing."""
    values = [operand.ir_value() for operand in operands]
    llvm.inline_asm(None, values, code, constraints, has_side_effects=True, asm_dialect=llvm.AsmDialect.AD_ATT)


def descriptor(pointer, constant):
    """The shared memory descriptor of an address: PTX ISA, "Shared memory descriptor"."""
    return Int64(pointer.toint() >> 4) | Int64(constant)


def copy_scales(column, descriptor):
    """Copy a block of 128 scales by 4 from shared memory to TMEM in both CTAs."""
    ptx("tcgen05.cp.cta_group::2.32x128b.warpx4 [$0], $1;", "r,l", column, descriptor)


def multiply(column, a, b, instruction, sfa_column, sfb_column, accumulate):
    """Issue one MMA of 256 weights, a run-time number of tokens and 64 of K."""
    ptx(
        "{ .reg .pred p; setp.ne.b32 p, $6, 0; "
        "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.scale_vec::4X [$0], $1, $2, $3, [$4], [$5], p; }",
        "r,l,l,r,r,r,r",
        column,
        a,
        b,
        instruction,
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


def columns_of_tmem(columns):
    """Layout of columns of tensor memory: 128 lanes."""
    return cute.make_layout((CTA_WEIGHTS, columns), stride=(1 << 16, 1))


def box_of(tensor, box, row, column):
    """The part of a two-dimensional tensor that starts at a run-time row and column."""
    return cute.local_tile(cute.domain_offset((row, column), tensor), box, (0, 0))


def both_sides(atom, shared, source):
    """Both sides of one copy."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(source, 0, 2)
    )


def load(atom, source, shared, mbar, tensormap, mask=None):
    """Copy one box to shared memory."""
    s, g = both_sides(atom, shared, source)
    cute.copy(atom, g, s, tma_bar_ptr=mbar, tma_desc_ptr=tensormap, mcast_mask=mask)


@cute.jit
def advance(stage: Int32, parity: Int32, stages: cutlass.Constexpr):
    """The next stage of a ring, and the parity to wait for."""
    following = stage + 1
    wraps = following == stages
    return select(wraps, Int32(0), following), select(wraps, parity ^ 1, parity)


class GroupGemm:
    """The kernel for a number of groups and of tokens of a tile."""

    def __init__(self, groups, tokens):
        self.groups = groups
        self.tokens = tokens
        self.stages = STAGES[tokens]
        self.c_buffers = C_BUFFERS[tokens]
        self.sfb_blocks = tokens // SF_BLOCK

    @cute.jit
    def __call__(self, table_ptr: cute.Pointer, total: Int32, pairs: Int32, columns: Int32):
        """Encode the tensor maps of all groups and launch `pairs` of CTAs for `total` tiles.

        The table is in the host's memory: m, n, k and addresses of the groups, by falling m, column by column.
        `columns` are the pairs that share a tile of tokens.
        """
        table = cute.make_tensor(table_ptr, cute.make_layout((self.groups, COLUMNS), stride=(1, self.groups)))
        atoms, coords, sizes = [], [], []
        first = Int32(0)
        for g in cutlass.range_constexpr(self.groups):
            m, n = Int32(table[g, M]), Int32(table[g, N])
            k = Int32(table[g, K])
            columns_of_group = ceil_div(n, WEIGHTS)
            sizes.append((first, m, k // TILE_K, columns_of_group))
            first = first + ceil_div(m, self.tokens) * columns_of_group
            group = self.encode(table, g, cutlass.max(m, 1), n, k)
            atoms.append(tuple(info[0] for info in group))
            coords.append(tuple(info[1] for info in group))
        self.kernel(tuple(atoms), coords[0], tuple(sizes), total, columns).launch(
            grid=(2 * pairs, 1, 1), block=(NUM_THREADS, 1, 1), cluster=(2, 1, 1), use_pdl=True
        )

    def encode(self, table, g, m, n, k):
        """The tensor maps of a group: atoms and tensors of coordinates."""
        k = cute.assume(k, divby=TILE_K)
        n = cute.assume(n, divby=SF_BLOCK)

        def tensor(dtype, column, rows, row):
            pointer = cute.make_ptr(dtype, table[g, column], cute.AddressSpace.gmem, assumed_align=16)
            return cute.make_tensor(pointer, cute.make_layout((rows, row), stride=(row, 1)))

        two = tcgen05.CtaGroup.TWO
        plain = cpasync.CopyBulkTensorTileG2SOp(two)
        multicast = cpasync.CopyBulkTensorTileG2SMulticastOp(two)
        make = cpasync.make_tiled_tma_atom
        weights, tokens = tensor(AB_DTYPE, B, n, k), tensor(AB_DTYPE, A, m, k)
        # A block of 128 rows has k 64-bit words of scales.
        sf_weights = tensor(Int64, SFB, ceil_div(n, SF_BLOCK), k)
        sf_tokens = tensor(Int64, SFA, ceil_div(m, SF_BLOCK), k)
        block = cute.make_layout((1, TILE_K), stride=(TILE_K, 1))
        return [
            make(plain, weights, swizzled(3, CTA_WEIGHTS, TILE_K), (CTA_WEIGHTS, TILE_K)),
            make(plain, sf_weights, block, (1, TILE_K)),
            make(multicast, sf_tokens, block, (1, TILE_K), 2),
            make(
                cpasync.CopyBulkTensorTileS2GOp(),
                tensor(C_DTYPE, C, m, n),
                swizzled(2, CHUNK, CHUNK),
                (CHUNK, CHUNK),
            ),
            *(make(plain, tokens, swizzled(3, box, TILE_K), (box, TILE_K)) for box in BOXES),
        ]

    def load_halves(self, copy, tile, column, registers):
        """Copy 16 columns of the accumulator to registers."""
        column = cute.assume(column, divby=16)
        cute.copy(copy, cute.make_tensor(tile.iterator + column, tile.layout), registers)

    def load_tokens(self, atoms, coords, i, first, offset, at, sB, stage, mbar, maps):
        """Copy a box of tokens to its rows of a stage."""
        box = (BOXES[i], TILE_K)
        source = box_of(coords[4 + i], box, first + offset, at)
        load(atoms[4 + i], source, box_of(sB[None, None, stage], box, offset, 0), mbar, maps[i])

    @cute.jit
    def find(self, sizes: tuple[tuple[Int32, ...], ...], item: Int32):
        """The group of an item, its column of weights, first token, tokens of the MMA, and stages of K."""
        group = Int32(0)
        for g in cutlass.range_constexpr(1, self.groups):
            group = select(item >= sizes[g][0], Int32(g), group)
        first, m, k_tiles, columns = (pick([one[i] for one in sizes], group) for i in range(4))
        y = Int32(cutlass.Uint32(item - first) // cutlass.Uint32(columns))
        x = item - first - y * columns
        token = y * self.tokens
        tokens = cutlass.min((m - token + 15) & -16, self.tokens)
        return group, x, token, tokens, k_tiles

    @cute.jit
    def following(self, item: Int32, step: Int32, columns: Int32):
        """The item of the next round; the rounds go through the columns of tokens to and fro."""
        there = item // step * step
        across = item - there
        turned = step - columns - across // columns * columns + across % columns
        return there + step + turned

    @cute.kernel
    def kernel(
        self,
        atoms: tuple[tuple[cute.CopyAtom, ...], ...],
        coords: tuple[cute.Tensor, ...],
        sizes: tuple[tuple[Int32, ...], ...],
        total: Int32,
        columns: Int32,
    ):
        """Compute the items pair, pair of the next round, ... (see the module's docstring)."""
        thread, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        lane = thread % 32
        pair, step = cta // 2, ctas // 2
        leads = rank == 0

        smem = SmemAllocator()
        full_mbar = smem.allocate_array(Int64, self.stages)
        empty_mbar = smem.allocate_array(Int64, self.stages)
        acc_full_mbar = smem.allocate_array(Int64, 2)
        acc_empty_mbar = smem.allocate_array(Int64, 2)
        tmem_address = smem.allocate_array(Int32, 1)

        def staged(rows, row, stages):
            return cute.make_layout((rows, row, stages), stride=(row, 1, rows * row))

        swizzle = cute.make_swizzle(3, 4, 3)
        half_tokens = self.tokens // 2
        sA = smem.allocate_tensor(AB_DTYPE, staged(CTA_WEIGHTS, TILE_K, self.stages), 1024, swizzle)
        sB = smem.allocate_tensor(AB_DTYPE, staged(half_tokens, TILE_K, self.stages), 1024, swizzle)
        sC = smem.allocate_tensor(
            C_DTYPE, staged(CHUNK, CHUNK, EPILOGUE_WARPS * self.c_buffers), 1024, cute.make_swizzle(2, 4, 3)
        )
        sSFA = smem.allocate_tensor(Int64, staged(1, TILE_K, self.stages), 128)
        sSFB = smem.allocate_tensor(Int64, staged(self.sfb_blocks, TILE_K, self.stages), 128)

        if warp == MMA_WARP:
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full_mbar + stage, 1)
                    cute.arch.mbarrier_init(empty_mbar + stage, 1)
                for slot in cutlass.range_constexpr(2):
                    cute.arch.mbarrier_init(acc_full_mbar + slot, 1)
                    cute.arch.mbarrier_init(acc_empty_mbar + slot, 2 * EPILOGUE_WARPS)
            cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive()
        cute.arch.griddepcontrol_launch_dependents()
        maps = [[map_address(group[i]) for group in atoms] for i in range(len(atoms[0]))]

        if warp == WEIGHTS_WARP:
            stage, parity = Int32(0), Int32(1)
            item = pair
            group, x, token, tokens, k_tiles = self.find(sizes, item)
            weights_at, sf_at = (pick(maps[i], group) for i in range(2))
            cute.arch.cluster_wait()
            if cutlass.const_expr(WEIGHTS_WAIT):
                cute.arch.griddepcontrol_wait()
            while item < total:
                weights_map, sf_map = map_pointer(weights_at), map_pointer(sf_at)
                blocks = tokens + SF_BLOCK - 1 >> 7
                expected = 2 * (A_BYTES + SF_BYTES + blocks * SF_BYTES) + tokens * ROW_BYTES
                row = x * WEIGHTS + rank * CTA_WEIGHTS
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    cute.arch.mbarrier_wait(empty_mbar + stage, parity)
                    mbar = full_mbar + stage
                    if leads:
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(mbar, expected)
                    at = k_tile * TILE_K
                    weights = box_of(coords[0], (CTA_WEIGHTS, TILE_K), row, at)
                    load(atoms[0][0], weights, sA[None, None, stage], mbar, weights_map)
                    scales = box_of(coords[1], (1, TILE_K), row // SF_BLOCK, at)
                    load(atoms[0][1], scales, sSFA[None, None, stage], mbar, sf_map)
                    stage, parity = advance(stage, parity, self.stages)
                item = self.following(item, step, columns)
                group, x, token, tokens, k_tiles = self.find(sizes, item)
                weights_at, sf_at = (pick(maps[i], group) for i in range(2))

        if warp == TOKENS_WARP:
            stage, parity = Int32(0), Int32(1)
            item = pair
            group, x, token, tokens, k_tiles = self.find(sizes, item)
            ats = tuple(pick(one, group) for one in (maps[2], *maps[4:]))
            cute.arch.cluster_wait()
            cute.arch.griddepcontrol_wait()
            while item < total:
                sf_map, *token_maps = (map_pointer(at) for at in ats)
                rows = tokens // 2
                token_row = token + rank * rows
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    cute.arch.mbarrier_wait(empty_mbar + stage, parity)
                    mbar = full_mbar + stage
                    at = k_tile * TILE_K
                    # The last copy is the largest, so that none lies beyond m unless m <= 8.
                    for i in cutlass.range_constexpr(len(BOXES)):
                        box, largest = BOXES[i], i == len(BOXES) - 1
                        for j in cutlass.range_constexpr(half_tokens // box if largest else 1):
                            offset = (rows & box - 1) + j * box
                            if rows - offset >= box if largest else rows & box != 0:
                                self.load_tokens(
                                    atoms[0], coords, i, token_row, offset, at, sB, stage, mbar, token_maps
                                )
                    for block in cutlass.range_constexpr(self.sfb_blocks):
                        if tokens > block * SF_BLOCK:
                            # Each CTA loads half of it for both.
                            half = TILE_K // 2
                            source = box_of(coords[2], (1, half), token // SF_BLOCK + block, at + rank * half)
                            shared = box_of(sSFB[None, None, stage], (1, half), block, rank * half)
                            load(atoms[0][2], source, shared, mbar, sf_map, cutlass.Int16(3))
                    stage, parity = advance(stage, parity, self.stages)
                item = self.following(item, step, columns)
                group, x, token, tokens, k_tiles = self.find(sizes, item)
                ats = tuple(pick(one, group) for one in (maps[2], *maps[4:]))

        # The two warps of a pair allocate together, after both CTAs have started.
        if warp < EPILOGUE_WARPS:
            cute.arch.cluster_wait()
        if warp == MMA_WARP:
            cute.arch.cluster_wait()
            cute.arch.alloc_tmem(TMEM_COLUMNS, tmem_address, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
            fence_tcgen05_before_sync()
        if warp <= MMA_WARP:
            cute.arch.barrier(barrier_id=TMEM_BARRIER, number_of_threads=32 * (EPILOGUE_WARPS + 1))
            fence_tcgen05_after_sync()

        if warp == MMA_WARP and leads:
            tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            a_first, b_first = (descriptor(s.iterator, OPERAND_DESCRIPTOR) for s in (sA, sB))
            sfa_first, sfb_first = (descriptor(s.iterator, SCALES_DESCRIPTOR) for s in (sSFA, sSFB))
            # 32-bit words; the accumulators of even and of odd tiles overlap in it.
            tCtAcc = cute.make_tensor(tmem_ptr, columns_of_tmem(ACC_COLUMNS))
            tCtSFA = cute.make_tensor(tmem_ptr + SFA_COLUMN, columns_of_tmem(SFB_COLUMN - SFA_COLUMN))
            tCtSFB = cute.make_tensor(tmem_ptr + SFB_COLUMN, columns_of_tmem(16 * self.sfb_blocks))
            tmem, sfa_column, sfb_column = (tensor.iterator.toint() for tensor in (tCtAcc, tCtSFA, tCtSFB))
            stage, parity = Int32(0), Int32(0)
            slot, acc_parity = Int32(0), Int32(1)
            before = Int32(0)
            item = pair
            while item < total:
                group, x, token, tokens, k_tiles = self.find(sizes, item)
                cute.arch.mbarrier_wait(acc_empty_mbar + slot, acc_parity)
                # Columns of the tile before that this one needs
                if before + tokens > ACC_COLUMNS:
                    cute.arch.mbarrier_wait(acc_empty_mbar + (slot ^ 1), acc_parity ^ slot)
                fence_tcgen05_after_sync()
                acc = tmem + select(slot == 0, Int32(0), ACC_COLUMNS - tokens)
                instruction = INSTRUCTION_DESCRIPTOR | (tokens >> 3) << 17
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    cute.arch.mbarrier_wait(full_mbar + stage, parity)
                    fence_tcgen05_after_sync()
                    # In units of 16 bytes
                    a = a_first + Int64(stage * (A_BYTES // 16))
                    b = b_first + Int64(stage * (half_tokens * ROW_BYTES // 16))
                    sfa = sfa_first + Int64(stage * (SF_BYTES // 16))
                    sfb = sfb_first + Int64(stage * (SF_BYTES * self.sfb_blocks // 16))
                    with cute.arch.elect_one():
                        for i in cutlass.range_constexpr(TILE_K // MMA_K):
                            copy_scales(sfa_column + 4 * i, sfa + 32 * i)
                        for block in cutlass.range_constexpr(self.sfb_blocks):
                            if tokens > block * SF_BLOCK:
                                for i in cutlass.range_constexpr(TILE_K // MMA_K):
                                    column = sfb_column + 4 * (self.sfb_blocks * i + block)
                                    copy_scales(column, sfb + SF_BYTES // 16 * block + 32 * i)
                        for i in cutlass.range_constexpr(TILE_K // MMA_K):
                            multiply(
                                acc,
                                a + MMA_K // 2 // 16 * i,
                                b + MMA_K // 2 // 16 * i,
                                instruction,
                                sfa_column + 4 * i,
                                sfb_column + 4 * self.sfb_blocks * i,
                                k_tile if i == 0 else Int32(1),
                            )
                        tcgen05.commit(empty_mbar + stage, 3, tcgen05.CtaGroup.TWO)
                    stage, parity = advance(stage, parity, self.stages)
                with cute.arch.elect_one():
                    tcgen05.commit(acc_full_mbar + slot, 3, tcgen05.CtaGroup.TWO)
                acc_parity ^= slot
                slot ^= 1
                before = tokens
                item = self.following(item, step, columns)

        if warp < EPILOGUE_WARPS:
            slot, acc_parity = Int32(0), Int32(0)
            buffer = Int32(0)
            tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            # 16 columns of 32 lanes: a thread has rows lane // 4 (+ 8, 16, 24), tokens 2 * (lane % 4) (+ 1, 8, 9)
            ld_atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition.x2, tcgen05.Pack.NONE), Float32)
            tile = cute.make_tensor(tmem_ptr, columns_of_tmem(16))
            ld = tcgen05.make_tmem_copy(ld_atom, tile)
            source = ld.get_slice(thread).partition_S(tile)
            registers = [cute.make_rmem_tensor(ld.get_slice(thread).partition_D(tile).shape, Float32) for _ in range(2)]
            for half in cutlass.range_constexpr(2):
                registers[half].fill(0.0)
            item = pair
            while item < total:
                group, x, token, tokens, k_tiles = self.find(sizes, item)
                c_map = map_pointer(pick(maps[3], group))
                cute.arch.mbarrier_wait(acc_full_mbar + slot, acc_parity)
                fence_tcgen05_after_sync()
                acc = select(slot == 0, Int32(0), ACC_COLUMNS - tokens)
                chunks = ceil_div(tokens, CHUNK)
                for chunk in cutlass.range(chunks, unroll=1):
                    cute.arch.cp_async_bulk_wait_group(self.c_buffers - 1, read=True)
                    cute.arch.sync_warp()
                    c = sC[None, None, warp * self.c_buffers + buffer]
                    whole = (chunk + 1) * CHUNK <= tokens
                    self.load_halves(ld, source, acc + chunk * CHUNK, registers[0])
                    if whole:
                        self.load_halves(ld, source, acc + chunk * CHUNK + 16, registers[1])
                    cute.arch.fence_view_async_tmem_load()
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
                    target = box_of(
                        coords[3],
                        (CHUNK, CHUNK),
                        token + chunk * CHUNK,
                        x * WEIGHTS + rank * CTA_WEIGHTS + warp * 32,
                    )
                    s, g = both_sides(atoms[0][3], c, target)
                    cute.copy(atoms[0][3], s, g, tma_desc_ptr=c_map)
                    cute.arch.cp_async_bulk_commit_group()
                    buffer = (buffer + 1) % self.c_buffers
                fence_tcgen05_before_sync()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(acc_empty_mbar + slot, 0)
                acc_parity ^= slot
                slot ^= 1
                item = self.following(item, step, columns)
            cute.arch.cp_async_bulk_wait_group(0)

        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == MMA_WARP:
            fence_tcgen05_after_sync()
            tmem_ptr = cute.arch.retrieve_tmem_ptr(Float32, 16, tmem_address)
            cute.arch.dealloc_tmem(tmem_ptr, TMEM_COLUMNS, is_two_cta=True)


@functools.cache
def used_sms(device):
    """SMs of a device that the kernel uses."""
    return min(SMS, torch.cuda.get_device_properties(device).multi_processor_count)


def plan(rows, sms=SMS):
    """Return tokens of a tile, tiles, pairs of CTAs, and pairs that share a tile of tokens, for rows of m, n, k, ..."""
    shapes = [(m, ceil_div(n, WEIGHTS)) for m, n, *_ in rows]
    columns = max(x for _, x in shapes)
    pairs = sms // 2

    def tiles(tokens):
        return sum(ceil_div(m, tokens) * x for m, x in shapes)

    tokens = 256 if MOST_TOKENS == 256 and tiles(256) >= columns * (pairs // columns) else 128
    total = tiles(tokens)
    if columns > pairs or any(x != columns for _, x in shapes):
        columns = pairs = min(pairs, total)
    return tokens, total, min(pairs // columns * columns, total), columns


def launches(rows):
    """Rows of m, n, k, ... of the groups with outputs, by falling m, in parts of a launch each."""
    rows = sorted((row for row in rows if row[0] * row[1] > 0), reverse=True)
    return [rows[i : i + GROUPS_PER_LAUNCH] for i in range(0, len(rows), GROUPS_PER_LAUNCH)]


def check_problem(problem_sizes):
    """Raise ValueError for a group that this kernel would read or write out of bounds, or leave unwritten."""
    for group, (m, n, k, batch) in enumerate(problem_sizes):
        if m < 0 or n < 0 or n % CTA_WEIGHTS or k <= 0 or k % TILE_K or batch != 1:
            raise ValueError(
                f"group {group} is (m, n, k, l) = ({m}, {n}, {k}, {batch}); this kernel needs m >= 0, "
                f"n a multiple of {CTA_WEIGHTS}, k a positive multiple of {TILE_K} and l = 1"
            )


def host_pointer(address):
    """A run-time argument: pointer to int64 in the host's memory."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)


@functools.cache
def compiled(groups, tokens):
    """The launcher for a number of groups and tiles of 128 or 256 tokens; all its arguments are run-time values."""
    return cute.compile(GroupGemm(groups, tokens), host_pointer(0), Int32(1), Int32(1), Int32(1))


def slots(part):
    """Groups that the launcher of a part is compiled for."""
    return next(groups for groups in GROUPS if groups >= len(part))


def compile_kernel(problem_sizes):
    """Compile what a problem launches."""
    check_problem(problem_sizes)
    sms = used_sms(torch.cuda.current_device()) if torch.cuda.is_available() else SMS
    return [compiled(slots(part), plan(part, sms)[0]) for part in launches(problem_sizes)]


class Launch:
    """One launch of a problem on a device, without addresses."""

    def __init__(self, part, device):
        tokens, total, pairs, columns = plan(part, used_sms(device))
        groups = slots(part)
        # Groups that fill the table have no tiles, and the addresses of a group that is there.
        filled = part + [(0, *part[0][1:])] * (groups - len(part))
        *sizes, self.order = zip(*filled, strict=True)
        self.table = array.array("q", [value for column in sizes for value in column] + [0] * (5 * groups))
        self.first = 3 * groups
        launcher = compiled(groups, tokens).to(device)
        # The packed arguments point into these.
        self.kept = host_pointer(self.table.buffer_info()[0]), Int32(total), Int32(pairs), Int32(columns)
        self.packed, self.adapted = launcher.generate_execution_args(*self.kept)
        self.run = launcher.run_compiled_program

    def __call__(self, abc_tensors, sf_tensors):
        """Launch on these tensors."""
        tensors = [(*abc_tensors[group], *sf_tensors[group]) for group in self.order]
        # In place, since the packed arguments have the table's address
        self.table[self.first :] = array.array(
            "q", [one.data_ptr() for column in zip(*tensors, strict=True) for one in column]
        )
        self.run(self.packed)


@functools.lru_cache(maxsize=256)
def prepared(sizes, device, _thread):
    """The launches of a problem; a thread has its own (see the module's docstring)."""
    check_problem(sizes)
    return [Launch(part, device) for part in launches((m, n, k, group) for group, (m, n, k, _) in enumerate(sizes))]


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place and return the list of them; `data` is as GPU MODE's task defines it."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    outputs = [c for _, _, c in abc_tensors]
    if outputs:
        for launch in prepared(tuple(map(tuple, problem_sizes)), outputs[0].device.index, threading.get_ident()):
            launch(abc_tensors, sf_tensors)
    return outputs
