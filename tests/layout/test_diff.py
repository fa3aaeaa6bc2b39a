"""The diff by meaning: every severity, the real differences of CuTe DSL 4.4.0 and 4.8.1, gates, renames."""

import itertools
import json
import math
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.launch_facts import diff_facts
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.layout.measures import bank_ways, smem_bytes, tmem_columns
from pytest_nvfp4.layout.notation import Layout, Swizzle
from tests.layout.diffs import as_text, layout, listing, only

SA = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'
SB = SA.replace("(256,1),0,64,0", "(64,1),0,8192,0")
MMA = (
    "!cute.tiled_mma<!cute_nvgpu.sm100.mma_bs<128x128x64, num_cta = 1, ab_major = (k, k), "
    "elem_type = (f4E2M1FN, f4E2M1FN, f32), sf_type = f8E4M3FN, frag_kind = ss, vec_size = 16>, "
    'atom_layout_MNK = <"(1,1,1):(0,0,0)">{}>'
)
PERMUTATION = ', permutation_MNK = <"[_;_;_]">'


# --- the five real differences between 4.4.0 and 4.8.1 --------------------------------------------------------------


def test_real_1_a_struct_pointer_loses_its_alignment():
    change = only("!cute.ptr<i64, smem, align<1024>>", "!cute.ptr<i64, smem>", "kernel.tensormap_smem_ptr")
    delta = change.delta("align")
    assert (delta.old, delta.new) == (1024, 8)
    assert "TMA descriptor needs 64 bytes" in delta.note
    assert change.severity is Severity.DIFFERENT
    assert change.error is None


@pytest.mark.parametrize("text", ["x", "(128,4):x", "((128,64),x):((256,1),0)"])
def test_real_2_a_poisoned_layout_is_a_hard_error(text):
    change = only(layout("((((32,4),1),(16,4)),1,8,1):((((16,4),0),(0,1)),0,512,4096)"), layout(text))
    assert change.severity is Severity.DIFFERENT
    assert "poisoned" in change.error
    assert "kernel.x" in change.error


def test_real_2_a_layout_that_was_poisoned_before_is_still_an_error():
    diff = diff_listings(listing({"k.x": layout("x")}), listing({"k.x": layout("x")}))
    assert [change.name for change in diff.errors] == ["k.x"]
    assert diff.gate(Severity.DIFFERENT) == diff.errors
    assert diff.identical == 0


def test_real_2_an_x_that_is_no_layout_is_no_poison():
    # 128x128x64 and x128 hold an x, and so may a name.
    atom = "!cute.tiled_copy<!cute_nvgpu.atom.tmem_load<f32, 32 DP, 32 bit, x128>>"
    same = {"kernel.x": MMA.format(""), "kernel.y": atom}
    assert not diff_listings(listing(same), listing(same))


def test_real_2_at_k128_the_mode_that_changed_is_named():
    # 4.4.0 hard-codes mma_tile_inst_k = 4, so at K = 128 the same bytes come back with another MMA_K mode.
    change = only(
        layout("((((32,4),1),(16,4)),1,4,1):((((16,4),0),(0,1)),0,512,2048)"),
        layout("((((32,4),1),(16,4)),1,2,1):((((16,4),0),(0,1)),0,512,1024)"),
        "host.sfa_smem_layout_staged",
    )
    assert change.severity is Severity.DIFFERENT
    assert change.role == "MMA_K"
    assert [mode.path for mode in change.modes] == [(2,)]


def test_real_3_the_stride_of_a_size_one_mode_is_cosmetic():
    change = only(layout("(1,4):(0,1)"), layout("(1,4):(4,1)"))
    assert change.severity is Severity.COSMETIC
    assert change.method == "canonical"
    # Control: with size 2 the same strides are another function.
    assert only(layout("(2,4):(0,1)"), layout("(2,4):(4,1)")).severity is Severity.DIFFERENT


def test_real_4_a_permutation_of_nothing_is_cosmetic():
    change = only(MMA.format(""), MMA.format(PERMUTATION))
    assert change.severity is Severity.COSMETIC
    assert change.deltas == ()
    # Control: a permutation of something is not.
    real = PERMUTATION.replace("_;_;_", "128:1;_;_")
    assert only(MMA.format(""), MMA.format(real)).severity is Severity.DIFFERENT


