from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.contracts.verified import SMALL, small, verified

pytest.importorskip("cutlass")

HEAD = """
import torch
from {task} import custom_kernel as right
from elsewhere import device_result, host_result


def custom_kernel(data):
    c = data[-1]
"""
HOST = "c.copy_(host_result(data)); return c"
OPERATORS = "c.copy_(device_result(data)); return c"
CHEATS = {
    "host after a launch": ("right(data); c.copy_(host_result(data)); return c", "copy from the host"),
    "own tensor from the host": ("right(data); return host_result(data).cuda()", "copy from the host"),
    "operators into an own tensor": ("right(data); return device_result(data)", "which computes from the inputs"),
    "the first result again": (
        "kept = globals().setdefault('KEPT', {}); n = tuple(c.shape)\n"
        "kept.setdefault(n, None if n in kept else right(data).clone()); c.copy_(kept[n]); return c",
        "this call launched nothing",
    ),
    "the first launch of an address": (
        "seen = globals().setdefault('SEEN', set()); at = data[0].data_ptr()\n"
        "if at not in seen: right(data)\nseen.add(at); return c",
        "this call launched nothing",
    ),
    "the first batch for all": ("right(data); c[..., 1].copy_(c[..., 0]); return c", "outputs wrong"),
    "a subclass of tensors": (
        "return torch.zeros(tuple(c.shape), dtype=c.dtype).as_subclass(type('Late', (torch.Tensor,), {}))",
        "not a tensor",
    ),
    "nothing": ("return c", "still holds the poison"),
    "one value of the host": (
        "value = host_result(data)[0, 0, 0].item(); right(data); c[0, 0, 0] = value; return c",
        "wrote 1 of the 256 elements|host",
    ),
}
FAST = {"nothing", "the first result again", "own tensor from the host"}


def submitted(tmp_path: Path, task: str, body: str) -> Path:
    path = tmp_path / f"{task}.py"
    path.write_text(HEAD.format(task=task) + textwrap.indent(body, "    ") + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CHEATS]
)
def test_cheats_are_red(name: str, tmp_path: Path) -> None:
    body, says = CHEATS[name]
    (verdict,) = verified(submitted(tmp_path, "gemv", body), small("gemv"), tmp_path, "pow2_exact")
    said = "\n".join(map(str, verdict.findings))
    assert verdict.status in ("failed", "cheated"), said
    assert re.search(says, said), said


@pytest.mark.parametrize("task", SMALL)
def test_results_of_the_host_are_red(task: str, tmp_path: Path) -> None:
    (verdict,) = verified(submitted(tmp_path, task, HOST), small(task), tmp_path, "pow2_exact")
    said = "\n".join(map(str, verdict.findings))
    assert verdict.status in ("failed", "cheated"), said
    assert "copy from the host" in said
    assert all(group.ok for group in verdict.groups)


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL)
def test_results_of_operators_are_red_unless_they_are_allowed(task: str, tmp_path: Path) -> None:
    path = submitted(tmp_path, task, OPERATORS)
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    (verdict,) = verified(path, small(task), folders[0], "pow2_exact")
    assert verdict.status in ("failed", "cheated")
    assert "torch-operators = true" in "\n".join(map(str, verdict.findings))
    (verdict,) = verified(path, small(task), folders[1], "pow2_exact", torch_operators=True)
    assert verdict.status == "passed", "\n".join(map(str, verdict.findings))
