"""The flow graph against searches over the program it was written from."""

from hypothesis import given

from pytest_nvfp4.sim.ptx.flow import Flow

from .programs import END, programs
from .samples import kernel


@given(programs())
def test_successors_leaders_and_blocks(program):
    flow = Flow(program.kernel())
    count = len(program.steps)
    leaders = {0}
    for index, step in enumerate(program.steps):
        assert {END if place == flow.end else place for place in flow.successors(index)} == program.following(index)
        if any(word in step.text for word in ("bra", "brx", "ret", "exit", "trap", "fail")):
            leaders |= {index + 1, *step.goes}
    assert flow.leaders == {index for index in leaders if index < count}
    assert [block.start for block in flow.blocks] == sorted(flow.leaders)
    assert [block.stop for block in flow.blocks] == [*sorted(flow.leaders)[1:], count]
    for number, block in enumerate(flow.blocks):
        assert block.number == number
        last = program.following(block.stop - 1)
        assert {flow.blocks[other].start for other in block.successors} == last - {END}
        assert set(flow.predecessors[number]) == {
            other.number for other in flow.blocks if number in other.successors
        }  # fmt: skip
        for index in range(block.start, block.stop):
            assert flow.block_of(index) is block


@given(programs())
def test_reverse_postorder(program):
    """Every block that can be reached once; and where there is no loop, before its successors."""
    flow = Flow(program.kernel())
    assert sorted(flow.order) == [block.number for block in flow.blocks if program.can_reach(0, block.start)]
    assert flow.order[0] == 0
    place = {number: position for position, number in enumerate(flow.order)}
    for number in flow.order:
        for other in flow.blocks[number].successors:
            if not program.can_reach(flow.blocks[other].start, flow.blocks[number].start):
                assert place[number] < place[other]


def test_a_long_kernel_does_not_recurse():
    count = 3000
    flow = Flow(
        kernel("".join(f"@%p1 bra L{n}; mov.b32 %r1, 1; L{n}: mov.b32 %r2, 1;\n" for n in range(count)) + "ret;")
    )
    assert len(flow.order) == len(flow.blocks) == 2 * count + 1


def test_an_empty_kernel():
    flow = Flow(kernel(""))
    assert (flow.blocks, flow.order, flow.leaders, flow.end) == ((), (), frozenset(), 0)
