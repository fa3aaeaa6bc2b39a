"""Bytecode of installed packages that only workers import."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.toolchain import bytecode
from pytest_nvfp4.toolchain.bytecode import write_missing


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a `cutlass` of a few empty modules."""
    for name in ("cutlass", "cutlass/cute"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "cutlass", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    bytecode._write.cache_clear()
    return tmp_path


def test_missing_bytecode_is_written_once(packages: Path) -> None:
    write_missing(Path(sys.executable))
    (written,) = (packages / "cutlass" / "cute").rglob("*.pyc")
    written.write_bytes(b"")
    bytecode._write.cache_clear()
    write_missing(Path(sys.executable))
    assert written.read_bytes() == b""


def test_nothing_is_written_for_another_interpreter(packages: Path) -> None:
    write_missing(packages / "python")
    assert not list(packages.rglob("*.pyc"))


def test_a_module_that_fails_to_compile_is_no_error(packages: Path) -> None:
    (packages / "cutlass" / "cute" / "broken.py").write_text("def\n")
    write_missing(Path(sys.executable))
    assert list((packages / "cutlass" / "cute").rglob("*.pyc"))


def test_torch_has_bytecode_afterwards() -> None:
    torch = pytest.importorskip("torch")
    bytecode._write.cache_clear()
    write_missing(Path(sys.executable))
    folder = Path(torch.__file__).parent
    if not os.access(folder, os.W_OK):
        pytest.skip("torch's folder cannot be written")
    assert Path(importlib.util.cache_from_source(str(folder / "nn" / "__init__.py"))).exists()