def test_real_5_a_wrong_composition_is_told_with_its_first_wrong_index():
    # 4.8.1 composes (2,3,2):(1,4,2) with (4,2):(1,4) to a layout that sends index 6 to 12; the truth is 2.
    change = only(
        '!cute.composed_layout<"(2,3,2):(1,4,2) o 0 o (4,2):(1,4)">',
        '!cute.composed_layout<"(4,2):(1,4) o 0 o (4,2):(1,4)">',
    )
    assert change.severity is Severity.DIFFERENT
    change = only('!cute.composed_layout<"(2,3,2):(1,4,2) o 0 o (4,2):(1,4)">', layout("((2,2),2):((1,4),8)"))
    assert change.severity is Severity.DIFFERENT
    assert change.method == "enumerated"
    assert (change.first.index, change.first.old, change.first.new) == (6, "2", "12")


# --- severities --------------------------------------------------------------------------------------------------

SEVERITIES = [
    (Severity.RENESTED, "canonical", "((2,4),8):((1,2),8)", "(8,8):(1,8)"),
    (Severity.SAME_FUNCTION, "canonical", "(8,8):(1,8)", "(4,16):(1,4)"),
    (Severity.PERMUTED, "canonical", "(4,8):(1,4)", "(8,4):(4,1)"),
    (Severity.DIFFERENT, "canonical", "(4,8):(1,4)", "(4,8):(8,1)"),
    (Severity.DIFFERENT, "canonical", "(4,8):(1,4)", "(4,16):(1,4)"),
]


@pytest.mark.parametrize(("severity", "method", "old", "new"), SEVERITIES)
def test_grades_of_the_function(severity, method, old, new):
    for before, after in ((old, new), (new, old)):
        change = only(layout(before), layout(after))
        assert (change.severity, change.method, change.unproven) == (severity, method, False)
        assert change.reasons


def test_identical_layouts_are_counted_not_listed():
    diff = diff_listings(listing({"k.a": SA, "k.b": SA}), listing({"k.a": SA, "k.b": SA}))
    assert not diff
    assert diff.worst is Severity.IDENTICAL
    assert diff.counts[Severity.IDENTICAL] == 2
    assert diff.gate(Severity.COSMETIC) == []


def test_the_first_difference_has_coordinate_and_both_offsets():
    change = only(SA, SA.replace("((256,1),0,64,0)", "((256,1),0,128,0)"), "kernel.sA")
    assert change.first.index == 8192
    assert change.first.coord == "((0,0),0,1,0)"
    # Byte 32 and byte 64 of row 0: the swizzle of row 0 is the identity.
    assert (change.first.old, change.first.new) == ("64", "128")
    assert change.role == "MMA_K"


def test_offsets_are_those_after_the_swizzle():
    change = only(SA, SA.replace("((256,1),0,64,0)", "((512,1),0,64,0)"), "kernel.sA")
    # Row 1: byte 128 XOR 16 is element 288; byte 256 XOR 32 is element 576.
    assert (change.first.coord, change.first.old, change.first.new) == ("((1,0),0,0,0)", "288", "576")


def test_a_layout_that_grew_agrees_as_far_as_it_went():
    change = only(SA, SA.replace("1,4,1):((256,1),0,64,0)", "1,4,2):((256,1),0,64,32768)"), "kernel.sA")
    assert change.role == "STAGE"
    assert (change.first.index, change.first.old, change.first.new) == (32768, None, "32768")
    assert "up to the end of the old one" in change.reasons[0]
    assert change.delta("smem_bytes").text() == "smem bytes 16384 -> 32768 B"


def test_a_coordinate_tensor_differs_at_a_coordinate():
    old = '!cute.coord_tensor<"(0,0,0)", "(((256,128),1),?,?,?):(((1@0,1@1),0),128@1,256@0,1@2)">'
    change = only(old, old.replace("(256,128)", "(128,128)").replace("256@0", "128@0"), "kernel.tAgA")
    assert change.severity is Severity.DIFFERENT
    assert (change.first.index, change.first.old, change.first.new) == (128, "(128,0,0)", "(0,1,0)")


MODES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([0, 1, 2, 3, 4, 8, 16])), min_size=1, max_size=3
)


