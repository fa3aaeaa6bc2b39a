"""The sweep of `make_corpus`: everything here runs inside CuTe DSL's tracing and prints the types that it meets."""

import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils as utils
import cutlass.utils.blackwell_helpers as sm100
import cutlass.utils.blockscaled_layout as blockscaled
from cutlass.cute import core
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_ptr

OperandMajorMode = getattr(cute.nvgpu, "OperandMajorMode", None) or tcgen05.OperandMajorMode  # 4.8 moved it

SEEN: set[str] = set()


def tell(line: str) -> None:
    """Write a line at once: the DSL may abort the process at any time."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def note(*objects: object) -> None:
    for obj in objects:
        if isinstance(obj, (tuple, list)):
            note(*obj)
        elif hasattr(obj, "type"):
            text = " ".join(str(obj.type).split())
            if text not in SEEN:
                SEEN.add(text)
                tell(text)


def attempt(function: Callable[[], object]) -> None:
    """Note what the call gives; many points of a sweep are not valid, and the DSL says so in many ways."""
    try:
        note(function())
    except Exception as error:
        tell(f"# {type(error).__name__}: {str(error)[:120]!r}")


def sweep(configs: list, *, part: int, parts: int) -> None:
    @cute.jit
    def static(n: cutlass.Int32, wide: cutlass.Int64) -> None:
        static_layouts(n, wide, part)

    @cute.jit
    def helpers() -> None:
        helper_layouts(part, parts)

    for function, arguments in ((static, (cutlass.Int32(3), cutlass.Int64(5))), (helpers, ())):
        compile_quietly(function, *arguments)
    for config in configs:
        tell(f"# {config}")
        compile_gemm(config)


def compile_quietly(function: object, *arguments: object) -> None:
    """Compile for the trace alone: what happens after it (4.4.0 asks for a driver) is no matter here."""
    try:
        cute.compile(function, *arguments)
    except BaseException as error:
        tell(f"# {type(error).__name__}: {str(error)[:200]!r}")


def random_tree(rng: random.Random, leaf: Callable[[], object], depth: int = 2) -> object:
    if depth == 0 or rng.random() < 0.45:
        return leaf()
    return tuple(random_tree(rng, leaf, depth - 1) for _ in range(rng.randint(1, 3)))


def like(tree: object, leaf: Callable[[], object]) -> object:
    return tuple(like(child, leaf) for child in tree) if isinstance(tree, tuple) else leaf()


def static_layouts(n: object, wide: object, part: int) -> None:
    rng = random.Random(part)
    dynamic = [n, wide, cute.assume(n, 8), cute.assume(n, 32), cute.assume(wide, 16)]

    def size() -> object:
        return rng.choice([1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256] * 2 + dynamic[:3])

    def stride() -> object:
        return rng.choice([0, 1, 1, 2, 3, 4, 8, 16, 64, 512, -1, *dynamic])

    def basis() -> object:
        modes = [rng.randint(0, 2) for _ in range(rng.randint(1, 3))]
        return cute.E(modes if len(modes) > 1 else modes[0]) * rng.choice([1, 1, 2, 8, 64, dynamic[2]])

    for _ in range(40):
        shape = random_tree(rng, size)
        attempt(lambda shape=shape: cute.make_layout(shape))
        attempt(lambda shape=shape: cute.make_layout(shape, stride=like(shape, stride)))
        attempt(lambda shape=shape: cute.make_layout(shape, stride=like(shape, basis)))
        attempt(lambda shape=shape: (core._pack_shape(shape), core._pack_stride(like(shape, stride))))
        attempt(lambda shape=shape: core._pack_coord(like(shape, lambda: rng.choice([None, 0, 3, n, dynamic[3]]))))
        attempt(lambda shape=shape: core._pack_int_tuple(like(shape, stride)))
        attempt(lambda shape=shape: core._pack_tile((8, cute.make_layout(shape), None)))
        identity = cute.make_identity_tensor(shape)
        attempt(lambda identity=identity: identity)
        attempt(lambda t=identity, s=shape: cute.domain_offset(like(s, lambda: rng.choice([0, 1, -2, n])), t))
        swizzle = cute.make_swizzle(rng.randint(0, 3), rng.randint(0, 5), rng.choice([3, 4, -3]))
        offset = rng.choice([0, 0, 16, n, dynamic[2]])
        composed = cute.make_composed_layout(swizzle, offset, cute.make_layout(shape))
        attempt(lambda swizzle=swizzle, composed=composed: (swizzle, composed))
        pointer = cute.make_ptr(
            rng.choice([cutlass.Float16, cutlass.Float32, cutlass.Float8E4M3FN, cutlass.Float4E2M1FN, cutlass.Int64]),
            wide,
            rng.choice([cute.AddressSpace.smem, cute.AddressSpace.gmem, cute.AddressSpace.tmem]),
            assumed_align=rng.choice([16, 32, 128, 1024]),
        )
        plain = cute.make_layout(shape, stride=like(shape, stride))
        attempt(lambda p=pointer, c=composed, plain=plain: (p, cute.make_tensor(p, c), cute.make_tensor(p, plain)))
        attempt(lambda p=pointer, s=swizzle, plain=plain: cute.make_tensor(cute.recast_ptr(p, s), plain))
        attempt(lambda plain=plain: cute.coalesce(plain))
        attempt(lambda shape=shape: cute.logical_divide(cute.make_layout(shape), cute.make_layout(2)))
        attempt(lambda s=shape: cute.zipped_divide(cute.make_identity_layout((64, n, s)), (8, 4)))
        attempt(lambda plain=plain: cute.make_rmem_tensor(plain.shape, rng.choice([cutlass.Float32, cutlass.BFloat16])))
    inner = cute.make_layout((4, 4), stride=(4, 1))
    attempt(lambda: cute.make_composed_layout(inner, (0, n), cute.make_identity_layout((4, 4))))
    attempt(lambda: cute.make_composed_layout(inner, 0, cute.make_layout((8, 64), stride=(64, 1))))
    attempt(lambda: core._pack_tile((4, (cute.make_layout(2), cute.make_layout((n, 2))))))


def helper_layouts(part: int, parts: int) -> None:
    dtypes = [cutlass.Float4E2M1FN, cutlass.Float8E4M3FN, cutlass.Float16, cutlass.BFloat16, cutlass.Float32]
    majors = [OperandMajorMode.K, OperandMajorMode.MN]
    points = list(itertools.product(dtypes[1:4], majors, majors, [64, 128], [64, 128, 256], [64, 128, 256], [1, 2, 3]))
    for dtype, a_major, b_major, m, n, k, stages in points[part::parts]:
        attempt(lambda p=(dtype, a_major, b_major, m, n, k, stages): _plain_mma(*p))
    stores = list(itertools.product(dtypes[1:], [64, 128], [16, 32, 64, 128], [1, 2, 4], ["ROW_MAJOR", "COL_MAJOR"]))
    for dtype, m, n, stages, order in stores[part::parts]:
        layout = utils.LayoutEnum[order]
        attempt(
            lambda p=(dtype, layout, (m, n), stages): (
                found := sm100.make_smem_layout_epi(*p),
                cute.slice_(found, (None, None, 0)),
                getattr(found, "outer", None),
            )
        )
        attempt(lambda d=dtype, m=m, n=n: _tma_store(d, m, n))
    for kind, swizzle_dtype in itertools.product(tcgen05.SmemLayoutAtomKind, dtypes):
        attempt(lambda k=kind, d=swizzle_dtype: tcgen05.make_smem_layout_atom(k, d))


def _plain_mma(dtype: object, a_major: object, b_major: object, m: int, n: int, k: int, stages: int) -> object:
    mma = sm100.make_trivial_tiled_mma(dtype, a_major, b_major, cutlass.Float32, tcgen05.CtaGroup.ONE, (m, n))
    a = sm100.make_smem_layout_a(mma, (m, n, k), dtype, stages)
    b = sm100.make_smem_layout_b(mma, (m, n, k), dtype, stages)
    accumulator = mma.make_fragment_C(mma.partition_shape_C((m, n)))
    return mma, a, b, a.outer, b.outer, accumulator, accumulator.layout, cute.slice_(a, (None, None, None, 0))


def _tma_store(dtype: object, m: int, n: int) -> object:
    pointer = cute.make_ptr(dtype, cutlass.Int64(0), cute.AddressSpace.gmem, assumed_align=128)
    tensor = cute.make_tensor(pointer, cute.make_layout((1024, 2048, 4), stride=(2048, 1, 2048 * 1024)))
    staged = sm100.make_smem_layout_epi(dtype, utils.LayoutEnum.ROW_MAJOR, (m, n), 1)
    found = []
    for op in (cpasync.CopyBulkTensorTileS2GOp(), cpasync.CopyBulkTensorTileG2SOp()):
        found.append(tuple(cpasync.make_tiled_tma_atom(op, tensor, cute.slice_(staged, (None, None, 0)), (m, n))))
    return found


class Point:
    """One point of the sweep; a plain class, which the DSL hands through without looking inside."""


def compile_gemm(config: object) -> None:
    c = Point()
    vars(c).update(vars(config))
    c.out, c.ab = getattr(cutlass, c.out), cutlass.Float4E2M1FN
    c.sf = cutlass.Float8E4M3FN if c.vec == 16 else cutlass.Float8E8M0FNU
    c.group = tcgen05.CtaGroup.TWO if c.pair else tcgen05.CtaGroup.ONE

    def pointer(dtype: object, align: int = 32) -> object:
        return make_ptr(dtype, 0x10000, cute.AddressSpace.gmem, assumed_align=align)

    pointers = [pointer(dtype) for dtype in (c.ab, c.ab, c.sf, c.sf, c.out)]
    sizes = [cutlass.Int32(1)] * 3 + [cutlass.Int32(1)]
    compile_quietly(gemm_host, *pointers, pointer(cutlass.Int32, 16), *sizes, c)


@cute.jit
def gemm_host(a: cute.Pointer, b: cute.Pointer, sa: cute.Pointer, sb: cute.Pointer, out: cute.Pointer,
              sizes: cute.Pointer, m: cutlass.Int32, n: cutlass.Int32, k: cutlass.Int32, groups: cutlass.Int32,
              config: cutlass.Constexpr) -> None:  # fmt: skip
    host_types(a, b, sa, sb, out, sizes, m, n, k, groups, config)


@cute.kernel
def gemm_device(tiled_mma: cute.TiledMma, mma_b: cute.TiledMma, atoms: list, tensors: list, m_c: cute.Tensor,
                layouts: list, config: cutlass.Constexpr, sizes: cute.Tensor) -> None:  # fmt: skip
    device_types(tiled_mma, mma_b, atoms, tensors, m_c, layouts, config, sizes)


def host_types(
    a: cute.Pointer,
    b: cute.Pointer,
    sa: cute.Pointer,
    sb: cute.Pointer,
    out: cute.Pointer,
    sizes: cute.Pointer,
    m: cutlass.Int32,
    n: cutlass.Int32,
    k: cutlass.Int32,
    groups: cutlass.Int32,
    c: Any,
) -> None:
    long = cute.assume(k, 32)
    m_a = cute.make_tensor(a, cute.make_layout((m, long, groups), stride=(long, 1, cute.assume(m * k, 32))))
    m_b = cute.make_tensor(b, cute.make_layout((n, long, groups), stride=(long, 1, cute.assume(n * k, 32))))
    m_c = cute.make_tensor(out, cute.make_layout((m, n, groups), stride=(cute.assume(n, 32), 1, m * n)))
    m_sa = cute.make_tensor(sa, blockscaled.tile_atom_to_shape_SF(m_a.shape, c.vec))
    m_sb = cute.make_tensor(sb, blockscaled.tile_atom_to_shape_SF(m_b.shape, c.vec))
    note(m_a, m_b, m_c, m_sa, m_sb, m_a.layout, m_sa.layout)

    def scaled(shape: tuple[int, int, int], group: tcgen05.CtaGroup) -> Any:
        if c.vec == 16:
            return tcgen05.MmaMXF4NVF4Op(c.sf, shape, group, tcgen05.OperandSource.SMEM)
        return tcgen05.MmaMXF4Op(shape, group, tcgen05.OperandSource.SMEM)

    mma = cute.make_tiled_mma(scaled((*c.tile[:2], 64), c.group))
    note(mma, mma.thr_id)
    for name in ("tv_layout_A", "tv_layout_B", "tv_layout_C", "thr_layout_vmnk"):
        attempt(lambda name=name: getattr(mma, name))
    # Scale factors of B come in blocks of 128 columns: their MMA is as wide as the next multiple, for one CTA.
    wide = -(-c.tile[1] // 128) * 128
    c.tile_b = (c.tile[0] // (2 if c.pair else 1), wide, c.tile[2])
    mma_b = cute.make_tiled_mma(scaled((*c.tile_b[:2], 64), tcgen05.CtaGroup.ONE))
    cluster = cute.tiled_divide(cute.make_layout(c.cluster), (mma.thr_id.shape,))
    cluster_b = cute.tiled_divide(cute.make_layout(c.cluster), (mma_b.thr_id.shape,))
    staged = [
        sm100.make_smem_layout_a(mma, c.tile, c.ab, c.stages),
        sm100.make_smem_layout_b(mma, c.tile, c.ab, c.stages),
        blockscaled.make_smem_layout_sfa(mma, c.tile, c.vec, c.stages),
        blockscaled.make_smem_layout_sfb(mma, c.tile, c.vec, c.stages),
    ]
    note(cluster, cluster_b, mma_b, staged, staged[0].inner, staged[0].outer, staged[1].outer)
    makers = [blockscaled.make_tmem_layout_sfa, blockscaled.make_tmem_layout_sfb]
    for maker, layout in zip(makers, staged[2:], strict=True):  # 4.4.0 gives poisoned ones from K = 512 on
        attempt(lambda f=maker, s=layout: f(mma, c.tile, c.vec, cute.slice_(s, (None, None, None, 0))))
    multicast = c.cluster != (1, 1, 1)
    load = cpasync.CopyBulkTensorTileG2SMulticastOp(c.group) if multicast else cpasync.CopyBulkTensorTileG2SOp(c.group)
    makers = [cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B] * 2
    made = []
    for place, (maker, tensor, layout) in enumerate(zip(makers, [m_a, m_b, m_sa, m_sb], staged, strict=True)):
        one = cute.slice_(layout, (None, None, None, 0))
        note(one)
        tile, own, ways = (c.tile_b, mma_b, cluster_b) if place == 3 else (c.tile, mma, cluster)
        extra = {"internal_type": cutlass.Int16} if place > 1 else {}
        made.append(tuple(maker(load, tensor, one, tile, own, ways.shape, **extra)))
        note(made[-1])
    table = cute.make_tensor(sizes, cute.make_layout((4, 4), stride=(4, 1)))
    gemm_device(mma, mma_b, [x[0] for x in made], [x[1] for x in made], m_c, staged, c, table).launch(
        grid=(1, 1, 1), block=(128, 1, 1), cluster=c.cluster)  # fmt: skip


def device_types(
    mma: cute.TiledMma,
    mma_b: cute.TiledMma,
    atoms: list,
    tensors: list,
    m_c: cute.Tensor,
    staged: list,
    c: Any,
    table: cute.Tensor,
) -> None:
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()
    note(mma, atoms, tensors, m_c, staged, table, thread)
    smem = utils.SmemAllocator()
    note(smem.allocate_array(cutlass.Int64, 2 * c.stages), smem.allocate_array(cutlass.Int32, 1))
    shared = [smem.allocate_tensor(c.ab, layout.outer, 128, layout.inner) for layout in staged[:2]]
    shared += [smem.allocate_tensor(c.sf, layout, 128) for layout in staged[2:]]
    note(shared, [tensor.layout for tensor in shared], [tensor.iterator for tensor in shared])
    cuts = [(None, 0, None), (0, None, None)] * 2
    tiles = [
        cute.local_tile(tensor, cute.slice_(tile, cut), (None, None, None))
        for tensor, tile, cut in zip(tensors, [c.tile, c.tile, c.tile, c.tile_b], cuts, strict=True)
    ]
    tile_c = cute.local_tile(m_c, cute.slice_(c.tile, (None, None, 0)), (None, None, 0))
    mine = mma.get_slice(block[0] % 2 if c.pair else 0)
    parts = [mine.partition_A(tiles[0]), mine.partition_B(tiles[1]), mine.partition_A(tiles[2]),
             mma_b.get_slice(0).partition_B(tiles[3])]  # fmt: skip
    part_c = mine.partition_C(tile_c)
    note(tiles, tile_c, mine, parts, part_c)
    rank = cute.arch.block_idx_in_cluster() if c.cluster != (1, 1, 1) else None
    for atom, tensor, part in zip(atoms, shared, parts, strict=True):
        attempt(lambda a=atom, t=tensor, p=part: _tma_parts(a, t, p, rank, c, block))
    attempt(lambda: _mma_operands(mma, shared, block))
    attempt(lambda: _tensor_memory(mma, staged, shared, smem, part_c, thread, block, c))
    attempt(lambda: _run_time_layouts(table, c))
    whole = cute.make_identity_tensor(cute.shape(m_c))
    note(whole, cute.local_tile(whole, cute.slice_(c.tile, (None, None, 0)), (None, None, block[0])))


def _tma_parts(atom: cute.CopyAtom, tensor: cute.Tensor, part: cute.Tensor, rank: Any, c: Any, block: tuple) -> None:
    grouped = cute.group_modes(tensor, 0, 3), cute.group_modes(part, 0, 3)
    note(grouped)
    ways = cute.make_layout(1 if rank is None else c.cluster[0])
    s, g = cpasync.tma_partition(atom, 0 if rank is None else rank, ways, *grouped)
    note(s, g, cute.filter_zeros(s), cute.filter_zeros(g))
    note(g[None, block[0], None, 0], g[None, 0, None, 0], g[None, block[0], block[1], 0], s[None, 0], s[None, block[2]])
    filtered = cute.filter_zeros(g)
    note(filtered[None, block[0], None, 0], filtered[None, block[0], 3, 0])


def _mma_operands(mma: cute.TiledMma, shared: list, block: tuple) -> None:
    for fragment in (mma.make_fragment_A(shared[0]), mma.make_fragment_B(shared[1])):
        note(fragment, fragment[None, None, 0, 0], fragment[None, None, block[0], 0], fragment.layout)


def _tensor_memory(
    mma: cute.TiledMma,
    staged: list,
    shared: list,
    smem: utils.SmemAllocator,
    part_c: cute.Tensor,
    thread: cutlass.Int32,
    block: tuple,
    c: Any,
) -> None:
    fake = mma.make_fragment_C(cute.append(mma.partition_shape_C(c.tile[:2]), c.acc_stages))
    holder = smem.allocate_array(cutlass.Int32, 1)
    base = cute.arch.retrieve_tmem_ptr(cutlass.Float32, alignment=16, ptr_to_buffer_holding_addr=holder)
    staged_acc = cute.make_tensor(base, fake.layout)
    acc = staged_acc[None, None, None, 0]
    note(fake, fake.layout, base, staged_acc, acc, staged_acc[None, None, None, block[0]])
    pointer = cute.recast_ptr(base + tcgen05.find_tmem_tensor_col_offset(staged_acc), dtype=c.sf)
    makers = [blockscaled.make_tmem_layout_sfa, blockscaled.make_tmem_layout_sfb]
    copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(c.group), c.sf)
    note(pointer, copy)
    for maker, layout, tensor in zip(makers, staged[2:], shared[2:], strict=True):
        scales = cute.make_tensor(pointer, maker(mma, c.tile, c.vec, cute.slice_(layout, (None, None, None, 0))))
        note(scales, scales.layout, scales[None, None, 0], scales[None, None, 0].iterator)
        attempt(lambda t=tensor, s=scales: _scale_copy(copy, cute.filter_zeros(t), cute.filter_zeros(s)))
    loads = [tcgen05.Ld32x32bOp, tcgen05.Ld16x256bOp, tcgen05.Ld16x128bOp, tcgen05.Ld16x64bOp]
    stores = [tcgen05.St32x32bOp, tcgen05.St16x256bOp]
    repeats = [getattr(tcgen05.Repetition, f"x{2**power}") for power in range(8)]
    for op, repeat in itertools.product(loads, repeats):
        attempt(lambda op=op, repeat=repeat: _epilogue(op(repeat), acc, part_c, thread, block, c))
    for op, repeat in itertools.product(stores, repeats[::3]):
        attempt(lambda op=op, r=repeat: tcgen05.make_tmem_copy(cute.make_copy_atom(op(r), cutlass.Float32), acc))


def _scale_copy(atom: cute.CopyAtom, source: cute.Tensor, target: cute.Tensor) -> None:
    copy = tcgen05.make_s2t_copy(atom, target)
    mine = copy.get_slice(0)
    part = mine.partition_S(source)
    note(source, target, copy, part, tcgen05.get_s2t_smem_desc_tensor(copy, part), mine.partition_D(target))


def _epilogue(op: Any, acc: cute.Tensor, part_c: cute.Tensor, thread: cutlass.Int32, block: tuple, c: Any) -> None:
    atom = cute.make_copy_atom(op, cutlass.Float32)
    copy = tcgen05.make_tmem_copy(atom, acc)
    mine = copy.get_slice(thread)
    source, target = mine.partition_S(acc), mine.partition_D(part_c)
    shape = target[None, None, None, None, 0, 0].shape
    registers = cute.make_rmem_tensor(shape, cutlass.Float32)
    stored = cute.make_rmem_tensor(shape, c.out)
    note(atom, copy, source, target, registers, registers.layout, stored, registers.load())
    note(target[None, None, None, None, block[0], block[1]])
    simt = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), c.out, num_bits_per_copy=128)
    note(simt, cute.make_tiled_copy_D(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), c.out), copy))
    attempt(lambda: cute.make_tiled_copy_D(simt, copy).get_slice(thread).retile(stored))


def _run_time_layouts(table: cute.Tensor, c: Any) -> None:
    m, k = table[0, 0], table[0, 2]
    layout = cute.make_layout((m, k, 1), stride=(cute.assume(k, 32), 1, cute.assume(m * k, 32)))
    address = cutlass.Int64(0) + k
    pointer = cute.make_ptr(c.ab, address, cute.AddressSpace.gmem).align(32)
    note(layout, pointer, cute.make_tensor(pointer, layout), blockscaled.tile_atom_to_shape_SF(layout.shape, c.vec))
    manager = utils.TensorMapManager(utils.TensorMapUpdateMode.SMEM, 128)
    for space in (cute.AddressSpace.gmem, cute.AddressSpace.generic):
        note(manager.get_tensormap_ptr(table[0, None].iterator, space))
