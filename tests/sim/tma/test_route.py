"""A load that comes again: what was checked the first time is checked again when it has changed."""

import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.tma.kernels import DATA, expect
from tests.sim.tma.load_case import expected
from tests.sim.tma.route import BOX, twice


def test_the_second_box_is_the_second_boxs() -> None:
    ran = twice()
    assert (ran["out"] == expected(BOX, ran["x"], (32, 7))).all()
    assert ran.grid.counters["tma.load.requests"] == 2
    assert ran.grid.findings == []


def test_a_barrier_that_was_invalidated_in_between_is_found() -> None:
    with pytest.raises(Fault, match="was invalidated") as raised:
        twice("mbarrier.inval.shared::cta.b64 [%r1];")
    assert raised.value.kind == "mbarrier"


def test_a_barrier_that_was_made_anew_is_the_one_that_is_signalled() -> None:
    again = "mbarrier.inval.shared::cta.b64 [%r1]; mbarrier.init.shared::cta.b64 [%r1], 1;\n"
    ran = twice(again + expect(BOX.bytes), parity="0")
    assert (ran["out"] == expected(BOX, ran["x"], (32, 7))).all()


def test_a_barrier_that_was_made_in_the_destination_is_found() -> None:
    with pytest.raises(Fault, match="overlap the mbarrier at byte 1096") as raised:
        twice(f"mbarrier.init.shared::cta.b64 [%r1+{DATA + 72}], 1;")
    assert raised.value.kind == "mbarrier"
    assert raised.value.where is not None
    assert raised.value.where.text.startswith("cp.async.bulk.tensor")


def test_a_map_that_was_written_in_between_is_the_one_that_is_used() -> None:
    ran = twice("ld.global.b64 %rd50, [%rd101]; add.u64 %rd50, %rd50, 208; st.global.b64 [%rd101], %rd50;")
    assert (ran["out"] == expected(BOX, ran["x"], (32, 8))).all()


def test_a_copy_that_is_still_on_its_way_is_found() -> None:
    ran = twice(waits=False, asynchronous=Lazy())
    assert "in-flight" in [finding.kind for finding in ran.grid.findings]
