"""Our verdict on every program of the corpus, and the kept recording of compute-sanitizer's.

``python -m tests.silicon.sanitizer.table`` shows both side by side.
"""

from __future__ import annotations

import pytest

from tests.silicon.sanitizer.corpus import PROGRAMS, by_name
from tests.silicon.sanitizer.ours import agrees, verdict
from tests.silicon.sanitizer.parse import parsed, unavailable
from tests.silicon.sanitizer.program import programs_of
from tests.silicon.sanitizer.record import execute
from tests.silicon.sanitizer.recorded import KEPT, TOOLS, found, load
from tests.silicon.sanitizer.silent import SILENT
from tests.silicon.sanitizer.table import rows

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


def test_what_only_compute_sanitizer_finds_has_a_reason(recording):
    theirs = {
        program.name: {tool: found(entry[tool]) for tool in TOOLS if found(entry.get(tool) or {})}
        for program in DEFECTIVE
        if (entry := recording["programs"][program.name]) and program.defect.ours is None
    }
    assert {name for name, told in theirs.items() if told} <= set(SILENT)


def test_correct_programs_ran_right_on_the_device(recording):
    plain = {program.name: recording["programs"][program.name].get("plain") for program in CORRECT}
    assert {name: said for name, said in plain.items() if said != "right"} == {}


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


def test_the_table_has_a_row_a_program():
    empty = {"device": {}, "sanitizer": "", "programs": {}, "kernels": {}}
    lines = list(rows(empty))
    assert sum(line.count("not recorded") >= 5 for line in lines) == len(PROGRAMS)
    assert "NOT EXPLAINED" not in "\n".join(lines)
