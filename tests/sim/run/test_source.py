"""Places of instructions, and names that the author gave a pipeline, found in the statement of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_nvfp4.finding import Location
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.source import given_name, place_of, quoted, stated, statement

CREATE = """x = 1
ring = pipeline.PipelineAsync.create(
    barrier_storage=bars,
    producer_group=group(32),
    {}
)
other = create(name="other")
"""


def made_at(file: Path, line: int) -> Instruction:
    return Instruction("mbarrier.init", ("mbarrier", "init"), (), None, 0, 1, location=Location(str(file), line))


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ('name="load ring",', "load ring"),
        ("name = 'b',", "b"),
        ("name=chosen,", ""),
        ('rename="x",', ""),
        ("num_stages=2,", ""),
        ('name="a\\nb",', ""),
    ],
)
def test_a_constant_name_of_the_statement_is_found(tmp_path: Path, argument: str, name: str) -> None:
    file = tmp_path / "k.py"
    file.write_text(CREATE.format(argument))
    assert given_name(made_at(file, 2)) == name
    assert given_name(made_at(file, 1)) == ""
    assert given_name(made_at(file, 7)) == "other"
    assert given_name(made_at(tmp_path / "none.py", 1)) == ""


def test_an_instruction_without_a_line_has_none() -> None:
    assert given_name(Instruction("mbarrier.init", ("mbarrier", "init"), (), None, 0, 1)) == ""


def test_a_place_has_the_calls_that_inlined_it_without_those_of_a_library() -> None:
    kernel = Location("/k/gemm.py", 309)
    library = Location(re.__file__, 7, inlined_at=kernel)
    helper = Location("/k/tma.cuh", 102, inlined_at=library)
    wrapper = Location("/k/gemm.py", 80, inlined_at=helper)

    def placed(location: Location | None) -> str:
        return place_of(Instruction("ret", ("ret",), (), None, 0, 5, location=location))

    assert placed(wrapper) == "gemm.py:80 called at tma.cuh:102, :309"
    assert placed(kernel) == "gemm.py:309"
    assert placed(None) == "PTX line 5"


WRAPPERS = """\
__device__ void wait(int b) { asm volatile("{\\nW: try_wait p, [%0];\\n@!p bra W;\\n}" :: "r"(b)); }
__device__ void load(int a, int b, const int *from) {
    int x = from[0];  // not a part of the asm statement below
    if (x) {
        asm volatile(
            "{"
            "copy [%0], [%1];"
            "}" :: "r"(a), "r"(b));
    }
}
__device__ void two(int a) {
    asm volatile("first [%0];" :: "r"(a));
    asm volatile("second [%0];" :: "r"(a));
}
__global__ void kernel(int *x) { wait(3); }
template <int N> __device__ void stage(int a, const int *from) {
    auto to = static_cast<int>(__cvta_generic_to_shared(from));
    static_assert(N > 0);
    asm volatile("copy [%0];" :: "r"(to));
}
__global__ void pipeline(int *x) {
    auto fill = [&](int i) {
        load<4>(i, 3, x);
        asm volatile("arrive [%0];" :: "r"(i));
    };
    fill(7);
}
"""


@pytest.mark.parametrize(
    ("line", "calls", "named"),
    [
        (1, (15,), 15),
        (7, (15,), 15),  # a line within the statement, which the compiler names
        (1, (4, 15), 4),
        (1, (5, 15), 15),  # a wrapper in a wrapper
        (3, (15,), 3),  # what the function computes itself
        (12, (15,), 12),  # the call does not say which of the two
        (13, (15,), 13),
        (1, (), 1),
        (19, (15,), 15),  # calls in an expression
        (24, (26,), 24),  # a function that does more
        (99, (15,), 99),
    ],
)
def test_a_finding_names_the_call_of_a_function_that_wraps_one_instruction(
    tmp_path: Path, line: int, calls: tuple[int, ...], named: int
) -> None:
    file = tmp_path / "k.cu"
    file.write_text(WRAPPERS)
    location = None
    for number in (*reversed(calls), line):
        location = Location(str(file), number, inlined_at=location)
    assert location is not None
    assert stated(location) == (str(file), named)
    instruction = Instruction("ret", ("ret",), (), None, 0, 5, location=location)
    assert quoted(instruction).removeprefix(place_of(instruction)) == (
        f" `{statement(str(file), named)}`" if named < 99 else ""
    )
