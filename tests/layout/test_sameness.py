"""Levels of sameness against the definition: both functions written out."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_nvfp4 import strategies
from pytest_nvfp4.layout.algebra import bind, modes, size
from pytest_nvfp4.layout.errors import LayoutError, PoisonedLayout
from pytest_nvfp4.layout.grammar import parse_layout, parse_type
from pytest_nvfp4.layout.notation import ComposedLayout, Layout, Swizzle
from pytest_nvfp4.layout.offsets import values
from pytest_nvfp4.layout.sameness import SamenessLevel, compare, first_difference
from pytest_nvfp4.layout.tree import Dynamic, leaves
from tests.layout.by_hand import function

SAME = {SamenessLevel.IDENTICAL, SamenessLevel.RENESTED, SamenessLevel.SAME_FUNCTION}
STATIC = st.one_of(strategies.layouts(max_size=64), strategies.basis_layouts(max_size=64))


def same_values(a: Layout, b: Layout) -> bool:
    return function(a) == function(b)


@given(STATIC, STATIC)
def test_the_verdict_agrees_with_the_functions(a: Layout, b: Layout) -> None:
    verdict = compare(a, b)
    assert verdict.method == "canonical"
    assert (verdict.level in SAME) == same_values(a, b)
    assert verdict.level is not SamenessLevel.UNKNOWN


@given(strategies.layouts(max_size=64, max_rank=3), st.data())
def test_renested_means_equal_mode_by_mode(a: Layout, data: st.DataObject) -> None:
    b = data.draw(strategies.renested(a))
    verdict = compare(a, b)
    assert verdict.level in SAME
    by_mode = len(modes(a)) == len(modes(b)) and all(map(same_values, modes(a), modes(b)))
    expected = SamenessLevel.IDENTICAL if a == b else SamenessLevel.RENESTED if by_mode else SamenessLevel.SAME_FUNCTION
    assert verdict.level is expected


@given(strategies.layouts(max_size=64), st.data())
def test_permuted_modes_are_found(a: Layout, data: st.DataObject) -> None:
    pairs = list(zip(leaves(a.shape), leaves(a.stride), strict=True))
    shuffled = data.draw(st.permutations(pairs))
    b = Layout(tuple(count for count, _ in shuffled), tuple(stride for _, stride in shuffled))
    assert compare(a, b).level in {*SAME, SamenessLevel.PERMUTED}
    assert sorted(values(a)) == sorted(values(b))


@given(STATIC, STATIC)
def test_it_is_symmetric(a: Layout, b: Layout) -> None:
    one, other = compare(a, b), compare(b, a)
    assert (one.level, one.method) == (other.level, other.method)


@given(strategies.layouts(max_size=64), strategies.layouts(max_size=64))
def test_the_first_difference_is_the_first(a: Layout, b: Layout) -> None:
    found = first_difference(a, b)
    if same_values(a, b):
        assert found is None
        return
    one, other = values(a), values(b)
    shared = min(len(one), len(other))
    expected = next((index for index in range(shared) if one[index] != other[index]), shared)
    index, coord, offset_a, offset_b = found
    assert index == expected
    assert offset_a == (one[index] if index < len(one) else None)
    assert offset_b == (other[index] if index < len(other) else None)
    assert a(coord) == a(index)


@pytest.mark.parametrize(
    ("a", "b", "level", "method"),
    [
        ("(4,8):(1,4)", "(4,8):(1,4)", "identical", "canonical"),
        ("(4,8):(1,4)", "((2,2),8):((1,2),4)", "renested", "canonical"),
        ("(1,4):(0,1)", "(1,4):(4,1)", "renested", "canonical"),  # make_fake_compact_tensor, 4.4.0 and 4.8.1
        ("(4,8):(1,4)", "32:1", "same_function", "canonical"),
        ("((16,4),4,2):((0,1),4,16)", "((16,4),8,1):((0,1),4,0)", "same_function", "canonical"),
        ("(4,8):(8,1)", "(8,4):(1,8)", "permuted", "canonical"),
        ("((2,2),8):((8,16),1)", "(8,(2,2)):(1,(8,16))", "permuted", "canonical"),
        ("(4,8):(8,1)", "(4,8):(1,4)", "different", "canonical"),
        ("(4,8):(1,4)", "(4,9):(1,4)", "different", "canonical"),
        ("(8,8):(1@0,1@1)", "(8,8):(1@1,1@0)", "permuted", "canonical"),
        ("32:1/2@0", "(2,16):(1/2@0,1@0)", "same_function", "canonical"),
        ("(0,0) o (8,8):(1@0,1@1)", "(0,4) o (8,8):(1@0,1@1)", "different", "canonical"),
        ("S<3,4,3> o 0 o (8,128):(128,1)", "S<3,4,3> o 0 o (8,(64,2)):(128,(1,64))", "renested", "canonical"),
        ("S<3,4,3> o 0 o (8,128):(128,1)", "S<3,4,3> o 16 o (8,128):(128,1)", "different", "canonical"),
        ("S<3,4,3> o 0 o (8,128):(128,1)", "S<2,4,3> o 0 o (8,128):(128,1)", "different", "enumerated"),
        ("S<3,4,3> o 0 o (8,16):(16,1)", "(8,16):(16,1)", "renested", "enumerated"),
        ("S<3,4,3> o 0 o (8,16):(16,1)", "((8,16)):((16,1))", "same_function", "enumerated"),
        ("S<0,4,3> o 0 o (8,16):(16,1)", "(8,16):(16,1)", "identical", "canonical"),
        ("(4,4):(4,1) o 0 o 8:2", "(4,4):(4,1) o 0 o (2,4):(2,4)", "same_function", "canonical"),
        ("(4,4):(0,1) o 0 o 16:1", "(4,4):(0,1) o 0 o (4,4):(0,4)", "same_function", "enumerated"),
        ("(4,4):(4,1) o (0,0) o (4,4):(1@0,1@1)", "(4,4):(4,1)", "renested", "enumerated"),
    ],
)
def test_levels(a: str, b: str, level: str, method: str) -> None:
    verdict = compare(a, b)
    assert (verdict.level, verdict.method) == (level, method), verdict.detail
    assert verdict.if_symbols_match is None


@pytest.mark.parametrize(
    ("a", "b", "level", "if_match"),
    [
        ("(128,?):(1,?)", "(128,?):(1,?)", "identical", None),
        ("(128,?):(1,?)", "((64,2),?):((1,64),?)", "unknown", "renested"),
        ("(128,?):(1,?)", "(64,2,?):(1,64,?)", "unknown", "same_function"),
        ("(128,?):(1,?)", "(?,128):(?,1)", "unknown", "permuted"),
        ("(128,?):(1,?{div=32})", "(128,?):(1,?{div=64})", "unknown", "renested"),
        ("(128,?):(1,?)", "(128,?):(2,?)", "different", None),
        ("(128,?):(1,?)", "(64,8,?):(1,32,?)", "different", None),
        ("(128,?):(1,?)", "(64,?):(1,?)", "unknown", None),
        ("4:1", "(4,2):(1,?)", "different", None),  # whatever the stride, there are more indices
        ("(?,4):(1,?)", "(?,4):(2,?)", "unknown", None),
        ("(4,?):(1,4)", "(4,8):(1,4)", "unknown", None),
        ("(0,?) o (8,8):(1@0,1@1)", "(0,?) o ((4,2),8):((1@0,4@0),1@1)", "unknown", "renested"),
        ("(0,?) o 8:1@0", "(0,4) o 8:1@0", "unknown", None),
        ("S<3,4,3> o 0 o (8,?):(128,1)", "S<2,4,3> o 0 o (8,?):(128,1)", "unknown", None),
    ],
)
def test_question_marks(a: str, b: str, level: str, if_match: str | None) -> None:
    verdict = compare(a, b)
    assert (verdict.level, verdict.if_symbols_match) == (level, if_match), verdict.detail
    if level == "unknown":
        assert verdict.method == "not provable"
        assert "?" in verdict.detail
    if level == "identical":
        assert "not claimed" in verdict.detail


@given(strategies.dynamic_layouts(max_rank=3), st.data())
def test_what_is_said_of_question_marks_holds_for_all_numbers(a: Layout, data: st.DataObject) -> None:
    b = data.draw(st.one_of(strategies.renested(a), strategies.dynamic_layouts(max_rank=3)))
    verdict = compare(a, b)
    bound = []
    for layout in (a, b):
        unknown = [leaf for leaf in (*leaves(layout.shape), *leaves(layout.stride)) if isinstance(leaf, Dynamic)]
        bound.append(bind(layout, [data.draw(st.sampled_from([1, 2])) * leaf.div for leaf in unknown]))
    assume(all(size(layout) <= 4096 for layout in bound))
    if verdict.level is SamenessLevel.DIFFERENT:
        assert values(bound[0]) != values(bound[1])
    elif verdict.level in (SamenessLevel.RENESTED, SamenessLevel.SAME_FUNCTION):
        assert values(bound[0]) == values(bound[1])
    found = first_difference(a, b)
    if found is not None:
        assert values(bound[0])[: found.index] == values(bound[1])[: found.index]
        assert values(bound[0])[: found.index + 1] != values(bound[1])[: found.index + 1]


def smem(dtype: str, swizzle: str, layout: str) -> str:
    return f'!cute.memref<{dtype}, smem, align<128>, {swizzle}"{layout}">'


def test_a_pointers_swizzle_acts_on_bytes() -> None:
    rows = "(8,16):(16,1)"
    # 16 fp4 elements are 8 bytes: 8 rows lie within 64 bytes, below the swizzle's source bits at 128 bytes.
    same = compare(smem("f4E2M1FN", "S<3,4,3>, ", rows), smem("f4E2M1FN", "", rows))
    assert (same.level, same.method) == ("renested", "enumerated")
    # The same element counts in fp16 reach 256 bytes, where the swizzle moves 16-byte chunks.
    other = compare(smem("f16", "S<3,4,3>, ", rows), smem("f16", "", rows))
    assert (other.level, other.method) == ("different", "enumerated")
    assert "byte addresses" in other.detail
    found = first_difference(smem("f16", "S<3,4,3>, ", rows), smem("f16", "", rows))
    assert (found.index, found.coord, found.offset_a, found.offset_b) == (4, (4, 0), 72, 64)


def test_a_swizzle_in_elements_may_be_the_one_in_bytes() -> None:
    in_bytes = smem("f16", "S<3,4,3>, ", "(8,64):(64,1)")
    assert compare(in_bytes, smem("f16", "", "S<3,3,3> o 0 o (8,64):(64,1)")).level == "renested"
    assert compare(in_bytes, smem("f16", "", "S<3,4,3> o 0 o (8,64):(64,1)")).level == "different"


@pytest.mark.slow
@given(strategies.composed_layouts(max_size=64), strategies.composed_layouts(max_size=64))
def test_swizzled_verdicts_agree_with_the_functions(a: ComposedLayout, b: ComposedLayout) -> None:
    verdict = compare(a, b)
    assert (verdict.level in SAME) == (values(a) == values(b))
    assert (first_difference(a, b) is None) == (values(a) == values(b))


@given(strategies.layouts(max_size=64), strategies.swizzles(), strategies.swizzles(), st.sampled_from([4, 8, 16, 32]))
def test_pointer_swizzles_agree_with_bit_addresses(layout: Layout, one: Swizzle, other: Swizzle, bits: int) -> None:
    dtype = {4: "f4E2M1FN", 8: "f8E4M3FN", 16: "f16", 32: "f32"}[bits]
    places = [
        [swizzle(offset * bits // 8) * 8 + offset * bits % 8 for offset in values(layout)] for swizzle in (one, other)
    ]
    a, b = (smem(dtype, f"{swizzle}, ", str(layout)) for swizzle in (one, other))
    assert (compare(a, b).level in SAME) == (places[0] == places[1])


def test_unknown_widths_are_not_guessed() -> None:
    a, b = smem("sparse", "S<3,4,3>, ", "(8,64):(64,1)"), smem("sparse", "S<2,4,3>, ", "(8,64):(64,1)")
    assert (compare(a, b).level, compare(a, b).method) == ("unknown", "not provable")
    assert first_difference(a, b) is None


def test_too_large_to_enumerate() -> None:
    big = "(4096,4096):(4096,1)"
    verdict = compare(f"S<3,4,3> o 0 o {big}", f"S<2,4,3> o 0 o {big}")
    assert (verdict.level, verdict.method) == ("unknown", "not provable")
    assert compare(f"S<3,4,3> o 0 o {big}", f"S<3,4,3> o 0 o {big}").level == "identical"


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        ("!cute.ptr<i64, smem>", "!cute.ptr<i64, smem>", "identical"),
        ("!cute.ptr<i64, smem>", "!cute.ptr<i64, smem, align<1024>>", "different"),
        ('!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>, permutation_MNK = <"[_;_;_]">>',
         "!cute.tiled_mma<!cute_nvgpu.sm100.mma<k>>", "renested"),
        ("!cute.ptr<i64, smem>", '!cute.memref<i64, smem, "4:1">', "different"),
        ('!cute.memref<i64, smem, "4:1">', '!cute.memref<i32, gmem, "4:1">', "identical"),
        ('!cute.layout<"(4,8):(1,4)">', "(4,8):(1,4)", "identical"),
        ("vector<128xf32>", "vector<128xf32>", "identical"),
        ("vector<128xf32>", "vector<64xf32>", "different"),
        ("i32", '!cute.layout<"4:1">', "different"),
    ],
)  # fmt: skip
def test_types(a: str, b: str, level: str) -> None:
    assert compare(a, b).level == level
    if a.startswith("!") and b.startswith("!"):
        assert compare(parse_type(a), parse_type(b)).level == level


def test_objects_and_texts_mix() -> None:
    assert compare(parse_layout("(4,8):(1,4)"), '!cute.layout<"32:1">').level == "same_function"


def test_errors_pass_through() -> None:
    with pytest.raises(PoisonedLayout):
        compare('!cute.layout<"x">', '!cute.layout<"4:1">')
    with pytest.raises(LayoutError, match="neither a type nor a layout"):
        compare("(4,8)", "4:1")
