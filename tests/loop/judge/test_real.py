"""The judge with the product's real commands, on the shipped kernel and candidates that want green."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.loop.state import write_model

from .products import Purse
from .real import KERNEL, Loop

WRAPPER = """
_honest, _calls = custom_kernel, []
def custom_kernel(data):
    _calls.append(1)
    if {when}:
        return data[2]
    return _honest(data)
"""
GATES = ["compile", "layouts", "coverage", "verify", "cost", "model"]
CHEATS = {
    "it does nothing on the problem of the target": ("data[3][0][0] == 256", "cost"),
    "it does nothing from its second call on": ("len(_calls) > 1", "coverage"),
}
"""Candidates that a model finds fast, the condition of their stub, and the gate that finds it."""


@pytest.mark.slow
def test_the_shipped_kernel_passes_its_copy_is_known_and_cheats_are_red(tmp_path: Path) -> None:
    loop, source = Loop(tmp_path / "repo", judge={"gates": GATES}), KERNEL.read_text()
    baseline = loop.examine(None)
    assert baseline.passed, baseline
    write_model(loop.state.baseline / "examination.json", baseline)
    assert baseline.modelled[0].us > 1
    assert baseline.ptx_sha256 is not None
    assert any(loop.state.baseline.rglob("layouts*.txt")), "the baseline's own layouts are the snapshot"
    assert not (loop.root / "snapshots").exists()

    known = {baseline.ptx_sha256: 0}
    copy = loop.examine(loop.add(f"# a comment moves every line\n{source}"), known=known)
    assert (copy.duplicate_of, [gate.gate for gate in copy.gates]) == (0, ["compile"])

    for why, (when, gate) in CHEATS.items():
        candidate = loop.add(source + WRAPPER.format(when=when))
        found = loop.examine(candidate, known=known)
        assert (found.infrastructure, found.duplicate_of) == ("", None), why
        assert (found.passed, found.gates[-1].gate) == (False, gate), (why, found.gates)
        verdict = loop.judge.decide(
            candidate,
            found,
            against=loop.start,
            incumbent=baseline,
            folder=loop.state.candidate(candidate.number),
            purse=Purse(),
        )
        assert verdict.outcome == "rejected", why
