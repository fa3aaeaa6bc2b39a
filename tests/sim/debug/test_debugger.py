"""Where the debugger stops, what it shows there, and that looking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.debug.sessions import Script, line, session
from tests.sim.ptx_case import Ran, run_ptx
from tests.sim.run.test_deadlock import PIPELINE, REST

LOOP = """
mov.u32 %r1, %tid.x;
mov.u32 %r2, 0;
mov.u32 %r3, 0;
AGAIN: add.u32 %r2, %r2, %r3;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, 5;
@%p1 bra AGAIN;
shl.b32 %r4, %r1, 2;
mov.u32 %r6, smem;
add.u32 %r5, %r6, %r4;
add.u32 %r7, %r2, %r1;
st.shared.u32 [%r5], %r7;
bar.sync 0;
ld.shared.u32 %r8, [smem+20];
"""
TWO = {"block": (64, 1, 1), "shared": 512}


def test_a_breakpoint_stops_each_warp_before_the_line_each_time() -> None:
    place = line("add.u32 %r2, %r2, %r3", LOOP)
    script, ended = session(LOOP, [f"break {place}", *["continue"] * 20], **TWO)
    assert isinstance(ended, Ran)
    assert script.places == [(warp, "add.u32 %r2, %r2, %r3") for warp in (0, 1) for _ in range(5)]
    assert set(script.reasons) == {f"breakpoint {place}"}


@pytest.mark.parametrize(("focus", "stops"), [("focus 0,0,0 1", 5), ("focus 1,0,0", 0), ("focus all", 10)])
def test_the_focus_selects_the_warp(focus: str, stops: int) -> None:
    place = line("add.u32 %r2, %r2, %r3", LOOP)
    script, _ = session(LOOP, [f"break {place}", focus, *["continue"] * 20], **TWO)
    assert len(script.reasons) == stops


def test_registers_have_the_values_of_that_moment() -> None:
    place = line("shl.b32", LOOP)
    commands = [f"break {place}", "continue", "print %r2", "print %r3 * 2 + 1", "print %r1", "registers all"]
    script, _ = session(LOOP, commands, **TWO)
    assert script.replies["print %r2"].data == {"value": 0 + 1 + 2 + 3 + 4}
    assert script.replies["print %r3 * 2 + 1"].data == {"value": 11}
    assert script.replies["print %r1"].data == {"value": list(range(32))}
    assert script.replies["print %r1"].text == "%r1 = 0 in lane 0, +1 a lane"
    known = {each["register"]: each["text"] for each in script.replies["registers all"].data["registers"]}
    assert known["%r2"] == "10"
    assert "%r5" not in known  # it is not written yet


def test_step_follows_the_warp_line_by_line_and_next_goes_to_another() -> None:
    script, _ = session(LOOP, ["step", "step", "stepi", "next", "continue"], **TWO)
    assert script.places == [
        (0, "mov.u32 %r2, 0"),
        (0, "mov.u32 %r3, 0"),
        (0, "add.u32 %r2, %r2, %r3"),
        (1, "mov.u32 %r1, %tid.x"),
    ]


def test_memory_shows_its_writers_and_what_is_uninitialised() -> None:
    place = line("ld.shared.u32", LOOP)
    script, _ = session(
        LOOP, [f"break {place}", "continue", "smem", "smem 16 8", "print u32[20]", "print u32[300]"], **TWO
    )
    runs = script.replies["smem"].data["shared"]
    assert [(run["start"], run["stop"]) for run in runs] == [(0, 128), (128, 256), (256, 512)]
    assert [run["by"].split(" at ")[0] for run in runs] == ["warp 0", "warp 1", "uninitialised"]
    assert "(st.shared.u32)" in runs[0]["by"]
    assert script.replies["smem 16 8"].data["shared_words"]["words"] == [14, 15]
    assert script.replies["print u32[20]"].data == {"value": 15}
    assert "uninitialised" in script.replies["print u32[300]"].data["error"]


def test_a_watch_stops_at_the_change_and_only_there() -> None:
    script, _ = session(LOOP, ["watch u32[20]", *["continue"] * 5], **TWO)
    assert len(script.reasons) == 1
    assert script.reasons[0].endswith("uninitialised, or an mbarrier's and is 15")
    watched, _ = session(LOOP, ["watch %r3", *["continue"] * 10], **TWO)
    assert [reason.rpartition(" ")[2] for reason in watched.reasons] == ["0", "1", "2", "3", "4", "5"]


def test_a_watch_ends_with_its_cta() -> None:
    script, ended = session(LOOP, ["watch u32[20]", *["continue"] * 9], grid=(3, 1, 1), **TWO)
    assert isinstance(ended, Ran)
    assert [reason.rpartition(" ")[2] for reason in script.reasons] == ["15", "ended"]


def test_global_memory_is_read_and_named_at_its_address() -> None:
    body = "ld.global.u32 %r1, [%rd100+8]; add.u32 %r1, %r1, 1; mov.b64 %rd1, {%r1, %r1}; mov.b128 %b1, {%rd1, %rd1};"
    body = f".reg .b128 %b1; {body} st.global.u32 [%rd100], %r1;"
    data = np.array([7, 8, 9, 10], np.uint32)
    commands = [*["stepi"] * 6, "print u32[%rd100 + 8]", "print %r1", "registers all", "print u32[%rd100 + 16]"]
    script, ended = session(body, ["print %r1", *commands], buffers={"data": data})
    assert isinstance(ended, Ran)
    assert script.replies["print u32[%rd100 + 8]"].data == {"value": 9}
    assert script.replies["print %r1"].data == {"value": 10}
    assert "no memory of the device" in script.replies["print u32[%rd100 + 16]"].data["error"]
    known = {each["register"]: each for each in script.replies["registers all"].data["registers"]}
    assert known["%rd100"]["text"].endswith(", in data at byte 0")
    assert known["%b1"]["value"] == hex(10 * (1 + (1 << 32) + (1 << 64) + (1 << 96)))


def test_a_register_without_a_value_is_no_number() -> None:
    script, _ = session(LOOP, ["print %r2"], **TWO)
    assert script.replies["print %r2"].data == {"error": "r2 is not written yet"}


def test_barriers_are_stops_and_show_who_waits() -> None:
    script, _ = session(LOOP, ["break barrier", "continue", "continue", "barriers", "warps", "continue"], **TWO)
    assert script.places == [(0, "bar.sync 0"), (1, "bar.sync 0")]
    (barrier,) = script.replies["barriers"].data["barriers"]
    assert [each["warp"] for each in barrier["waiting"]] == [0]
    assert "32 of 64 threads arrived" in barrier["state"]
    assert "waits for barrier 0" in script.replies["warps"].text


def test_a_deadlock_stops_with_who_waits_for_what() -> None:
    body = PIPELINE.format(**{"full": 2, "empty": 1, "parity": 1, "bytes": 64} | REST)
    script, fault = session(body, ["continue", "barriers", "warp 2"], block=(96, 1, 1), shared=64)
    assert isinstance(fault, Fault)
    assert fault.kind == "deadlock"
    assert script.reasons == ["a fault ends the launch (deadlock)"]
    stop = script.stops[1]
    assert stop.data["stop"]["warp"] == 1
    assert "never completes: 1 of 2 arrivals" in stop.text
    full = next(each for each in script.replies["barriers"].data["barriers"] if each["byte"] == 0)
    assert (full["phase"], full["pending"], full["count"]) == (0, 1, 2)
    assert [each["warp"] for each in full["waiting"]] == [1]


def test_a_fault_stops_before_the_instruction_that_is_wrong() -> None:
    body = "mov.u32 %r1, smem; add.u32 %r1, %r1, 4000; ld.shared.u32 %r2, [%r1];"
    script, fault = session(body, ["continue", "print %r1 - 1024"], shared=256)
    assert isinstance(fault, Fault)
    assert script.stops[1].data["stop"]["instruction"] == "ld.shared.u32 %r2, [%r1]"
    assert script.replies["print %r1 - 1024"].data == {"value": 4000}


def test_pending_copies_are_listed_while_the_schedule_holds_them() -> None:
    body = """
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra JOIN;
    mbarrier.init.shared.b64 [smem], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [smem], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+16], [%rd100], 16, [smem];
    JOIN: bar.warp.sync -1;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra WAIT;
    ld.shared.u32 %r2, [smem+16];
    """
    commands = ["break barrier", *["continue"] * 3, "pending", "smem", "delete all", "continue"]
    data = {"data": np.arange(4, dtype=np.uint32)}
    for schedule, held in ((Lazy(), 1), (None, 0)):
        script, ended = session(body, commands, shared=64, buffers=data, asynchronous=schedule)
        assert isinstance(ended, Ran)
        assert sum(script.replies["pending"].data["pending"]["queued"].values()) == held
        (there,) = (run for run in script.replies["smem"].data["shared"] if run["start"] <= 16 < run["stop"])
        assert (there["by"] == "uninitialised") == bool(held)


TENSORS = """
mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, smem; add.u32 %r4, %r3, %r2; st.shared.u32 [%r4+64], %r1;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], 32;
ld.shared.u32 %r5, [smem]; add.u32 %r6, %r1, 100;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r6}; tcgen05.wait::st.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
"""


def test_tensors_are_shown_by_their_layouts() -> None:
    """Element (i, j) of the plain tensor is word 8 i + j; the swizzle exchanges bits 4 and 7 of the address by XOR."""
    commands = [
        "break " + line("tcgen05.dealloc", TENSORS),
        "continue",
        'layout sT !cute.memref<i32, smem, align<16>, "(4,8):(8,1)">',
        'layout sW !cute.memref<i32, smem, align<16>, S<1,4,3>, "(4,8):(8,1)">',
        'layout tT !cute.memref<f32, tmem, align<16>, "(128,4):(65536,1)">',
        'layout gT !cute.memref<i32, gmem, align<16>, "(4,8):(8,1)">',
        "tensor sT",
        *("tensor sT at 64", "tensor sW at 64", "tensor tT at 0", "tensor gT at 0"),
        *(f"print {name}[{i}, {j}]" for name in ("sT", "sW") for i in range(4) for j in range(8)),
        *("print sT[4, 0]", "print tT[5, 0]", "print tT[5, 1]", "print tmem[0, 31]", "print tmem[0, 32]", "tmem"),
    ]
    script, ended = session(TENSORS, commands, shared=256)
    assert isinstance(ended, Ran)
    replies = script.replies
    plain = {(i, j): replies[f"print sT[{i}, {j}]"].data["value"] for i in range(4) for j in range(8)}
    assert plain == {(i, j): str(8 * i + j) for i in range(4) for j in range(8)}
    swizzled = {}
    for i, j in plain:
        address = 64 + 4 * (8 * i + j)
        word = ((address ^ (address >> 7 & 1) << 4) - 64) // 4
        swizzled[i, j] = str(word) if 0 <= word < 32 else "uninitialised"
    assert {place: replies[f"print sW[{place[0]}, {place[1]}]"].data["value"] for place in plain} == swizzled
    assert swizzled != plain
    assert "is not known: give it" in replies["tensor sT"].text
    assert replies["print sT[4, 0]"].data["error"].startswith("sT has the modes (4, 8)")
    assert "gT" in replies["tensor gT at 0"].data["error"]
    assert replies["print tT[5, 1]"].data == {"value": "uninitialised"}
    assert np.float32(replies["print tT[5, 0]"].data["value"]) == np.uint32(105).view(np.float32)
    assert replies["print tmem[0, 31]"].data == {"value": 131}
    assert "uninitialised" in replies["print tmem[0, 32]"].data["error"]
    first, rest = replies["tmem"].data["tmem"]
    assert (first["start"], first["stop"], rest["stop"]) == (0, 1, 32)
    assert [(part["first_lane"], part["lanes"]) for part in first["parts"]] == [(0, 32), (32, 96)]
    assert "(tcgen05.st.sync.aligned)" in first["parts"][0]["by"]
    assert first["parts"][1]["by"] == "uninitialised"


def test_quit_ends_the_launch() -> None:
    script, fault = session(LOOP, ["quit"], **TWO)
    assert isinstance(fault, Fault)
    assert (fault.kind, len(script.stops)) == ("debug", 1)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("nothing", "is no command"),
        ("break nowhere", "is no place"),
        ("print __import__('os')", "more than names"),
        ("print (1).real", "more than names"),
        ("print 9 ** 9 ** 9", "more than names"),
        ("print xyz", "xyz is no register"),
        ("print %r1 //", "is no expression"),
        ("print 1 // 0", "division"),
        ("print smem[99999]", "shared memory has the bytes"),
        ("print tmem[600, 0]", "a word of TMEM"),
        ("warp 7", "is not on the device"),
        ("tensor sA", "none is known"),
        ("delete ptx:3", "there is no breakpoint"),
        ("focus one", "is not a CTA"),
    ],
)
def test_a_wrong_command_is_answered_and_the_session_goes_on(command: str, words: str) -> None:
    script, ended = session(LOOP, [command, "print 1 + 1"], **TWO)
    assert isinstance(ended, Ran)
    assert words in script.replies[command].data["error"]
    assert script.replies["print 1 + 1"].data == {"value": 2}


def test_the_results_are_those_without_a_debugger() -> None:
    """Divergent lanes, predicates, shuffles and packs, one instruction at a time and in whole blocks."""
    body = """
    mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 1;
    mov.b64 %rd1, {%r1, %r2};
    @%p1 bra ODD;
    mad.lo.u32 %r3, %r1, 7, %r2; bra JOIN;
    ODD: shl.b32 %r3, %r1, 5;
    JOIN: shfl.sync.bfly.b32 %r4|%p2, %r3, 1, 31, -1;
    mov.b64 {%r5, %r6}, %rd1; add.u32 %r4, %r4, %r6;
    cvt.u64.u32 %rd2, %r5; shl.b64 %rd2, %rd2, 2; add.u64 %rd3, %rd100, %rd2; st.global.u32 [%rd3], %r4;
    """
    launch = {"block": (64, 1, 1), "buffers": {"out": np.zeros(64, np.uint32)}}
    plain = run_ptx(body, **launch)
    _, ended = session(body, ["break barrier"], **launch)
    assert isinstance(ended, Ran)
    assert plain["out"].any()
    np.testing.assert_array_equal(ended["out"], plain["out"])
    assert ended.grid.counters["instructions"] == plain.grid.counters["instructions"]


def test_a_script_that_ends_lets_the_launch_run_on() -> None:
    script, ended = session(LOOP, [], **TWO)
    assert isinstance(ended, Ran)
    assert isinstance(script, Script)
    assert script.reasons == []
