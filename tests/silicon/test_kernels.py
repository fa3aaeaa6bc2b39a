"""The shipped sm_90a kernels in the simulator against what an H200 made of the same PTX (``kernels.npz``)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.silicon.compare import differences
from tests.silicon.kernels import KERNELS, Kernel, as_case, normal, run, same_ptx
from tests.silicon.model import Approximate
from tests.silicon.recorded import gpu
from tests.silicon.runners import Outputs
from tests.silicon.store import Recording, load

RECORDED = Path(__file__).parent / "kernels.npz"
HOW = (
    "run `python -m tests.silicon.kernels OUT_DIR` on a machine with an H200 and keep its kernels.npz in tests/silicon"
)
by_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


@cache
def recording() -> Recording | None:
    return load(RECORDED) if RECORDED.exists() else None


def wrong(kernel: Kernel, ours: Outputs, theirs: Outputs) -> list[str]:
    found = differences(as_case(kernel, ours), ours, theirs)
    return [f"{item.part}: {item.message}" for item in found if not item.allowed]


@pytest.mark.slow
@by_kernel
def test_the_simulator_gives_what_silicon_gave(kernel: Kernel) -> None:
    kept = recording()
    if kept is None:
        pytest.skip(f"nothing is recorded: {HOW}")
    if kernel.name not in kept.records:
        pytest.skip(f"{kernel.name} is not recorded yet: {HOW}")
    record = kept.records[kernel.name]
    assert not record.error, record.error
    ours, about = run(kernel, backend="sim")
    assert not ours.error, ours.error
    assert ours.inputs_sha256 == record.inputs_sha256, f"the inputs have changed since: {HOW}"
    if not same_ptx(ours, record):
        pytest.skip(f"DSL {about['dsl']} makes other PTX of it than was recorded on {kept.device} ({kept.driver})")
    assert wrong(kernel, ours.outputs, record.outputs) == []


def test_what_is_recorded_is_of_these_kernels() -> None:
    kept = recording()
    if kept is None:
        pytest.skip(f"nothing is recorded: {HOW}")
    assert sorted(kept.records) == sorted(kernel.name for kernel in KERNELS)
    assert not [name for name, record in kept.records.items() if record.error or not record.outputs]


@by_kernel
def test_a_flipped_bit_is_seen_where_every_bit_is_defined(kernel: Kernel) -> None:
    codes = np.full((2, 3), 0x3C00, np.int16)
    rules = [rule for _, rule in kernel.rules]
    label = "float16 2x3" if kernel.name == "softmax_online" else "float16 2x3 x"
    ours = {label: codes}
    assert wrong(kernel, ours, {label: codes.copy()}) == []
    apart = 2 if any(isinstance(rule, Approximate) and re.fullmatch(p, label) for p, rule in kernel.rules) else 1
    assert len(wrong(kernel, ours, {label: codes + np.int16(apart)})) == 1, rules
    assert (wrong(kernel, ours, {label: codes + np.int16(1)}) == []) == (kernel.name == "softmax_online")


def test_another_ptx_is_seen_and_the_machine_s_own_names_are_not() -> None:
    one = b'// made here\n.version 8.8\n\t.file 1 "/a/b.py"\n.loc 1 2 3\nadd.s32 %r1, %r2, %r3; // %r1\n\0'
    same = b'.version 8.8\n.file 1 "/c/d.py"\n.loc 1 9 9\nadd.s32 %r1, %r2, %r3;\n'
    assert normal(one) == normal(same)
    assert normal(one) != normal(same.replace(b"add", b"sub"))


def test_digests_follow_the_ptx() -> None:
    kept = recording()
    if kept is None:
        pytest.skip(f"nothing is recorded: {HOW}")
    record = next(iter(kept.records.values()))
    assert same_ptx(record, record)
    assert not same_ptx(record, replace(record, ptx_sha256="0" * 64))


@pytest.mark.silicon
@pytest.mark.slow
@by_kernel
def test_live(kernel: Kernel) -> None:
    gpu()
    ours, _ = run(kernel, backend="sim")
    theirs, _ = run(kernel, backend="cuda")
    assert not ours.error, ours.error
    assert not theirs.error, theirs.error
    assert same_ptx(ours, theirs)
    assert wrong(kernel, ours.outputs, theirs.outputs) == []
