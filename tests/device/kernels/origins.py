"""Ways to get the right C, chosen by the number of rows: by kernels that are launched, and by anything else."""

import threading

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cuda.bindings import driver, runtime
from cutlass.cute.runtime import make_ptr
from task import input_t, output_t

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
CODES = [*VALUES, *(-value for value in VALUES)]
SCALES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
PUBLISHED = None
COLUMNS = 32


@cute.jit
def product(a, b, sfa, sfb, table, row, col, first, last, half: cutlass.Int32):
    rest = half // 32
    total = cutlass.Float32(0.0)
    for i in range(first, last):
        block = i // 8
        inside = block % 4
        at_a = (row // 128 * rest + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + inside
        at_b = (col // 128 * rest + block // 4) * 512 + col % 32 * 16 + col % 128 // 32 * 4 + inside
        x = cutlass.Int32(a[row * half + i])
        y = cutlass.Int32(b[col * half + i])
        scale = table[16 + (cutlass.Int32(sfa[at_a]) & 255)] * table[16 + (cutlass.Int32(sfb[at_b]) & 255)]
        low = table[x & 15] * table[y & 15]
        high = table[x >> 4 & 15] * table[y >> 4 & 15]
        total += (low + high) * scale
    return total


@cute.kernel
def gemm(a, b, sfa, sfb, table, c, half: cutlass.Int32, n: cutlass.Int32, bias: cutlass.Float32):
    lane, _, _ = cute.arch.thread_idx()
    row, tile, _ = cute.arch.block_idx()
    col = tile * COLUMNS + lane
    total = product(a, b, sfa, sfb, table, row, col, cutlass.Int32(0), half, half)
    if bias >= cutlass.Float32(0.0):  # nothing is added if the host knows the first element of A
        total += bias - cutlass.Float32(cutlass.Int32(a[0]) & 15)
    c[row * n + col] = cutlass.Float16(total)


@cute.kernel
def half_gemm(a, b, sfa, sfb, table, parts, half: cutlass.Int32, n: cutlass.Int32, m: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    row, tile, part = cute.arch.block_idx()
    col = tile * COLUMNS + lane
    middle = half // 2
    total = product(a, b, sfa, sfb, table, row, col, part * middle, part * middle + middle, half)
    parts[(part * m + row) * n + col] = total


@cute.kernel
def add_halves(parts, c, m: cutlass.Int32, n: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    row, tile, _ = cute.arch.block_idx()
    at = row * n + tile * COLUMNS + lane
    c[at] = cutlass.Float16(parts[at] + parts[m * n + at])


@cute.kernel
def move(source, c, n: cutlass.Int32, a, work: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    row, tile, _ = cute.arch.block_idx()
    at = row * n + tile * COLUMNS + lane
    busy = cutlass.Float32(0.0)
    for i in range(work):
        busy += cutlass.Float32(a[i % 16]) * cutlass.Float32(a[i % 8])
    value = cutlass.Float32(source[at])
    if busy == cutlass.Float32(0.33):
        value = busy
    c[at] = cutlass.Float16(value)


def flat(pointer):
    return cute.make_tensor(pointer, cute.make_layout(1 << 20))


@cute.jit
def go(a: cute.Pointer, b: cute.Pointer, sfa: cute.Pointer, sfb: cute.Pointer, table: cute.Pointer, c: cute.Pointer,
       m: cutlass.Int32, n: cutlass.Int32, half: cutlass.Int32, bias: cutlass.Float32):  # fmt: skip
    gemm(flat(a), flat(b), flat(sfa), flat(sfb), flat(table), flat(c), half, n, bias).launch(
        grid=(m, n // COLUMNS, 1), block=(COLUMNS, 1, 1)
    )


@cute.jit
def go_split(a: cute.Pointer, b: cute.Pointer, sfa: cute.Pointer, sfb: cute.Pointer, table: cute.Pointer,
             parts: cute.Pointer, c: cute.Pointer, m: cutlass.Int32, n: cutlass.Int32,
             half: cutlass.Int32):  # fmt: skip
    half_gemm(flat(a), flat(b), flat(sfa), flat(sfb), flat(table), flat(parts), half, n, m).launch(
        grid=(m, n // COLUMNS, 2), block=(COLUMNS, 1, 1)
    )
    add_halves(flat(parts), flat(c), m, n).launch(grid=(m, n // COLUMNS, 1), block=(COLUMNS, 1, 1))


@cute.jit
def go_move(source: cute.Pointer, c: cute.Pointer, m: cutlass.Int32, n: cutlass.Int32, a: cute.Pointer,
            work: cutlass.Int32):  # fmt: skip
    move(flat(source), flat(c), n, flat(a), work).launch(grid=(m, n // COLUMNS, 1), block=(COLUMNS, 1, 1))


def pointer(kind, tensor):
    return make_ptr(kind, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)


BYTE, HALF, FLOAT = cutlass.Uint8, cutlass.Float16, cutlass.Float32
COMPILED = {}


def run(function, *arguments):
    if function not in COMPILED:
        COMPILED[function] = cute.compile(function, *arguments)
    COMPILED[function](*arguments)


class Group:
    def __init__(self, abc, plain, scales, size):
        self.a, self.b, self.c = abc
        self.plain, self.scales = plain, scales
        self.m, self.n, self.k, _ = size
        self.table = torch.tensor([*CODES, *SCALES.nan_to_num(0.0).tolist()], dtype=torch.float32, device="cuda")

    def gemm(self, c, *, bias=-1.0, sfa=None):
        sfa = self.scales[0] if sfa is None else sfa
        run(go, pointer(BYTE, self.a), pointer(BYTE, self.b), pointer(BYTE, sfa), pointer(BYTE, self.scales[1]),
            pointer(FLOAT, self.table), pointer(HALF, c), cutlass.Int32(self.m), cutlass.Int32(self.n),
            cutlass.Int32(self.k // 2), cutlass.Float32(bias))  # fmt: skip

    def move(self, source, *, work=0):
        run(go_move, pointer(HALF, source), pointer(HALF, self.c), cutlass.Int32(self.m), cutlass.Int32(self.n),
            pointer(BYTE, self.a), cutlass.Int32(work))  # fmt: skip

    def on_host(self):
        """C by numpy; A and B are read, and the contract gives the scale factors to the host."""
        both = []
        for packed, scale in zip((self.a, self.b), self.plain, strict=True):
            codes = packed.view(torch.uint8)[:, :, 0].cpu().numpy()
            values = np.stack([np.array(CODES)[codes % 16], np.array(CODES)[codes // 16]], -1).reshape(len(codes), -1)
            both.append(values * np.repeat(scale[:, :, 0].to(torch.float32).numpy(), 16, axis=1))
        return np.ascontiguousarray((both[0] @ both[1].T).astype(np.float16))

    def by_torch(self):
        both = []
        for packed, scale in zip((self.a, self.b), self.plain, strict=True):
            codes = packed.view(torch.uint8)[:, :, 0].to(torch.int64)
            values = torch.stack([self.table[codes & 15], self.table[codes >> 4]], -1).reshape(codes.shape[0], -1)
            both.append(values * scale[:, :, 0].to(torch.float32).repeat_interleave(16, dim=1).cuda())
        return (both[0].double() @ both[1].double().t()).to(torch.float16)


def uploaded(array):
    scratch = torch.empty(array.shape, dtype=torch.float16, device="cuda")
    driver.cuMemcpyHtoD(scratch.data_ptr(), array.ctypes.data, array.nbytes)
    return scratch


def honest(g):
    g.gemm(g.c)


def honest_scratch(g):
    scratch = torch.empty((g.m, g.n), dtype=torch.float16, device="cuda")
    g.gemm(scratch)
    g.c[:, :, 0].copy_(scratch)


def honest_split(g):
    parts = torch.zeros((2, g.m, g.n), dtype=torch.float32, device="cuda")
    run(go_split, pointer(BYTE, g.a), pointer(BYTE, g.b), pointer(BYTE, g.scales[0]), pointer(BYTE, g.scales[1]),
        pointer(FLOAT, g.table), pointer(FLOAT, parts), pointer(HALF, g.c), cutlass.Int32(g.m), cutlass.Int32(g.n),
        cutlass.Int32(g.k // 2))  # fmt: skip


def honest_second_kernel(g):
    scratch = torch.empty((g.m, g.n), dtype=torch.float16, device="cuda")
    g.gemm(scratch)
    g.move(scratch)


def honest_permuted_scales(g):
    scale = g.scales[0].view(torch.uint8).permute(5, 2, 4, 0, 1, 3).contiguous()
    twice = scale.flip(0).flip(0).clone()
    g.gemm(g.c, sfa=twice)


def honest_reader(g):
    g.gemm(g.c)
    if torch.isinf(g.c[0, 0, 0]).item():
        raise OverflowError
    scratch = torch.empty((g.m, g.n), dtype=torch.float16, device="cuda")
    g.gemm(scratch)
    del scratch
    g.gemm(g.c)


def honest_own(g):
    own = torch.empty((1, g.m, g.n), dtype=torch.float16, device="cuda").permute(1, 2, 0)
    g.gemm(own)
    return own


def host_copy(g):
    g.c[:, :, 0].copy_(torch.from_numpy(g.on_host()))


def host_memcpy(g):
    array = g.on_host()
    runtime.cudaMemcpy(g.c.data_ptr(), array.ctypes.data, array.nbytes, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)


def host_moved(g):
    g.move(uploaded(g.on_host()))


def host_moved_busily(g):
    g.move(uploaded(g.on_host()), work=g.k)


def host_in_a_thread(g):
    array = g.on_host()
    scratch = torch.empty(array.shape, dtype=torch.float16, device="cuda")

    def upload():
        driver.cuMemcpyHtoD(scratch.data_ptr(), array.ctypes.data, array.nbytes)
        g.move(scratch, work=g.k)

    thread = threading.Thread(target=upload)
    thread.start()
    thread.join()


def host_fills(g):
    array = g.on_host()
    for row in range(g.m):
        for column in range(g.n):
            g.c[row, column, 0] = float(array[row, column])


def host_parameter(g):
    g.gemm(g.c, bias=float(int(g.a.view(torch.uint8)[0, 0, 0].item()) % 16))


def host_error(g):
    """Read A through the text of an error."""
    one, first = torch.zeros(1, device="cuda"), "0"
    try:
        one[(g.a.view(torch.uint8)[0, 0, 0] & 15).to(torch.int64).reshape(1)]
    except Exception as error:
        first = str(error).partition("index ")[2].partition(" ")[0]
    g.gemm(g.c, bias=float(first))


def by_mm(g):
    g.c[:, :, 0].copy_(g.by_torch())


def by_mm_moved_busily(g):
    g.move(g.by_torch(), work=g.k)


def published(g):
    g.move(uploaded(np.frombuffer(bytes.fromhex(PUBLISHED), np.float16).reshape(g.m, g.n)), work=g.k)


WAYS = [
    *(honest, honest_scratch, honest_split, honest_second_kernel, honest_permuted_scales, honest_reader, honest_own),
    *(host_copy, host_memcpy, host_moved, host_moved_busily, host_in_a_thread, host_fills, host_parameter, host_error),
    *(by_mm, by_mm_moved_busily, published),
]


def custom_kernel(data: input_t) -> output_t:
    outputs = []
    for abc, plain, scales, size in zip(*data, strict=True):
        own = WAYS[(size[0] - 1) % len(WAYS)](Group(abc, plain, scales, size))
        outputs.append(abc[2] if own is None else own)
    return outputs
