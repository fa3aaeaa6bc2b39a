"""NVFP4 block-scaled grouped GEMM for NVIDIA Hopper (sm_90a), in CuTe DSL.

For every group g:  C_g = (A_g * SFA_g) @ (B_g * SFB_g)^T, with A (m, k) and B (n, k) in E2M1, K-major, one E4M3 scale
per 16 elements of K, products summed in fp32 and stored once, rounded to nearest even, as fp16 C (m, n), N-major.
The entry points, `custom_kernel(data)` and `compile_kernel(problem_sizes)`, follow GPU MODE's `nvfp4_group_gemm`.
Rows of A are called tokens here, rows of B weights.

Hopper's tensor cores know no FP4, so both operands become fp16, which is exact: a product of an E2M1 and an E4M3 has
at most 6 significant bits and lies between 2^-10 and 2688.

Status: measured on an H200 (driver 580.159.04, DSL 4.8.1, torch 2.11) by `tests/silicon/time_group_gemm.py`: single
calls between two events, the contestants in turn, after 512 MB were written, so that L2 holds neither data nor code.
    Exactness   On ragged, empty and one-row groups, K to 16,384, 200 groups, and all that is timed, all outputs equal
                the exact sum rounded once.
    Time        Medians of 16 in us of the four benchmarks (geometric mean) and of two groups of 2,048 x 4,096 x 7,168.
                All but this kernel work on operands that were dequantised before.
                    this kernel                     106.5   58.9   31.3   19.0   (43.9)   304
                    fp16 in CuTe DSL, one launch    148.8   90.5   41.8   22.5   (59.6)   303
                    cuBLAS in fp16, a call a group  199.1  108.2   38.1   23.0   (65.9)   288
                    torch's grouped_mm in bf16      199.4  127.8   51.9   28.7   (78.4)   304
                    torch's grouped_mm in fp16      296.6  308.8  152.8  133.9  (208.0)   375
                1.50 times as fast as cuBLAS, 1.36 as the one launch in fp16; on large groups 6 % slower than cuBLAS. A
                call takes 21 to 57 us of the host, by machine, cuBLAS's eight 107 to 257.
    Fence       Without the fence.proxy.async of `consume`, 26 of 12,000 calls on benchmark 1 were wrong: an arrive does
                not wait for the loads before it, which stay behind the other warpgroup's stores, and the next item's
                weights overwrote what they had not read. With it none of 12,000 was, at no measurable cost.
    Floor       With 48, 64, 80, 128, 160, 256 tokens a unit of 256 k takes 0.83, 0.90, 0.99, 1.21, 1.57, 2.50 us; wgmma
                alone 0.59 with 64, 1.17 with 128, 2.38 with 256. The rest of benchmark 3, by time stamps: 4.6 us to the
                first wgmma (1.3 the other kernel, 1.3 the table, 1.3 the first copies), 1.6 the last item's output.

Tried and dropped (geometric mean, that of its base in brackets; `nvfp4 guide evidence` has more): consumers that take
turns with wgmma 48.3 (46.5); weights by bulk copies of 128 bytes 73.1 (46.3); by cp.async 45.7 (44.7); 4 stages each
46.3 (45.9); K cut 50.5; 10, 12, 16 widths 42.7 to 44.2, 5 widths 43.7 (42.5). Tokens dequantised without a second
launch: by all warps of all CTAs, then a barrier of the grid, 47.1 (44.7); by four warps of each CTA into shared memory,
half of them copied from the other CTA, 58.2 (45.4), since a warp takes 0.8 us a stage; by an idle warp 44.3 (46), but
large groups 383. K that starts elsewhere in each cluster, sizes of the groups as parameters: no gain.

Why weights lie on wgmma's M and tokens on its N
    wgmma's M is 64 whatever is needed, its N is any multiple of 8. Tokens are ragged, weights come in 128 rows. And
    wgmma takes its A operand from registers: a weight is decoded by the thread that feeds it to the tensor core, once
    per tile of tokens, and never goes back to shared memory.

Two launches
    dequantise_kernel writes all tokens to a workspace as fp16, in the order, swizzle included, in which wgmma reads
    them, so that any piece of a group from a multiple of 8 rows on is a plain bulk copy an atom. group_gemm_kernel is
    launched while the first still runs (programmatic dependent launch) and waits for it before its first tokens.

Cold code
    When L2 was overwritten, code comes from memory, too, about a microsecond a jump. So the instances of the main loop
    are few, 8 widths, and the leaves of a tree, and who finds the end of its list leaves from the leaf.

Order of K
    A sum may take K in any order, if both operands take the same one. In an atom of 64 elements of K, thread t of four
    (t = lane % 4) owns elements 16t .. 16t + 15, which share a scale. Of its word v (8 elements, v = 0, 1) elements i
    and i + 4 make one fp16 pair:

        k-step 2v + i // 2 of the atom, position 2t and 2t + 1 of half i % 2:  elements 16t + 8v + i and + 4

Order of M
    Likewise rows of weights: wgmma's rows g and g + 8 of a warp are its rows 2g and 2g + 1, so that a thread's two
    results for a token are neighbours in C, and eight threads fill a 32-byte sector.

Decoding (exact for all 16 x 256 pairs of codes, which the tests enumerate)
    The three bits of |E2M1| at bits 11..9 of an fp16, its sign at bit 15, are its value times 2^-14, subnormals
    included. Times E4M3 * 2^7, which fits fp16, it is the operand times 2^-7: exact. The output is scaled back by 2^14
    in fp32. Per 8 elements: 7 logic, 4 shift and 4 HMUL2 instructions.

Schedule: one list of items per cluster of two CTAs, made on the host (`plan`), a function of the sizes alone
    An item is up to 256 tokens of a group and two blocks of 128 weights, one per CTA. A group's tokens are cut evenly,
    and further where an item would make its list the longest (`fit`). A list is sorted by falling width and ends with
    a row of zeros. If n / 128 is odd, the last item's second CTA repeats the last block and stores nothing. A row of
    the table has an item's addresses, too, so that a CTA reads one thing before its first weights.

Pipeline of a CTA
    weights  3 stages of 256 k: 128 rows x 128 bytes, by a tensor map of the group, in its 128-byte swizzle, in which
             64-bit loads of rows 2g meet no bank twice; and 2 KiB of scales, by bulk copy
    tokens   5 stages of 32 KiB: 4, 2 or 1 atoms of width x 64 k, up to a width of 64, 128, 256, by bulk copy. Each CTA
             loads half of the rows and multicasts them to both.
    A consumer decodes an atom of 64 k into one of two register fragments while wgmma works on the other.

Warps (384 threads)
    0      tokens (one lane)      1      weights and their scales (one lane)      2, 3   none
    4-7, 8-11   consumers, a warpgroup each: rows 0-63, 64-127 of weights, all tokens of the tile

Barriers
    full_w[s]   1 arrival (expect_tx of the stage) + the bytes of the copies
    empty_w[s]  8 arrivals: each consumer warp, when its registers hold the stage
    full_t[s]   1 arrival (expect_tx of the whole stage) + the bytes of both CTAs' copies
    empty_t[s]  16 arrivals: each consumer warp of both CTAs, when wgmma has read the stage
    cluster     once: barriers are initialised. Warp 1 does not wait for it, since no other CTA uses its stages.
    Warp 0 leaves when all stages of tokens are empty: then nothing can arrive at the CTA any more.

Compile time: widths (8 instances of the main loop), stages, roles, cluster size. Run time: number of
groups, m, n, k and all addresses. One compilation serves every problem.

Preconditions (`check_problem` raises ValueError): l == 1, n % 128 == 0, k % 256 == 0 and k > 0; m >= 0 is free.
All tensors dense and 16-byte aligned, scale factors in the 128x4 block layout. Padding of the scale factors is not
read. Rows of tokens from m on are not read; what wgmma makes of the rest of a stage stays in columns that are not
stored.
"""

