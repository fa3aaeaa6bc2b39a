"""The flow graph against searches over the program it was written from."""

from hypothesis import given, settings

from pytest_nvfp4.sim.ptx.flow import Flow

from .programs import END, Program, Step, programs
from .samples import kernel


def graph(*goes):
    """A program of branches only: one set of targets a step."""
    steps = []
    for index, targets in enumerate(goes):
        listed = ", ".join(f"L{place}" for place in targets)
        text = f"T{index}: .branchtargets {listed}; brx.idx %r0, T{index};" if targets else "trap;"
        steps.append(Step(text, goes=set(targets)))
    return Program(steps)


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
        assert block.ends == (END in last)
        assert set(flow.predecessors[number]) == {
            other.number for other in flow.blocks if number in other.successors
        }  # fmt: skip
        for index in range(block.start, block.stop):
            assert flow.block_of(index) is block
            assert flow.reachable(index) == program.can_reach(0, index)


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


def immediate_postdominators(program):
    """By removing each place in turn; only of places from which the end can be reached."""
    count = len(program.steps)
    found = {}
    for index in range(count):
        if not program.can_reach(index, END):
            continue
        behind = {
            place
            for place in range(count)
            if place != index
            and all(not program.can_reach(after, END, without=place) for after in program.following(index))
        }

        # The immediate one is postdominated by all others.
        def passes(place, other):
            return place == other or all(
                not program.can_reach(after, END, without=other) for after in program.following(place)
            )

        first = [place for place in behind if all(passes(place, other) for other in behind)]
        assert len(first) == bool(behind)
        found[index] = first[0] if first else END
    return found


@settings(max_examples=60)
@given(programs())
def test_postdominators(program):
    flow = Flow(program.kernel())
    for index, expected in immediate_postdominators(program).items():
        assert flow.postdominator(index) == (flow.end if expected == END else expected)


@given(programs())
def test_postdominators_where_nothing_ends_are_places_ahead(program):
    flow = Flow(program.kernel())
    for index in range(len(program.steps)):
        place = flow.postdominator(index)
        if not program.can_reach(index, END):
            assert place == flow.end or any(program.can_reach(after, place) for after in program.following(index))


def test_a_diamond_meets_again():
    flow = Flow(graph([1, 2], [3], [3], [4]).kernel())
    assert [flow.postdominator(index) for index in range(4)] == [3, 3, 3, 4]


def test_an_assertion_does_not_keep_lanes_apart():
    flow = Flow(kernel("@%p1 bra OK; trap; OK: mov.b32 %r1, 1; ret;"))
    assert [flow.postdominator(index) for index in range(4)] == [2, 4, 3, 4]


def test_a_diamond_in_front_of_traps_and_in_an_endless_loop_meets_again():
    flow = Flow(graph([1, 2], [3], [3], []).kernel())
    assert [flow.postdominator(index) for index in range(4)] == [3, 3, 3, 4]
    flow = Flow(graph([1], [2, 3], [4], [4], [1]).kernel())
    assert [flow.postdominator(index) for index in range(5)] == [1, 4, 4, 4, 5]


def test_a_long_kernel_does_not_recurse():
    count = 3000
    flow = Flow(
        kernel("".join(f"@%p1 bra L{n}; mov.b32 %r1, 1; L{n}: mov.b32 %r2, 1;\n" for n in range(count)) + "ret;")
    )
    assert len(flow.order) == len(flow.blocks) == 2 * count + 1
    assert [flow.postdominator(3 * n) for n in range(count)] == [3 * n + 2 for n in range(count)]


def test_an_empty_kernel():
    flow = Flow(kernel(""))
    assert (flow.blocks, flow.order, flow.leaders, flow.end) == ((), (), frozenset(), 0)
