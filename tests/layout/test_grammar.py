"""The grammar against real type texts of both DSL versions, and its errors."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.errors import LayoutError, LayoutSyntaxError, PoisonedLayout
from pytest_nvfp4.layout.grammar import parse_layout, parse_plain_layout, parse_term, parse_type
from pytest_nvfp4.layout.irtypes import dtype_bits
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle, Tiler, render
from pytest_nvfp4.layout.tree import Dynamic, ScaledBasis, Wildcard
from tests.layout.corpus import VERSIONS, corpus


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_real_type_prints_back_to_its_text(version: str) -> None:
    texts = corpus(version)
    assert len(set(texts)) == len(texts) >= 20_000
    poisoned = []
    for text in texts:
        try:
            info = parse_type(text)
        except PoisonedLayout:
            poisoned.append(text)
            continue
        assert str(info) == text
        assert info.raw == text
    # Only 4.4.0 poisons: its scale-factor layouts in tensor memory from K = 512 on.
    assert all(",x)" in text for text in poisoned)
    assert bool(poisoned) == (version == "4.4.0")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_corpus_has_every_family(version: str) -> None:
    heads = {text.split("<")[0] for text in corpus(version)}
    plain = {"layout", "composed_layout", "memref", "coord_tensor", "ptr", "shape", "stride", "coord", "tile"}
    plain |= {"int_tuple", "swizzle", "tiled_mma", "tiled_copy"}
    atoms = {"smem_desc_view", "atom.tmem_load", "atom.universal_copy", "atom.s2t_copy"}
    atoms |= {"atom.non_exec_tiled_tma_load", "atom.non_exec_tiled_tma_store"}
    assert heads >= {f"!cute.{name}" for name in plain} | {f"!cute_nvgpu.{name}" for name in atoms}


def test_a_memref_says_what_it_is() -> None:
    info = parse_type('!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">')
    assert (info.family, info.dtype, info.space, info.align) == ("memref", "f4E2M1FN", "smem", 128)
    assert info.swizzle == info.pointer_swizzle == Swizzle(3, 4, 3)
    assert info.layout == Layout(((128, 64), 1, 4, 1), ((256, 1), 0, 64, 0))


def test_a_swizzle_of_the_layout_is_not_one_of_the_pointer() -> None:
    info = parse_type('!cute.memref<f16, smem, align<16>, "S<3,4,3> o ?{div=16} o (8,64):(64,1)">')
    assert info.swizzle == Swizzle(3, 4, 3)
    assert info.pointer_swizzle is None
    assert info.layout == ComposedLayout(Swizzle(3, 4, 3), Dynamic(16), Layout((8, 64), (64, 1)))


def test_a_coordinate_tensor_is_an_offset_and_a_layout() -> None:
    info = parse_type('!cute.coord_tensor<"(0,?{div=128},0)", "(((256,128),1),?):(((1@0,1/2@1),0),3@0@1)">')
    stride = (((ScaledBasis(1, (0,)), ScaledBasis(Fraction(1, 2), (1,))), 0), ScaledBasis(3, (1, 0)))
    assert info.layout == ComposedLayout(None, (0, Dynamic(128), 0), Layout((((256, 128), 1), Dynamic()), stride))
    assert str(info.layout) == "(0,?{div=128},0) o (((256,128),1),?):(((1@0,1/2@1),0),3@0@1)"


def test_a_coordinate_tensor_may_have_a_composed_layout() -> None:
    info = parse_type('!cute.coord_tensor<"(0,(0,0))", "(4,4):(1@0,1@1) o 0 o (8,2):(1,8)">')
    assert isinstance(info.layout, ComposedLayout)
    assert isinstance(info.layout.outer, ComposedLayout)
    assert info.layout.outer.outer == Layout((8, 2), (1, 8))


@pytest.mark.parametrize(
    ("text", "family", "dtype", "space", "align", "byte_align"),
    [
        ("!cute.ptr<i64, smem>", "ptr", "i64", "smem", None, 8),
        ("!cute.ptr<i64, smem, align<1024>>", "ptr", "i64", "smem", 1024, 1024),
        ("!cute.ptr<f32, tmem, align<1>>", "ptr", "f32", "tmem", 1, 1),
        ("!cute.ptr<f4E2M1FN, smem, align<128>, S<3,4,3>>", "ptr", "f4E2M1FN", "smem", 128, 128),
        ("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<128>>", "ptr",
         "!cute_nvgpu.tma_descriptor_tiled", "generic", 128, 128),
        ("!cute_nvgpu.atom.tmem_load<f32, 32 DP, 32 bit, x128>", "atom.tmem_load", "f32", None, None, 4),
        ("vector<128xf32>", "vector", "f32", None, None, 4),
        ("!cute.swizzle<\"S<3,4,3>\">", "swizzle", None, None, None, 1),
        ("i32", "i32", None, None, None, 1),
    ],
)  # fmt: skip
def test_other_families(text, family, dtype, space, align, byte_align) -> None:
    info = parse_type(text)
    assert (info.family, info.dtype, info.space, info.align, info.byte_align) == (
        family,
        dtype,
        space,
        align,
        byte_align,
    )
    assert info.layout is None
    assert str(info) == text


def test_both_spellings_of_a_tiled_mma() -> None:
    atom = (
        "!cute_nvgpu.sm100.mma_bs<128x128x64, num_cta = 1, ab_major = (k, k), elem_type = (f4E2M1FN, f4E2M1FN, f32), "
        "sf_type = f8E4M3FN, frag_kind = ss, vec_size = 16>"
    )
    old = f'!cute.tiled_mma<{atom}, atom_layout_MNK = <"(1,1,1):(0,0,0)">>'
    new = f'!cute.tiled_mma<{atom}, atom_layout_MNK = <"(1,1,1):(0,0,0)">, permutation_MNK = <"[_;_;_]">>'
    for text in (old, new):
        info = parse_type(text)
        assert str(info) == text
        assert str(info.parameter("sf_type")) == "f8E4M3FN"
        assert str(info.parameter("elem_type")) == "(f4E2M1FN, f4E2M1FN, f32)"
    assert parse_type(old).parameter("permutation_MNK") is None
    assert parse_type(new).parameter("nothing") is None


def test_white_space_is_collapsed() -> None:
    assert parse_type('!cute.memref<f16,\n   gmem, "4:1">').raw == '!cute.memref<f16, gmem, "4:1">'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("?", Dynamic()),
        ("?{div=32}", Dynamic(32)),
        ("?{i64}", Dynamic(1, 64)),
        ("?{i64 div=8}", Dynamic(8, 64)),
        ("64@0", ScaledBasis(64, (0,))),
        ("1@1@0@1", ScaledBasis(1, (1, 0, 1))),
        ("1/2@0", ScaledBasis(Fraction(1, 2), (0,))),
        ("?{div=8}@0", ScaledBasis(Dynamic(8), (0,))),
        ("-4", -4),
        ("_", Wildcard.ALL),
        ("(_,?,(3,_,?{i64}))", (Wildcard.ALL, Dynamic(), (3, Wildcard.ALL, Dynamic(1, 64)))),
        ("()", ()),
        ("S<3,4,-3>", Swizzle(3, 4, -3)),
        (
            "[4:1;[2:1;(?,2):(1,?)];_]",
            Tiler((Layout(4, 1), Tiler((Layout(2, 1), Layout((Dynamic(), 2), (1, Dynamic())))), Wildcard.ALL)),
        ),
    ],
)  # fmt: skip
def test_terms(text, value) -> None:
    assert parse_term(text) == value
    assert render(value) == text


@given(st.one_of(strategies.layouts(), strategies.basis_layouts(), strategies.dynamic_layouts()))
def test_any_layout_prints_and_parses_back(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout
    assert parse_type(f'!cute.layout<"{layout}">').layout == layout


@given(strategies.composed_layouts())
def test_any_composed_layout_prints_and_parses_back(layout: ComposedLayout) -> None:
    assert parse_layout(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("(4,8):(1,4", 11),
        ("(4,8):(1,(4))", 7),
        ("(4,8)", 1),
        ("(4;8):(1,4)", 3),
        ("(4,8):(1,4)x", 12),
        ("(4,,8):(1,4)", 4),
        ("S<3,4,3> o (8,64):(64,1)", 18),
        ("S<3,4,2> o 0 o 8:1", 1),
        ("S<3,4,3> o 0 o 8", 16),
        ("?{div=1}:1", 1),
        ("2/4@0:1", 1),
        ("04:1", 1),
        ("", 1),
    ],
)
def test_a_syntax_error_names_text_and_column(text: str, column: int) -> None:
    with pytest.raises(LayoutSyntaxError) as error:
        parse_layout(text)
    assert (error.value.text, error.value.column) == (text, column)
    assert f"column {column}" in str(error.value)


def test_a_syntax_error_in_a_type_has_its_column_in_the_whole() -> None:
    text = '!cute.memref<f16, gmem, "(4,8:(1,4)">'
    with pytest.raises(LayoutSyntaxError) as error:
        parse_type(text)
    assert error.value.column == text.index(":(") + 1


PIECES = [
    *("(", ")", ",", ":", "?", "?{div=8}", "4", "-1", "@0", "/2", "_", "x", " o ", "S<3,4,3>", "[", "]", ";", '"'),
    *("<", ">", "!cute.memref", "!cute.layout", "f16", ", ", " = ", "smem", "align", "\n", "\u0664", "9" * 5000),
]


@pytest.mark.slow
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_parses_or_is_a_layout_error(text: str) -> None:
    for parse in (parse_type, parse_layout, parse_term):
        try:
            found = parse(text)
        except LayoutError:
            continue
        assert (render(found) if parse is parse_term else str(found)) == " ".join(text.split())


@pytest.mark.parametrize("align", ["align<>", "align<1 28>", "align<0>", "align<x>", "align<8, 8>"])
def test_an_alignment_is_a_number(align: str) -> None:
    with pytest.raises(LayoutSyntaxError, match="align<128>"):
        parse_type(f"!cute.ptr<f16, smem, {align}>")


@pytest.mark.parametrize("piece", ["(", "[", "!cute.layout<", "S<3,4,3> o 0 o ", "a<a = "])
def test_nesting_without_end_is_an_error(piece: str) -> None:
    for parse in (parse_type, parse_layout):
        with pytest.raises(LayoutSyntaxError):
            parse(piece * 5000)


@pytest.mark.parametrize("text", ['!cute.layout<"((((32,4),4),(16,8)),1,x):((((262144,4),8388608),(0,1)),0,x)">'])
def test_a_poisoned_layout_is_an_error_of_its_own(text: str) -> None:
    with pytest.raises(PoisonedLayout, match="poisoned") as error:
        parse_type(text)
    assert not isinstance(error.value, LayoutSyntaxError)
    assert text[error.value.column - 1] == "x"


def test_a_plain_layout_is_not_composed() -> None:
    assert parse_plain_layout("(8,64):(64,1)") == parse_layout("(8,64):(64,1)")
    with pytest.raises(LayoutError, match="a composed layout; give a plain layout"):
        parse_plain_layout("S<3,4,3> o 0 o (8,64):(64,1)")


def test_a_layout_nests_as_its_shape() -> None:
    with pytest.raises(LayoutError, match="nest differently"):
        Layout((4, 8), 1)
    with pytest.raises(LayoutError, match="shift"):
        Swizzle(3, 4, 2)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("f4E2M1FN", 4), ("f8E8M0FNU", 8), ("bf16", 16), ("tf32", 32), ("i1", 8), ("f6E3M2FN", 6), ("i128", 128),
     ("index", None), (None, None)],
)  # fmt: skip
def test_bits_of_an_element(dtype, bits) -> None:
    assert dtype_bits(dtype) == bits
