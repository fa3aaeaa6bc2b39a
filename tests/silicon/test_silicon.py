"""The simulator against what an H200 made of the same PTX (``h200.npz``, written by ``tests.silicon.record``)."""

from __future__ import annotations

import shutil
import subprocess
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault, Unsupported
from tests.silicon.cases import FAMILIES, every_case
from tests.silicon.cases.arithmetic import REFUSED
from tests.silicon.compare import Difference, differences, ulps_apart
from tests.silicon.model import Approximate, Case, Part, Reported
from tests.silicon.record import PATIENCE, Pool, case_named
from tests.silicon.recorded import HOW, PENDING, gpu, of, pending, record_of, recorded, stale, wrong
from tests.silicon.runners import on_silicon, simulate
from tests.silicon.store import Record, Recording, keep, load, merged, save
from tests.sim.alu.spellings import judge

by_family = pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.slow) if f == "conversions" else f for f in FAMILIES]
)


@pytest.mark.slow
@by_family
def test_the_simulator_gives_what_silicon_gave(family: str) -> None:
    records = recorded().records
    bad: list[str] = []
    missing: list[str] = []
    for case in of(family):
        record = records.get(case.name)
        if record is None or (pending(case.name) and stale(case, record)):
            missing.append(case.name)
        elif not case.refused and not stale(case, record):
            bad += (
                [f"{case.name}: silicon gave {record.error}"] if record.error else wrong(case, simulate(case), record)
            )
    assert not bad, "simulator and silicon (left and right) differ:\n" + "\n".join(bad)
    assert [name for name in missing if not pending(name)] == []


def test_what_is_recorded_is_of_these_cases() -> None:
    records = recorded().records
    cases = {case.name: case for case in every_case()}
    old = [stale(cases[name], record) for name, record in records.items() if name in cases and not pending(name)]
    old += [f"{name}: there is no such case any more" for name in records if name not in cases]
    assert not any(old), "record again:\n" + "\n".join(filter(None, old))


def test_what_is_pending_runs_in_the_simulator() -> None:
    records = recorded().records
    waiting = [case for case in every_case() if pending(case.name)]
    for case in waiting:
        simulate(case)
    left = [c.name for c in waiting if c.name not in records or stale(c, records[c.name])]
    if left:
        pytest.skip(f"to be recorded: {', '.join(left)}; {HOW}")


def test_silicon_refuses_the_stores_with_negative_coordinates_that_were_tried() -> None:
    """One of their boxes begins at 180 bytes, which an H200 refuses too: which of the two it was is not known."""
    records = recorded().records
    refused = [case.name for case in every_case() if case.refused and case.name.startswith("tensors.probe.store.neg")]
    assert len(refused) == 3
    assert all("ILLEGAL_INSTRUCTION" in records[name].error for name in refused)


def test_silicon_refuses_first_coordinates_that_are_no_multiple_of_16_bytes() -> None:
    records = recorded().records
    tried = [case for case in every_case() if case.name.startswith("tensors.unaligned.")]
    assert (len(tried), sum(bool(case.refused) for case in tried)) == (44, 40)
    for case in tried:
        assert not stale(case, records[case.name])
        assert ("ILLEGAL_INSTRUCTION" in records[case.name].error) is bool(case.refused), case.name


def test_all_that_is_not_recorded_is_listed() -> None:
    records = recorded().records
    missing = [case.name for case in every_case() if case.name not in records]
    assert [name for name in missing if not pending(name)] == []
    assert all(any(case.name.startswith(part) for case in every_case()) for part in PENDING)


@pytest.mark.parametrize("case", [c for c in every_case() if c.refused], ids=lambda case: case.name)
def test_what_is_only_probed_is_refused_by_the_simulator(case: Case) -> None:
    with pytest.raises((Fault, Unsupported), match=case.refused):
        simulate(case)


# ---- negative controls -----------------------------------------------------------------------------------------------

