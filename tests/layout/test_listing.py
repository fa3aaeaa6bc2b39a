"""The snapshot text: exact, stable, and never taken for whole when it is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.layout.errors import LayoutError, LayoutSyntaxError, ListingError, PoisonedLayout
from pytest_nvfp4.layout.listing import Listing, Record, natural_key

SMEM = '!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'
COORD = '!cute.coord_tensor<"(0,0,0)", "(128,256,?,?,?):(1@1,1@0,128@1,256@0,1@2)">'
POINTER = "!cute.ptr<i64, smem>"
HEADER = {"kernel": "kernels/nvfp4_group_gemm/sm100.py", "problem": "gpumode-0", "arch": "sm_100a", "dsl": "4.8.1"}

TEXT = f"""\
# nvfp4-layouts 1
# kernel   kernels/nvfp4_group_gemm/sm100.py
# problem  gpumode-0
# arch     sm_100a
# dsl      4.8.1

kernel.gA_mkl  (0,0,0) o (128,256,?,?,?):(1@1,1@0,128@1,256@0,1@2)  {COORD}  -  -
kernel.sA  S<3,4,3> o 0 o (128,256):(256,1)  {SMEM}  smem  128
kernel.x  {POINTER}  =  smem  -
kernel.x#2  4:1  !cute.layout<"4:1">  -  -
kernel.x#10  8:1  !cute.layout<"8:1">  -  -
# end 5
"""

PAIRS = [
    ("kernel.x#10", '!cute.layout<"8:1">'),
    ("kernel.x", POINTER),
    ("kernel.sA", SMEM),
    ("kernel.x", '!cute.layout<"4:1">'),
    ("kernel.gA_mkl", COORD),
    ("kernel.x", POINTER),
    ("kernel.sA", SMEM.replace(" smem", "\n  smem")),
]


def test_the_format_is_exact() -> None:
    assert Listing.from_pairs(HEADER, PAIRS).render() == TEXT


def test_it_parses_back() -> None:
    listing = Listing.parse(TEXT)
    assert listing == Listing.from_pairs(HEADER, PAIRS)
    assert listing.render() == TEXT
    assert listing.dsl == "4.8.1"
    assert dict(listing.header) == HEADER
    record = listing.by_name["kernel.sA"]
    assert (record.space, record.align, record.dtype) == ("smem", 128, "f4E2M1FN")
    assert record.info.layout is not None


def test_an_empty_listing() -> None:
    text = "# nvfp4-layouts 1\n\n# end 0\n"
    assert Listing().render() == text
    assert Listing.parse(text) == Listing()


NAMES = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12).filter(
    lambda name: not name.startswith(("#", "<<<<<<<", "=======", ">>>>>>>", "|||||||"))
)
TYPES = st.sampled_from(
    [SMEM, COORD, POINTER, '!cute.layout<"(4,8):(1,4)">', "vector<128xf32>", '!cute.tile<"[4:1;_]">']
)


@given(st.lists(st.tuples(NAMES, TYPES)), st.randoms(use_true_random=False))
def test_any_listing_comes_back(pairs: list[tuple[str, str]], shuffle: random.Random) -> None:
    listing = Listing.from_pairs(HEADER, pairs)
    text = listing.render()
    assert Listing.parse(text) == listing
    assert Listing.parse(text).render() == text
    assert {record.raw for record in listing.records} == {raw for _, raw in pairs}
    once = list(dict.fromkeys((record.name, record.raw) for record in listing.records))
    shuffle.shuffle(once)
    assert Listing.from_pairs(HEADER, once) == listing  # the order of a capture without reassignments does not matter


def test_reassigned_names_are_numbered_past_names_that_exist() -> None:
    pairs = [("x", POINTER), ("x#2", SMEM), ("x", COORD), ("x", SMEM), ("x", COORD)]
    assert [(record.name, record.raw) for record in Listing.from_pairs({}, pairs).records] == [
        ("x", POINTER), ("x#2", SMEM), ("x#3", COORD), ("x#4", SMEM)]  # fmt: skip


def test_natural_order() -> None:
    names = ["x#10", "x", "a12b", "x#2", "a2b", "B", "x.y", "a2"]
    assert sorted(names, key=natural_key) == ["B", "a2", "a2b", "a12b", "x", "x#2", "x#10", "x.y"]


@pytest.mark.parametrize("cut", range(0, len(TEXT) - 1, 7))
def test_every_half_written_file_is_found_out(cut: int) -> None:
    with pytest.raises(ListingError, match="restore the file from git, or rewrite it with --snapshot-update"):
        Listing.parse(TEXT[:cut])


@pytest.mark.parametrize("number", range(1, 12))
def test_every_lost_line_is_found_out(number: int) -> None:
    lines = TEXT.splitlines(keepends=True)
    if lines[number - 1].startswith("# ") and 1 < number < 6:  # the header's keys are free
        return
    with pytest.raises(ListingError):
        Listing.parse("".join(lines[: number - 1] + lines[number:]))


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 3), st.sampled_from(["", " ", "  ", "\n", "x", "8", "(", "#"]))
def test_a_damaged_character_is_found_out_or_says_the_same(at: int, length: int, instead: str) -> None:
    damaged = TEXT[:at] + instead + TEXT[at + length :]
    try:
        listing = Listing.parse(damaged)
    except ListingError as error:
        line = error.line
    else:
        line = None
    if line is None:  # only names and the header are free; every layout still follows from its raw type
        assert len(listing.records) == 5
        assert Listing.parse(listing.render()) == listing


CONFLICT = TEXT.replace(f"kernel.x  {POINTER}", f"<<<<<<< HEAD\nkernel.x  {POINTER}")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (CONFLICT, 9, "merge conflict"),
        (TEXT.replace("layouts 1", "layouts 2"), 1, "reads version 1"),
        (TEXT.replace("\n", "\r\n"), 1, "carriage returns"),
        (TEXT.replace("  smem  128", " smem  128"), 8, "belongs"),
        (TEXT.replace("  smem  128", "   smem  128"), 8, "belongs"),
        (TEXT.replace("smem  128", "smem  64"), 8, "does not follow"),
        (TEXT.replace("smem  128", "gmem  128"), 8, "does not follow"),
        (TEXT.replace("o (128,256):(256,1)", "o (128,256):(1,128)"), 8, "does not follow"),
        (TEXT.replace("1@2)\">  -", "1@2>  -"), 7, "column"),
        (TEXT.replace("(4:1)", "(4:1)").replace("4:1\">", "x\">"), 10, "poisoned"),
        (TEXT.replace("# end 5", "# end 4"), 12, "after 5 records"),
        (TEXT.replace("kernel.x#2", "kernel.x#12"), 11, "out of order or twice"),
        (TEXT.replace("kernel.x#2", "kernel.x"), 10, "out of order or twice"),
        (TEXT.replace("# arch     sm_100a", "arch sm_100a"), 4, "header line"),
        (TEXT.replace("# arch     sm_100a", "# dsl  x"), 5, "header line"),
        (TEXT + "more\n", 13, "truncated"),
        ("", 1, "belongs"),
    ],
)  # fmt: skip
def test_damage_is_named_by_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(ListingError, match=problem) as error:
        Listing.parse(text)
    assert error.value.line == line
    assert f"line {line}" in str(error.value)


def test_names_that_a_line_cannot_hold() -> None:
    for name in ("", "a b", "#x", "a\n", "<<<<<<< a"):
        with pytest.raises(LayoutError, match="name"):
            Record(name, POINTER)
    with pytest.raises(LayoutError, match="twice"):
        Listing({}, (Record("x", POINTER), Record("x", SMEM)))
    for header in ({"a b": "c"}, {"end": "1"}, {"a": ""}, {"a": "b  c"}, {"a": "b\nc"}):
        with pytest.raises(LayoutError, match="header"):
            Listing(header)


def test_errors_of_a_type_name_their_record() -> None:
    with pytest.raises(PoisonedLayout, match=r"^kernel\.tCtSFA: "):
        Listing.from_pairs({}, [("kernel.tCtSFA", '!cute.layout<"(1,x):(0,x)">')]).render()
    with pytest.raises(LayoutSyntaxError, match=r"^kernel\.y: "):
        Record("kernel.y", '!cute.layout<"(1,2">').canonical  # noqa: B018


def test_a_count_without_end_is_a_truncated_file() -> None:
    with pytest.raises(ListingError):
        Listing.parse("# nvfp4-layouts 1\n\n# end " + "9" * 5000 + "\n")
