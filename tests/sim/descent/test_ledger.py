"""Who wrote each element of C, and what it descends from."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.fault import Fault
from tests.sim.descent.ledgers import BYTES, COPY, ELEMENTS, Bench, elements, line


def test_a_launch_passes_on_what_it_read() -> None:
    bench = Bench()
    bench.launch(bench.a, bench.out, at=7)
    written = bench.one()
    assert written.writer is not None
    assert (written.writer.kind, written.writer.line) == ("launch", line(7))
    assert written.origins.inputs
    assert written.origins.launches == {0}
    assert not written.origins.host
    assert not written.origins.computed


def test_a_launch_descends_from_no_memory_that_it_did_not_read() -> None:
    bench = Bench()
    zeros = bench.buffer()
    bench.operator("zeros", to=zeros)
    bench.launch(zeros, bench.out)
    assert not bench.one().origins.inputs


def test_a_chain_of_launches_counts_all_of_them_and_no_others() -> None:
    bench = Bench()
    scratch, other = bench.buffer(), bench.buffer()
    bench.launch(bench.a, scratch)
    bench.launch(bench.a, other)
    bench.launch(scratch, bench.out)
    assert bench.one().origins.launches == {0, 2}


def test_atomics_read_what_they_update() -> None:
    bench = Bench()
    tainted = bench.buffer()
    bench.read(bench.a)
    bench.upload(tainted)
    atom = COPY.replace("ld.global.b32 %r2, [%rd2]", "atom.global.add.u32 %r2, [%rd2], 0")
    before = bench.session.launches
    assert not before
    bench.launch(tainted, bench.out, body=atom)
    assert any(write.what == "cuMemcpyHtoD" for write in bench.one().origins.host)


def test_requests_own_exactly_the_elements_that_they_wrote() -> None:
    bench = Bench()
    bench.launch(bench.a, bench.out)
    every_other = Extent(bench.c.start + 2, 2, (8,), (4,))
    bench.upload(every_other, at=3)
    bench.operator("zero_", to=Extent(bench.c.start + 64, 8), at=4)
    kernel, copy, operator = sorted(
        bench.written(), key=lambda one: -len(one.elements if one.elements is not None else ())
    )
    assert [one.writer.kind for one in (kernel, copy, operator) if one.writer] == ["launch", "copy", "operator"]
    assert copy.elements is not None
    assert copy.elements.tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert operator.elements is not None
    assert operator.elements.tolist() == [32, 33, 34, 35]
    bench.launch(bench.a, bench.out, at=5)
    assert bench.one().origins.launches == {1}, "the last launch overwrote all of it"


def test_what_nobody_wrote_is_said() -> None:
    bench = Bench()
    bench.operator("fill_", to=Extent(bench.c.start, BYTES - 2))
    nobody = bench.written()[0]
    assert nobody.writer is None
    assert nobody.elements is not None
    assert nobody.elements.tolist() == [ELEMENTS - 1]


def test_host_bytes_count_only_after_a_read_of_what_descends_from_inputs() -> None:
    bench = Bench()
    table, flag = bench.buffer(), bench.buffer()
    bench.operator("zeros", to=flag)
    bench.read(flag)
    bench.upload(table)
    bench.launch(table, bench.out)
    assert not bench.one().origins.host
    bench.launch(bench.a, flag)
    bench.read(flag, at=11)
    bench.upload(table, at=12)
    bench.begin()
    bench.launch(table, bench.out, at=13)
    found = {(write.what, write.line, write.after.line) for write in bench.one().origins.host}
    assert found == {("cuMemcpyHtoD", line(12), line(11)), ("the launch of kernel", line(13), line(11))}


@pytest.mark.parametrize(
    "name", ["mm", "_scaled_mm", "sum", "einsum", "unheard_of", "square", "cumsum", "mul", "exp", "nonzero", "linspace"]
)
def test_operators_that_compute_from_inputs_are_named_through_launches(name: str) -> None:
    bench = Bench()
    scratch = bench.buffer()
    bench.operator(name, bench.a, to=scratch, at=5)
    bench.launch(scratch, bench.out)
    assert [(writer.name, writer.line) for writer in bench.one().origins.computed] == [(f"torch's {name}", line(5))]


@pytest.mark.parametrize(
    "name", ["copy_", "_foreach_copy_", "clone", "cat", "bitwise_or", "where", "index", "_to_copy", "permute_copy"]
)
def test_movement_and_conversion_of_one_tensor_compute_nothing(name: str) -> None:
    bench = Bench()
    scratch, constant = bench.buffer(), bench.buffer()
    bench.operator("full", to=constant)
    bench.operator(name, bench.a, constant, to=scratch)
    bench.operator("copy_", scratch, to=bench.out)
    written = bench.one()
    assert written.origins.inputs
    assert not written.origins.computed


@pytest.mark.parametrize("name", ["mul", "add", "sub_", "minimum"])
def test_two_operands_that_descend_from_inputs_are_a_computation(name: str) -> None:
    bench = Bench()
    b, scratch = bench.buffer(), bench.buffer()
    bench.operator("copy_", bench.a, to=b)
    bench.operator(name, bench.a, b, to=scratch)
    bench.operator("copy_", scratch, to=bench.out)
    assert bench.one().origins.computed


@pytest.mark.parametrize(("name", "selects"), [("index", 1), ("bitwise_or", 0), ("__xor__", 0)])
def test_a_function_of_a_function_of_inputs_is_a_computation(name: str, selects: int) -> None:
    """Codes may be packed and selected; sums and products by tables of tables may not be made."""
    bench = Bench()
    table, once, twice = bench.buffer(), bench.buffer(), bench.buffer()
    bench.upload(table)
    a = elements(bench.a, 1)
    bench.operator(name, a, a, to=elements(once, 1), selects=selects)
    bench.operator("bitwise_left_shift", elements(once, 1), to=elements(once, 1))
    bench.launch(once, bench.out)
    assert not bench.one().origins.computed
    bench.operator("cat", elements(once, 1), elements(table, 1), to=elements(twice, 1))
    bench.operator("index", elements(table, 1), elements(twice, 1), to=elements(twice, 1), selects=1)
    bench.operator("copy_", twice, to=bench.out)
    assert bench.one().origins.computed


@pytest.mark.parametrize(
    "name", ["where", "masked_fill", "masked_select", "index_put_", "repeat_interleave", "bitwise_left_shift"]
)
def test_places_and_counts_that_inputs_select_are_a_computation(name: str) -> None:
    bench = Bench()
    constant, scratch = bench.buffer(), bench.buffer()
    bench.operator("full", to=constant)
    bench.operator(name, constant, bench.a, to=scratch, selects=1)
    bench.operator("copy_", scratch, to=bench.out)
    assert bench.one().origins.computed


@pytest.mark.parametrize(("name", "selects"), [("_to_copy", 0), ("copy_", 0), ("cat", 0), ("index", 1)])
@pytest.mark.parametrize("laid", ["single", "packed", "wide", "shifted", "widened", "copied"])
def test_an_element_that_holds_several_of_an_input_has_no_function(name: str, selects: int, laid: str) -> None:
    """A cast rounds and a table multiplies what a view has made one element; a single element is converted."""
    bench = Bench()
    size = {"single": 1, "shifted": 1, "wide": 4, "widened": 4}.get(laid, 2)
    packed, scratch = bench.buffer(), bench.buffer()
    bench.operator("stack", elements(bench.a, 1), to=elements(packed, 1))
    if laid == "shifted":
        bench.operator("__rshift__", elements(packed, 2), to=elements(packed, 2))
    if laid == "widened":  # of two elements: four bytes that are an integer's
        bench.operator("_to_copy", elements(packed, 2), to=elements(packed, 4))
    if laid == "wide":  # of one element
        bench.operator("_to_copy", elements(packed, 1), to=elements(packed, 4))
    if laid == "copied":
        copy = Executed(
            Kind.COPY, "cudaMemcpy", reads=(Extent(bench.a.address, 2),), writes=(Extent(packed.address, 2),)
        )
        bench.ledger.executed(copy)
    bench.operator(name, elements(packed, size), to=elements(scratch, 4), selects=selects, converts=not selects)
    bench.operator("copy_", scratch, to=bench.out)
    assert bool(bench.one().origins.computed) == (laid not in ("single", "wide"))
    workspace = bench.buffer()
    bench.launch(bench.a, workspace)
    bench.operator(name, elements(workspace, size), to=elements(scratch, 4), selects=selects, converts=not selects)
    bench.launch(scratch, bench.out)
    assert not bench.one().origins.computed, "what a kernel wrote has elements of any size"


@pytest.mark.parametrize(("name", "selects"), [("_to_copy", 0), ("index", 1)])
def test_the_third_conversion_of_what_kernels_laid_out_is_a_computation(name: str, selects: int) -> None:
    """Kernels that copy lay any elements out in one, so that conversions in sequence are a network of gates."""
    bench = Bench()
    laid, moved, converted = bench.buffer(), bench.buffer(), bench.buffer()

    def convert(*, at: int) -> None:
        bench.operator("clone", elements(laid, 4), to=elements(moved, 4))
        bench.operator(
            name, elements(moved, 4), to=elements(converted, 4), selects=selects, converts=not selects, at=at
        )

    def computed() -> list[int]:
        bench.launch(converted, bench.out)
        return [writer.line.line for writer in bench.one().origins.computed if writer.line]

    for call in range(2):  # conversions of earlier calls count nothing
        bench.begin()
        bench.launch(bench.a, laid)
        convert(at=1)
        bench.operator(name, elements(converted, 4), to=elements(converted, 4), selects=selects, converts=not selects)
        bench.launch(converted, laid)
        convert(at=2)
        assert computed() == [], f"call {call}: of operands, and of the result"
    bench.launch(converted, laid)
    convert(at=3)
    assert computed() == [3]


def test_the_error_of_a_launch_is_a_read() -> None:
    bench = Bench()
    with pytest.raises(Fault):
        bench.launch(bench.a, bench.out, body="trap;")
    bench.begin()
    bench.launch(bench.a, bench.out)
    assert [write.after.what for write in bench.one().origins.host] == ["the error of kernel"]


def test_an_operator_in_place_computes_from_what_was_there() -> None:
    bench = Bench()
    scratch = bench.buffer()
    bench.launch(bench.a, scratch)
    bench.operator("add_", bench.a, to=scratch)
    bench.operator("copy_", scratch, to=bench.out)
    assert bench.one().origins.computed
    assert bench.one().origins.launches == {0}


def test_a_sum_of_constants_computes_nothing_from_inputs() -> None:
    bench = Bench()
    sizes, scratch = bench.buffer(), bench.buffer()
    bench.upload(sizes)
    bench.operator("cumsum", sizes, to=scratch)
    bench.launch(scratch, bench.out)
    assert not bench.one().origins.computed


def test_a_new_allocation_at_an_old_address_holds_nothing() -> None:
    bench = Bench()
    scratch = bench.buffer()
    bench.operator("mm", bench.a, to=scratch)
    bench.operator("empty", to=scratch)
    bench.launch(scratch, bench.out)
    assert not bench.one().origins.computed


def test_scalars_after_a_read_are_host_bytes_too() -> None:
    bench = Bench()
    bench.operator("_local_scalar_dense", bench.a, at=2)
    bench.operator("fill_", to=bench.out, host=8, at=3)
    (write,) = bench.one().origins.host
    assert (write.line, write.after.line) == (line(3), line(2))


def test_the_writers_of_a_tensor_of_the_kernels_own_are_those_of_its_bytes() -> None:
    bench = Bench()
    own = bench.buffer(2 * BYTES)
    half = Extent(own.address, BYTES)
    bench.launch(bench.a, half)
    assert [one.writer.kind for one in bench.ledger.written_to(half) if one.writer] == ["launch"]
    bench.upload(half)
    assert [one.writer.kind for one in bench.ledger.written_to(half) if one.writer] == ["copy"]
    bench.launch(bench.a, own)
    assert [one.writer.kind for one in bench.ledger.written_to(half) if one.writer] == ["copy", "launch"]
    assert bench.ledger.written_to(Extent(bench.buffer().address, BYTES))[0].writer is None


def test_launches_of_earlier_calls_did_no_work_of_this_one() -> None:
    bench = Bench()
    scratch = bench.buffer()
    bench.launch(bench.a, scratch)
    bench.begin()
    bench.launch(scratch, bench.out)
    assert bench.one().origins.launches == {1}


def test_multiply_adds_are_counted_by_lane_with_guards_and_regions() -> None:
    bench = Bench()
    body = (
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 4; mov.b32 %f1, 0f3F800000;"
        "fma.rn.f32 %f2, %f1, %f1, %f1; mul.rn.f16x2 %r3, %r1, %r1; dp4a.u32.u32 %r4, %r1, %r1, %r1;"
        "@%p1 fma.rn.f32 %f2, %f1, %f1, %f1; @!%p1 bra SKIP; mul.lo.u32 %r5, %r1, %r1; SKIP: add.u32 %r6, %r1, %r1;"
    )
    bench.launch(bench.a, body=body, ctas=3)
    assert bench.session.launches[0].multiply_adds == 3 * (32 * (1 + 2 + 4) + 4 + 4)
    assert bench.ledger.multiply_adds(frozenset({0})) == bench.session.launches[0].multiply_adds