@settings(max_examples=300, deadline=None)
@given(MODES, MODES, st.sampled_from(["", "S<2,4,3>, ", "S<1,4,3>, "]))
def test_the_grade_agrees_with_looking_at_every_index(one, other, swizzle):
    text = '!cute.memref<f8E4M3FN, smem, align<1024>, {}"{}">'
    # 64-fold strides, so that the swizzles have bits to move.
    old, new = (text.format(swizzle, as_text([(s, d * 64) for s, d in modes])) for modes in (one, other))
    tables = []
    for modes in (one, other):
        plain = Layout(tuple(s for s, _ in modes), tuple(d * 64 for _, d in modes))
        moved = Swizzle(*map(int, re.findall(r"\d", swizzle))) if swizzle else (lambda offset: offset)
        tables.append([moved(plain(index)) for index in range(math.prod(s for s, _ in modes))])
    if old == new:
        return
    change = only(old, new)
    assert not change.unproven
    assert (change.severity <= Severity.SAME_FUNCTION) == (tables[0] == tables[1])
    if change.severity is Severity.PERMUTED:
        assert len(tables[0]) == len(tables[1])
        assert sorted(tables[0]) == sorted(tables[1])
    if tables[0] == tables[1]:
        assert change.first is None
    else:
        pairs = itertools.zip_longest(*tables)
        index, (was, now) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        assert change.first.index == index
        assert (change.first.old, change.first.new) == tuple(None if at is None else str(at) for at in (was, now))


# --- what cannot be proved -----------------------------------------------------------------------------------------

DYNAMIC = '!cute.memref<f16, gmem, align<16>, "({},4):(1,{})">'


def test_equal_texts_with_a_symbol_are_identical():
    text = DYNAMIC.format("?", "?{div=8}")
    assert not diff_listings(listing({"k.a": text}), listing({"k.a": text}))


def test_a_symbol_that_is_written_differently_is_not_provable():
    change = only(DYNAMIC.format("?", "?{div=8}"), DYNAMIC.format("?", "?{div=16}"))
    assert (change.severity, change.method, change.unproven) == (Severity.DIFFERENT, "not provable", True)
    assert "not provable" in change.reasons[0]


def test_a_size_one_stride_is_cosmetic_beside_a_symbol():
    change = only(layout("(?,1,4):(4,0,1)"), layout("(?,1,4):(4,16,1)"))
    assert (change.severity, change.unproven) == (Severity.COSMETIC, False)


def test_a_type_outside_the_grammar_is_not_provable_but_equal_texts_are_equal():
    new = "!cute.future<[[%"
    change = only(SA, new)
    assert (change.severity, change.unproven, change.error) == (Severity.DIFFERENT, True, None)
    assert "could not be read" in change.reasons[0]
    assert not diff_listings(listing({"k.a": new}), listing({"k.a": new}))


def test_a_healed_poison_has_nothing_to_compare_with():
    change = only(layout("x"), layout("4:1"))
    assert (change.severity, change.unproven, change.error) == (Severity.DIFFERENT, True, None)


# --- properties ----------------------------------------------------------------------------------------------------

PROPERTIES = [
    ("space", "smem", "gmem", Severity.DIFFERENT, '!cute.memref<f16, {}, align<16>, "4:1">'),
    ("dtype", "f16", "bf16", Severity.DIFFERENT, '!cute.memref<{}, smem, align<16>, "4:1">'),
    ("align", 128, 1024, Severity.COSMETIC, '!cute.memref<f16, smem, align<{}>, "4:1">'),
    ("align", 1024, 128, Severity.DIFFERENT, '!cute.memref<f16, smem, align<{}>, "4:1">'),
]


@pytest.mark.parametrize(("field", "old", "new", "severity", "text"), PROPERTIES)
def test_properties_raise_the_severity(field, old, new, severity, text):
    change = only(text.format(old), text.format(new))
    assert change.severity is severity
    delta = change.delta(field)
    assert (delta.old, delta.new, delta.severity) == (old, new, severity)
    assert change.first is None


def test_an_alignment_that_equals_the_natural_one_is_cosmetic():
    change = only("!cute.ptr<i64, smem, align<8>>", "!cute.ptr<i64, smem>")
    assert change.severity is Severity.COSMETIC
    assert change.delta("align") is None


def test_an_alignment_below_the_swizzle_period_says_so():
    change = only(SA, SA.replace("align<1024>", "align<128>"))
    assert "S<3,4,3> repeats every 1024 bytes" in change.delta("align").note
    assert "repeats" not in only(SA.replace("1024", "2048"), SA).delta("align").note


def test_a_swizzle_that_moves_addresses_is_different():
    change = only(SA, SA.replace("S<3,4,3>", "S<2,4,3>"))
    assert change.severity is Severity.DIFFERENT
    assert change.delta("swizzle").text() == "swizzle S<3,4,3> -> S<2,4,3>"
    assert change.delta("bank_ways").text() == "bank ways 1 -> 2"


