"""Memory is compared with what it held: what runs and what is cached may change, what judges may not."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.worker import clock
from pytest_nvfp4.device.worker.clock import DeviceClock
from pytest_nvfp4.isolation.seal import cpython
from pytest_nvfp4.isolation.seal.comparison import Comparison, Listed, Memory
from pytest_nvfp4.isolation.seal.inventory import Inventory
from tests.device.recording_memory import RecordingMemory


@pytest.fixture
def timer() -> DeviceClock:
    return DeviceClock(RecordingMemory(), l2_bytes=1 << 20)  # type: ignore[arg-type]


@pytest.fixture
def changed(timer: DeviceClock) -> Iterator[Callable[[], list[str]]]:
    """What has changed since now, of this package and a clock."""
    made = Inventory.of("pytest_nvfp4", {"the clock": timer})
    hiding = [frozenset(names) for names in made.hiding]
    descriptor = os.open("/proc/self/mem", os.O_RDONLY)
    listed = Listed(made.ranges, made.codes, made.names, made.closed, hiding, made.labels)
    yield Comparison(Memory(descriptor), listed).changed
    os.close(descriptor)


def _late(_self: object, _event: object) -> bool:
    return True


@pytest.mark.slow
def test_work_changes_nothing(timer: DeviceClock, changed: Callable[[], list[str]]) -> None:
    for _ in range(50):  # bytecode specialises
        timer.device_round(lambda: None, cold=True, expected_call_us=5.0)
        json.loads(json.dumps({"a": [1, 2.0, None]}))
    assert changed() == []


@pytest.mark.slow
def test_what_a_clock_depends_on_is_compared(
    timer: DeviceClock, changed: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    timer._start.value = 7
    monkeypatch.setattr(timer, "_flush_bytes", 0)
    monkeypatch.setattr(timer, "flush", lambda: None)
    monkeypatch.setattr(clock, "_GATE_MARGIN", 0.0)
    monkeypatch.setattr(clock, "min", max, raising=False)
    monkeypatch.setattr(DeviceClock._passed, "__code__", _late.__code__)
    found = " ".join(changed())
    for word in ("._start", "._flush_bytes", "DeviceClock.flush", "_GATE_MARGIN", "clock.min", "DeviceClock._passed"):
        assert word in found, (word, found)


def _add(a: int, b: int = 1) -> int:
    return a + b


def test_bytecode_may_specialise_and_not_change() -> None:
    bytecode, code = cpython.Bytecode(), _add.__code__
    before = code.co_code
    for number in range(100):
        _add(number)

    def running() -> bytes:
        return ctypes.string_at(id(code) + cpython.CODE_UNITS, len(before))

    assert bytecode.same(running(), before)
    sys.settrace(lambda *_: None)  # from Python 3.12 on, it instruments the bytecode
    _add(1)
    sys.settrace(None)
    assert bytecode.same(running(), before)
    other = bytearray(before)
    other[before.index(_opcode("BINARY_OP")) + 1] ^= 10  # `-` in place of `+`
    assert not bytecode.same(bytes(other), before)


def _opcode(name: str) -> int:
    import opcode

    return opcode.opmap[name]


@pytest.mark.parametrize(
    "held",
    [vars(json), vars(type("Plain", (), {"a": 1})()), {1: 2, "a": 3}, {}, sys.modules, vars(functools)],
    ids=["module", "instance", "mixed", "empty", "modules", "functools"],
)
def test_dictionaries_are_read_from_memory(held: dict[object, object]) -> None:
    read = cpython.dict_bytes(ctypes.string_at, id(held)).addresses()
    assert read == {id(key): id(value) for key, value in held.items()}


def test_memory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    descriptor = os.open(empty, os.O_RDONLY)
    with pytest.raises(OSError, match="cannot be read"):
        Memory(descriptor).read(4096, 8)
    os.close(descriptor)
