"""Launches on streams: what each touches is known byte by byte, and in all of the processes that share it."""

from __future__ import annotations

import pytest

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.host.graphs import Graph
from pytest_nvfp4.sim.run import parallel
from tests.sim.races.device import MAIN, A, B, Device

WRITE = "st.global.b32 [%rd2], %r2;"
COPY = "ld.global.b32 %r5, [%rd3]; st.global.b32 [%rd2], %r5;"
READ = "ld.global.b32 %r5, [%rd2];"
ADD = "red.global.add.u32 [%rd2], 1;"


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("first", "second"), [((WRITE, "x"), (READ, "x")), ((READ, "x"), (WRITE, "x")), ((WRITE, "x"), (COPY, "y", "x"))]
)
def test_two_launches(first, second, ordered):
    device = Device()
    device.launch(A, *first)
    if ordered:
        device.after(B, A)
    device.launch(B, *second)
    assert device.kinds == ([] if ordered else ["race"])


def test_a_launch_is_told_by_both_places():
    device = Device()
    device.launch(A, WRITE, "x")
    device.launch(B, COPY, "y", "x")
    (finding,) = device.order.findings
    assert "called at test_launches_on_streams.py:" in finding.message
    assert "reads x at byte 0 while" in finding.message
    assert finding.message.count("PTX line ") == 2
    assert "(ld.global.b32))" in finding.message
    assert "(st.global.b32))" in finding.message


@pytest.mark.parametrize(("start", "races"), [(32, []), (31, ["race"])])
def test_parts_of_one_tensor(start, races):
    device = Device()
    device.launch(A, WRITE, "x")
    device.launch(B, WRITE, "x", start=start)
    assert device.kinds == races


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [(ADD, ADD, []), (ADD, READ, ["race"]), (READ, ADD, ["race"]), (ADD, "ld.relaxed.gpu.global.b32 %r5, [%rd2];", []),
     (ADD + READ, ADD, ["race"]), (WRITE + ADD, ADD, ["race"])],
)  # fmt: skip
def test_atomics_of_two_launches(first, second, races):
    device = Device()
    device.launch(A, first, "x")
    device.launch(B, second, "x")
    assert device.kinds == races


SET, WAIT = "st.release.gpu.global.b32 [%rd100+512], 1;", "ld.acquire.gpu.global.b32 %r6, [%rd100+512];"


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [(WRITE + SET, WAIT + READ, []),
     (WRITE + SET, "atom.acquire.gpu.global.cas.b32 %r6, [%rd100+512], 1, 2;" + READ, []),
     (WRITE, WAIT + READ, ["race"]), (WRITE + SET, READ, ["race"]),
     (WRITE + SET, "red.global.add.u32 [%rd100+512], 1;" + READ, ["race"])],
)  # fmt: skip
def test_launches_that_wait_for_each_other_by_a_flag(first, second, races):
    device = Device()
    device.launch(A, first, "x")
    device.launch(B, second, "x")
    assert device.kinds == races


@pytest.mark.parametrize("forked", [True, False])
def test_a_tensor_that_kernels_must_not_write(forked):
    device = Device()
    device.memory.name(device.tensors["x"], "the input", writable=False)
    device.streams.work("a copy", stream=MAIN, writes=[Extent(device.tensors["x"], 64)])
    if forked:
        device.after(A, MAIN)
    device.launch(A, COPY, "y", "x")
    assert device.kinds == ([] if forked else ["race"])
    assert all("reads the input at byte 0 while a copy" in finding.message for finding in device.order.findings)


def test_what_another_process_touched(monkeypatch):
    monkeypatch.setattr(parallel, "_WORTH_S", 0)
    for cta in range(4):
        device = Device(processes=2)
        device.memory.name(device.tensors["y"], "the input", writable=False)
        device.launch(A, COPY, "x", "y", ctas=4)
        device.launch(B, READ, "x", start=32 * cta)
        device.streams.work("a copy", stream=MAIN, writes=[Extent(device.tensors["y"] + 128 * cta, 4)])
        assert device.kinds == ["race", "race"], cta
        device = Device(processes=2)
        device.launch(A, COPY, "x", "y", ctas=4)
        device.launch(B, READ, "x", start=128)
        assert device.kinds == []


@pytest.mark.parametrize("joined", [True, False])
def test_a_graph(joined):
    device = Device()
    graph = Graph(device.queue)
    graph.capture_begin()
    device.launch(MAIN, WRITE, "x")
    device.after(A, MAIN)
    device.launch(A, COPY, "y", "x")
    if joined:
        device.after(MAIN, A)
    device.launch(MAIN, COPY, "z", "y")
    graph.capture_end()
    assert device.session.launches == []
    for _ in range(3):
        graph.replay()
    device.launch(MAIN, READ, "y")
    assert len(device.session.launches) == 10
    assert device.kinds == ([] if joined else ["race"])