import array
import bisect
import functools
import heapq
import threading

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings import driver
from cutlass import Float16, Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T
from task import input_t, output_t

try:
    from cutlass.cute.nvgpu import OperandMajorMode
    from cutlass.memory import SmemAllocator
except ImportError:  # before these names moved, 4.4 among them
    from cutlass.cute.nvgpu.warpgroup import OperandMajorMode
    from cutlass.utils import SmemAllocator

SF_VEC = 16  # elements of K that share one scale
UNIT_K = 256  # elements of K per stage of weights
ATOM_K = 64  # elements of K per 128 bytes of fp16, the width of wgmma's 128-byte swizzle
ATOMS_PER_UNIT = UNIT_K // ATOM_K
LINE = 128  # bytes of a row of an atom; the workspace is counted in lines

MOST_SEARCHED = 600  # items; with more, the search takes longer than it gains

WEIGHT_ROWS = 128  # rows of B per CTA: wgmma's M, 64 for each of two warpgroups
WIDTHS = (48, 64, 80, 96, 128, 160, 176, 256)  # rows of A per CTA, wgmma's N: 8 instances of the main loop
CLUSTER = 2  # CTAs that share a tile of tokens

CONSUMERS = 2
CONSUMER_WARPS = 4 * CONSUMERS
NUM_THREADS = 128 * (1 + CONSUMERS)
TOKEN_WARP, WEIGHT_WARP = 0, 1
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232

WEIGHT_BYTES = WEIGHT_ROWS * UNIT_K // 2
SCALE_BYTES = WEIGHT_ROWS * UNIT_K // SF_VEC
WEIGHT_STAGE = WEIGHT_BYTES + SCALE_BYTES
WEIGHT_STAGES = 3
TOKEN_STAGE = 256 * LINE
TOKEN_STAGES = 5

DEQUANTISE_THREADS = 256
DEQUANTISE_ROWS = DEQUANTISE_THREADS // 8  # of one unit of K, eight threads each
ATOM_PITCH = 4 * LINE + 32  # bytes from one atom of a warp's four rows to the next, without bank conflicts

# A row of the table is a tile of tokens, for `dequantise_kernel`, or an item, for `group_gemm_kernel`: eight Int32,
# then five addresses, that of the tensor map of weights in bytes from the first map.
ROW = 9  # Int64
WIDTH, ROWS, UNITS, FIRST_LINE, HEIGHT, PITCH, BLOCKS, BLOCK = range(8)
TOKENS, WEIGHTS, TOKEN_SCALES, WEIGHT_SCALES, OUTPUT = range(4, ROW)
MAP = 16  # Int64 of a tensor map
TILE = 256  # rows of a tile, a multiple of the 128 of a block of scales

# Powers of two by which the operands are scaled while they are decoded, see the module's docstring.
SCALE_FACTOR = 0x58005800  # 2^7, twice, as f16x2
OUTPUT_FACTOR = 2.0**14
SIGNS = 0x80808080  # of the high nibbles of four bytes
E2M1_MASK = 0x8E008E00  # where an E2M1 lies in an fp16


def ceil_div(a, b):
    """Quotient of a >= 0 and b > 0, rounded up."""
    return (a + b - 1) // b


def atoms_per_stage(width):
    """Atoms of 64 k in one stage of tokens, for items of `width` tokens."""
    return 1 if width > 128 else 2 if width > 64 else 4