def test_a_swizzle_that_moves_nothing_here_is_the_same_function():
    # Eight rows of 16 bytes: no bit of the address is at or above 7, so S<3,4,3> is the identity.
    text = '!cute.memref<f8E4M3FN, smem, align<1024>, {}"(8,16):(16,1)">'
    change = only(text.format(""), text.format("S<3,4,3>, "))
    assert change.severity is Severity.SAME_FUNCTION
    assert change.method == "enumerated"
    assert change.delta("swizzle").severity is Severity.SAME_FUNCTION


def test_an_instruction_argument_is_named_by_its_path():
    change = only(
        MMA.format(""), MMA.format("").replace("128x128x64", "128x256x64").replace("vec_size = 16", "vec_size = 32")
    )
    assert change.severity is Severity.DIFFERENT
    assert [(delta.field, delta.old, delta.new) for delta in change.deltas] == [
        ("sm100.mma_bs.vec_size", "16", "32"),
        ("sm100.mma_bs.argument 1", "128x128x64", "128x256x64"),
    ]


def test_a_nested_layout_of_an_atom_is_compared_by_function():
    text = '!cute.tiled_copy<!cute_nvgpu.atom.tmem_load<f32, 32 DP, 32 bit, x128>, layout_copy_tv = <"{}">>'
    assert only(text.format("(8,8):(1,8)"), text.format("((2,4),8):((1,2),8)")).severity is Severity.RENESTED
    assert only(text.format("(8,8):(1,8)"), text.format("(8,8):(8,1)")).severity is Severity.DIFFERENT


def test_another_kind_of_object_is_different():
    change = only('!cute.memref<f16, smem, "4:1">', "!cute.ptr<f16, smem>")
    assert change.severity is Severity.DIFFERENT
    assert change.delta("kind").text() == "kind memref -> ptr"


def test_a_composition_that_does_nothing_is_the_same_kind():
    change = only(layout("4:1"), '!cute.composed_layout<"S<0,4,3> o 0 o 4:1">')
    assert change.severity <= Severity.SAME_FUNCTION
    assert change.delta("kind") is None


# --- measures ------------------------------------------------------------------------------------------------------

TMEM = [
    ('!cute.memref<f32, tmem, align<1>, "((128,128),1,1):((65536,1),0,0)">', 128),
    ('!cute.memref<f32, tmem, align<1>, "((128,256),1,1):((65536,1),0,0)">', 256),
    ('!cute.memref<f32, tmem, align<1>, "((128,128),1,1,4):((65536,1),0,0,128)">', 512),
    ('!cute.memref<f8E4M3FN, tmem, align<16>, '
     '"((((32,4),4),(16,4)),1,4):((((262144,4),8388608),(0,1)),0,16)">', 16),
    ('!cute.memref<f8E4M3FN, tmem, align<16>, '
     '"((((32,4),4),(16,4)),2,4):((((262144,4),8388608),(0,1)),16,32)">', 32),
    ('!cute.memref<f16, tmem, align<16>, "(128,33):(131072,1)">', 17),
    ('!cute.memref<f16, tmem, align<16>, "(128,(2,5)):(131072,(1,8))">', 17),
    ('!cute.memref<f8E4M3FN, tmem, align<16>, "(128,6):(262144,1)">', 2),
    ('!cute.memref<f8E4M3FN, tmem, align<16>, "(128,6):(262144,2)">', 3),
    ('!cute.memref<f32, tmem, align<1>, "((128,?),1,1):((65536,1),0,0)">', None),
    ('!cute.memref<f32, smem, align<16>, "(128,128):(128,1)">', None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "columns"), TMEM)
def test_tmem_columns_are_those_that_the_dsl_counts(text, columns):
    # The numbers are what find_tmem_tensor_col_offset of CuTe DSL 4.8.1 returned for these very types.
    assert tmem_columns(parse_type(text)) == columns


def test_tmem_columns_before_and_after():
    change = only(TMEM[0][0], TMEM[2][0], "kernel.tCtAcc")
    delta = change.delta("tmem_columns")
    assert (delta.old, delta.new, delta.severity) == (128, 512, Severity.IDENTICAL)
    assert (change.role, change.modes[0].old, change.modes[0].new) == ("STAGE", None, "4:128")
    too_many = only(TMEM[0][0], TMEM[2][0].replace("1,1,4)", "1,1,5)"), "kernel.tCtAcc")
    assert "cannot be allocated" in too_many.delta("tmem_columns").note


def test_smem_bytes_round_up_and_need_numbers():
    assert smem_bytes(parse_type('!cute.memref<f4E2M1FN, smem, align<16>, "5:1">')) == 3
    assert smem_bytes(parse_type('!cute.memref<f16, smem, align<16>, "(4,?):(1,4)">')) is None
    assert smem_bytes(parse_type('!cute.memref<f16, gmem, align<16>, "4:1">')) is None


