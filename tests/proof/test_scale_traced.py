"""Scale factors of a traced kernel: found by their types, followed to TMEM, and refuted when any of them is wrong.

The layouts are those of the repository's kernel, from its reviewed snapshot: no DSL is needed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.proof import scale_copies, scale_on_chip, scale_places, scale_traced
from pytest_nvfp4.proof.scale_operand import explicit_operand
from pytest_nvfp4.proof.statement import Statement, Status, judge

from .shipped import SCOPE, edited


def verdicts(records: list[Record]) -> tuple[dict[str, Statement], Any]:
    found = scale_traced.find_scale_factors(records)
    return {claim.name.rpartition(".")[2]: judge(claim) for claim in scale_traced.claims_of(found)}, found


def test_the_repositorys_kernel(records):
    judged, found = verdicts(records)
    assert found.missing == ()
    assert [operand.name for operand in found.operands] == ["SFA", "SFB"]
    assert [operand.rows for operand in found.operands] == [128, 128]
    assert found.operands[0].names == tuple(f"{SCOPE}.{name}" for name in ("sSFA", "tCtSFA", "tSsSFA", "tStSFA"))
    assert {name: str(one.status) for name, one in judged.items()} == dict.fromkeys(
        ("gmem", "smem", "tmem", "broadcast", "copy", "load"), "proved"
    )
    # 2 operands, 3 stages, 128 rows, 4 MMAs of 4 factors, 4 quadrants.
    assert judged["copy"].checked == f"{2 * 3 * 128 * 16 * 4} factors"


TAMPERED = [
    ("smem", "sSFA", "((((16,4),0),(0,1)),0,512,2048)", "((((4,128),0),(0,1)),0,512,2048)"),
    ("smem", "sSFB", "((((16,4),0),(0,1)),0,512,2048)", "((((16,4),0),(0,1)),0,1024,2048)"),
    ("smem", "sSFB", "((((16,4),0),(0,1)),0,512,2048)", "((((16,4),0),(0,1)),0,512,1024)"),
    ("tmem", "tCtSFA", "((((262144,4),8388608),(0,1)),0,16)", "((((262144,4),8388608),(0,4)),0,16)"),
    ("tmem", "tCtSFB", "((((262144,4),8388608),(0,1)),0,16)", "((((4,262144),8388608),(0,1)),0,16)"),
    ("tmem", "tCtSFB", "((((262144,4),8388608),(0,1)),0,16)", "((((262144,4),0),(0,1)),0,16)"),
    ("copy", "tCtSFA", "((((262144,4),8388608),(0,1)),0,16)", "((((262144,4),8388608),(0,1)),0,32)"),
    ("copy", "tSsSFA", "((((1,1,1),0),0),0,0,32,128)", "((((1,1,1),0),0),0,0,64,128)"),
    ("copy", "tSsSFB", "((((1,1,1),0),0),0,0,32,128)", "((((1,1,1),0),0),0,0,32,256)"),
    ("copy", "tSsSFB", "((((1,1,1),0),0),0,0,32,128)", "((((8,1,1),0),0),0,0,32,128)"),
    ("copy", "tStSFA", "(((262144,1,8388608),0),0,0,16)", "(((262144,1,8388608),0),0,0,8)"),
]


@pytest.mark.parametrize(("claim", "name", "old", "new"), TAMPERED)
def test_a_wrong_layout_is_refuted_with_its_place(records, claim, name, old, new):
    judged, _ = verdicts(edited(records, name, old, new))
    assert judged[claim].status is Status.REFUTED
    assert name[-3:] in judged[claim].counterexample
    assert "row" in judged[claim].counterexample or "MMA" in judged[claim].counterexample


def test_wrong_lanes_of_the_copys_target_are_refuted(records):
    changed = edited(records, "tStSFA", "(((262144,1,8388608),0),0,0,16)", "(((524288,1,8388608),0),0,0,16)")
    assert verdicts(changed)[0]["copy"].status is Status.REFUTED


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("operands[2]", ":(((16,4),?{div=512}),((0,1),512),(0,0))", ":(((4,128),?{div=512}),((0,1),512),(0,0))"),
        ("operands[3]", ":(((16,4),?{div=512}),((0,1),512),(0,0))", ":(((16,4),?{div=512}),((0,1),1024),(0,0))"),
        ("operands[3]", ":(((16,4),?{div=512}),((0,1),512),(0,0))", ":(((16,4),2048),((0,1),512),(0,0))"),
        ("operands[3]", "((16,4),?),(1,1)):(((16,4),?{div=512})", "((16,4),8),(1,1)):(((16,4),2048)"),
    ],
)
def test_wrong_global_memory_is_refuted(records, name, old, new):
    judged, _ = verdicts(edited(records, name, old, new))
    assert judged["gmem"].status is Status.REFUTED
    assert name in judged["gmem"].counterexample


def test_tiles_of_rows_an_unknown_distance_apart_are_unknown(records):
    judged, _ = verdicts(edited(records, "operands[3]", "?{div=512}),((0,1),512)", "?{div=16}),((0,1),512)"))
    assert judged["gmem"].status is Status.UNKNOWN
    assert "may not be whole blocks of 512" in judged["gmem"].reason


def test_an_operand_that_is_not_seen_in_global_memory_is_missed(records):
    gone = [record for record in records if "sfb" not in record.name or SCOPE in record.name]
    (said,) = scale_traced.find_scale_factors([record for record in gone if "operands[3]" not in record.name]).missing
    assert said.startswith("SFB: no layout of blocks")
    unnamed = [record for record in records if "sf" not in record.name.lower() or SCOPE in record.name]
    assert scale_traced.find_scale_factors(unnamed).missing == (), (
        "operands[2] and [3] say of neither that it is theirs"
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("((32,4),?),((16,4),?)", "((4,32),?),((16,4),?)", "not made of blocks of 128 rows by 4 factors"),
        ("((32,4),?),((16,4),?)", "((64,4),?),((16,4),?)", "not made of blocks of 128 rows by 4 factors"),
        ("((0,1),512),(0,0))", "((1,16),512),(0,0))", "not made of blocks of 128 rows by 4 factors"),
        ("((32,4),?),((16,4),?)", "((32,4),?),((32,4),?)", "has 32 elements to a factor, but the MMA has 16"),
    ],
)
def test_blocks_of_another_form_in_global_memory_are_refuted(records, old, new, says):
    found = scale_traced.find_scale_factors(edited(records, "operands[3]", old, new))
    statement = judge(scale_traced.claims_of(found)[0])
    assert statement.status is Status.REFUTED
    assert says in statement.counterexample


def test_static_global_memory_is_compared_with_numbers(records):
    good = edited(records, "operands[3]", "((16,4),?),(1,1)):(((16,4),?{div=512})", "((16,4),8),(1,1)):(((16,4),4096)")
    assert verdicts(good)[0]["gmem"].status is Status.PROVED


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("sSFA", "SFA: no tensor of its factors in shared memory"),
        ("tCtSFB", "SFB: no tensor of its factors in TMEM"),
        ("tSsSFA", "SFA: no name with 'sfa' in it is bound to the source descriptors"),
        ("tStSFB", "SFB: no name with 'sfb' in it is bound to the TMEM side"),
    ],
)
def test_what_is_not_seen_is_said(records, gone, says):
    found = scale_traced.find_scale_factors([record for record in records if record.name != f"{SCOPE}.{gone}"])
    assert [text for text in found.missing if says in text]


def test_without_or_with_two_mmas_nothing_is_guessed(records):
    none = scale_traced.find_scale_factors([record for record in records if "mma" not in record.name])
    assert none.operands == ()
    assert "no block-scaled MMA" in none.missing[0]
    mma = next(record for record in records if record.name.endswith(".tiled_mma"))
    partitioning = Record("k.tiled_mma_sfb", mma.raw.replace("128x128x64", "128x256x64"))
    assert scale_traced.find_scale_factors([*records, partitioning]).missing == ()
    two = scale_traced.find_scale_factors([*records, Record("k.other", mma.raw.replace("128x128x64", "128x256x64"))])
    assert "2 block-scaled MMAs" in two.missing[0]
    empty = scale_traced.find_scale_factors([])
    assert len(empty.missing) == 2
    assert scale_traced.claims_of(empty) == ()


def test_damaged_types_are_passed_over(records):
    found = scale_traced.find_scale_factors(
        [*records, Record("k.sfa_bad", '!cute.layout<"x">'), Record("k.sfb_bad", "!cute.memref<")]
    )
    assert found.missing == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("((32,4),(16,4)):((16,4),(0,1))", None),
        ("((32,4),(32,4)):((16,4),(0,1))", "32 indices share"),
        ("((32,4),(16,4)):((16,4),(16,1))", "1 indices share"),
        ("((32,4),(16,4)):((16,0),(0,1))", "64 indices share"),
        ("((32,4),(16,4)):((16,4),(0,2))", "do not divide"),
        ("((32,4),(16,4)):((16,4),(0,4))", "do not divide"),
    ],
)
def test_broadcast_is_the_stride_0_modes_and_nothing_else(text, says):
    wrong = scale_on_chip.check_broadcast(parse_layout(text), 16)
    assert wrong is None if says is None else says in wrong


def test_rows_that_are_missing_are_a_counterexample():
    """128 rows of SFB for an MMA of N = 256: what is there is right, and half is not there."""
    operand = replace(explicit_operand(rows=128), rows=256)
    for look in (scale_places.check_smem, scale_places.check_tmem, scale_copies.check_copy):
        assert "has 128 rows, and the MMA reads 256" in look(operand)[0]


def test_k_blocks_that_do_not_match_are_a_counterexample():
    operand = replace(explicit_operand(rows=128), tmem=explicit_operand(rows=128, tile_k=128).tmem)
    assert "4 MMAs of k, and TMEM 2" in scale_copies.check_copy(operand)[0]


def test_of_two_views_the_whole_one_is_taken(records):
    view = next(record for record in records if record.name == f"{SCOPE}.tSsSFA")
    old = "((((32,1,1),4),1),1,1,4,3):((((1,1,1),0),0),0,0,32,128)"
    stage = view.raw.replace(old, "((((32,1,1),4),1),1,1,4):((((1,1,1),0),0),0,0,32)")
    assert stage != view.raw
    judged, found = verdicts([Record(f"{SCOPE}.a_sfa_stage", stage), *records])
    assert found.operands[0].names[2] == f"{SCOPE}.tSsSFA"
    assert judged["copy"].status is Status.PROVED


def test_an_instruction_of_more_than_32_lines_is_not_taken_for_the_copy(records):
    old = "((((32,1,1),4),1),1,1,4,3):((((1,1,1),0),0),0,0,32,128)"
    found = scale_traced.find_scale_factors(edited(records, "tSsSFB", old, old.replace("(32,1,1)", "(32,2,1)")))
    assert "SFB: no name with 'sfb' in it is bound to the source descriptors" in " ".join(found.missing)


def test_a_copy_that_cannot_be_paired_is_unknown(records):
    old = "((((32,1,1),4),1),1,1,4,3):((((1,1,1),0),0),0,0,32,128)"
    judged, _ = verdicts(edited(records, "tSsSFA", old, "((((32,1,1),4),1),1,1,2,3):((((1,1,1),0),0),0,0,32,128)"))
    assert judged["copy"].status is Status.UNKNOWN
    assert "do not pair" in judged["copy"].reason


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("tSsSFA", ",1,1,4,3):", ",1,1,4,4):", "16 instructions do not divide into 3 stages"),
        ("sSFA", ",1,4,3):", ",1,4,0):", "12 instructions do not divide into 0 stages"),
        ("tCtSFA", ",1,4):", ",1,0):", "the layout is empty"),
    ],
)
def test_sizes_that_mean_nothing_are_unknown(records, name, old, new, says):
    operand, _ = scale_traced.find_scale_factors(edited(records, name, old, new)).operands
    assert judge(scale_on_chip.claims_for([operand])[-1]).status is Status.UNKNOWN
    with pytest.raises(LayoutError, match=says):
        scale_copies.check_copy(operand)


def test_another_k_is_not_followed(records):
    changed = [Record(record.name, record.raw.replace("128x128x64", "128x128x32")) for record in records]
    found = scale_traced.find_scale_factors(changed)
    assert found.operands == ()
    assert "K = 32" in found.missing[0]


def with_mma(records: list[Record], new: str) -> list[Record]:
    return [Record(record.name, record.raw.replace("128x128x64, num_cta = 1", new)) for record in records]


def test_an_mma_over_a_pair_of_ctas_has_the_same_claims(records):
    judged, found = verdicts(with_mma(records, "256x128x64, num_cta = 2"))
    assert found.missing == ()
    assert [operand.rows for operand in found.operands] == [128, 128]
    assert {one.status for one in judged.values()} == {Status.PROVED}
    _, sfb = scale_traced.find_scale_factors(with_mma(records, "256x256x64, num_cta = 2")).operands
    assert "SFB: shared memory has 128 rows, and the MMA reads 256" in scale_places.check_smem(sfb)[0]


def test_beside_a_pairs_mma_one_of_one_cta_only_partitions(records):
    mma = next(record for record in records if record.name.endswith(".tiled_mma"))
    wide = Record("k.mmas[1]", mma.raw.replace("128x128x64, num_cta = 1", "128x256x64, num_cta = 1"))
    judged, found = verdicts([*with_mma(records, "256x128x64, num_cta = 2"), wide])
    assert found.missing == ()
    assert judged["copy"].status is Status.PROVED


def test_a_pair_with_64_rows_each_is_not_followed_and_said(records):
    found = scale_traced.find_scale_factors(with_mma(records, "128x128x64, num_cta = 2"))
    assert found.operands == ()
    assert found.missing == (scale_traced.HALF_ROWS,)


def given(found: Any, part: str) -> tuple[str, ...]:
    (claim,) = [claim for claim in scale_traced.claims_of(found) if claim.name.endswith(f".{part}")]
    return claim.preconditions


def test_what_is_not_followed_is_a_precondition(records):
    found = scale_traced.find_scale_factors(records)
    assert [load.operand.name for load in found.loads] == ["SFA", "SFB"]
    assert scale_traced.NOT_FOLLOWED not in given(found, "smem")
    assert not [text for text in given(found, "copy") if "first row on" in text]
    unseen = scale_traced.find_scale_factors([record for record in records if "tBgSFB" not in record.name])
    assert [load.operand.name for load in unseen.loads] == ["SFA"]
    assert unseen.missing == ("SFB: its load from global memory is not bound to names, and the other operand's is",)
    assert scale_traced.NOT_FOLLOWED in given(unseen, "smem")
    narrow = scale_traced.find_scale_factors(with_mma(records, "128x64x64, num_cta = 1"))
    (said,) = [text for text in given(narrow, "copy") if "first row on" in text]
    assert said.startswith("an MMA reads SFB from its first row on: 64 of the 128 rows that are laid out")


def test_bytes_of_two_mmas_of_k_are_one_copys_target(records):
    """With 32 elements to a factor the 16 bytes of a lane are 2 of each of 2 MMAs, for 4 blocks of 32 rows."""
    whole, split = (
        "((((32,16,4),1),1,1,4):(((262144,1,8388608),0),0,0,16)",
        ("(((((32,2),2,(4,4)),1),1,1,4):((((262144,1),2,(4,8388608)),0),0,0,16)"),
    )
    assert any(whole[1:] in record.raw for record in records), "the snapshot has the plain form"
    same = [Record(record.name, record.raw.replace(whole[1:], split[1:])) for record in records]
    judged, found = verdicts(same)
    assert found.missing == ()
    assert judged["copy"].status is Status.PROVED
    wrong = [
        Record(record.name, record.raw.replace(whole[1:], split[1:].replace("1),2,(4", "2),1,(4")))
        for record in records
    ]
    assert "SFA: no name with 'sfa' in it is bound to the TMEM side" in " ".join(
        scale_traced.find_scale_factors(wrong).missing
    )


# --- the explicit layouts, derived again -------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [16, 32])
@pytest.mark.parametrize("rows", [64, 128, 192, 256])
def test_the_copy_again_by_a_plain_loop(rows, vector):
    """One stage, byte by byte, without the package's arrays: smem -> TMEM -> what the MMA reads."""
    operand = explicit_operand(rows=rows, vector=vector, stages=1)
    factors = 64 // vector
    smem = np.zeros(512 * 4 * -(-rows // 128), np.int64)
    for row in range(rows):
        for block in range(256 // vector):
            place = (row // 128 * (64 // vector) + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
            smem[place] = 1000 * row + block
    tmem = np.full((128, 512, 4), -1, np.int64)
    columns = 4 * -(-rows // 128)
    for start in range(0, 512 * -(-rows // 128) * (64 // vector), 512):
        tile_row, tile_k = divmod(start // 512, 64 // vector)
        for line in range(32):
            for byte in range(16):
                for quadrant in range(4):
                    column = tile_k * columns + tile_row * 4 + byte // 4
                    tmem[line + 32 * quadrant, column, byte % 4] = smem[start + 16 * line + byte]
    for mma in range(4):
        address = operand.tmem(((0, 0), 0, (mma if vector == 16 else (mma % 2, mma // 2))))
        column, byte = address // 4, address % 4
        for row in range(rows):
            for factor in range(factors):
                for quadrant in range(4):
                    read = tmem[row % 32 + 32 * quadrant, column + row // 32, byte + factor]
                    assert read == 1000 * row + mma * factors + factor
    for look in (scale_places.check_smem, scale_places.check_tmem, scale_copies.check_copy):
        assert look(operand)[0] is None


def test_operands_of_another_form_are_refused():
    operand = explicit_operand(rows=128)
    short = replace(operand, smem=parse_layout("((((32,4),1),(16,2)),1,4,2):((((16,4),0),(0,1)),0,512,2048)"))
    with pytest.raises(LayoutError, match="64 elements of k"):
        scale_places.check_smem(short)
    with pytest.raises(LayoutError, match="not of the form"):
        scale_places.check_smem(replace(operand, smem=parse_layout("(128,4):(4,1)")))
    target = parse_layout("(((32,16,4),1),1,2):(((262144,1,8388608),0),0,16)")
    with pytest.raises(LayoutError, match="do not pair"):
        scale_copies.check_copy(replace(operand, target=target))
    with pytest.raises(LayoutError, match="was not found"):
        scale_copies.check_copy(replace(operand, source=None))
