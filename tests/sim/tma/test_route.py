"""A load that comes again: what was checked the first time is checked again when it has changed."""

import numpy as np
import pytest

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run.asynchronous import Lazy
from tests.sim.tma.kernels import DATA, copy_out, expect, first, prologue, run_tensor
from tests.sim.tma.load_case import expected
from tests.sim.tma.maps import Geometry

BOX = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
    f"[%r1+{DATA}], [%rd101, {{%r20, %r21}}], [%r1];"
)
WAIT = """
W{i}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], {parity}; @!%p1 bra W{i};
"""


def twice(between: str = "", *, parity: str = "%r22", waits: bool = True, **options):
    """One load instruction, run for the boxes at (0, 0) and (32, 7); ``between`` runs before the second."""
    wait = WAIT.format(i=0, parity=parity) if waits else ""
    body = f"""
{prologue(count=1 if waits else 2)}
mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0;
LOOP:
{first(expect(BOX.bytes) + between_second(between) + LOAD)}
{wait}
bar.sync 0;
add.u32 %r20, %r20, 32; add.u32 %r21, %r21, 7; add.u32 %r22, %r22, 1;
setp.lt.u32 %p3, %r22, 2;
@%p3 bra LOOP;
{"" if waits else WAIT.format(i=9, parity="0")}
{copy_out(BOX.bytes)}
"""
    return run_tensor(body, BOX, extra={"out": np.zeros(BOX.bytes, np.uint8)}, **options)


def between_second(body: str) -> str:
    return f"setp.eq.u32 %p4, %r22, 0;\n@%p4 bra SECOND;\n{body}\nSECOND:\n"


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