def test_bank_conflicts_are_counted_in_bytes():
    rows = '!cute.memref<{}, smem, align<1024>, {}"(8,{}):({},1)">'
    assert bank_ways(parse_type(rows.format("f4E2M1FN", "S<3,4,3>, ", 256, 256))) == 1
    assert bank_ways(parse_type(rows.format("f4E2M1FN", "", 256, 256))) == 8
    # Control: counted in elements, the swizzled rows would seem to conflict: 256 elements are 128 bytes, not 256.
    assert bank_ways(parse_type(rows.format("f8E4M3FN", "S<3,4,3>, ", 256, 256))) == 2
    # Padding by one vector frees it without a swizzle.
    assert bank_ways(parse_type(rows.format("f16", "", 64, 72))) == 1


# --- listings ------------------------------------------------------------------------------------------------------


def test_changes_come_worst_first():
    old = {
        "k.a": layout("(8,8):(1,8)"),
        "k.b": layout("(1,4):(0,1)"),
        "k.c": layout("(4,8):(1,4)"),
        "k.d": layout("4:1"),
    }
    new = {
        "k.a": layout("(4,16):(1,4)"),
        "k.b": layout("(1,4):(4,1)"),
        "k.c": layout("(4,8):(8,1)"),
        "k.d": layout("x"),
    }
    diff = diff_listings(listing(old), listing(new))
    assert [change.name for change in diff.changes] == ["k.d", "k.c", "k.a", "k.b"]
    assert diff.worst is Severity.DIFFERENT
    assert {severity.name: count for severity, count in diff.counts.items() if count} == {
        "DIFFERENT": 2,
        "SAME_FUNCTION": 1,
        "COSMETIC": 1,
    }
    assert [change.name for change in diff.gate()] == ["k.d", "k.c"]
    assert len(diff.gate(Severity.COSMETIC)) == 4


def test_added_is_reported_and_removed_gates():
    diff = diff_listings(listing({"k.a": SA}), listing({"k.b": layout("4:1")}))
    assert [(change.kind, change.name, change.severity) for change in diff.changes] == [
        ("removed", "k.a", Severity.DIFFERENT),
        ("added", "k.b", Severity.COSMETIC),
    ]
    assert [change.name for change in diff.gate()] == ["k.a"]


def test_an_added_poison_is_an_error():
    diff = diff_listings(listing({}), listing({"k.a": layout("x")}))
    assert [change.kind for change in diff.errors] == ["added"]


def test_a_rename_is_recognised_by_type_and_scope():
    diff = diff_listings(listing({"k.old": SA}), listing({"k.new": SA}))
    (change,) = diff.changes
    assert (change.kind, change.name, change.old_name, change.severity) == (
        "renamed",
        "k.new",
        "k.old",
        Severity.COSMETIC,
    )
    assert diff.gate() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"k.old": SA, "j.x": MMA}, {"k.y": MMA, "j.new": SA}),  # another function, which was there before
        ({"k.old": SA}, {"k.new": SA.replace("f4E2M1FN", "f16")}),  # another element type
        ({"k.old": SA, "k.older": SA}, {"k.new": SB, "k.newer": SB}),  # two candidates with another type
        ({"k.old": layout("4:1")}, {"k.new": layout("8:1")}),  # another shape
    ],
)
def test_a_doubtful_rename_is_none(old, new):
    kinds = {change.kind for change in diff_listings(listing(old), listing(new)).changes}
    assert kinds == {"removed", "added"}


def test_of_several_equal_types_those_with_similar_names_are_paired():
    old = {"k.sA": SA, "k.sB": SA, "k.map[0]": SA, "k.map[1]": SA}
    new = {"k.smem_B": SA, "k.smem_A": SA, "k.maps[1]": SA, "k.maps[0]": SA}
    names = {change.old_name: change.name for change in diff_listings(listing(old), listing(new)).changes}
    assert names == {"k.sA": "k.smem_A", "k.sB": "k.smem_B", "k.map[0]": "k.maps[0]", "k.map[1]": "k.maps[1]"}


def test_of_more_old_layouts_than_new_ones_the_others_are_removed():
    diff = diff_listings(listing({"k.old": SA, "k.other": SA}), listing({"k.older": SA}))
    assert {(change.kind, change.name) for change in diff.changes} == {("renamed", "k.older"), ("removed", "k.other")}
    assert [change.name for change in diff.gate()] == ["k.other"]


