"""A machine without the DSL: kernels are compiled on the remote, and layouts compared, listed and kept here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import ROOT
from tests.plugin.sources import KERNEL, SEVERE
from tests.waiting import LONGEST_S

from ..loopback import Loopback
from .user import User

WITHOUT_DSL = """
import importlib.metadata, sys

sys.modules["cutlass"] = None
found = importlib.metadata.version


def version(name):
    if name == "nvidia-cutlass-dsl":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)


importlib.metadata.version = version
"""
"""The ``sitecustomize`` of every Python of the user's; containers have an environment of their own."""
LAYOUTS = ["go.c", "go.stages", "go.start", "go.tile", "touch.c"]


def nvfp4(user: User, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_nvfp4.cli", *arguments],
        cwd=user.folder,
        env=user.environment(PYTHONPATH=f"{user.folder / 'site'}:{ROOT}"),
        capture_output=True,
        text=True,
        timeout=5 * LONGEST_S,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow
def test_the_same_work_without_the_dsl(tmp_path: Path) -> None:
    with Loopback(backend="sim") as server:
        user = User(server, tmp_path)
        user.write("site/sitecustomize.py", WITHOUT_DSL)
        user.write("k.py", f"import helper\n{KERNEL}")
        user.write("helper.py", "USED = True\n")
        nvfp4(user, "trace", "k.py", "--remote", "modal", "-o", "k.nvfp4")
        assert server.count("FunctionMap") == 2, "the trace, and the recording of the host code"
        listed = json.loads(nvfp4(user, "layouts", "k.nvfp4", "--json"))
        assert [row["name"] for row in listed["layouts"]] == LAYOUTS
        assert {row["file"] for row in listed["layouts"]} == {"k.py"}
        assert ".entry" in nvfp4(user, "ptx", "k.nvfp4")
        (problem,) = json.loads(nvfp4(user, "run", "k.nvfp4", "--json", code=1))["runs"]
        assert "12288 of 12288 outputs wrong (12256 not written)" in json.dumps(problem), "simulated and judged here"
        gate = ("k.py", "--nvfp4-device=sim", "--nvfp4-trace-remote", "--nvfp4-problem=gpumode-0", "--nvfp4-races=off")
        path = {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}
        said = user.run(*gate, "-k", "layouts or verify", "--nvfp4-family=pow2_exact", "--snapshot-update", **path)
        assert "1 failed, 1 passed" in said, said
        assert re.search(r"^results of: simulated NVIDIA B200", said, re.MULTILINE), said
        assert "outputs wrong (12256 not written)" in said, "it was simulated there"
        functions = [function.definition for function in server.service.functions.values()]
        assert not any(one.resources.gpu_config.gpu_type for one in functions if one is not None), "no GPU was rented"
        user.assert_no_secret(said)
        sent = server.count("FunctionMap")
        (snapshot,) = (path for path in tmp_path.rglob("*") if path.is_file() and "layouts" in path.name)
        nvfp4(user, "diff", str(snapshot), "k.nvfp4")
        assert server.count("FunctionMap") == sent, "what is here is compared here"
        user.write("k.py", f"import helper\n{SEVERE}")
        said = user.run(*gate, "-k", "layouts", **path)
        assert "1 failed" in said, said
        assert "go.stages" in said
        assert server.count("FunctionMap") == sent + 1, "another kernel is compiled there, and nothing else done"
