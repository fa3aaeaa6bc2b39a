"""NVIDIA's tools read a kernel's CUBIN behind a wall."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.toolchain import binaries
from pytest_nvfp4.toolchain.sandbox import Sandbox


def test_a_tool_reads_its_cubin_and_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin, secret, left = tmp_path / "k.cubin", tmp_path / "secret", tmp_path / "left"
    cubin.write_text("a cubin")
    secret.write_text("a secret")
    tool, absent = tmp_path / "tool", tmp_path / "absent"
    tool.write_text(f'#!/bin/sh\ncat "$2"\ncat {secret}\necho changed > {left}\nexit $1\n')
    tool.chmod(0o755)
    monkeypatch.setattr(binaries, "find", {"nvdisasm": tool, "cuobjdump": None, "missing": absent}.get)
    printed, failed, not_there = binaries.run_each(
        [("nvdisasm", "0"), ("nvdisasm", "3"), ("cuobjdump", "0")], cubin=cubin
    )
    assert isinstance(printed, str)
    assert isinstance(failed, binaries.ToolUnavailableError)
    assert "status 3" in str(failed)
    assert "pip install" in str(not_there)
    if "landlock" not in Sandbox.probe().missing:
        assert printed == "a cubin"
        assert not left.exists()
    (gone,) = binaries.run_each([("missing",)], cubin=cubin)
    assert isinstance(gone, binaries.ToolUnavailableError)