def test_a_new_name_with_another_layout_is_both():
    (change,) = diff_listings(listing({"k.old": SA}), listing({"k.new": SB})).changes
    assert (change.kind, change.old_name, change.severity) == ("changed", "k.old", Severity.DIFFERENT)
    assert "it was k.old" in change.reasons


def test_a_layout_that_moved_to_another_function_is_renamed():
    old, new = {"k.sA": SA, "k.sB": SB, "k.x": MMA}, {"k.x": MMA, "helper.sA": SA, "helper.sB": SB}
    diff = diff_listings(listing(old), listing(new))
    assert {(change.kind, change.old_name, change.name) for change in diff.changes} == {
        ("renamed", "k.sA", "helper.sA"),
        ("renamed", "k.sB", "helper.sB"),
    }


def test_a_protected_layout_of_a_renamed_function_gates_with_its_new_name():
    old, new = {"kernel.sA": SA, "kernel.sB": SA}, {"gemm.sA": SA, "gemm.sB": SA}
    diff = diff_listings(listing(old), listing(new), protected=["kernel.sA"])
    (change,) = diff.gate()
    assert (change.kind, change.name, change.protected) == ("renamed", "gemm.sA", True)
    assert "kernel.sA is renamed to gemm.sA" in change.reasons[0]
    assert "change it in `protected`" in change.reasons[1]
    assert not diff_listings(listing(old), listing(new), protected=["gemm.*"]).changes[0].reasons[1:]


TYPES = (SA, SB, MMA, layout("(4,8):(1,4)"), layout("(4,8):(8,1)"), SA.replace("f4E2M1FN", "f16"))
"""Types of which none can become another without failing the gate."""
KERNELS = st.dictionaries(
    st.tuples(st.sampled_from("fgh"), st.sampled_from(["a", "b", "tile", "smem", "x#2", "maps[0]", "maps[1]"])),
    st.sampled_from(TYPES),
    min_size=1,
)


@given(KERNELS, st.data())
def test_no_renaming_of_functions_and_variables_is_more_than_cosmetic(kernel, data):
    if data.draw(st.booleans()):  # only the functions, or also every variable
        functions = {"f": "one", "g": "two", "h": "three"}
        new = {f"{functions[scope]}.{name}": raw for (scope, name), raw in kernel.items()}
    else:
        new = {f"{scope}.new_{name}": raw for (scope, name), raw in kernel.items()}
    diff = diff_listings(listing({f"{scope}.{name}": raw for (scope, name), raw in kernel.items()}), listing(new))
    assert {change.kind for change in diff.changes} <= {"renamed"}
    assert diff.gate() == []


@given(KERNELS, KERNELS)
def test_no_rename_hides_a_type_that_is_gone(old, new):
    before, after = Counter(old.values()), Counter(new.values())
    first, second = ({f"{scope}.{name}": raw for (scope, name), raw in kernel.items()} for kernel in (old, new))
    diff = diff_listings(listing(first), listing(second))
    assert bool(diff.gate()) or not before - after


def test_renames_can_be_left_alone():
    diff = diff_listings(listing({"k.old": SA}), listing({"k.new": SA}), renames=False)
    assert [change.kind for change in diff.changes] == ["removed", "added"]


def test_an_inserted_assignment_does_not_shift_the_others():
    a, b, c = layout("2:1"), layout("3:1"), layout("5:1")
    old, new = listing([("k.x", a), ("k.x", c)]), listing([("k.x", a), ("k.x", b), ("k.x", c)])
    diff = diff_listings(old, new)
    assert [(change.kind, change.new_raw) for change in diff.changes] == [("added", b)]
    assert diff.identical == 2


def test_a_changed_assignment_is_compared_with_its_own():
    old, new = listing([("k.x", layout("2:1")), ("k.x", SA)]), listing([("k.x", layout("2:1")), ("k.x", layout("7:1"))])
    (change,) = diff_listings(old, new).changes
    assert (change.kind, change.old_raw, change.new_raw) == ("changed", SA, layout("7:1"))


@pytest.mark.parametrize("pattern", ["kernel.x", "x", "kernel.*", "*.x", "?"])
def test_a_protected_layout_gates_at_cosmetic(pattern):
    old, new = listing({"kernel.x": layout("(1,4):(0,1)")}), listing({"kernel.x": layout("(1,4):(4,1)")})
    diff = diff_listings(old, new, protected=[pattern])
    assert [change.name for change in diff.gate(Severity.DIFFERENT)] == ["kernel.x"]
    assert diff.changes[0].protected
    assert diff_listings(old, new, protected=["kernel.y", "y"]).gate() == []


