"""NVIDIA/cutlass#3643 in a complete GEMM, given to pytest as a user would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.reported.pair_gemm import source

pytest.importorskip("cutlass")


@pytest.mark.slow
@pytest.mark.parametrize("mended", [False, True])
def test_the_scale_factors_of_the_peer_are_waited_for(tmp_path: Path, mended: bool) -> None:
    (tmp_path / "kernel.py").write_text(source(mended=mended))
    command = [sys.executable, "-m", "pytest", "kernel.py", "-q", "-k", "races", "--nvfp4-problem=256x128x1024"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == (not mended), done.stdout + done.stderr
    if not mended:
        assert "cute.copy(s2t_sfb, tSsSFB" in done.stdout
        assert "in warp 0 of CTA (1, 0, 0) (rank 1)" in done.stdout
        assert "wait for the phase of that mbarrier" in done.stdout