def check_problem(problem_sizes):
    """Raise ValueError for a group that this kernel would read or write out of bounds, or leave unwritten."""
    for group, (m, n, k, batch) in enumerate(problem_sizes):
        if m < 0 or n < 0 or n % WEIGHT_ROWS or k <= 0 or k % UNIT_K or batch != 1:
            raise ValueError(
                f"group {group} is (m, n, k, l) = ({m}, {n}, {k}, {batch}); this kernel needs m >= 0, "
                f"n a multiple of {WEIGHT_ROWS}, k a positive multiple of {UNIT_K} and l = 1"
            )


#
# The schedule, on the host
#


def width_of(rows):
    """The least width for this many tokens."""
    return next(width for width in WIDTHS if width >= rows)


def item_cost(width, k):
    """Estimated cycles of one item, fitted to times on an H200."""
    return k // 16 * max(1030, 6 * width + 720, 12 * width + 20) // 10 + 4000


def even_items(problem_sizes, most):
    """(cost, (width, group, start, rows, block)) of all items, a group's tokens cut evenly into at most `most`.

    A piece starts at a multiple of 8 rows, since the workspace's swizzle depends on the row modulo 8.
    """
    items = []
    for group, (m, n, k, _) in enumerate(problem_sizes):
        if m and n:
            height = ceil_div(ceil_div(m, ceil_div(m, most)), 8) * 8
            for start in range(0, m, height):
                rows = min(height, m - start)
                width = width_of(rows)
                blocks = range(0, n // WEIGHT_ROWS, CLUSTER)
                items += [(item_cost(width, k), (width, group, start, rows, block)) for block in blocks]
    return items


def assign(items, workers):
    """Longest first, each to the worker that is free first: (makespan, items of each worker)."""
    heap = [(0, worker) for worker in range(workers)]
    lists = [[] for _ in range(workers)]
    for cost, item in sorted(items, reverse=True):
        load, worker = heap[0]
        lists[worker].append(item)
        heapq.heapreplace(heap, (load + cost, worker))
    return max(heap)[0], lists


def fit(items, workers, limit, problem_sizes):
    """Items of each worker with a makespan of at most `limit`, or None where this finds none.

    Longest first, each to the worker with the least room for it. One that no worker has room for is cut, so that its
    first tokens fill the worker with the most room.
    """
    room = [(limit, worker) for worker in range(workers)]
    lists = [[] for _ in range(workers)]
    queue = [(-cost, item) for cost, item in items]
    heapq.heapify(queue)
    while queue:
        cost, item = heapq.heappop(queue)
        at = bisect.bisect_left(room, (-cost, -1))
        if at == workers:
            at -= 1
            _, group, start, rows, block = item
            k = problem_sizes[group][2]
            widths = [width for width in WIDTHS if width < rows and item_cost(width, k) <= room[at][0]]
            if not widths:
                return None
            width, left = widths[-1], rows - widths[-1]
            rest = width_of(left), group, start + width, left, block
            heapq.heappush(queue, (-item_cost(rest[0], k), rest))
            cost, item = -item_cost(width, k), (width, group, start, width, block)
        space, worker = room.pop(at)
        lists[worker].append(item)
        bisect.insort(room, (space + cost, worker))
    return lists


def schedule(problem_sizes, workers):
    """Items of each worker, whose costs' largest sum is the smallest found; no more items than workers are not cut."""
    best = None
    for most in (width for width in reversed(WIDTHS) if width > 48 and width % 16 == 0):
        items = even_items(problem_sizes, most)
        found = assign(items, workers)
        if best is None or found[0] < best[0]:
            best = found
        low = sum(cost for cost, _ in items) // workers
        while workers < len(items) <= MOST_SEARCHED and best[0] - low > best[0] // 100:
            limit = (low + best[0]) // 2
            lists = fit(items, workers, limit, problem_sizes)
            if lists is None:
                low = limit
            else:
                best = limit, lists
    return best[1]


def table_row(fields, offsets=(0,) * 5):
    """A row of the table, its Int32 in pairs, its addresses as bytes from a group's tensors."""
    return [low | high << 32 for low, high in zip(fields[::2], fields[1::2], strict=True)] + list(offsets)


def plan(problem_sizes, workers):
    """The table: (rows, groups, tiles, most, clusters, depth, lines).

    `rows` has `tiles` rows of tiles and `depth` rows for each of `clusters`, of which the last is zeros. `groups` has
    each row's group, -1 for zeros. A tile is dequantised by at most `most` CTAs. Of `lines` lines of the workspace a
    group has [atom of 64 k, HEIGHT tokens]. PITCH is that of C in bytes, BLOCKS an item's blocks of weights.
    """
    rows, groups, lines = [], [], []
    line = most = 0
    for group, (m, n, k, _) in enumerate(problem_sizes):
        lines.append(line)
        units = k // UNIT_K
        for start in range(0, m if n else 0, TILE):
            height = min(TILE, m - start)
            offsets = (start * units * UNIT_K // 2, 0, start // 128 * units * SCALE_BYTES, 0, 0)
            rows.append(table_row((0, height, units, line + start, m, 0, 0, 0), offsets))
            groups.append(group)
            most = max(most, ceil_div(height * units, DEQUANTISE_ROWS))
        line += (m if n else 0) * units * ATOMS_PER_UNIT
    tiles = len(rows)
    lists = [sorted(one, reverse=True) for one in schedule(problem_sizes, workers) if one]
    depth = max(map(len, lists)) + 1
    for one in lists:
        for width, group, start, height, block in one:
            m, n, k, _ = problem_sizes[group]
            units = k // UNIT_K
            blocks = min(CLUSTER, n // WEIGHT_ROWS - block)
            offsets = (
                0,
                group * MAP * 8,
                0,
                block * units * SCALE_BYTES,
                2 * (start * n + block * WEIGHT_ROWS),
            )
            rows.append(table_row((width, height, units, lines[group] + start, m, 2 * n, blocks, block), offsets))
            groups.append(group)
        zeros = depth - len(one)
        rows += [table_row((0,) * 8)] * zeros
        groups += [-1] * zeros
    return rows, groups, tiles, most, len(lists), depth, line


#
# Device code
#


def ptx(text, constraints, *operands, results=1, pure=False):
    """Inline PTX with this many 32-bit results: one value, a list of several, or None. Not `pure`: keep its order."""
    kind = None
    if results:
        kind = T.i32() if results == 1 else llvm.StructType.get_literal([T.i32()] * results)
    value = llvm.inline_asm(
        kind,
        [operand.ir_value() for operand in operands],
        text,
        constraints if pure else ",".join(filter(None, (constraints, "~{memory}"))),
        has_side_effects=not pure,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if results == 0:
        return None
    if results == 1:
        return Uint32(value)
    return [Uint32(llvm.extractvalue(T.i32(), value, [i])) for i in range(results)]


def load_shared(address):
    """A word of shared memory."""
    return ptx("ld.shared.b32 $0, [$1];", "=r,r", address)


def load_shared_2(address, offset):
    """Two words of shared memory; `offset` in bytes is a constant."""
    return ptx(f"ld.shared.v2.b32 {{$0, $1}}, [$2+{offset}];", "=r,=r,r", address, results=2)


def load_shared_4(address, offset):
    """Four words of shared memory; `offset` in bytes is a constant."""
    return ptx(f"ld.shared.v4.b32 {{$0, $1, $2, $3}}, [$4+{offset}];", "=r,=r,=r,=r,r", address, results=4)


def load_input_4(address):
    """Four words of an input."""
    return ptx("ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l", address, results=4)


def load_input(address):
    """A word of an input."""
    return ptx("ld.global.nc.b32 $0, [$1];", "=r,l", address)


def copy_tile(shared, tensor_map, x, y, mbar):
    """The box of a tensor map at column `x`, row `y`; the mbarrier counts its bytes."""
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ptx(f"{copy} [$0], [$1, {{$2, $3}}], [$4];", "r,l,r,r,r", shared, tensor_map, x, y, mbar, results=0)


def copy_bulk(shared, address, size, mbar):
    """`size` bytes; the mbarrier counts them."""
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    ptx(f"{copy} [$0], [$1], $2, [$3];", "r,l,r,r", shared, address, size, mbar, results=0)


def acquire_map(tensor_map):
    """Make a tensor map that the host copied to memory visible to this thread's later copies, and fetch it."""
    ptx("fence.proxy.tensormap::generic.acquire.sys [$0], 128;", "l", tensor_map, results=0)
    ptx("prefetch.tensormap [$0];", "l", tensor_map, results=0)


def copy_bulk_to_cluster(shared, address, size, mbar):
    """`size` bytes to the same place of every CTA of the cluster; each CTA's mbarrier at `mbar` counts them."""
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    operands = (shared, address, size, mbar, cutlass.Int16((1 << CLUSTER) - 1))
    ptx(f"{copy} [$0], [$1], $2, [$3], $4;", "r,l,r,r,h", *operands, results=0)


def arrive_at(mbar, rank):
    """Arrive at the mbarrier at this place of CTA `rank` of the cluster."""
    text = "{.reg .b32 t; mapa.shared::cluster.u32 t, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [t];}"
    ptx(text, "r,r", mbar, rank, results=0)


def store_if_less(a, b, address, value):
    """Store a word if a < b."""
    text = "{.reg .pred p; setp.lt.s32 p, $0, $1; @p st.global.b32 [$2], $3;}"
    ptx(text, "r,r,l,r", a, b, address, value, results=0)


def store_shared_2(address, a, b):
    """Store two words to shared memory."""
    ptx("st.shared.v2.b32 [$0], {$1, $2};", "r,r,r", address, a, b, results=0)


def store_4_if_less(a, b, address, values):
    """Store four words, 16-byte aligned, if a < b."""
    text = "{.reg .pred p; setp.lt.s32 p, $0, $1; @p st.global.v4.b32 [$2], {$3, $4, $5, $6};}"
    ptx(text, "r,r,l,r,r,r,r", a, b, address, *values, results=0)


def multiply_f16x2(a, b):
    """Two fp16 products."""
    return ptx("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", a, b, pure=True)


def permute_bytes(a, b, selector):
    """PTX prmt with a constant selector."""
    return ptx(f"prmt.b32 $0, $1, $2, {selector};", "=r,r,r", a, b, pure=True)


def select_bytes(a, b, selector):
    """PTX prmt."""
    return ptx("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", a, b, selector, pure=True)


def pack_f16x2(low, high):
    """Two fp32 as fp16, each rounded to nearest even."""
    return ptx("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", low, high, pure=True)


def decode_scales(two_bytes):
    """The low two bytes, E4M3, times 2^7 as f16x2."""
    text = "{.reg .b16 t, u; mov.b32 {t, u}, $1; cvt.rn.f16x2.e4m3x2 $0, t;}"
    return multiply_f16x2(ptx(text, "=r,r", two_bytes, pure=True), Uint32(SCALE_FACTOR))


def spread(high_nibbles, shifted):
    """Of each byte: bit 7 of the first operand, the rest of the second, which is the first one shifted right by 3.

    That puts an E2M1 in the high nibble, s eem, where the high byte of an fp16 has it: s at bit 7, eem at bits 3..1.
    """
    return ptx("lop3.b32 $0, $1, $2, $3, 0xE4;", "=r,r,r,r", high_nibbles, shifted, Uint32(SIGNS), pure=True)


def decode(word, scale):
    """Elements i and i + 4, i = 0..3, of eight E2M1 as f16x2: times 2^-14 and the f16x2 `scale`."""
    odd = spread(word, word >> 3)
    even = spread(word << 4, word << 1)
    mask = Uint32(E2M1_MASK)
    pairs = ((even << 8) & mask, (odd << 8) & mask, even & mask, odd & mask)
    return [multiply_f16x2(pair, scale) for pair in pairs]


@cute.kernel
def dequantise_kernel(fields: cute.Tensor, places: cute.Tensor, workspace: Int64):
    """Write the tokens as fp16 to the workspace: of each group [atom of 64 k, token, 64 k], in wgmma's swizzle."""
    cute.arch.griddepcontrol_launch_dependents()
    thread, _, _ = cute.arch.thread_idx()
    lane = thread % 32
    part, tile, _ = cute.arch.block_idx()
    shared = SmemAllocator().allocate(DEQUANTISE_THREADS // 32 * 4 * ATOM_PITCH, byte_alignment=128).toint()

    rows = fields[tile, ROWS]
    units = fields[tile, UNITS]
    # Eight threads have a row of a unit of K: thread 2a + h the words of owners 2h and 2h + 1 of atom a.
    item = part * DEQUANTISE_ROWS + thread // 8
    a = lane % 8 // 2
    h = lane % 2
    row = min(item // units, rows - 1)
    unit = item % units
    source = places[tile, TOKENS] + (Int64(row) * Int64(units) + Int64(unit)) * Int64(UNIT_K // 2)
    words = load_input_4(source + Int64(lane % 8 * 16))
    factors = load_input(
        places[tile, TOKEN_SCALES]
        + Int64((row // 128) * units + unit) * Int64(SCALE_BYTES)
        + Int64(a * 512 + (row % 32) * 16 + (row % 128) // 32 * 4)
    )
    pair = decode_scales(factors >> (16 * h))
    # Eight threads exchange their four lines, so that a line is stored at once.
    mine = shared + thread // 32 * (4 * ATOM_PITCH) + lane // 8 * LINE
    for v in cutlass.range_constexpr(2):
        first, second = (decode(words[2 * e + v], permute_bytes(pair, pair, 0x3232 if e else 0x1010)) for e in range(2))
        for i in cutlass.range_constexpr(4):
            chunk = (v * 4 + i) ^ (row % 8)
            store_shared_2(mine + a * ATOM_PITCH + chunk * 16 + 8 * h, first[i], second[i])
    cute.arch.sync_warp()
    height = fields[tile, HEIGHT]
    target = workspace + Int64(fields[tile, FIRST_LINE] + unit * ATOMS_PER_UNIT * height + row) * Int64(LINE)
    for atom in cutlass.range_constexpr(ATOMS_PER_UNIT):
        chunks = load_shared_4(mine + lane % 8 * 16, atom * ATOM_PITCH)
        store_4_if_less(item, rows * units, target + Int64(atom * height * LINE + lane % 8 * 16), chunks)


@cute.jit
def consume(
    width: cutlass.Constexpr,
    fields: cute.Tensor,
    places: cute.Tensor,
    item: Int32,
    rank: Int32,
    weights: Int32,
    tokens: cute.Pointer,
    full_w: cute.Pointer,
    empty_w: cute.Pointer,
    full_t: cute.Pointer,
    empty_t: cute.Pointer,
    weight_count: Int32,
    token_count: Int32,
):
    """A consumer warpgroup's part of one item: 64 rows of weights times all tokens of the tile."""
    atoms = atoms_per_stage(width)
    thread, _, _ = cute.arch.thread_idx()
    lane = thread % 32
    g = lane // 4
    t = lane % 4
    warp = cute.arch.make_warp_uniform(thread // 32) - 4
    row = warp * 16 + 2 * g  # and row + 1: this thread's rows of weights, wgmma's g and g + 8 of the warp

    tiled_mma = cute.make_tiled_mma(
        warpgroup.MmaF16BF16Op(
            Float16,
            Float32,
            (64, width, 16),
            warpgroup.OperandSource.RMEM,
            OperandMajorMode.K,
            OperandMajorMode.K,
        )
    )
    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
    layout = cute.make_layout(
        (width, ATOM_K, atoms, TOKEN_STAGES), stride=(ATOM_K, 1, width * ATOM_K, TOKEN_STAGE // 2)
    )
    sTokens = cute.make_tensor(cute.recast_ptr(tokens, cute.make_swizzle(3, 4, 3), dtype=Float16), layout)
    # (MMA, 1, K-steps of an atom, atoms of a stage, stages)
    tCrTokens = tiled_mma.make_fragment_B(tiled_mma.get_slice(0).partition_B(sTokens))
    # ((two tokens, two rows, width / 8), 1, 1)
    acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C((64, width)), Float32)
    acc.fill(0.0)
    # An atom each: ((k and k + 1, rows, k and k + 8), 1, K-steps). One is decoded into while wgmma reads the other.
    fragments = [cute.make_rmem_tensor(((2, 2, 2), 1, 4), Float16) for _ in range(2)]

    units = fields[item, UNITS]
    weights_address = weights + row * 128 + ((t // 2) ^ (row % 8)) * 16 + 8 * (t % 2)
    scales_address = weights + WEIGHT_BYTES + row % 32 * 16 + 4 * (row // 32)
    selector = Uint32(t * 0x11 + 0x40)

    w_stage = weight_count % WEIGHT_STAGES
    w_parity = (weight_count // WEIGHT_STAGES) & 1
    t_stage = token_count % TOKEN_STAGES
    t_parity = (token_count // TOKEN_STAGES) & 1
    read_stage = t_stage  # the oldest stage of tokens that is not released
    for unit in cutlass.range(units, unroll=1):
        cute.arch.mbarrier_wait(full_w + w_stage, w_parity)
        offset = w_stage * WEIGHT_STAGE
        for atom in cutlass.range_constexpr(ATOMS_PER_UNIT):
            # Half of the unit's elements at a time, to save registers
            if cutlass.const_expr(atom % 2 == 0):
                packed = [
                    [load_shared_2((weights_address ^ (32 * (atom + e) + 16 * h)) + offset, 128 * h) for h in range(2)]
                    for e in range(2)
                ]
                factors = [
                    [load_shared(scales_address + offset + 512 * (atom + e) + 16 * h) for h in range(2)]
                    for e in range(2)
                ]
            if cutlass.const_expr(atom == 2):
                # Without it, the next copy may overwrite what these loads have not read yet.
                ptx("fence.proxy.async.shared::cta;", "", results=0)
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(empty_w + w_stage)
                w_stage += 1
                if w_stage == WEIGHT_STAGES:
                    w_stage = Int32(0)
                    w_parity ^= 1
            both = decode_scales(select_bytes(*factors[atom % 2], selector))
            scales = permute_bytes(both, both, 0x1010), permute_bytes(both, both, 0x3232)
            words = cute.recast_tensor(fragments[atom % 2], Uint32)
            for j in cutlass.range_constexpr(2):
                for h in cutlass.range_constexpr(2):
                    pairs = decode(packed[atom % 2][h][j], scales[h])
                    for i in cutlass.range_constexpr(4):
                        # Pair i belongs to K-step 2j + i // 2, half i % 2 of it.
                        words[h + 2 * (i % 2) + 4 * (2 * j + i // 2)] = pairs[i]
            if cutlass.const_expr(atom % atoms == 0):
                cute.arch.mbarrier_wait(full_t + t_stage, t_parity)
            warpgroup.fence()
            for step in cutlass.range_constexpr(ATOM_K // 16):
                cute.gemm(
                    tiled_mma,
                    acc,
                    fragments[atom % 2][None, None, step],
                    tCrTokens[None, None, step, atom % atoms, t_stage],
                    acc,
                )
            if cutlass.const_expr(atom % atoms == atoms - 1):
                t_stage += 1
                if t_stage == TOKEN_STAGES:
                    t_stage = Int32(0)
                    t_parity ^= 1
            warpgroup.commit_group()
            # The atom before this one has been read. If it ended a stage of tokens, that is released. No branch here:
            # ptxas would wait for every wgmma.
            warpgroup.wait_group(1)
            if cutlass.const_expr(atom % atoms == 0):
                if lane < CLUSTER and (atom > 0 or unit > 0):
                    arrive_at((empty_t + read_stage).toint(), lane)
                read_stage += 1 if cutlass.const_expr(atom > 0) else min(unit, 1)
                if read_stage == TOKEN_STAGES:
                    read_stage = Int32(0)
    warpgroup.wait_group(0)
    if lane < CLUSTER:
        arrive_at((empty_t + read_stage).toint(), lane)

    # C: two rows of weights are two neighbours of a token's row of C.
    if rank < fields[item, BLOCKS]:
        pitch = Int64(fields[item, PITCH])  # C may be longer than 2^31
        address = places[item, OUTPUT] + Int64(2 * t) * pitch + Int64(rank * (WEIGHT_ROWS * 2) + row * 2)
        left = fields[item, ROWS] - 2 * t
        factor = Float32(OUTPUT_FACTOR)
        for j in cutlass.range_constexpr(width // 8):
            for i in cutlass.range_constexpr(2):
                pair = pack_f16x2(acc[i + 4 * j] * factor, acc[i + 2 + 4 * j] * factor)
                store_if_less(Int32(8 * j + i), left, address + pitch * i, pair)
            address += pitch * 8


def leave():
    """End this thread."""
    ptx("exit;", "", results=0)


@cute.jit
def consume_items(
    widths: cutlass.Constexpr, arguments: tuple, item: Int32, width: Int32, weight_count: Int32, token_count: Int32
):
    """A consumer's part of the items from `item` on that have these widths, which rise; returns the counts after them.

    Widths fall along the list, so the instances need no loop around them. With one, ptxas runs out of registers and
    waits for every single wgmma (its message C7512). One after the other would not do either: behind a cold L2, to step
    over an instance takes about a microsecond, as its code is far from the next one's.
    """
    fields = arguments[0]
    if cutlass.const_expr(len(widths) == 1):
        while width == widths[0]:
            consume(widths[0], *arguments[:2], item, *arguments[2:], weight_count, token_count)
            units = fields[item, UNITS]
            weight_count += units
            token_count += units * (ATOMS_PER_UNIT // atoms_per_stage(widths[0]))
            item += 1
            width = fields[item, WIDTH]
        if width == 0:
            leave()
    else:
        half = len(widths) // 2
        for part in cutlass.range_constexpr(2):
            some = widths[half:] if cutlass.const_expr(part == 0) else widths[:half]
            if width >= some[0]:
                item, width, weight_count, token_count = consume_items(
                    some, arguments, item, width, weight_count, token_count
                )
    return item, width, weight_count, token_count


@cute.kernel
def group_gemm_kernel(
    fields: cute.Tensor, places: cute.Tensor, maps: Int64, workspace: Int64, first: Int32, depth: Int32
):
    """Work through the cluster's rows of the table, from row `first` on (see the module's docstring)."""
    thread, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = thread % 32
    rank = cta % CLUSTER
    begin = first + cta // CLUSTER * depth

    smem = SmemAllocator()
    tokens = smem.allocate(TOKEN_STAGES * TOKEN_STAGE, byte_alignment=1024)
    weights_ptr = smem.allocate(WEIGHT_STAGES * WEIGHT_STAGE, byte_alignment=1024)
    full_w = smem.allocate_array(Int64, WEIGHT_STAGES)
    empty_w = smem.allocate_array(Int64, WEIGHT_STAGES)
    full_t = smem.allocate_array(Int64, TOKEN_STAGES)
    empty_t = smem.allocate_array(Int64, TOKEN_STAGES)
    if warp == TOKEN_WARP:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(TOKEN_STAGES):
                cute.arch.mbarrier_init(full_t + stage, 1)
                cute.arch.mbarrier_init(empty_t + stage, CONSUMER_WARPS * CLUSTER)
        cute.arch.mbarrier_init_fence()
    if warp == WEIGHT_WARP:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(WEIGHT_STAGES):
                cute.arch.mbarrier_init(full_w + stage, 1)
                cute.arch.mbarrier_init(empty_w + stage, CONSUMER_WARPS)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()
    cute.arch.cluster_arrive_relaxed()
    if warp != WEIGHT_WARP:
        cute.arch.cluster_wait()

    weights = weights_ptr.toint()

    if warp >= 4:
        cute.arch.setmaxregister_increase(CONSUMER_REGISTERS)
        state = (begin, fields[begin, WIDTH], Int32(0), Int32(0))
        arguments = (fields, places, rank, weights, tokens, full_w, empty_w, full_t, empty_t)
        consume_items(WIDTHS, arguments, *state)
    else:
        cute.arch.setmaxregister_decrease(PRODUCER_REGISTERS)
        if warp == TOKEN_WARP:
            load_input((places.iterator + begin * ROW).toint())  # into L1, before the wait
            # Before this, nothing that dequantise_kernel writes may be read.
            cute.arch.griddepcontrol_wait()
            ptx("fence.proxy.async.global;", "", results=0)
            tokens_address = tokens.toint()
            stage = Int32(0)
            parity = Int32(1)
            item = begin
            while fields[item, WIDTH] > 0:
                width = fields[item, WIDTH]
                rows = fields[item, ROWS]
                units = fields[item, UNITS]
                source = workspace + Int64(fields[item, FIRST_LINE]) * Int64(LINE)
                pitch = Int64(fields[item, HEIGHT] * LINE)
                # This CTA's share of the rows
                share = (rows + CLUSTER - 1) // CLUSTER
                first_row = min(rank * share, rows)
                size = (min(first_row + share, rows) - first_row) * LINE
                source += Int64(first_row * LINE)
                atoms = Int32(1)  # atoms_per_stage(width)
                if width <= 128:
                    atoms = Int32(2)
                if width <= 64:
                    atoms = Int32(4)
                for _ in cutlass.range(units * ATOMS_PER_UNIT // atoms, unroll=1):
                    cute.arch.mbarrier_wait(empty_t + stage, parity)
                    if lane == 0:
                        mbar = full_t + stage
                        cute.arch.mbarrier_arrive_and_expect_tx(mbar, rows * atoms * LINE)
                        if size > 0:
                            target = tokens_address + stage * TOKEN_STAGE + first_row * LINE
                            for atom in cutlass.range(atoms, unroll=1):
                                copy_bulk_to_cluster(
                                    target + atom * width * LINE, source + pitch * atom, size, mbar.toint()
                                )
                    source += pitch * atoms
                    stage += 1
                    if stage == TOKEN_STAGES:
                        stage = Int32(0)
                        parity ^= 1
                item += 1
            # This CTA may leave when nothing can arrive at its barriers any more.
            for _ in cutlass.range(TOKEN_STAGES, unroll=1):
                cute.arch.mbarrier_wait(empty_t + stage, parity)
                stage += 1
                if stage == TOKEN_STAGES:
                    stage = Int32(0)
                    parity ^= 1
        if warp == WEIGHT_WARP:
            stage = Int32(0)
            parity = Int32(1)
            item = begin
            if lane == 0:
                acquire_map(maps + places[item, WEIGHTS])
            while fields[item, WIDTH] > 0:
                units = fields[item, UNITS]
                block = min(rank, fields[item, BLOCKS] - 1)
                y = (fields[item, BLOCK] + block) * WEIGHT_ROWS
                tensor_map = maps + places[item, WEIGHTS]
                if lane == 0 and fields[item + 1, WIDTH] > 0:
                    acquire_map(maps + places[item + 1, WEIGHTS])
                scale_source = places[item, WEIGHT_SCALES] + Int64(block * units) * Int64(SCALE_BYTES)
                for unit in cutlass.range(units, unroll=1):
                    cute.arch.mbarrier_wait(empty_w + stage, parity)
                    if lane == 0:
                        target = weights + stage * WEIGHT_STAGE
                        mbar = full_w + stage
                        cute.arch.mbarrier_arrive_and_expect_tx(mbar, WEIGHT_STAGE)
                        copy_tile(target, tensor_map, unit * (UNIT_K // 2), y, mbar.toint())
                        copy_bulk(target + WEIGHT_BYTES, scale_source, Int32(SCALE_BYTES), mbar.toint())
                    scale_source += SCALE_BYTES
                    stage += 1
                    if stage == WEIGHT_STAGES:
                        stage = Int32(0)
                        parity ^= 1
                item += 1
            cute.arch.cluster_wait()


@cute.jit
def launch(host: cute.Pointer, first: Int32, most: Int32, num_clusters: Int32, depth: Int32):
    """Launch both kernels, the second while the first runs.

    `host` points to the addresses of the tensor maps, of the table, and of the workspace. The table has `first` tiles,
    each for at most `most` CTAs, and `num_clusters` times `depth` rows of items.
    """
    addresses = cute.make_tensor(host, cute.make_layout((3,)))
    table = cute.make_ptr(Int64, addresses[1], cute.AddressSpace.gmem, assumed_align=16)
    rows = first + num_clusters * depth
    places = cute.make_tensor(table, cute.make_layout((rows, ROW), stride=(ROW, 1)))
    halves = cute.make_layout((rows, 2 * ROW), stride=(2 * ROW, 1))
    fields = cute.make_tensor(cute.recast_ptr(table, dtype=Int32), halves)
    workspace = addresses[2]
    dequantise_kernel(fields, places, workspace).launch(grid=(most, first, 1), block=(DEQUANTISE_THREADS, 1, 1))
    group_gemm_kernel(fields, places, addresses[0], workspace, first, depth).launch(
        grid=(num_clusters * CLUSTER, 1, 1),
        block=(NUM_THREADS, 1, 1),
        cluster=(CLUSTER, 1, 1),
        min_blocks_per_mp=1,  # without it ptxas ignores setmaxnreg (C7508)
        use_pdl=True,
    )


def host_pointer(address):
    """A run-time argument: pointer to Int64 in the host's memory."""
    return cute.runtime.make_ptr(Int64, address, cute.AddressSpace.generic, assumed_align=8)


@functools.cache
def compiled():
    """The one compiled launcher; all its arguments are run-time values."""
    return cute.compile(launch, host_pointer(0), *[Int32(1)] * 4)


def weight_map(address, n, k):
    """The tensor map of a group's weights, as 64-bit words: boxes of 128 rows and 128 bytes, with their swizzle.

    A group without weights has zeros.
    """
    if n == 0:
        return [0] * MAP
    status, made = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2,
        address,
        [driver.cuuint64_t(k // 2), driver.cuuint64_t(n)],
        [driver.cuuint64_t(k // 2)],
        [driver.cuuint32_t(UNIT_K // 2), driver.cuuint32_t(WEIGHT_ROWS)],
        [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"no tensor map of {n} rows of {k} weights at {address:#x}: {status}")
    return [int(word) for word in made.opaque]


class Call:
    """What calls on equal sizes share on one device and thread: the schedule, and the launcher's packed arguments."""

    def __init__(self, problem_sizes, device):
        rows, groups, *sizes, lines = plan(problem_sizes, max_clusters(device))
        self.sizes = problem_sizes
        self.rows = torch.tensor(rows, dtype=torch.int64)
        self.groups = torch.tensor(groups)
        self.workspace_bytes = lines * LINE
        self.table_of = functools.lru_cache(maxsize=256)(self.table)
        self.host = array.array("q", [0, 0, 0])
        launcher = compiled().to(device)
        # The packed arguments point into these.
        self.kept = host_pointer(self.host.buffer_info()[0]), *map(Int32, sizes)
        self.packed, self.adapted = launcher.generate_execution_args(*self.kept)
        self.run = launcher.run_compiled_program

    def table(self, addresses):
        """The tensor maps and the table on the device for five addresses of each group: a function of them, so once."""
        table = self.rows.clone()
        table[:, -5:] += torch.tensor([(a, 0, *rest) for a, _, *rest in (*addresses, (0,) * 5)])[self.groups]
        groups = zip(addresses, self.sizes, strict=True)
        maps = torch.tensor([weight_map(b, n, k) for (_, b, *_), (_, n, k, _) in groups], dtype=torch.uint64)
        return torch.cat((maps.view(torch.int64).flatten(), table.flatten())).cuda()

    def __call__(self, addresses):
        """Launch both kernels on tensors at these addresses."""
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device="cuda")
        # In place, since the packed arguments have this array's address
        self.host[0] = table = self.table_of(addresses).data_ptr()
        self.host[1] = table + len(addresses) * MAP * 8
        self.host[2] = workspace.data_ptr()
        self.run(self.packed)


@functools.lru_cache(maxsize=256)
def call_of(problem_sizes, device, _thread):
    """The `Call` on these sizes; None if there is nothing to compute. Raise ValueError as `check_problem` does.

    A thread has its own, since a launcher reads its addresses without the interpreter's lock.
    """
    check_problem(problem_sizes)
    return Call(problem_sizes, device) if any(m and n for m, n, _, _ in problem_sizes) else None


@functools.cache
def max_clusters(device):
    """Clusters that the device holds at once, one CTA per SM."""
    return torch.cuda.get_device_properties(device).multi_processor_count // CLUSTER


def compile_kernel(problem_sizes):
    """Compile, once for all problems; `problem_sizes` is only checked."""
    check_problem(problem_sizes)
    return compiled()


def custom_kernel(data: input_t) -> output_t:
    """Compute every group's C in place and return the list of them; `data` is as GPU MODE's task defines it."""
    abc_tensors, _, sf_tensors, problem_sizes = data
    call = call_of(tuple(map(tuple, problem_sizes)), torch.cuda.current_device(), threading.get_ident())
    if call is not None:
        call(
            tuple(
                (a.data_ptr(), b.data_ptr(), sfa.data_ptr(), sfb.data_ptr(), c.data_ptr())
                for (a, b, c), (sfa, sfb) in zip(abc_tensors, sf_tensors, strict=True)
            )
        )
    return [c for _, _, c in abc_tensors]
