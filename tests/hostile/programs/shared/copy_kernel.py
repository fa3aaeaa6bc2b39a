"""Kernels that compute nothing: they bring to C what the host has computed."""

import functools

import cutlass
import cutlass.cute as cute
from honest_gemm import pointer

WORDS = 16
"""Words that one launch has as parameters."""


@cute.kernel
def copy_kernel(source: cute.Tensor, target: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 64 + lane
    if at < cute.size(source):
        target[at] = source[at]


@cute.jit
def launch_copy(source: cute.Pointer, target: cute.Pointer, words: cutlass.Int32):
    layout = cute.make_layout(words)
    copy_kernel(cute.make_tensor(source, layout), cute.make_tensor(target, layout)).launch(
        grid=(cute.ceil_div(words, 64), 1, 1), block=(64, 1, 1)
    )


@cute.kernel
def put_kernel(target: cute.Tensor, at: cutlass.Int32, values: list):
    for index in cutlass.range_constexpr(WORDS):
        target[at + index] = values[index]


@cute.jit
def launch_put(target: cute.Pointer, at: cutlass.Int32, values: list):
    put_kernel(cute.make_tensor(target, cute.make_layout(at + WORDS)), at, values).launch(
        grid=(1, 1, 1), block=(1, 1, 1)
    )


@functools.cache
def compiled(name):
    word, index = pointer(cutlass.Int32, 16), cutlass.Int32(1)
    if name == "copy":
        return cute.compile(launch_copy, word, word, index)
    return cute.compile(launch_put, word, index, [index] * WORDS)


def copy(source, target):
    """Launch a kernel that copies a tensor of fp16, two elements for each thread."""
    words = target.numel() // 2
    compiled("copy")(pointer(cutlass.Int32, source), pointer(cutlass.Int32, target), words)


def put(target, at, values):
    """Launch a kernel that stores words which are its parameters."""
    compiled("put")(pointer(cutlass.Int32, target), at, [cutlass.Int32(value) for value in values])


def constant(target, words):
    """Compile and launch a kernel whose code contains the words that it stores."""

    @cute.kernel
    def constant_kernel(where: cute.Tensor):
        for at in cutlass.range_constexpr(len(words)):
            where[at] = cutlass.Int32(words[at])

    @cute.jit
    def launch_constant(where: cute.Pointer):
        constant_kernel(cute.make_tensor(where, cute.make_layout(len(words)))).launch(grid=(1, 1, 1), block=(1, 1, 1))

    cute.compile(launch_constant, pointer(cutlass.Int32, 16))(pointer(cutlass.Int32, target))
