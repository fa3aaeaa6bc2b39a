"""Liveness against a search for a read along each way, one register at a time."""

from hypothesis import given

from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.liveness import _STRIDE, Liveness
from tests.sim.ptx.reads import is_read

from .programs import REGISTERS, Program, Step, programs
from .samples import kernel


@given(programs())
def test_live_before(program):
    live = Liveness(Flow(program.kernel()))
    for index in range(len(program.steps)):
        expected = {slot for slot in range(REGISTERS) if is_read(program, slot, index)}
        assert live.live_before(index) == expected
    assert live.live_before(len(program.steps)) == frozenset()


@given(programs(endless=False))
def test_the_order_of_questions_does_not_matter(program):
    ways = [range(len(program.steps)), range(len(program.steps) - 1, -1, -1)]
    answers = []
    for way in ways:
        live = Liveness(Flow(program.kernel()))
        answers.append({index: live.live_before(index) for index in way})
    assert answers[0] == answers[1]


def test_inside_a_long_block():
    """Sets are kept at some places of a block only; every place must be right."""
    count = 5 * _STRIDE + 3
    steps = []
    for n in range(count):
        a, b, c = n % 4, (n * 7) % 3, (n // 5) % 4
        steps.append(Step(f"add.s32 %r{a}, %r{b}, %r{c};", {2 + b, 2 + c}, {2 + a}, {n + 1}))
    program = Program([*steps, Step("ret;", goes={count + 1})])
    live = Liveness(Flow(program.kernel()))
    for index in [*range(0, count, 7), *range(count)]:
        assert live.live_before(index) == {slot for slot in range(REGISTERS) if is_read(program, slot, index)}


def test_a_guarded_result_keeps_what_was_there():
    found = kernel("@%p1 mov.b32 %r1, 1; st.shared.b32 [%r2], %r1; ret;")
    names = {found.registers[slot].name for slot in Liveness(Flow(found)).live_before(0)}
    assert names == {"%p1", "%r1", "%r2"}


def test_code_that_nothing_reaches_is_answered_too():
    found = kernel("bra E; mov.b32 %r1, %r2; E: ret;")
    live = Liveness(Flow(found))
    assert {found.registers[slot].name for slot in live.live_before(1)} == {"%r2"}
    assert live.live_before(0) == frozenset()
