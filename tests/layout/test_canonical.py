"""The coalesced form: the same function, and equal exactly when functions are equal."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import size
from pytest_nvfp4.layout.canonical import canonical, canonical_text
from pytest_nvfp4.layout.errors import PoisonedLayout
from pytest_nvfp4.layout.grammar import parse_layout, parse_type
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.sameness import compare
from pytest_nvfp4.layout.tree import leaves
from tests.layout.by_hand import function
from tests.layout.corpus import VERSIONS, corpus

ANY_STATIC = st.one_of(strategies.layouts(max_size=128), strategies.basis_layouts(max_size=128))


@given(ANY_STATIC)
def test_the_function_is_kept(layout: Layout) -> None:
    assert function(canonical(layout)) == function(layout)


@given(ANY_STATIC)
def test_it_is_idempotent_and_has_no_mergeable_modes(layout: Layout) -> None:
    coalesced = canonical(layout)
    assert canonical(coalesced) == coalesced
    sizes = leaves(coalesced.shape)
    assert sizes == (1,) or 1 not in sizes


@given(ANY_STATIC, ANY_STATIC)
def test_different_forms_are_different_functions(a: Layout, b: Layout) -> None:
    assert (canonical(a) == canonical(b)) == (function(a) == function(b))


@given(strategies.layouts(max_size=64, max_rank=3), st.data())
def test_equal_functions_have_equal_forms(layout: Layout, data: st.DataObject) -> None:
    other = data.draw(strategies.renested(layout))
    assert function(other) == function(layout)
    assert canonical(other) == canonical(layout)


@given(strategies.layouts(max_size=64), st.data())
def test_one_changed_stride_is_noticed(layout: Layout, data: st.DataObject) -> None:
    """Negative control: the form of a layout that is not the same function is not the same."""
    sizes, strides = leaves(layout.shape), list(leaves(layout.stride))
    place = data.draw(st.integers(0, len(sizes) - 1))
    assume(sizes[place] != 1)
    strides[place] += 1
    assert canonical(Layout(sizes, tuple(strides))) != canonical(Layout(sizes, leaves(layout.stride)))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("(4,8):(1,4)", "32:1"),
        ("(1,4):(7,1)", "4:1"),
        ("((1,1),1):((0,5),9)", "1:0"),
        ("():()", "1:0"),
        ("(4,2):(0,0)", "8:0"),
        ("(4,0):(1,4)", "0:0"),
        ("(8,8):(-1,-8)", "64:-1"),
        ("((128,64),1,4,1):((256,1),0,64,0)", "(128,256):(256,1)"),
        ("((2,4),(3,5)):((1@0,2@0),(1@1,3@1))", "(8,15):(1@0,1@1)"),
        ("(2,16):(1/2@0,1@0)", "32:1/2@0"),
        ("(4,4):(0@0,0)", "16:0"),
        ("(1,4,?,2):(?,1,4,?)", "(4,?,2):(1,4,?)"),
        ("(4,?):(1,4)", "(4,?):(1,4)"),
        ("(?,4):(1,?)", "(?,4):(1,?)"),
        ("(2,2):(?,?)", "(2,2):(?,?)"),
        ("S<3,4,3> o 0 o (8,(64,4)):(256,(1,64))", "S<3,4,3> o 0 o (8,256):(256,1)"),
        ("S<0,4,3> o 0 o (8,4):(1,8)", "32:1"),
        ("S<0,4,3> o 2 o (8,4):(1,8)", "S<0,4,3> o 2 o 32:1"),
        ("(0,?{div=128}) o ((2,4),1):((1@0,2@0),0)", "(0,?{div=128}) o 8:1@0"),
        ("(4,4):(4,1) o (0,1) o ((2,2),4):((1@0,2@0),1@1)", "(4,4):(4,1) o (0,1) o (4,4):(1@0,1@1)"),
    ],
)
def test_forms(text: str, form: str) -> None:
    assert str(canonical(parse_layout(text))) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('!cute.memref<f16, smem, align<128>, S<3,4,3>, "((64,8),1):((1,64),0)">', "S<3,4,3> o 0 o 512:1"),
        ('!cute.memref<f16, gmem, "(4,(2,2)):(1,(4,8))">', "16:1"),
        ('!cute.coord_tensor<"(0,0)", "(8,8):(1@0,1@1)">', "(0,0) o (8,8):(1@0,1@1)"),
        ("!cute.ptr<f16, gmem, align<32>>", "!cute.ptr<f16, gmem, align<32>>"),
        (
            '!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>, atom_layout_MNK = <"1:0">, permutation_MNK = <"[_;_;_]">>',
            '!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>, atom_layout_MNK = <"1:0">>',
        ),
        (
            '!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>, atom_layout_MNK = <"1:0">, permutation_MNK = <"[32:1;_;_]">>',
            '!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>, atom_layout_MNK = <"1:0">, permutation_MNK = <"[32:1;_;_]">>',
        ),
    ],
)
def test_text_of_a_type(text: str, form: str) -> None:
    assert canonical_text(text) == canonical_text(parse_type(text)) == form


def test_a_poisoned_type_has_no_form() -> None:
    with pytest.raises(PoisonedLayout):
        canonical_text('!cute.layout<"(4,x):(1,x)">')


@pytest.mark.parametrize("version", VERSIONS)
def test_real_layouts_keep_their_function(version: str) -> None:
    """On what kernels really have: every static integer layout of the corpus that is small enough to write out."""
    checked = 0
    for text in corpus(version)[::7]:
        if "x)" in text or "?" in text or not text.startswith(("!cute.layout", "!cute.memref", "!cute.smem_desc_view")):
            continue
        layout = parse_type(text).layout
        if isinstance(layout, Layout) and "@" not in text and size(layout) <= 512:
            assert function(canonical(layout)) == function(layout)
            assert compare(text, f'!cute.layout<"{canonical(layout)}">').level != "different"
            checked += 1
    assert checked > 100
