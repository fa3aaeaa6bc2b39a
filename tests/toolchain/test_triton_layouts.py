"""Named layouts in the intermediate form of a Triton module."""

from __future__ import annotations

from pytest_nvfp4.toolchain.worker.triton_layouts import layouts

MODULE = """\
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#slice = #ttg.slice<{dim = 1, parent = #blocked}>
#shared = #ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>
#shared1 = #ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [0]}>
#smem = #ttg.shared_memory
#loc = loc("/home/k.py":16:1)
#loc12 = loc("a"(#loc))
module attributes {ttg.target = "cuda:100"} {
  tt.func public @mm(%a: !tt.tensordesc<64x64xf16, #shared> loc("a"(#loc)), %n: i32 loc("n"(#loc))) attributes {} {
    %c1 = arith.constant 1 : i32 loc(#loc1)
    %x = ttg.local_alloc : () -> !ttg.memdesc<3x64x64xf16, #shared, #smem, mutable> loc(#loc4)
    %x_1 = ttg.memdesc_index %x[%c1] : !ttg.memdesc<3x64x64xf16> -> !ttg.memdesc<64x64xf16, #shared, #smem> loc(#loc4)
    %x_2 = ttg.local_load %x_1 : !ttg.memdesc<64x64xf16, #shared, #smem> -> tensor<64x64xf16, #blocked> loc(#loc4)
    %bar = ttg.local_alloc : () -> !ttg.memdesc<2x1xi64, #shared1, #smem, mutable> loc(#loc4)
    %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32, #slice> loc(#loc4)
    %y = arith.extf %x_2 : tensor<64x64xf16, #blocked> to tensor<64x64xf32, #blocked> loc(#loc6)
    %z = arith.addf %y, %y : tensor<64x64xf32, #slice> loc(#loc7)
    %0 = arith.addf %y, %y : tensor<64x64xf32, #blocked> loc(#loc2)
    %q = arith.addf %y, %y : tensor<64x64xf32, #blocked> loc(#loc9)
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc1 = loc(unknown)
#loc2 = loc("/home/k.py":20:21)
#loc3 = loc("/lib/triton/standard.py":300:5)
#loc4 = loc("x"(#loc2))
#loc5 = loc(callsite(#loc3 at #loc2))
#loc6 = loc("y"(#loc5))
#loc7 = loc("z"(#loc8))
#loc8 = loc("/home/k.py":22:1)
#loc9 = loc("q"(#loc3))
"""
SHARED = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>, #ttg.shared_memory"
BLOCKED = "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>"


def test_variables_have_layouts_with_their_encodings_and_lines():
    found = layouts([MODULE], own=lambda file: file.startswith("/home/"))
    assert {value.file for value in found} == {"/home/k.py"}
    assert [(value.name, value.type, value.line) for value in found] == [
        ("mm.a", f"!tt.tensordesc<64x64xf16, {SHARED.partition(', #')[0]}>", 16),
        ("mm.x", f"!ttg.memdesc<3x64x64xf16, {SHARED}, mutable>", 20),
        ("mm.x#2", f"!ttg.memdesc<64x64xf16, {SHARED}>", 20),
        ("mm.x#3", f"tensor<64x64xf16, {BLOCKED}>", 20),
        ("mm.y", f"tensor<64x64xf32, {BLOCKED}>", 20),  # the call that inlined Triton's own line
        ("mm.z", f"tensor<64x64xf32, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>", 22),
    ]


def test_modules_share_their_names():
    one, two = (MODULE.replace("3x64x64", f"{stages}x64x64") for stages in (3, 4))
    both = layouts([one, two], own=lambda _: True)
    names = {value.name: value.type for value in both}
    assert names["mm.x"].startswith("!ttg.memdesc<3x64x64")
    assert names["mm.x#4"].startswith("!ttg.memdesc<4x64x64")
    assert len(both) == len(layouts([one], own=lambda _: True)) + 1


def test_text_that_is_no_module():
    assert (
        layouts(["", "#loc = loc(\n%x = y : ", "#a = #ttg.x<#a>\n%v = a.b : tensor<2xf32, #a> loc(#a)"], own=bool) == []
    )