def test_a_protected_layout_cannot_hide_behind_a_new_name():
    diff = diff_listings(listing({"k.old": SA}), listing({"k.new": SA}), protected=["k.old"])
    assert len(diff.gate()) == 1


def test_a_name_with_brackets_is_protected_as_it_stands():
    old, new = listing({"k.x[0]": layout("(1,4):(0,1)")}), listing({"k.x[0]": layout("(1,4):(4,1)")})
    assert diff_listings(old, new, protected=["k.x[0]"]).gate()


def test_headers_are_compared_by_themselves():
    diff = diff_listings(listing({"k.a": SA}, "4.4.0"), listing({"k.a": SA}, "4.8.1"))
    assert (diff.dsl_version.old, diff.dsl_version.new) == ("4.4.0", "4.8.1")
    assert diff.header == ()
    assert diff
    assert diff.gate(Severity.IDENTICAL) == []


def test_one_type_pair_is_graded_once_but_named_by_each_variable():
    new = SA.replace("1,4,1):((256,1),0,64,0)", "1,4,1):((256,1),0,128,0)")
    diff = diff_listings(
        listing({"k.sA": SA, "k.sB": SA, "k.tmp": SA}), listing({"k.sA": new, "k.sB": new, "k.tmp": new})
    )
    assert {change.name: change.roles[1:2] for change in diff.changes} == {
        "k.sA": ("MMA_M",),
        "k.sB": ("MMA_N",),
        "k.tmp": (),
    }


def test_json_is_complete():
    old = {"kernel.sA": SA, "k.b": layout("(1,4):(0,1)")}
    new = {"kernel.sA": SA.replace("64,0)", "128,0)"), "k.b": layout("(1,4):(4,1)")}
    data = json.loads(json.dumps(diff_listings(listing(old), listing(new), protected=["k.b"]).to_json()))
    assert data["worst"] == "different"
    assert data["counts"]["cosmetic"] == 1
    first, second = data["changes"]
    assert first["modes"] == [{"path": [2], "role": "MMA_K", "old": "4:64", "new": "4:128"}]
    assert first["first"]["coord"] == "((0,0),0,1,0)"
    assert second["protected"] is True


def test_severity_names_parse_and_wrong_ones_are_listed():
    assert Severity.parse("Same-Function") is Severity.SAME_FUNCTION
    with pytest.raises(ValueError, match="use one of: identical, cosmetic"):
        Severity.parse("awful")


# --- launch facts --------------------------------------------------------------------------------------------------


def test_launch_facts():
    old = {"grid": "(148,1,1)", "registers": "128", "spills": "0", "smem": "48 KiB", "arch": "sm_100a", "gone": "1"}
    new = {"grid": "148x2x1", "registers": "96", "spills": "12", "smem": "50 KB", "arch": "sm_103a", "come": "1"}
    found = {fact.name: fact for fact in diff_facts(old, new)}
    assert (found["grid"].direction, found["grid"].change, found["grid"].percent) == ("up", 148, 100.0)
    assert (found["registers"].direction, found["registers"].percent, found["registers"].costs) == (
        "down",
        -25.0,
        False,
    )
    assert (found["spills"].percent, found["spills"].costs) == (None, True)
    assert found["spills"].text() == "spills 0 -> 12 (+12, from zero)"
    assert found["smem"].change is None  # other units are not compared as numbers
    assert (found["arch"].direction, found["gone"].direction, found["come"].direction) == (
        "changed",
        "removed",
        "added",
    )


def test_equal_facts_are_left_out_and_equal_products_are_told():
    assert diff_facts({"a": "1"}, {"a": "1"}) == []
    (fact,) = diff_facts({"grid": "(4,2,1)"}, {"grid": "(2,4,1)"})
    assert fact.text() == "grid (4,2,1) -> (2,4,1) (same total)"


@pytest.mark.parametrize(
    ("old", "new", "directions"),
    [
        (["a"], ["b"], ["renamed"]),
        (["a", "b"], ["c", "b"], ["renamed"]),
        (["a", "a"], ["b", "b"], ["renamed", "renamed"]),
        (["a", "b"], ["b", "a"], ["changed", "changed"]),  # exchanged
        (["a", "b"], ["b", "b"], ["changed"]),  # the second kernel instead of the first
        (["a", "a"], ["a", "b"], ["changed"]),  # one launch of two
        (["a", "b"], ["c", "c"], ["changed", "changed"]),
        (["a", "b"], ["b", "c"], ["changed", "changed"]),
    ],
)
def test_a_kernel_with_a_new_name_is_renamed(old, new, directions):
    facts = [{f"launch.{index}.kernel": name for index, name in enumerate(names)} for names in (old, new)]
    assert [fact.direction for fact in diff_facts(*facts)] == directions


