"""A grouped GEMM in fp16 for sm_90a in CuTe DSL, in one launch: what ``nvfp4_group_gemm/sm90.py`` is compared with.

C_g[m_g, n] = A_g[m_g, k] @ B_g[n, k]^T, all contiguous along their second extent, the groups' tokens (rows of A) one
behind the other, their weights (rows of B) likewise, with one n and one k. n is a multiple of 128, k of 64.

It is built as ``sm90.py`` is, without decoding: weights on wgmma's M and tokens on its N, two CTAs of a cluster share a
tile of tokens, each cluster has a list of items made on the host. TMA loads both operands into shared memory, from
where wgmma reads them.
"""

import array
import heapq

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float16, Float32, Int32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.utils import LayoutEnum, SmemAllocator, hopper_helpers

WIDTHS = (32, 64, 96, 128, 160, 192, 224, 256)
WEIGHT_ROWS, STAGE_K, STAGES = 128, 64, 4
BOX = 16  # tokens of one copy
CLUSTER, CONSUMER_WARPS = 2, 8
THREADS = 128 + 32 * CONSUMER_WARPS
WEIGHT_BYTES = WEIGHT_ROWS * STAGE_K * 2
LINE = STAGE_K * 2
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
WIDTH, TOKEN, ROWS, WEIGHT, PAIR = range(5)
FIELDS = 8


