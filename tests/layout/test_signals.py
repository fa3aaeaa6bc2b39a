"""Structural signals against brute force, and pinned values of the NVFP4 kernel."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import bind, size
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.notation import Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.signals import alignment, broadcast_modes, compact, injective, tractable, vector_width
from pytest_nvfp4.layout.tree import Dynamic, leaves

STAGED_A = '!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'


@given(st.one_of(strategies.layouts(max_size=128), strategies.basis_layouts(max_size=64)))
def test_injective_is_what_it_says(layout: Layout) -> None:
    signal = injective(layout)
    rows = [leaves(layout(index)) for index in range(size(layout))]
    assert signal.value == (len(set(rows)) == len(rows))
    assert signal.method in ("canonical", "enumerated")


@given(st.one_of(strategies.layouts(max_size=128), strategies.compact_layouts()))
def test_compact_is_a_bijection(layout: Layout) -> None:
    signal = compact(layout)
    assert (signal.value, signal.method) == (sorted(values(layout)) == list(range(size(layout))), "canonical")


@given(strategies.composed_layouts(max_size=128))
def test_a_swizzled_layout_is_compact_by_its_own_offsets(layout) -> None:
    signal = compact(layout)
    assert signal.value == (sorted(values(layout)) == list(range(size(layout))))
    assert injective(layout).value == (len(set(values(layout))) == size(layout))


@given(strategies.layouts(max_size=128))
def test_tractable_by_its_definition(layout: Layout) -> None:
    pairs = zip(leaves(layout.stride), leaves(layout.shape), strict=True)
    chain = sorted((stride, count) for stride, count in pairs if count != 1 and stride != 0)
    expected = all(b[0] % (a[0] * a[1]) == 0 for a, b in itertools.pairwise(chain))
    assert tractable(layout).value == expected


@given(strategies.layouts(max_size=128))
def test_tractable_without_broadcast_is_injective(layout: Layout) -> None:
    if tractable(layout).value and not broadcast_modes(layout).value:
        assert injective(layout).value


@pytest.mark.parametrize(
    ("text", "is_tractable", "is_compact", "is_injective", "broadcast"),
    [
        ("(64,64):(65,1)", False, False, True, ()),  # padding: intractable, and no bug
        ("(65,64):(1,65)", True, True, True, ()),
        ("(4,8):(8,1)", True, True, True, ()),
        ("(2,3):(3,2)", False, False, True, ()),
        ("(4,2):(1,2)", False, False, False, ()),
        ("((16,4),4):((0,1),4)", True, False, False, ((0, 0),)),
        ("((((32,4),1),(16,4)),1,4,1):((((16,4),0),(0,1)),0,512,2048)", True, False, False, ((0, 1, 0),)),
        ("(8,8):(1@0,1@1)", True, False, True, ()),
        ("(8,8):(1@0,4@0)", False, False, False, ()),
        ("(8,(0,2)):(0@1,(1,0))", True, False, False, ((0,), (1, 1))),
    ],
)
def test_pinned(text, is_tractable, is_compact, is_injective, broadcast) -> None:
    layout = parse_layout(text)
    if 0 not in leaves(layout.shape):
        assert (tractable(layout).value, compact(layout).value, injective(layout).value) == (
            is_tractable, is_compact, is_injective)  # fmt: skip
    assert broadcast_modes(layout).value == broadcast


@pytest.mark.parametrize("signal", [tractable, compact, injective])
def test_question_marks_are_not_guessed(signal) -> None:
    found = signal("(?,4):(1,?)")
    assert (found.value, found.method) == (None, "not provable")


def test_a_broadcast_beside_a_question_mark_is_known() -> None:
    assert injective("(?,4):(?,0)").value is False
    assert broadcast_modes("(?,4):(0,?)").value == ((0,),)


@pytest.mark.parametrize(
    ("text", "contiguous", "elements", "bits"),
    [
        (STAGED_A, 32768, 32, 128),
        ('!cute.memref<f16, gmem, align<32>, "(?,?{div=32},?):(?{div=32},1,?{div=32})">', 32, 8, 128),
        ('!cute.memref<f16, gmem, align<32>, "(?,?,?):(?{div=32},1,?)">', 1, 1, 16),
        ('!cute.memref<f16, gmem, align<4>, "((2,2),32):((1,?{div=256}),8)">', 2, 2, 32),
        ('!cute.memref<f16, gmem, align<4>, "(128,4):(1,128)">', 512, 2, 32),
        ('!cute.memref<f16, gmem, "128:1">', 128, 1, 16),
        ('!cute.memref<f32, rmem, align<32>, "((1,1),128,1,1):((0,0),1,0,0)">', 128, 4, 128),
        ('!cute.memref<f16, smem, align<128>, "(64,64):(65,1)">', 64, 1, 16),
        ('!cute.memref<f16, smem, align<128>, S<1,3,3>, "64:1">', 64, 4, 64),
        ('!cute.memref<f16, smem, align<128>, "S<3,2,3> o 0 o 512:1">', 512, 4, 64),
        ('!cute.memref<f16, smem, align<128>, "S<3,3,3> o 4 o 512:1">', 512, 4, 64),
        ('!cute.memref<f4E2M1FN, gmem, align<32>, "(3,8):(1,3)">', 24, 8, 32),
        ('!cute.memref<f4E2M1FN, gmem, align<32>, "5:1">', 5, 1, 4),
        ('!cute.memref<f16, gmem, align<32>, "(4,8):(0,1)">', 8, 8, 128),
        ('!cute.coord_tensor<"(0,0)", "(8,8):(1@0,1@1)">', 1, 1, 16),
    ],
)
def test_vector_widths(text: str, contiguous: int, elements: int, bits: int) -> None:
    found = vector_width(text, bits=16 if "coord" in text else None).value
    assert (found.contiguous, found.elements, found.bits) == (contiguous, elements, bits)


def test_wider_machines_and_given_alignments() -> None:
    text = '!cute.memref<f16, gmem, align<32>, "512:1">'
    assert vector_width(text, max_bytes=32).value.bits == 256
    assert vector_width(text, max_bytes=32, align=16).value.bits == 128
    assert vector_width(parse_layout("512:1"), bits=16).value.bits == 128
    with pytest.raises(LayoutError, match="bits="):
        vector_width("512:1")


@given(st.one_of(strategies.layouts(max_size=64), strategies.dynamic_layouts(max_rank=3)), st.sampled_from([8, 16, 32]),
       st.one_of(st.none(), strategies.swizzles()), st.data())  # fmt: skip
def test_vectors_hold_whatever_the_numbers(layout: Layout, bits: int, swizzle: Swizzle | None, data) -> None:
    """Every offset lies in a run of `elements` that begins at a multiple of it and stays together in bytes."""
    assume(swizzle is None or 8 << swizzle.base >= bits)  # else it tears single elements apart
    unknown = [leaf for leaf in (*leaves(layout.shape), *leaves(layout.stride)) if isinstance(leaf, Dynamic)]
    bound = bind(layout, [data.draw(st.sampled_from([1, 2])) * leaf.div for leaf in unknown])
    if size(bound) > 4096:
        return
    dtype = {8: "f8E4M3FN", 16: "f16", 32: "f32"}[bits]
    text = f'!cute.memref<{dtype}, smem, align<128>, {swizzle}, "{layout}">' if swizzle else layout
    elements = vector_width(text, bits=bits, align=128).value.elements
    offsets = set(values(bound))
    for offset in offsets:
        start = offset - offset % elements
        assert all(start + step in offsets for step in range(elements))
        if swizzle:
            first = swizzle(start * bits // 8)
            assert [swizzle((start + step) * bits // 8) for step in range(elements)] == [
                first + step * bits // 8 for step in range(elements)
            ]
            assert first % (elements * bits // 8) == 0


def test_alignment() -> None:
    assert (alignment("!cute.ptr<i64, smem>").value, alignment("!cute.ptr<i64, smem, align<1024>>").value) == (8, 1024)
    assert "natural" in alignment("!cute.ptr<i64, smem>").detail


def test_a_type_without_layout_has_no_signals() -> None:
    with pytest.raises(LayoutError, match="without a layout"):
        tractable("!cute.ptr<i64, smem>")
