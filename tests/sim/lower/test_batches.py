"""Calls that are made together, in random blocks: each register holds what it holds if they are made one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.alu.lift import lift
from pytest_nvfp4.sim.lower import batches, compiler, runs
from tests.sim.ptx_case import run_ptx

COUNT = 6
"""Registers %f1 to %f6, and as many %r; half of them are alike in all lanes at first."""
_START = "mov.u32 %r20, %tid.x; cvt.rn.f32.u32 %f20, %r20; mul.wide.u32 %rd1, %r20, 4; add.s64 %rd2, %rd100, %rd1;\n"
_PITCH = 704
"""Bytes between what two lanes store."""
_START += f"mul.wide.u32 %rd4, %r20, {_PITCH}; add.s64 %rd3, %rd101, %rd4; setp.lt.u32 %p1, %r20, 9;\n"
_FORMS = (
    "fma.rn.f32 %f{0}, %f{1}, %f{2}, %f{3};",
    "fma.rn.f32 %f{0}, %f{1}, %f{1}, %f{0};",
    "mul.rn.f32 %f{0}, %f{1}, 0f3FC00000;",
    "mul.rn.f32 %f{0}, %f{1}, %f{2};",
    "mov.b32 %f{0}, %f{1};",
    "cvt.rn.f16x2.f32 %r{0}, %f{1}, %f{2};",
    "add.rn.f16x2 %r{0}, %r{1}, %r{2};",
    "mul.rn.f16x2 %r{0}, %r{1}, %r{2};",
    "ex2.approx.ftz.f32 %f{0}, %f{0};",
    "mov.b32 %f{0}, %r{1};",
    "bar.warp.sync -1;",
    "setp.lt.f32 %p2, %f{1}, %f{2};",
    "@%p2 add.rn.f32 %f{0}, %f{1}, %f{2};",
    "bra.uni N{{0}}; N{{0}}:",
    "@%p2 bra L{{0}}; mul.rn.f32 %f{0}, %f{1}, %f{0}; add.rn.f32 %f{2}, %f{0}, %f{3}; L{{0}}:",
    "@%p1 mul.rn.f32 %f{0}, %f{1}, %f{2};",
    "@%p1 mov.b32 %r{0}, %r{1};",
    "mov.b64 %rd3{0}, {{%f{1}, %f{2}}};",
    "fma.rn.f32x2 %rd3{0}, %rd3{1}, %rd3{2}, %rd3{3};",
    "@%p1 add.rn.f32x2 %rd3{0}, %rd3{1}, %rd3{2};",
    "mov.b64 {{%f{0}, %f{1}}}, %rd3{2};",
    "mov.b64 {{%f{0}, _}}, %rd3{0};",
    "mov.b32 {{%rs{0}, %rs{1}}}, %r{2};",
    "mov.b32 %r{0}, {{%rs{1}, %rs{2}}};",
    "st.global.b32 [%rd3+{0}00], %f{1};",
    "st.global.b16 [%rd3+{0}06], %rs{1};",
    "st.global.v2.b32 [%rd3+648], {{%f{1}, %r{2}}};",
    "@%p1 st.global.b32 [%rd3+{0}00], %f{1};",
    "st.global.b16 [%rd3+{0}10], %rs{1}; st.global.b16 [%rd3+{0}12], %rs{2}; st.global.b16 [%rd3+{0}14], %rs{3}; "
    "st.global.b16 [%rd3+{0}16], %rs{0};",
)
registers = st.integers(1, COUNT)
programs = st.lists(
    st.builds(lambda form, *names: form.format(*names), st.sampled_from(_FORMS), *[registers] * 4),
    min_size=3,
    max_size=40,
)


def results(program: list[str], *, tensor: bool = False) -> np.ndarray:
    """Return the patterns of all registers after a block, for each lane, and what it stores.

    Args:
        program: Lines of PTX.
        tensor: Whether the kernel uses tensor memory, so that registers hold items (``lower.apart``).
    """
    text = "tcgen05.fence::before_thread_sync;\n" * tensor + _START
    for number in range(1, COUNT + 1):
        lanes = number % 2
        text += f"add.f32 %f{number}, %f20, 0f40000000;\n" if lanes else f"mov.b32 %f{number}, 0f3F{number}00000;\n"
        text += (
            f"add.u32 %r{number}, %r20, {15000 + number};\n" if lanes else f"mov.b32 %r{number}, {15360 + number};\n"
        )
        text += f"mov.b64 %rd3{number}, {{%f{number}, %r{number}}}; cvt.u16.u32 %rs{number}, %r{number};\n"
    text += "\n".join(line.replace("{0}", str(number)) for number, line in enumerate(program))
    for number in range(COUNT):
        text += f"\nst.global.b32 [%rd2+{256 * number}], %f{number + 1};"
        text += f"\nst.global.b32 [%rd2+{256 * number + 128}], %r{number + 1};"
        text += f"\nmov.b64 {{%f20, %r21}}, %rd3{number + 1}; cvt.u32.u16 %r22, %rs{number + 1};"
        for at, name in enumerate(("f20", "r21", "r22")):
            text += f"\nst.global.b32 [%rd2+{256 * COUNT + 128 * (3 * number + at)}], %{name};"
    buffers = {"out": np.zeros(160 * COUNT, np.uint32), "stored": np.zeros(32 * _PITCH // 4, np.uint32)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_FEWEST", 2)
        ran = run_ptx(text, buffers=buffers, block=(32, 1, 1))
    return np.concatenate([ran["out"], ran["stored"]])


def one_by_one(program: list[str], *, tensor: bool) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "batched", lambda lines, line_at, *_: (lines, line_at))
        patch.setattr(compiler, "with_runs", lambda lines, line_at, *_: (lines, line_at))
        return results(program, tensor=tensor)


@settings(max_examples=200)
@given(programs, st.booleans())
def test_no_register_differs(program: list[str], tensor: bool) -> None:
    assert np.array_equal(results(program, tensor=tensor), one_by_one(program, tensor=tensor))


UNROLLED = [
    "bra.uni NEXT; NEXT:",
    *(f"mul.rn.f32 %f{number}, %f{number}, %f1;" for number in (2, 3, 4)),
    "mov.b32 %f1, %f6;",
    "fma.rn.f32 %f5, %f1, %f3, %f4;",
]


def test_an_operand_that_is_overwritten_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put_off = batches._Block.put_off

    def forgetful(self: batches._Block, function: str, call: batches._Call) -> None:
        put_off(self, function, call)
        self._readers.clear()

    monkeypatch.setattr(batches._Block, "put_off", forgetful)
    wrong = results(UNROLLED)
    monkeypatch.undo()
    assert not np.array_equal(wrong, results(UNROLLED))


@pytest.mark.parametrize(("size", "count"), [(32, 3), (32, 16), (1024, 4), (1024, 16)])
@pytest.mark.parametrize("uniform", [0, 1, 2])
def test_together_is_one_by_one(size: int, count: int, uniform: int) -> None:
    """For few and many lanes, and with ints in some operands of some calls, or in all of the last one."""
    add = lift(lambda a, b: a + b, 32, 32)
    rng = np.random.default_rng(size + count)
    columns = [list(rng.integers(0, 1 << 32, (count, size), dtype=np.uint32)) for _ in range(2)]
    for column in columns[:uniform]:
        column[-1] = 7
    calls = list(zip(*columns, strict=True))
    once = add.together(*map(tuple, columns))
    for got, call in zip(once, calls, strict=True):
        assert type(got) is type(want := add(*call))
        assert np.array_equal(got, want)
    for got, a, b in zip(add.together(once[1::2], once[0:-1:2]), once[1::2], once[0:-1:2], strict=True):
        assert type(got) is type(want := add(a, b))
        assert np.array_equal(got, want)


class _Mul:
    """A function that has ``together``."""

    together = None


NAMES = {"mul": _Mul}


def made(*lines: str) -> list[str]:
    return batches.batched([f"    {line}" for line in lines], [(at, "m") for at in range(len(lines))], NAMES)[0]


def test_independent_calls_are_one() -> None:
    lines = [*(f"    v{number} = mul(v{number + 10}, 7)" for number in range(4)), "    R[0] = v0"]
    made, places = batches.batched(lines, [(at, "m") for at in range(5)], NAMES)
    assert made == ["    b0, b1, b2, b3 = mul.together((v10, v11, v12, v13), (7, 7, 7, 7))", "    R[0] = b0"]
    assert places == [(0, "m"), (4, "m")]


def test_chains_of_calls_are_made_a_level_at_a_time() -> None:
    """One chain behind the other, in one register, each with a move and a result that nothing reads."""
    chain = ["v1 = mul(v{0}, 7)", "v1 = mul(v1, v{0})", "v9 = mul(v1, 3)", "v{1} = v1"]
    lines = [line.format(10 + number, 20 + number) for number in range(3) for line in chain]
    assert made(*lines, "R[0] = v20; R[1] = v21", "R[2] = v22", "R[3] = v1") == [
        "    j0 = mul.together((v10, v11, v12), (7, 7, 7))",
        "    b1, b4, b7 = mul.together(j0, (v10, v11, v12))",
        "    R[0] = b1; R[1] = b4",
        "    R[2] = b7",
        "    R[3] = b7",
    ]


@pytest.mark.parametrize(
    ("operands", "passed"),
    [
        ([(0, 1), (2, 3), (4, 5)], "j0[0:5:2], j0[1:6:2]"),
        ([(5, 0), (3, 1), (1, 2)], "(b5, b3, b1), j0[0:3:1]"),
        ([(0, 1), (1, 1), (3, 1)], "(b0, b1, b3), (b1, b1, b1)"),
    ],
)
def test_results_in_steps_of_one_length_are_passed_on_together(operands: list[tuple[int, int]], passed: str) -> None:
    lines = [f"v{number} = mul(v{number + 10}, 7)" for number in range(6)]
    lines += [f"v{number + 20} = mul(v{a}, v{b})" for number, (a, b) in enumerate(operands)]
    found = made(*lines, "R[0] = v20; R[1] = v21; R[2] = v22; R[3] = v4")
    names = "b0, b1, b2, b3, b4, b5 = " + "j0 = " * ("j0" in passed)
    assert found[0] == f"    {names}mul.together((v10, v11, v12, v13, v14, v15), (7, 7, 7, 7, 7, 7))"
    assert found[1] == f"    b6, b7, b8 = mul.together({passed})"
    assert found[2] == "    R[0] = b6; R[1] = b7; R[2] = b8; R[3] = b4"


@pytest.mark.parametrize(
    ("between", "after"),
    [
        ("v10 = 1", ["b0 = mul(v10, 7)", "v10 = 1", "b1 = mul(v11, 7)"]),
        ("v10, t1, = f(v0)", ["b0 = mul(v10, 7)", "v10, t1, = f(b0)", "b1 = mul(v11, 7)"]),
        ("if t1: v10 = 1", ["b0 = mul(v10, 7)", "if t1: v10 = 1", "b1 = mul(v11, 7)"]),
        ("if t1: v0 = 1", ["b0 = mul(v10, 7)", "v0 = b0", "if t1: v0 = 1", "b1 = mul(v11, 7)"]),
        ("if g1:", ["b0 = mul(v10, 7)", "v0 = b0", "if g1:", "b1 = mul(v11, 7)"]),
        ("    v9 = v0", ["b0 = mul(v10, 7)", "v0 = b0", "    v9 = v0", "b1 = mul(v11, 7)"]),
        ("v0 = 1", ["v0 = 1", "b0 = mul(v10, 7)", "b1 = mul(v11, 7)"]),
        ("if t1 is None: return ~3", ["if t1 is None: return ~3", "b0 = mul(v10, 7)", "b1 = mul(v11, 7)"]),
    ],
)
def test_what_comes_between_waits_for_what_it_needs_or_changes(between: str, after: list[str]) -> None:
    lines = made("v0 = mul(v10, 7)", between, "v1 = mul(v11, 7)", "R[0] = v0", "R[1] = v1")
    assert [line[4:] for line in lines if " R[" not in line] == after
    assert lines[-1] == "    R[1] = b1"


def test_predicates_are_not_put_off() -> None:
    lines = [f"    v{number} = mul(v{number + 10}, 7)" for number in range(4)]
    names = {f"v{number}" for number in range(4)}
    assert batches.batched(lines, [(0, "m")] * 4, NAMES, names)[0] == lines
