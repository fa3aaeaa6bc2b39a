"""Claims on addresses, over records that are made by hand: right ones are proved, and each wrong address is refuted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pytest_nvfp4.proof.operand_claims import address_claims
from pytest_nvfp4.proof.operand_record import OperandRecord, parse
from pytest_nvfp4.proof.statement import Statement, Status, judge

TENSORS = [[name, group] for group in range(2) for name in ("A", "B", "SFA", "SFB")]
DEPTHS = {0: 256, 1: 256}
Call = dict[str, Any]


def mma(group: int, k: int, *, row: int = 0, column: int = 128) -> Call:
    """One MMA of a 128x128 tile; SFA begins at column 128 and SFB at 144."""
    block = 4 * (k // 64)

    def read(name: str, first: int, columns: list[int] | None) -> Call:
        runs = [[4 * group + ("A", "B", "SFA", "SFB").index(name), first, k, 128]]
        return {"runs": runs, "columns": columns, "load": f"k.py:{name}", "copy": "k.py:cp" if columns else ""}

    return {
        "launch": 0, "cta": [group, 0, 0], "place": "k.py:377", "adds": k > 0, "columns": [0, 128],
        "operands": {
            "A": read("A", row, None), "B": read("B", column, None),
            "SFA": read("SFA", row, [128 + block, 132 + block]), "SFB": read("SFB", column, [144 + block, 148 + block]),
        },
    }  # fmt: skip


def call() -> Call:
    mmas = [mma(group, k) for group in range(2) for k in range(0, 256, 64)]
    return {"tensors": TENSORS, "unfollowed": 0, "truncated": False, "mmas": mmas}


def judged(made: Call, *, errors: tuple[str, ...] = ()) -> dict[str, Statement]:
    record: OperandRecord = parse(json.dumps(made).encode())
    claims = address_claims(record, depths=DEPTHS, errors=errors, topic="t")
    return {claim.name.removeprefix("t."): judge(claim) for claim in claims}


def test_right_addresses_are_proved_and_the_controls_refuted() -> None:
    found = judged(call())
    assert {each.status for each in found.values()} == {Status.PROVED}, found
    assert [each.checked for each in found.values()] == ["8 MMAs"] * 4


def test_padding_beside_zeros_is_right() -> None:
    made = call()
    for each in made["mmas"]:
        for name in ("A", "SFA"):
            (run,) = each["operands"][name]["runs"]
            each["operands"][name]["runs"] = [[*run[:3], 100], [-1, 0, 0, 28]]
    assert {each.status for each in judged(made).values()} == {Status.PROVED}


def exchanged(mmas: list[Call]) -> None:
    for each in mmas:
        reads = each["operands"]
        reads["SFA"]["runs"], reads["SFB"]["runs"] = reads["SFB"]["runs"], reads["SFA"]["runs"]


def other_rows(mmas: list[Call]) -> None:
    mmas[5]["operands"]["SFA"]["runs"][0][1] = 128


def other_group(mmas: list[Call]) -> None:
    mmas[5]["operands"]["B"]["runs"][0][0] = 1
    mmas[5]["operands"]["SFB"]["runs"][0][0] = 3


def fixed_k(mmas: list[Call]) -> None:
    for each in mmas:
        for read in each["operands"].values():
            read["runs"][0][2] = 0


def zeros(mmas: list[Call]) -> None:
    mmas[1]["operands"]["SFA"]["runs"] = [[-1, 0, 0, 128]]


def left_out(mmas: list[Call]) -> None:
    del mmas[-1]


def other_tile(mmas: list[Call]) -> None:
    mmas[2] = mma(0, 128, row=128)


def over_sfa(mmas: list[Call]) -> None:
    mmas[0]["operands"]["SFB"]["columns"] = [130, 134]


def in_accumulator(mmas: list[Call]) -> None:
    mmas[0]["operands"]["SFA"]["columns"] = [64, 68]


@pytest.mark.parametrize(
    ("wrong", "claim", "says"),
    [
        (exchanged, "operands", "SFA reads SFB of group 0, row 128, k 0 (loaded by k.py:SFA, copied by k.py:cp), and A "
         "reads A of group 0, row 0, k 0"),
        (other_rows, "operands", "SFA reads SFA of group 1, row 128, k 64"),
        (other_group, "operands", "multiplies A of group 1 at k 64 by B of group 0 at k 64"),
        (zeros, "operands", "row 0 of its tile: SFA reads nothing of an input"),
        (fixed_k, "depth", "multiplies k 0 of a tile of group 0 again (loaded by k.py:A)"),
        (left_out, "depth", "no MMA multiplies k 192 to 255 of a tile of group 1; the last one, at k.py:377, is of k "
         "128"),
        (other_tile, "depth", "adds to the accumulator of another tile"),
        (over_sfa, "columns", "SFB in TMEM columns [130, 134) overlaps SFA in [128, 132)"),
        (in_accumulator, "columns", "SFA in TMEM columns [64, 68) overlaps the accumulator in [0, 128)"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_refuted(wrong: Callable[[list[Call]], None], claim: str, says: str) -> None:
    made = call()
    wrong(made["mmas"])
    found = judged(made)[claim]
    assert found.status is Status.REFUTED
    assert says in found.counterexample


def test_an_error_of_the_call_refutes() -> None:
    found = judged(call(), errors=("k.py:3: a fault",))["run"]
    assert (found.status, found.counterexample) == (Status.REFUTED, "k.py:3: a fault")


def test_what_is_not_followed_is_said_and_damaged_records_are_refused() -> None:
    made = call()
    assert parse(json.dumps(made).encode()).not_followed == ""
    made["mmas"][3]["operands"]["B"]["runs"] = [[-2, 0, 0, 128]]
    said = parse(json.dumps(made).encode()).not_followed
    assert said == "operand B of the MMA at k.py:377 reads data that are no copy of an input"
    assert "no MMA" in parse(json.dumps(call() | {"mmas": []}).encode()).not_followed
    assert "2 MMAs are not of" in parse(json.dumps(call() | {"unfollowed": 2}).encode()).not_followed
    made["mmas"][3]["operands"]["B"]["runs"] = [[9, 0, 0, 128]]
    with pytest.raises(ValueError, match="does not exist"):
        parse(json.dumps(made).encode())
