"""The parts of the sandbox are named with the way to get them, and where it refuses, the setting is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.isolation.wall import Part, Wall
from pytest_nvfp4.sandbox_mode import INSIDE_VARIABLE, MODE_VARIABLE, mode_from
from pytest_nvfp4.toolchain.own_files import calls_extension, extension_sources, imported_sources, own_files
from pytest_nvfp4.toolchain.sandbox import Sandbox, SandboxError
from pytest_nvfp4.toolchain.worker.contract import uses_torch
from pytest_nvfp4.toolchain.worker.findings import from_exception

from .conftest import TraceIt

NOT_PERMITTED = {
    Part.PROCESSES: "no user namespace (Operation not permitted)",
    Part.LANDLOCK: "Function not implemented",
}


def test_what_is_missing_and_required_is_named_with_a_way_out() -> None:
    Sandbox(7, {}).require()
    with pytest.raises(SandboxError, match="lacks parts") as raised:
        Sandbox(0, NOT_PERMITTED).require()
    for part, reason in NOT_PERMITTED.items():
        assert f"  {part} ({reason}): " in str(raised.value)
    assert "Linux 5.13" in str(raised.value)


def test_the_line_of_the_header_names_all_parts() -> None:
    assert Sandbox(7, {}).describe() == "sandbox landlock 7, seccomp, privileges, processes, network, ipc, mounts"
    missing = Sandbox(0, NOT_PERMITTED).describe()
    assert missing.endswith("; missing: processes, landlock (nvfp4 doctor)")
    assert Sandbox(0, dict.fromkeys(Part, "no")).describe().startswith("sandbox of limits alone; missing: ")


def test_a_mode_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mode_from({}) == "auto"
    monkeypatch.setenv(MODE_VARIABLE, "of")
    with pytest.raises(ValueError, match="NVFP4_SANDBOX=of is none of auto, require, off"):
        _ = Wall(folder="/").variables


def raised(source: str) -> BaseException:
    try:
        exec(source)
    except BaseException as error:
        return error
    raise AssertionError(source)


@pytest.mark.parametrize(
    ("source", "setting"),
    [
        ("raise PermissionError(13, 'Permission denied', '/home/me/table')", "`readable`"),
        ("raise PermissionError(1, 'Operation not permitted')", "`network = true`"),
        ("import socket; raise socket.gaierror(-3, 'Temporary failure in name resolution')", "`network = true`"),
        ("raise ModuleNotFoundError('no', name='tests.isolation')", "`readable`"),
        ("raise ModuleNotFoundError('no', name='there_is_none')", ""),
        ("raise FileNotFoundError(2, 'No such file', '/home/me/table')", ""),
        ("raise ValueError", ""),
    ],
)
def test_a_finding_names_the_setting(source: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised(source)
    plain = from_exception("run", "it failed", error, lambda _: False).message
    assert "nvfp4 guide sandbox" not in plain
    monkeypatch.setenv(INSIDE_VARIABLE, "1")
    hinted = from_exception("run", "it failed", error, lambda _: False).message
    assert setting in hinted
    assert ("nvfp4 guide sandbox" in hinted) == bool(setting)


def test_a_kernel_s_own_files_are_what_it_imports_and_what_lies_beside_it(tmp_path: Path) -> None:
    for name in (
        *("kernels/k.py", "kernels/table.bin", "kernels/.env", "kernels/deep/data.bin", "kernels/helper.py"),
        *("library/__init__.py", "library/used.py", "library/constants.json", "library/inner/far.py"),
        *("other.py", "secret.txt", "snapshots/k.txt", ".git/config"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    kernel = tmp_path / "kernels/k.py"
    kernel.write_text("import helper\nfrom library import used\nimport torch.nn\n")
    (tmp_path / "kernels/helper.py").write_text("def late():\n    from library.inner import far\n")
    own = own_files(kernel, None, roots=[tmp_path])
    assert {os.path.relpath(path, tmp_path) for path in own.files} == {
        *("kernels/k.py", "kernels/table.bin", "kernels/helper.py"),
        *("library/__init__.py", "library/used.py", "library/constants.json", "library/inner/far.py"),
    }


def test_sources_of_extensions_are_a_kernel_s_own_wherever_they_lie_below_it(tmp_path: Path) -> None:
    for name in ("k.py", "csrc/a.cu", "csrc/deep/a.h", "csrc/notes.txt", ".hidden/b.cu"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    kernel = tmp_path / "k.py"
    assert extension_sources([kernel]) == ()
    kernel.write_text("from torch.utils.cpp_extension import load\n")
    expected = {"csrc/a.cu", "csrc/deep/a.h"}
    assert {os.path.relpath(path, tmp_path) for path in extension_sources([kernel])} == expected
    own = own_files(kernel, None, roots=[])
    assert {os.path.relpath(path, tmp_path) for path in own.files} == {"k.py", *expected}
    spec, _ = KernelSpec.from_files(kernel, arch="sm_100a")
    assert {file.path for file in spec.files} == {"k.py", *expected}
    for number in range(501):
        (tmp_path / f"csrc/{number}.h").write_text("")
    assert extension_sources([kernel]) == ()


FROM = "from torch.utils.cpp_extension import load_inline"


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        (f"{FROM}\nload_inline(name='x')\n", True),
        (f"{FROM} as build\nmodule = build(name='x')\n", True),
        (f"{FROM}\nfrom functools import partial\nbuild = partial(load_inline, name='x')\n", True),
        ("from torch.utils.cpp_extension import *\nload(name='x')\n", True),
        ("import torch.utils.cpp_extension\ntorch.utils.cpp_extension.load(name='x')\n", True),
        ("import torch.utils.cpp_extension as e\ne.load(name='x')\n", True),
        ("from torch.utils import cpp_extension\ncpp_extension.load(name='x')\n", True),
        ("from torch.utils import cpp_extension as e\ne.load(name='x')\n", True),
        ("import importlib\nimportlib.import_module('torch.utils.cpp_extension').load(name='x')\n", True),
        (f"{FROM}\n", False),
        (f"{FROM}\nimport json\njson.load(open('x'))\n", False),
        (f"{FROM} as build\nload_inline = None\nprint(load_inline)\n", False),
        ("# torch.utils.cpp_extension.load\n", False),
        ("import torch.utils.cpp_extension as e\nimport torch\n", False),
        ("from torch.utils.cpp_extension import load_inline(\n", False),
    ],
)
def test_an_extension_that_is_only_imported_is_not_built(tmp_path: Path, source: str, calls: bool) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text(source)
    assert calls_extension(kernel) == calls


@pytest.mark.parametrize(
    ("source", "helper", "entry", "uses"),
    [
        ("import cutlass.cute, math, helper\n", "import cuda.bindings.driver, numpy\n", True, False),
        ("import cutlass.cute, math, helper\n", "", False, True),
        ("import torch\n", "", True, True),
        ("def late():\n    import helper\n", "import torch\n", True, True),
        ("from installed.kernels import gemm\n", "", True, True),
        ("import helper\n", "def late():\n    import installed\n", True, True),
        ("from .installed import gemm\n", "", True, False),
    ],
)
def test_torch_is_imported_before_a_kernel_that_may_import_it(
    tmp_path: Path, source: str, helper: str, entry: bool, uses: bool
) -> None:
    (kernel := tmp_path / "k.py").write_text(source)
    (tmp_path / "helper.py").write_text(helper)
    assert uses_torch(imported_sources(kernel, None, roots=[tmp_path]), entry=entry) == uses


def test_packages_on_the_import_path_are_not_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of a package such as torch are neither read nor listed one by one, wherever it is installed."""
    kernel = tmp_path / "kernels/k.py"
    for name in ("kernels/k.py", "site-packages/installed.py", "edited/mine.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    kernel.write_text("import installed\nimport mine\n")
    for folder in ("site-packages", "edited"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    own = own_files(kernel, None, roots=[])
    assert {os.path.relpath(path, tmp_path) for path in own.files} == {"kernels/k.py", "edited/mine.py"}


@pytest.mark.slow
def test_a_compile_reads_what_settings_name_and_nothing_else_of_the_user(trace_it: TraceIt, tmp_path: Path) -> None:
    table = tmp_path / "elsewhere" / "table"
    table.parent.mkdir()
    table.write_text("of the user")
    source = f"raise RuntimeError(open({str(table)!r}).read())\nimport cutlass\n"
    (refused,) = trace_it(source).errors
    assert "PermissionError" in refused.message
    assert "`readable`" in refused.message
    (read,) = trace_it(source, readable=(str(table.parent),)).errors
    assert "RuntimeError: of the user" in read.message
