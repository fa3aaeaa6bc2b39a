"""Runs of stores that are made together: the bytes, counters, writers and findings of the stores one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.lower import compiler, runs
from pytest_nvfp4.sim.memory import write_run as module
from pytest_nvfp4.sim.memory.coverage import findings
from pytest_nvfp4.sim.monitor import Monitor
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import Ran, run_ptx

SIZE = 16384
LETTERS = {16: "rs", 32: "r", 64: "rd"}


def kernel(bits: int, count: int, offsets: list[int], pitch: int, *, guard: str = "", skew: int = 0) -> str:
    """Return a kernel whose lanes each store ``count`` elements of ``bits`` at each of some offsets."""
    name = LETTERS[bits]
    lines = [
        f"mov.u32 %r100, %tid.x; mul.wide.u32 %rd1, %r100, {pitch}; add.s64 %rd2, %rd100, %rd1; "
        f"add.s64 %rd2, %rd2, {skew}; setp.lt.u32 %p1, %r100, 9; cvt.u64.u32 %rd3, %r100; cvt.u16.u32 %rs100, %r100;"
    ]
    source = {16: "%rs100", 32: "%r100", 64: "%rd3"}[bits]
    for number in range(len(offsets) * count):
        lines.append(
            f"mov.b{bits} %{name}{110 + number}, 7;" if number == 1 else
            f"add.u{bits} %{name}{110 + number}, {source}, {1000 * number + 5};"
        )  # fmt: skip
    vector = f".v{count}" if count > 1 else ""
    if region := guard == "region":
        guard = ""
        lines.append("@!%p1 bra END;")
    for number, offset in enumerate(offsets):
        items = ", ".join(f"%{name}{110 + number * count + item}" for item in range(count))
        items = f"{{{items}}}" if count > 1 else items
        lines.append(f"{guard} st.global{vector}.b{bits} [%rd2+{offset}], {items};")
    return "\n".join([*lines, "END:" * region])


class Runs:
    """The answers of ``write_run``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[bool] = []

        def counted(*arguments: Any) -> bool:
            self.answers.append(module.write_run(*arguments))
            return self.answers[-1]

        monkeypatch.setattr(runs, "write_run", counted)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(runs, "_FEWEST", 4)  # short cases; fewer than that stay single
    return Runs(monkeypatch)


def both(text: str, *, watch: int = 0, monitor: bool = False, **options: Any) -> list[tuple[Ran, list[Any]]]:
    """Run a kernel with its stores made together, then with them one by one; return the runs and the writers."""
    results = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not together:
                patch.setattr(compiler, "with_runs", lambda lines, line_at, *_: (lines, line_at))
            machine = Machine(model=for_arch("sm_100a"))
            if monitor:
                machine.monitor = Monitor()
            writers: list[Any] = []

            def prepare(_grid: Grid, machine: Machine = machine, writers: list[Any] = writers) -> None:
                for region in machine.memory:
                    region.track_writes()
                    if watch:
                        writers.append(region.watch(watch))
                    writers.append(region)

            ran = run_ptx(text, buffers={"out": np.zeros(SIZE, np.uint8)}, machine=machine, prepare=prepare, **options)
            results.append((ran, writers))
    return results


def assert_alike(results: list[tuple[Ran, list[Any]]]) -> None:
    (one, seen), (other, wanted) = results
    assert np.array_equal(one["out"], other["out"])
    assert one["out"].any()
    assert dict(one.grid.counters) == dict(other.grid.counters)
    assert [str(finding) for finding in one.grid.findings] == [str(finding) for finding in other.grid.findings]
    assert np.array_equal(seen[-1].initialised, wanted[-1].initialised)
    if wanted[-1].owner is not None:
        assert np.array_equal(seen[-1].owner, wanted[-1].owner)
        assert list(map(str, findings(seen[-1:]))) == list(map(str, findings(wanted[-1:])))


@pytest.mark.parametrize("guard", ["", "@%p1", "region"])
@pytest.mark.parametrize(
    ("bits", "count", "offsets", "pitch"),
    [
        (16, 1, [0, 2, 4, 6, 8, 10], 200),
        (16, 1, [10, 2, -4, 6, 40], 62),
        (32, 1, [0, 144, 276, 408], 4),
        (32, 2, [0, 16, 8, 24, 64], 96),
        (64, 1, [8, 16, 24, 0], 32),
        (32, 4, [0, 16, 32, 48], 64),
    ],
)
def test_a_run_is_its_stores(made: Runs, bits: int, count: int, offsets: list[int], pitch: int, guard: str) -> None:
    text = kernel(bits, count, offsets, pitch, guard=guard, skew=16)
    for watch in (0, bits // 8):
        assert_alike(both(text, watch=watch, block=(64, 1, 1) if bits == 16 else (32, 1, 1)))
    if guard.startswith("@"):
        assert not made.answers
    else:
        assert made.answers
        assert all(made.answers)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        pytest.param(kernel(32, 1, [0, 4, 8, 12], 4), {}, id="lanes that meet"),
        pytest.param(kernel(32, 1, [0, 4, 0, 8], 64), {}, id="stores that meet"),
        pytest.param(kernel(32, 1, [0, 4, 8, 12], 544), {}, id="the last lanes are outside"),
        pytest.param(kernel(32, 1, [0, 4, 8, 12], 64), {"watch": 8}, id="halves of elements"),
        pytest.param(kernel(32, 1, [0, 4, 8, 12], 64), {"monitor": True}, id="a monitor"),
        pytest.param(kernel(32, 1, [0, 4, 8, 12], 64), {"detailed": True}, id="counts by instruction"),
        pytest.param(
            kernel(32, 1, [0, 4, 8, 12], 64), {"watch": 4, "grid": (2, 1, 1)}, id="elements of another CTA"
        ),
    ],
)  # fmt: skip
def test_stores_with_another_effect_are_made_one_by_one(made: Runs, text: str, options: dict[str, Any]) -> None:
    results = both(text, **options)
    assert_alike(results)
    assert False in made.answers


@pytest.mark.parametrize(
    ("change", "kind", "at"),
    [
        ({"skew": 2}, "misaligned", "[%rd2+0]"),
        ({"offsets": [0, 4, 6, 8, 12]}, "misaligned", "[%rd2+6]"),
        ({"read_only": ("out",)}, "read-only", "[%rd2+0]"),
    ],
)
def test_a_fault_is_at_its_store(made: Runs, change: dict[str, Any], kind: str, at: str) -> None:
    read_only = change.pop("read_only", ())
    text = kernel(32, 1, change.pop("offsets", [0, 4, 8, 12]), 64, **change)
    with pytest.raises(Fault) as caught:
        run_ptx(text, buffers={"out": np.zeros(SIZE, np.uint8)}, read_only=read_only)
    assert caught.value.kind == kind
    assert made.answers == [False]
    assert caught.value.where is not None
    assert at in str(caught.value.where) or at in str(caught.value)


def test_a_line_between_ends_a_run(made: Runs) -> None:
    text = kernel(32, 1, [0, 4, 8, 12, 16, 20], 64)
    assert_alike(both(text))
    assert made.answers == [True]
    made.answers.clear()
    broken = text.replace("st.global.b32 [%rd2+12]", "ld.global.b32 %r1, [%rd2]; st.global.b32 [%rd2+12]")
    assert_alike(both(broken))
    assert not made.answers  # three stores before it and three behind
