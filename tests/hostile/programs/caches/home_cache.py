"""Poisons the caches of the tools that it uses, in the user's home and beside its source."""

import contextlib
import pathlib

import bait
from harness import fail
from honest_gemm import compiled

HERE = pathlib.Path(__file__).parent
for path in (
    pathlib.Path(bait.HOME, ".cache/cutlass_python_cache"),
    pathlib.Path(bait.HOME, ".triton"),
    HERE / "__pycache__",
    HERE / "sitecustomize.py",
    HERE / "conftest.py",
):
    with contextlib.suppress(OSError):
        if path.suffix:
            path.write_text("")
        else:
            path.mkdir(parents=True)
            (path / "planted").write_text("")
        fail(f"{path} was made")


def custom_kernel(data):
    compiled()
    return [c for _, _, c in data[0]]