NAMES = ["arithmetic.popc.int", "tensors.load.f16", "products.k-major.f16.128.16", "barriers.mbarrier.parity",
         "copies.load.cta"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_seen(name: str) -> None:
    case = case_named(name)
    record = record_of(case)
    assert wrong(case, simulate(case), record) == []
    for output, data in record.outputs.items():
        raw = data.copy()
        raw.view(np.uint8).reshape(-1)[raw.nbytes // 2] ^= 1 << 3
        assert len(wrong(case, simulate(case), replace(record, outputs={**record.outputs, output: raw}))) == 1, output


def test_a_flipped_bit_of_what_is_kept_as_digests_is_seen() -> None:
    case = replace(case_named("arithmetic.popc.int"), chunked=True)
    outputs = simulate(case)
    record = Record(case.ptx_sha256, case.inputs_sha256, keep(case, outputs))
    name = next(iter(outputs))
    assert wrong(case, outputs, record) == []
    changed = outputs[name].copy()
    changed.reshape(-1)[-1] ^= 1
    assert len(wrong(case, {**outputs, name: changed}, record)) == 1


@pytest.mark.parametrize(
    ("name", "what", "instead"),
    [
        ("arithmetic.popc.int", "popc.b32", "clz.b32"),
        ("collectives.shfl.up.constants", ", 1, 0, -1;", ", 2, 0, -1;"),
        ("tensors.load.f16", "{16, 7}", "{16, 8}"),
        ("products.a-in-registers.bf16", ", -1, 1, 0;", ", 1, 1, 0;"),
        ("atomics.red.global", "red.global.max.u32", "red.global.min.u32"),
    ],
)
def test_another_instruction_is_seen(name: str, what: str, instead: str) -> None:
    case = case_named(name)
    record = record_of(case)
    assert what in case.ptx
    other = replace(case, ptx=case.ptx.replace(what, instead, 1))
    assert stale(other, record)
    assert not stale(case, record)
    assert wrong(case, simulate(other), record)


def test_other_inputs_are_seen() -> None:
    case = case_named("memory.cp_async")
    record = record_of(case)
    other = replace(case, buffers={**case.buffers, "in": case.buffers["in"] ^ np.uint8(1)})
    assert "inputs" in stale(other, record)


# ---- the harness itself ----------------------------------------------------------------------------------------------


def compared(left: list[int], right: list[int], part: Part) -> list[Difference]:
    case = replace(case_named("arithmetic.popc.int"), parts=(part,), outputs=("x",), buffers={})
    sides = [{"x": np.array(side, np.uint32)} for side in (left, right)]
    return list(differences(case, *sides))


@pytest.mark.parametrize(
    ("left", "right", "rule", "allowed"),
    [
        (0x3F80_0000, 0x3F80_0002, Approximate("f32", 2, "2 ulp"), True),
        (0x3F80_0000, 0x3F80_0003, Approximate("f32", 2, "2 ulp"), False),
        (0x0000_0001, 0x8000_0001, Approximate("f32", 2, "2 ulp"), True),
        (0x3F80_0000, 0x3F80_0003, Approximate("f32", 2, "2 ulp", 1e-6), True),
        (0x3F80_0000, 0x7FC0_0000, Approximate("f32", 2, "2 ulp", 1e-6), False),
        (0x3C00_0000, 0x3C01_0001, Approximate("f16", 1, "1 ulp of each half"), True),
        (0x3C00_0000, 0x3C02_0001, Approximate("f16", 1, "1 ulp of each half"), False),
        (0, 1, Reported("open"), True),
    ],
)
def test_rules(left: int, right: int, rule: Approximate | Reported, allowed: bool) -> None:
    (found,) = compared([left], [right], Part("part", "x", 0, 1, rule))
    assert found.allowed is allowed
    assert compared([left], [left], Part("part", "x", 0, 1, rule)) == []


def test_steps_between_codes() -> None:
    codes = np.array([0x3C00, 0x0000, 0x8001, 0xFC00], np.uint16)
    others = np.array([0x3C01, 0x8000, 0x0001, 0x7C00], np.uint16)
    assert list(ulps_apart(codes, others, "f16")) == [1, 0, 2, 2 * 0x7C00]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = case_named("collectives.redux")
    written = Recording("a device", "a driver", "2030-01-01", {case.name: record_of(case)})
    for name in ("a.npz", "b.npz"):
        save(tmp_path / name, written)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    read = load(tmp_path / "a.npz")
    assert (read.device, read.driver, read.date) == ("a device", "a driver", "2030-01-01")
    assert wrong(case, simulate(case), read.records[case.name]) == []


def test_new_records_replace_old_ones_of_the_same_device() -> None:
    one, two, three = (Record(letter, letter) for letter in "abc")
    old = Recording("a device", "a driver", "2030-01-01", {"x": one, "y": two})
    new = Recording("a device", "a driver", "2030-02-01", {"y": three})
    assert merged(old, new) == Recording("a device", "a driver", "2030-02-01", {"x": one, "y": three})
    with pytest.raises(ValueError, match="another device"):
        merged(old, replace(new, device="another device"))


@pytest.mark.slow
def test_a_case_that_takes_too_long_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = every_case()
    slow, quick = (next(n for n, c in enumerate(cases) if c.name == name) for name in (
        "conversions.every-16-bit.0", "collectives.redux"))  # fmt: skip
    monkeypatch.setitem(PATIENCE, "simulator", 0.2)
    said: list[str] = []

    def progress(line: str) -> None:
        """Give the second case all the time that a busy machine needs."""
        said.append(line)
        monkeypatch.setitem(PATIENCE, "simulator", 120.0)

    pool = Pool("simulator", tmp_path, deque([slow, quick]), progress=progress)
    pool.run(1)
    assert "no answer within 0.2 s" in pool.results[slow].error
    assert pool.results[quick].error == ""
    assert [line.split(":")[0] for line in said] == ["conversions.every-16-bit.0", "collectives.redux"]


@pytest.mark.slow
def test_ptxas_takes_every_case_for_sm_90a_and_refuses_what_is_listed(tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas on the PATH")
    source, bad = tmp_path / "case.ptx", []
    for case in every_case():
        source.write_text(case.ptx)
        command = [ptxas, "-O0", "-arch", "sm_90a", "-o", str(tmp_path / "case.cubin"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        bad += [f"{case.name}: {done.stderr[:300]}"] if done.returncode else []
    assert not bad, "\n".join(bad)
    refused = REFUSED.read_text().splitlines()
    assert judge(ptxas, "sm_90a", refused, tmp_path) == []


@pytest.mark.silicon
@by_family
def test_live(family: str) -> None:
    run = on_silicon(gpu())
    bad: list[str] = []
    for case in of(family):
        if not case.refused:
            bad += wrong(case, simulate(case), Record("", "", keep(case, run(case))))
    assert not bad, "\n".join(bad)
