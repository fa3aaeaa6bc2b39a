"""``ldmatrix`` and ``stmatrix`` in every shape and count; PTX ISA, "ldmatrix" and "stmatrix"."""

from __future__ import annotations

from collections.abc import Callable

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import utils
from cutlass.cute import arch

from .blocks import block_feature
from .perthread import ptx32

ROWS = 32


def loads(count: int, *, transposed: bool) -> Callable[[cute.Tensor, cute.Tensor], None]:
    """Every lane gives the address of a row of 8 16-bit values; ``count`` matrices arrive, a register each."""
    names = [f"r{i}" for i in range(count)]
    registers = ", ".join(names)
    trans = ".trans" if transposed else ""
    code = (
        f"{{ .reg .b32 {registers}; ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [$1]; "
        f"mov.b32 $0, %s; }}"
    )

    @cute.jit
    def load(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        # A row of 8 values takes 24 bytes of 16-byte units: rows do not follow each other.
        shared = smem.allocate_tensor(cutlass.Int16, cute.make_layout((ROWS, 8), stride=(24, 1)), byte_alignment=128)
        for i in cutlass.range_constexpr(8):
            shared[thread, i] = x[thread, i]
        arch.sync_warp()
        address = shared[(thread * 5 + 3) % ROWS, None].iterator.toint()
        for i in cutlass.range_constexpr(count):
            y[thread, i] = ptx32(code % names[i], address)

    return load


def load_reference(count: int, *, transposed: bool) -> Callable[[np.ndarray], np.ndarray]:
    """Lane l of matrix i has row l // 4 and columns 2 * (l % 4) and the next (of the transposed matrix)."""

    def reference(x: np.ndarray) -> np.ndarray:
        rows = x.view(np.uint16)[(np.arange(ROWS) * 5 + 3) % ROWS]
        lanes = np.arange(32)
        words = []
        for i in range(count):
            matrix = rows[8 * i : 8 * i + 8]
            matrix = matrix.T if transposed else matrix
            low, high = (matrix[lanes // 4, 2 * (lanes % 4) + j].astype(np.uint32) for j in (0, 1))
            words.append(low | high << 16)
        return np.stack(words, axis=1).view(np.int32)

    return reference


def stores(count: int, *, transposed: bool) -> Callable[[cute.Tensor, cute.Tensor], None]:
    """The inverse: registers to rows at addresses given by lanes."""
    registers = ", ".join(f"${i + 2}" for i in range(count))
    trans = ".trans" if transposed else ""
    code = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [$1], {{{registers}}}; mov.b32 $0, 0;"

    @cute.jit
    def store(x: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = arch.thread_idx()
        smem = utils.SmemAllocator()
        shared = smem.allocate_tensor(cutlass.Int16, cute.make_layout((ROWS, 8), stride=(24, 1)), byte_alignment=128)
        for i in cutlass.range_constexpr(8):
            shared[thread, i] = cutlass.Int16(-1)
        arch.sync_warp()
        address = shared[(thread * 5 + 3) % ROWS, None].iterator.toint()
        ptx32(code, address, *[x[thread, i] for i in range(count)])
        arch.sync_warp()
        for i in cutlass.range_constexpr(8):
            y[thread, i] = shared[thread, i]

    return store


def store_reference(count: int, *, transposed: bool) -> Callable[[np.ndarray], np.ndarray]:
    def reference(x: np.ndarray) -> np.ndarray:
        shared = np.full((ROWS, 8), -1, np.int16)
        lanes = np.arange(32)
        words = x.view(np.uint32)
        for i in range(count):
            matrix = np.zeros((8, 8), np.uint16)
            for j in (0, 1):
                matrix[lanes // 4, 2 * (lanes % 4) + j] = (words[:, i] >> (16 * j)).astype(np.uint16)
            matrix = matrix.T if transposed else matrix
            shared[((8 * i + np.arange(8)) * 5 + 3) % ROWS] = matrix.view(np.int16)
        return shared

    return reference


@cute.jit
def through_atoms(x: cute.Tensor, y: cute.Tensor) -> None:
    """CuTe's own atoms: a 16 x 16 tile of fp16 goes to registers with ldmatrix.x4 and back with stmatrix.x4.trans."""
    thread, _, _ = arch.thread_idx()
    smem = utils.SmemAllocator()
    source = smem.allocate_tensor(cutlass.Float16, cute.make_layout((16, 16), stride=(16, 1)), byte_alignment=128)
    target = smem.allocate_tensor(cutlass.Float16, cute.make_layout((16, 16), stride=(1, 16)), byte_alignment=128)
    for i in cutlass.range_constexpr(8):
        source[i * 2 + thread // 16, thread % 16] = x[i * 2 + thread // 16, thread % 16]
    arch.sync_warp()
    load = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(transpose=False, num_matrices=4), cutlass.Float16)
    store = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(transpose=True, num_matrices=4), cutlass.Float16)
    # The fragment of an mma.m16n8k16's A: lane, then pairs of columns, rows 8 apart, columns 8 apart.
    threads_values = cute.make_layout(((4, 8), (2, 2, 2)), stride=((32, 1), (16, 8, 128)))
    tiled_load = cute.make_tiled_copy(load, threads_values, (16, 16))
    tiled_store = cute.make_tiled_copy(store, threads_values, (16, 16))
    thread_load, thread_store = tiled_load.get_slice(thread), tiled_store.get_slice(thread)
    from_source = thread_load.partition_S(source)
    registers = cute.make_rmem_tensor(thread_load.partition_D(source).shape, cutlass.Float16)
    cute.copy(tiled_load, from_source, registers)
    registers.store(registers.load() * cutlass.Float16(2.0))
    cute.copy(tiled_store, thread_store.retile(registers), thread_store.partition_D(target))
    arch.sync_warp()
    for i in cutlass.range_constexpr(8):
        y[i * 2 + thread // 16, thread % 16] = target[i * 2 + thread // 16, thread % 16]


def random16(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.integers(-(2**15), 2**15, shape)


def random32(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.integers(-(2**31), 2**31, shape)


def names_and_forms(operation: str) -> list[tuple[str, int, bool]]:
    return [
        (f"{operation}_x{count}{'_trans' if transposed else ''}", count, transposed)
        for count in (1, 2, 4)
        for transposed in (False, True)
    ]


FEATURES = (
    *(
        block_feature(
            name,
            loads(count, transposed=transposed),
            load_reference(count, transposed=transposed),
            shape=(ROWS, 8),
            out_shape=(32, count),
            dtype=np.int16,
            out_dtype=np.int32,
            draw=random16,
            block=(32, 1, 1),
            opcodes=(f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16",),
        )
        for name, count, transposed in names_and_forms("ldmatrix")
    ),
    *(
        block_feature(
            name,
            stores(count, transposed=transposed),
            store_reference(count, transposed=transposed),
            shape=(32, count),
            out_shape=(ROWS, 8),
            dtype=np.int32,
            out_dtype=np.int16,
            draw=random32,
            block=(32, 1, 1),
            opcodes=(f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.shared.b16",),
        )
        for name, count, transposed in names_and_forms("stmatrix")
    ),
    block_feature(
        "matrix_atoms",
        through_atoms,
        lambda x: x * 2,
        shape=(16, 16),
        dtype=np.float16,
        draw=lambda random, shape: random.integers(-100, 100, shape),
        block=(32, 1, 1),
        opcodes=("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "stmatrix.sync.aligned.m8n8.x4.trans(.shared)?.b16"),
    ),
)