@pytest.mark.parametrize("text", ["inf", "nan", "1e999", "", "x", "(1,?,1)", "1,5"])
def test_what_is_no_number_is_text(text):
    (fact,) = diff_facts({"a": "1"}, {"a": text})
    assert fact.change is None
    json.dumps(fact.to_json(), allow_nan=False)


def test_another_dsl_version_may_write_a_protected_layout_in_another_way() -> None:
    weak = '!cute.memref<f16, smem, align<128>, "(4,2):(1,4)">'
    strong = '!cute.memref<f16, smem, align<1024>, "(4,2):(1,4)">'
    other = '!cute.memref<f16, smem, align<128>, "(4,2):(2,1)">'

    def listing(version: str, raw: str) -> Listing:
        return Listing.from_pairs({"dsl": version}, [("k.sA", raw)])

    same = diff_listings(listing("4.8.1", weak), listing("4.8.1", strong), protected=["k.sA"])
    across = diff_listings(listing("4.8.1", weak), listing("4.4.0", strong), protected=["k.sA"])
    worse = diff_listings(listing("4.8.1", weak), listing("4.4.0", other), protected=["k.sA"])
    assert [change.name for change in same.gate()] == ["k.sA"]
    assert across.gate() == []
    assert across.changes[0].severity is Severity.COSMETIC
    assert worse.gate()[0].protected


def test_types_that_cannot_be_read_are_compared_as_text() -> None:
    fma = "!cute_nvgpu.atom.universal_fma<1x1x1, (f32, f32) -> f32 >"
    mma = "!cute_nvgpu.sm80.mma<16x8x16, elem_type = (f16, f16, f32) >"
    old = Listing.from_pairs({}, [("k.op", fma), ("k.mma", mma)])
    assert Listing.parse(old.render()) == old
    assert not diff_listings(old, Listing.parse(old.render())).changes
    new = Listing.from_pairs({}, [("k.op", fma.replace("1x1x1", "2x1x1")), ("k.mma", mma)])
    (change,) = diff_listings(old, new).gate()
    assert (change.name, change.unproven) == ("k.op", True)


# --- two different kernels ----------------------------------------------------------------------------------------


ACC = '!cute.memref<f32, tmem, align<16>, "((128,128),1,1):((65536,1),0,0)">'
SMALL = ACC.replace("((128,128),1,1)", "((128,64),1,1)")
PLAIN = '!cute.memref<f16, smem, align<128>, "(8,8):(8,1)">'
PLAIN_T = PLAIN.replace("(8,1)", "(1,8)")


def test_layouts_of_another_kernel_are_paired_by_role_and_say_how_sure_that_is():
    old = listing({"gemm.sA": SA, "gemm.tCtAcc": ACC, "gemm.staging": PLAIN})
    new = listing({"other.sA0": SB, "other.tCtAcc_base": SMALL, "other.buffer": PLAIN_T})
    plain = diff_listings(old, new)
    assert {change.kind for change in plain.changes} == {"added", "removed"}, "not within one kernel"
    changes = {change.name: change for change in diff_listings(old, new, other_kernel=True).changes}
    assert {name: (change.kind, change.sure) for name, change in changes.items()} == {
        "other.sA0": ("changed", "likely"),
        "other.tCtAcc_base": ("changed", "a guess"),
        "other.buffer": ("changed", "a guess"),
    }
    assert changes["other.sA0"].reasons[0].startswith("taken for gemm.sA of the other kernel by role, space, ")
    assert changes["other.buffer"].to_json()["sure"] == "a guess"


def test_a_guess_is_as_grave_as_a_removal():
    unlike = {f"gemm.other{at}": layout(f"{at}:1") for at in range(2, 6)}  # so that no function has a new name
    old, new = listing({"gemm.staging": PLAIN} | unlike), listing({"other.buffer": PLAIN})
    changes = {change.name: change for change in diff_listings(old, new, other_kernel=True).changes}
    change = changes["other.buffer"]
    assert (change.kind, change.sure, change.severity) == ("renamed", "a guess", Severity.DIFFERENT)
    two = listing({"other.buffer": PLAIN, "other.second": PLAIN})
    assert {change.kind for change in diff_listings(old, two, other_kernel=True).changes} == {"removed", "added"}
