"""What is lowered, against what ptxas accepts and against what NVIDIA's kernels contain."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.sim.alu.extended import Carry
from pytest_nvfp4.sim.alu.table import LOWERINGS, covered
from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lanes import FULL
from tests.sim.alu.harness import Case, compiled
from tests.sim.alu.spellings import NOT_MODELLED, candidates, judge

ACCEPTED = Path(__file__).parent / "accepted_by_ptxas_13_0.txt"
"""Of ``candidates()``, what ptxas 13.0 accepts for sm_100a (sm_90a accepts a subset); other lines are refused by it."""

NEWER = (
    r"cvt\.rn\.(satfinite|satfinite\.relu|relu\.satfinite)\.e\wm\wx2\.(f16x2|bf16x2) .*"
    r"|cvt\.rn(\.relu)?\.bf16x2\.e\wm\wx2 .*"
)
"""Forms of a later PTX ISA than ptxas 13.0 knows."""


def lowered(text: str) -> bool:
    try:
        e = Case().lower(text.replace("%", ""))
    except (Unsupported, AssertionError):
        return False
    compile("def block():\n" + "\n".join(e.lines), text, "exec")
    return True


@pytest.mark.slow
def test_what_ptxas_accepts_is_lowered_or_named_as_not_modelled() -> None:
    accepted = set(ACCEPTED.read_text().splitlines())
    texts = candidates()
    assert accepted <= set(texts)
    assert len(accepted) > 2000
    for text in texts:
        excused = any(re.fullmatch(pattern, text) for pattern in NOT_MODELLED)
        if text in accepted and not excused:
            assert lowered(text), f"{text}: ptxas accepts it"
        elif excused or not re.fullmatch(NEWER, text):
            assert not lowered(text), f"{text}: ptxas refuses it, or it is listed as not modelled"


_DTYPES = {"p": np.bool_, "b": np.uint8, "h": np.uint16, "r": np.uint32, "d": np.uint64}


def _execute(text: str, values: dict[str, Any]) -> dict[str, Any]:
    case = Case(**values)
    case.warp.unit(Carry).put(FULL, False)
    case.run(text)
    return case.values


@pytest.mark.slow
def test_every_accepted_spelling_runs_and_no_path_differs_from_another() -> None:
    """Whatever an instruction does, it does the same to contiguous arrays, to slices of others, and to ints."""
    random = np.random.default_rng(11)
    ran = 0
    for line in ACCEPTED.read_text().splitlines():
        text = line.replace("%", "")
        if "q" in text.split(None, 1)[1] or not lowered(line):
            continue
        _, names = compiled(text)
        tables = {
            name: random.integers(0, 256, (32, 24), np.uint8).view(_DTYPES[name[0]]) for name in names if name[0] != "p"
        }
        tables |= {name: random.integers(0, 2, (32, 3)).astype(np.bool_) for name in names if name[0] == "p"}
        slices = {name: table[:, 1] for name, table in tables.items()}
        arrays = {name: table[:, 1].copy() for name, table in tables.items()}
        ints = {name: table[3, 1].item() for name, table in tables.items()}
        results = [_execute(text, values) for values in (arrays, slices, ints)]
        for name in names:
            whole, sliced, alone = (result[name] for result in results)
            assert np.array_equal(whole, sliced), text
            assert (whole[3] if isinstance(whole, np.ndarray) else whole) == alone, text
        ran += 1
    assert ran > 2200


def test_no_exception_is_listed_in_vain() -> None:
    accepted = ACCEPTED.read_text().splitlines()
    for pattern in NOT_MODELLED:
        assert any(re.fullmatch(pattern, text) for text in accepted), pattern


@pytest.mark.slow
def test_the_record_is_what_ptxas_says(tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas on the PATH")
    accepted = judge(ptxas, "sm_100a", candidates(), tmp_path)
    assert accepted == ACCEPTED.read_text().splitlines()
    assert set(judge(ptxas, "sm_90a", candidates(), tmp_path)) <= set(accepted)


SEEN = [
    "add.f16x2", "add.f32", "add.rm.f32x2", "add.rn.f32x2", "add.s16", "add.s32", "add.s64", "add.u32", "and.b16",
    "and.b32", "and.b64", "and.pred", "cvt.f32.bf16", "cvt.rn.bf16x2.f32", "cvt.rn.f16.f32", "cvt.rn.f16x2.e4m3x2",
    "cvt.rn.f16x2.f32", "cvt.rn.f32.s32", "cvt.rn.satfinite.e2m1x2.f32", "cvt.rn.satfinite.e4m3x2.f32",
    "cvt.s16.s8", "cvt.s32.s16", "cvt.s32.s8", "cvt.s64.s32", "cvt.s8.s32", "cvt.u16.u32", "cvt.u32.u16",
    "cvt.u32.u64", "cvt.u32.u8", "cvt.u64.u32", "cvta.param.u64", "cvta.shared.u64", "cvta.to.global.u64",
    "cvta.to.shared::cluster.u64", "div.s32", "div.u32", "ex2.approx.ftz.f32", "fma.rn.f32", "fma.rn.f32.bf16",
    "fma.rn.f32x2", "lop3.b32", "mad.lo.s32", "mad.lo.s64", "max.f32", "max.s32", "min.s32", "min.u32", "mov.b128",
    "mov.b16", "mov.b32", "mov.b64", "mov.f32", "mov.pred", "mov.s32", "mov.u16", "mov.u32", "mov.u64", "mul.f16x2",
    "mul.f32", "mul.f32x2", "mul.hi.s32", "mul.hi.u32", "mul.lo.s32", "mul.lo.s64", "mul.rn.f16x2", "mul.rn.f32x2",
    "mul.wide.s16", "mul.wide.s32", "mul.wide.u16", "mul.wide.u32", "neg.s16", "neg.s32", "not.b32", "not.pred",
    "or.b32", "or.b64", "or.pred", "popc.b32", "prmt.b32", "rcp.approx.ftz.f32", "rem.s32", "rem.u32",
    "rsqrt.approx.ftz.f32", "selp.b16", "selp.b32", "selp.f32", "selp.s32", "selp.u32", "setp.eq.b16",
    "setp.eq.b32", "setp.eq.f32", "setp.eq.s32", "setp.eq.u32", "setp.ge.f32", "setp.ge.s32", "setp.ge.u32",
    "setp.gt.s32", "setp.gt.s64", "setp.gt.u32", "setp.le.s32", "setp.lt.f32", "setp.lt.s32", "setp.lt.u32",
    "setp.ne.b16", "setp.ne.b32", "setp.ne.f32", "setp.ne.s32", "setp.neu.f32", "shf.l.wrap.b32", "shl.b16",
    "shl.b32", "shl.b64", "shr.s16", "shr.s32", "shr.s64", "shr.u16", "shr.u32", "shr.u64", "sub.f32", "sub.f32x2",
    "sub.rn.f32x2", "sub.s16", "sub.s32", "sub.s64", "xor.b32", "xor.pred",
]  # fmt: skip
"""Arithmetic opcodes of CUTLASS's, FlashAttention's and QuACK's CuTe DSL kernels, for sm_90a and sm_100a."""


def test_every_opcode_seen_in_kernels_has_a_lowering() -> None:
    known = {text.split()[0] for text in candidates() if lowered(text)}
    for opcode in SEEN:
        assert opcode in known, opcode


def test_every_root_is_in_the_table_of_what_is_covered() -> None:
    roots = {root for form in covered() for root in form.split()[0].split("|")}
    assert roots == {key.split(".")[0] for key in LOWERINGS}
    assert len(covered()) == len(set(covered()))
