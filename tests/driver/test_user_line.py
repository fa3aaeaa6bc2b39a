"""A library's lines are not the user's, wherever the library is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.driver.user_line import call_native, is_user_file, user_line, user_variable

LIBRARY = "def launch(call):\n    return call()\n"


@pytest.mark.parametrize(("name", "lines"), [("triton", 1), ("my_helpers", 2)])
def test_a_library_outside_of_site_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, lines: int
) -> None:
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module(name).launch(user_line)
    del sys.modules[name]  # not by monkeypatch, which would put it back
    assert found is not None
    files = [found.file, found.caller.file if found.caller is not None else ""]
    assert files[:lines] == ([__file__] if lines == 1 else [str(package / "__init__.py"), __file__])


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/venv/lib/python3.12/site-packages/nvidia/cu13/include/cuda_fp16.hpp", False),
        ("/usr/local/cuda-13.0/targets/x86_64-linux/include/cuda_fp16.hpp", False),
        ("/venv/lib/python3.12/site-packages/my_kernels/include/tile.cuh", True),
        ("/venv/lib/python3.12/site-packages/nvidia_cutlass_dsl/dsl_packages/cutlass/cute/core.py", False),
        ("/venv/lib/python3.12/site-packages/cutlass/operators/gemm.py", True),
        ("/home/me/cuda/include/tile.cuh", True),
        ("/home/me/__nv_nvrtc_builtin_header.h", False),
    ],
)
def test_headers_of_cuda_are_not_the_users_and_kernels_beside_the_dsl_are(file: str, own: bool) -> None:
    """A finding at ``__float22half2_rn`` names the line that calls it; one in nvidia-cutlass-operators a line there."""
    assert is_user_file(file) == own


def test_what_native_code_allocates_is_no_value_of_its_call() -> None:
    """The memory behind ``y = module.run(x)`` may be any that the extension allocates in this call."""
    plain = user_variable()
    native = call_native(user_variable)
    assert (plain, native) == ("plain", None)
