"""Our verdict on every program of the corpus, and the kept recording of compute-sanitizer's.

``table.md`` shows both side by side.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.silicon.sanitizer import table
from tests.silicon.sanitizer.corpus import PROGRAMS, by_name
from tests.silicon.sanitizer.kernel import KERNELS
from tests.silicon.sanitizer.ours import agrees, verdict
from tests.silicon.sanitizer.parse import parsed, unavailable
from tests.silicon.sanitizer.program import Program, programs_of
from tests.silicon.sanitizer.record import Kept, execute
from tests.silicon.sanitizer.recorded import KEPT, TOOLS, found, load
from tests.silicon.sanitizer.silent import FALSE, SILENT

CORRECT = [program for program in PROGRAMS if program.defect is None]
DEFECTIVE = [program for program in PROGRAMS if program.defect is not None]


def test_the_corpus_is_large_enough_and_its_programs_differ():
    assert len(CORRECT) >= 25
    assert len(DEFECTIVE) >= 120
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) == len({program.hash for program in PROGRAMS})


@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.slug)
def test_a_correct_program_is_clean_and_right(program):
    said = verdict(program)
    assert [finding.message for finding in said.findings] == []
    assert said.right is True


@pytest.mark.parametrize("program", DEFECTIVE, ids=lambda program: program.slug)
def test_a_defect_is_found_at_its_lines(program):
    said = verdict(program)
    assert agrees(program, said), [(finding.kind, finding.message) for finding in said.findings]


def test_what_we_are_silent_about_has_a_reason():
    assert {program.name for program in DEFECTIVE if program.defect.ours is None} == set(SILENT)


def test_a_verdict_that_names_other_lines_does_not_agree():
    idiom = by_name("cp.async, wait_group, barrier").idiom
    _, *defects = programs_of(idiom)
    said = verdict(defects[0])
    assert agrees(defects[0], said)
    assert not agrees(programs_of(idiom)[0], said)
    assert not agrees(by_name("two warps exchange words between barriers: no barrier before the read"), said)


# ---- the recording -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording():
    if not KEPT.exists():
        pytest.skip(f"{KEPT.name} is not recorded yet: run python -m tests.silicon.sanitizer.record on a Hopper GPU")
    return load()


def test_the_recording_is_of_these_programs(recording):
    assert {name: entry["ptx"] for name, entry in recording["programs"].items()} == {
        program.name: program.hash for program in PROGRAMS
    }


def test_what_compute_sanitizer_finds_we_find_too(recording):
    theirs = {
        program.name: tools
        for program in DEFECTIVE
        if program.defect.ours is None and (tools := _tools(recording, program))
    }
    assert theirs == {}


def test_what_compute_sanitizer_says_of_correct_programs_has_a_reason(recording):
    assert {(program.name, tool) for program in CORRECT for tool in _tools(recording, program)} == set(FALSE)


def test_only_defects_do_not_end_on_the_device(recording):
    for program in CORRECT:
        entry = recording["programs"][program.name]
        assert [entry["plain"], *(entry[tool]["status"] for tool in TOOLS)] == ["right"] + ["ended"] * len(TOOLS)


def _tools(recording: dict[str, Any], program: Program) -> list[str]:
    return [tool for tool in TOOLS if found(recording["programs"][program.name][tool])]


def test_the_shipped_kernels_ran_right_and_without_a_finding(recording):
    assert set(recording["kernels"]) == set(KERNELS)
    for entry in recording["kernels"].values():
        assert entry["plain"] == "right"
        assert [found(entry[tool]) for tool in ("racecheck", "synccheck", "memcheck")] == [[], [], []]


# ---- the parts ---------------------------------------------------------------------------------------------------

_TEXT = """
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel+0x1a0 in program.ptx:3
=========     and Read access at kernel+0x200 in program.ptx:5 [1234 hazards]
=========
========= Barrier error detected. Divergent thread(s) in warp.
=========     at kernel+0x90 in program.ptx:4
=========     by thread (0,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: something [0x1234]
========= Barrier error detected. Divergent thread(s) in warp.
=========     at kernel+0x90 in program.ptx:4
=========     by thread (1,0,0) in block (0,0,0)
RESULT right
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_their_text_is_read():
    race, barrier = parsed(_TEXT)
    assert race["kind"].startswith("Error: Race reported between Write access")
    assert (race["lines"], race["count"]) == ([3, 5], 1)
    assert barrier["kind"] == "Barrier error detected. Divergent thread(s) in warp."
    assert (barrier["lines"], barrier["count"]) == ([4], 2)
    assert unavailable(_TEXT) is None
    assert (
        unavailable("========= Error: Device not supported. Please refer")
        == "Error: Device not supported. Please refer"
    )
    assert parsed("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def test_a_process_that_does_not_end_is_ended():
    done = execute(["sh", "-c", "echo begun; trap '' INT; sleep 30"], 0.3)
    assert done.status is None
    assert "begun" in done.text
    assert done.seconds < 10
    assert execute(["sh", "-c", "exit 3"], 10).status == 3


@pytest.mark.slow
def test_the_table_is_of_the_programs_and_the_recording(recording):
    assert table.PATH.read_text() == table.table(recording), "write it anew: python -m tests.silicon.sanitizer.table"


@pytest.mark.slow
def test_a_table_without_a_recording_claims_nothing():
    empty = {"device": {}, "sanitizer": "", "programs": {}, "kernels": {}}
    text = table.table(empty)
    assert sum(line.count("not recorded") >= 5 for line in text.splitlines()) == len(PROGRAMS)
    assert f"| any of the four tools | measured | 0 of {len(DEFECTIVE)} | 0 of {len(CORRECT)} |" in text
    assert "NOT EXPLAINED" not in text


@pytest.mark.slow
def test_what_was_recorded_of_another_program_does_not_count(recording):
    name = "two warps exchange words between barriers: no barrier before the read"
    assert found(recording["programs"][name]["racecheck"])
    other = recording | {"programs": {name: recording["programs"][name] | {"ptx": "of another"}}}
    assert "| racecheck | measured | 0 of" in table.table(other)


def test_an_api_call_that_fails_is_no_finding_and_is_kept():
    (kept,) = parsed(
        "========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) on CUDA API call to cuGetProcAddress_v2.\n"
    )
    assert kept["kind"].startswith("Program hit")
    assert found({"found": [kept]}) == []


def test_a_deadlock_that_racecheck_tells_is_one_finding():
    records = parsed(
        "========= Deadlock detected in Barrier called by threads starting at (0,0,0) in block (0,0,0), (active mask: "
        "0xffffffff) at kernel+0x160 in program.ptx:6\n"
        "========= Warning: Detected possible deadlock in synchronization call. If you think this might be a false\n"
    )
    (deadlock,) = found({"found": records})
    assert deadlock["lines"] == [6]


def test_what_ended_is_kept_when_the_rest_runs_again():
    one, other = PROGRAMS[:2]
    mine = {"ptx": one.hash, "plain": "hang", "racecheck": {"status": "hang"}, "memcheck": {"status": "ended"}}
    another = {"ptx": "of another", "memcheck": {"status": "ended"}}
    kept = Kept(
        {"programs": {one.name: mine, other.name: another}}, ["plain", "racecheck", "memcheck"], ["softmax_online"]
    )
    again = [(name, what) for name in ("plain", *TOOLS) for what in (one, other) if not kept.stays(name, what)]
    assert again == [("plain", one), ("plain", other), ("racecheck", one), ("racecheck", other), ("memcheck", other)]
    assert not kept.stays("memcheck", "softmax_online")
    assert kept.stays("memcheck", "reduce_sum")