def plan(heights, n, workers):
    """(rows of FIELDS Int32, clusters, depth), for the height of tiles with the shortest schedule.

    Longest items first, each to the cluster that is free first. Loading weights costs as much as 64 tokens.
    """
    best = None
    for most in WIDTHS[1:]:
        items = []
        start = 0
        for group, m in enumerate(heights):
            if m:
                width = next(width for width in WIDTHS if width >= -(-m // -(-m // most)))
                for first in range(0, m, width):
                    rows = min(width, m - first)
                    for block in range(0, n // WEIGHT_ROWS, CLUSTER):
                        blocks = min(CLUSTER, n // WEIGHT_ROWS - block)
                        items.append((width, start + first, rows, group * n // WEIGHT_ROWS + block, blocks, block))
            start += m
        heap = [(0, worker) for worker in range(workers)]
        lists = [[] for _ in range(workers)]
        for item in sorted(items, reverse=True):
            load, worker = heap[0]
            lists[worker].append(item)
            heapq.heapreplace(heap, (load + item[0] + 64, worker))
        if best is None or max(heap)[0] <= best[0]:
            best = max(heap)[0], [one for one in lists if one]
    lists = best[1]
    depth = max(map(len, lists)) + 1
    rows = [[*item, 0, 0] for one in lists for item in [*one, *[(0,) * 6] * (depth - len(one))]]
    return rows, len(lists), depth


@cute.jit
def consume(width: cutlass.Constexpr, arguments: tuple, item: Int32, count: Int32):
    """A consumer warpgroup's part of one item: 64 rows of weights times all tokens of the tile."""
    fields, c, n, rank, sA, tokens, full, empty, k_tiles = arguments
    thread, _, _ = cute.arch.thread_idx()
    lane = thread % 32
    member = thread - 128
    tiled_mma = hopper_helpers.make_trivial_tiled_mma(
        Float16, Float16, OperandMajorMode.K, OperandMajorMode.K, Float32, (2, 1, 1), (64, width)
    )
    layout = cute.make_layout((width, STAGE_K, STAGES), stride=(STAGE_K, 1, WIDTHS[-1] * STAGE_K))
    sB = cute.make_tensor(cute.recast_ptr(tokens, cute.make_swizzle(3, 4, 3), dtype=Float16), layout)
    slice_mma = tiled_mma.get_slice(member // 128 * 128)
    tCrA = tiled_mma.make_fragment_A(slice_mma.partition_A(sA))
    tCrB = tiled_mma.make_fragment_B(slice_mma.partition_B(sB))
    acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C((WEIGHT_ROWS, width)), Float32)
    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
    acc.fill(0.0)
    for k_tile in cutlass.range(k_tiles, unroll=1):
        stage = (count + k_tile) % STAGES
        cute.arch.mbarrier_wait(full + stage, (count + k_tile) // STAGES & 1)
        warpgroup.fence()
        for step in cutlass.range_constexpr(STAGE_K // 16):
            cute.gemm(tiled_mma, acc, tCrA[None, None, step, stage], tCrB[None, None, step, stage], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        if lane < CLUSTER and k_tile > 0:
            cute.arch.mbarrier_arrive(empty + (count + k_tile - 1) % STAGES, lane)
    warpgroup.wait_group(0)
    if lane < CLUSTER:
        cute.arch.mbarrier_arrive(empty + (count + k_tiles - 1) % STAGES, lane)
    if rank < fields[item, PAIR]:
        # wgmma's rows g and g + 8 of a warp are its rows 2g and 2g + 1 of weights, see `launch`.
        row = (fields[item, PAIR + 1] + rank) * WEIGHT_ROWS + member // 32 * 16 + lane // 4 * 2
        rows = fields[item, ROWS]
        pair = cute.make_rmem_tensor(2, Float16)
        for j in cutlass.range_constexpr(width // 8):
            for i in cutlass.range_constexpr(2):
                token = 8 * j + lane % 4 * 2 + i
                if token < rows:
                    pair[0] = acc[i + 4 * j].to(Float16)
                    pair[1] = acc[i + 2 + 4 * j].to(Float16)
                    at = Int64(fields[item, TOKEN] + token) * n + row
                    out = cute.make_tensor(cute.recast_ptr(c + at, dtype=Int32), 1)
                    out[0] = cute.recast_tensor(pair, Int32)[0]


@cute.jit
def consume_items(widths: cutlass.Constexpr, arguments: tuple, item: Int32, count: Int32):
    """A consumer's part of the items from `item` on that have these widths."""
    fields = arguments[0]
    if cutlass.const_expr(len(widths) == 1):
        while fields[item, WIDTH] == widths[0]:
            consume(widths[0], arguments, item, count)
            count += arguments[-1]
            item += 1
    else:
        half = len(widths) // 2
        for part in cutlass.range_constexpr(2):
            some = widths[half:] if cutlass.const_expr(part == 0) else widths[:half]
            if fields[item, WIDTH] >= some[0]:
                item, count = consume_items(some, arguments, item, count)
    return item, count


@cute.kernel
def kernel(
    fields: cute.Tensor,
    a_atom: cute.CopyAtom,
    a_coords: cute.Tensor,
    b_atom: cute.CopyAtom,
    b_coords: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    c: cute.Pointer,
    n: Int32,
    k_tiles: Int32,
    depth: Int32,
):
    """Work through the cluster's list."""
    cta, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    item = cta // CLUSTER * depth
    smem = SmemAllocator()
    sA = smem.allocate_tensor(Float16, a_layout.outer, byte_alignment=1024, swizzle=a_layout.inner)
    sB = smem.allocate_tensor(Float16, b_layout.outer, byte_alignment=1024, swizzle=b_layout.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    if warp == 0:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, CONSUMER_WARPS * CLUSTER)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp < 4:
        cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
        if warp == 0:
            one = cute.make_layout(1)
            count = Int32(0)
            a_tiles = cute.local_tile(a_coords, (WEIGHT_ROWS, STAGE_K), (None, None))
            to_a, from_a = cpasync.tma_partition(
                a_atom, 0, one, cute.group_modes(sA, 0, 2), cute.group_modes(a_tiles, 0, 2)
            )
            while fields[item, WIDTH] > 0:
                width = fields[item, WIDTH]
                block = fields[item, WEIGHT] + cutlass.min(rank, fields[item, PAIR] - 1)
                rows = cute.domain_offset((fields[item, TOKEN], 0), b_coords)
                b_tiles = cute.local_tile(rows, (BOX, STAGE_K), (None, None))
                to_b, from_b = cpasync.tma_partition(
                    b_atom, 0, one, cute.group_modes(sB, 0, 2), cute.group_modes(b_tiles, 0, 2)
                )
                for k_tile in cutlass.range(k_tiles, unroll=1):
                    stage = count % STAGES
                    cute.arch.mbarrier_wait(empty + stage, (count // STAGES & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full + stage, WEIGHT_BYTES + width * LINE)
                    cute.copy(a_atom, from_a[None, block, k_tile], to_a[None, stage], tma_bar_ptr=full + stage)
                    # Each CTA loads every other box for both.
                    for pair in cutlass.range(width // (BOX * CLUSTER), unroll=1):
                        box = pair * CLUSTER + rank
                        cute.copy(
                            b_atom,
                            from_b[None, box, k_tile],
                            to_b[None, stage * (WIDTHS[-1] // BOX) + box],
                            tma_bar_ptr=full + stage,
                            mcast_mask=cutlass.Int16((1 << CLUSTER) - 1),
                        )
                    count += 1
                item += 1
    else:
        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
        arguments = (fields, c, n, rank, sA, sB.iterator, full, empty, k_tiles)
        consume_items(WIDTHS, arguments, item, Int32(0))
    # No CTA may leave while the other can still arrive at its barriers or copy into it.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def launch(host: cute.Pointer, tokens: Int32, groups: Int32, n: Int32, k: Int32, clusters: Int32, depth: Int32):
    """Launch on the addresses of table, weights, tokens and C, to which `host` points."""
    addresses = cute.make_tensor(host, cute.make_layout(4))
    k = cute.assume(k, divby=STAGE_K)
    gmem = cute.AddressSpace.gmem
    table = cute.make_ptr(Int32, addresses[0], gmem, assumed_align=16)
    fields = cute.make_tensor(table, cute.make_layout((clusters * depth, FIELDS), stride=(FIELDS, 1)))
    weights = cute.make_ptr(Float16, addresses[1], gmem, assumed_align=16)
    # Rows 2g and 2g + 1 of 16 become wgmma's rows g and g + 8, whose results one thread has.
    rows = cute.make_layout(((8, 2, groups * (n // 16)), k), stride=((2 * k, k, 16 * k), 1))
    a = cute.make_tensor(weights, rows)
    b = cute.make_tensor(
        cute.make_ptr(Float16, addresses[2], gmem, assumed_align=16), cute.make_layout((tokens, k), stride=(k, 1))
    )
    c = cute.make_ptr(Float16, addresses[3], gmem, assumed_align=16)
    kind = LayoutEnum.ROW_MAJOR
    a_layout = hopper_helpers.make_smem_layout_a(kind, (WEIGHT_ROWS, BOX, STAGE_K), Float16, STAGES)
    b_layout = hopper_helpers.make_smem_layout_b(
        kind, (WEIGHT_ROWS, BOX, STAGE_K), Float16, STAGES * (WIDTHS[-1] // BOX)
    )
    stage = (None, None, 0)
    a_atom, a_coords = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), a, cute.slice_(a_layout, stage), (WEIGHT_ROWS, STAGE_K)
    )
    b_atom, b_coords = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), b, cute.slice_(b_layout, stage), (BOX, STAGE_K), num_multicast=1
    )
    kernel(fields, a_atom, a_coords, b_atom, b_coords, a_layout, b_layout, c, n, k // STAGE_K, depth).launch(
        grid=(clusters * CLUSTER, 1, 1), block=(THREADS, 1, 1), cluster=(CLUSTER, 1, 1), min_blocks_per_mp=1
    )


def host_pointer(address):
    """A run-time argument: pointer to Int64 in the host's memory."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)


def compile_launch():
    """Compile for all problems."""
    return cute.compile(launch, host_pointer(0), *[Int32(1)] * 6)


def grouped_gemm(compiled, pairs):
    """A function of no arguments that computes and returns all C, for pairs (A_g, B_g) on the device."""
    heights = [a.shape[0] for a, _ in pairs]
    n, k = pairs[0][1].shape
    tokens, weights = torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs])
    c = torch.empty((len(tokens), n), dtype=torch.float16, device="cuda")
    workers = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count // CLUSTER
    rows, clusters, depth = plan(heights, n, workers)
    table = torch.tensor(rows, dtype=torch.int32, device="cuda")
    kept = table, weights, tokens, c
    host = array.array("q", [tensor.data_ptr() for tensor in kept])
    arguments = host_pointer(host.buffer_info()[0]), *map(Int32, (len(tokens), len(heights), n, k, clusters, depth))
    launcher = compiled.to(torch.cuda.current_device())
    packed, adapted = launcher.generate_execution_args(*arguments)

    def call(_kept=(kept, host, arguments, adapted)):
        launcher.run_compiled_program(packed)
        return c.split(heights)

    return call
