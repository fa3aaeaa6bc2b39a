"""``--nvfp4-remote=modal --nvfp4-device=sim``: the simulator on containers without a GPU, with the same results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin.sources import KERNEL

from ..loopback import Loopback
from .user import User

THERE = "--nvfp4-device=sim"
CHECKS = ("-k", "coverage or verify", "-rA", "--tb=line", "--nvfp4-family=pow2_exact")
PROBLEMS = ("--nvfp4-problem=7x128x256",)


def outcomes(said: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^(PASSED|FAILED|ERROR) (\S+::\S+)", said, re.MULTILINE))


@pytest.mark.slow
def test_what_the_simulator_finds_there(tmp_path: Path) -> None:
    """Coverage and outputs of a kernel that is wrong."""
    with Loopback(backend="sim") as server:
        user = User(server, tmp_path)
        user.write("k.py", KERNEL)
        there = user.run("k.py", THERE, "--nvfp4-remote-containers=2", *CHECKS, *PROBLEMS)
        assert server.count("FunctionMap") >= 3, there
        assert not any(f.definition.resources.gpu_config.gpu_type for f in server.service.functions.values())
        assert re.search(r"^results of: simulated NVIDIA B200", there, re.MULTILINE), there
        assert {outcome for outcome, _ in outcomes(there)} == {"FAILED"}, there
        # What the simulator says here, with the lines of the user's own file.
        assert "k.py:10: simulated, out-of-bounds: st.global.b16, 25 lanes" in there
        assert "889 of 896 elements were never written" in there
        assert "k.py::coverage[7x128x256]: 1 CTA, 1 wave on 148 SMs" in there
        user.assert_no_secret(there)
