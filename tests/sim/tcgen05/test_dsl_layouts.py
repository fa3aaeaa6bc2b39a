"""The shapes of ``tcgen05.ld`` against the DSL's own layouts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.layout.offsets import offset_array
from pytest_nvfp4.sim.tcgen05.loadstore import movement

SCRIPT = Path(__file__).with_name("dsl_layouts.py")
WIDTHS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 2}


@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs the DSL")
def test_the_registers_are_those_of_the_dsl(tmp_path: Path) -> None:
    env = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=900, check=False
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("LAYOUTS ")]
    assert said, done.stderr
    layouts = json.loads(said[0].removeprefix("LAYOUTS "))
    assert {shape for shape, *_ in layouts} == set(WIDTHS)
    for shape, repeat, packed, text in layouts:
        # Thread and value to an element of the image, whose rows are the lanes; 16-bit elements where packed.
        table = offset_array(parse_layout(text)).reshape(-1, 32).T
        per = 2 if packed else 1
        width = WIDTHS[shape] * repeat * per
        split = repeat * per if shape == "16x32bx2" else 0
        move = movement(shape, repeat, packed=packed, split=split)
        assert table.shape == (32, move.registers * per), text
        for half in range(per):
            image = table[:, half::per]
            assert (image // width == move.lanes.T).all(), (shape, repeat, text)
            assert (image % width == move.columns.T + half).all(), (shape, repeat, text)
