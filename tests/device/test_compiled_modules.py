"""Processes of one kernel on a GPU reuse what the first of them compiled; those of another kernel never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.bench.twice import cases_of
from pytest_nvfp4.device.compiled_modules import CompiledModules
from pytest_nvfp4.device.job import Job, KernelSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verify import verify_job
from pytest_nvfp4.host.compile_cache import COMPILED_VARIABLE, KEEP_VARIABLE
from pytest_nvfp4.problem import Group, Problem

ENTRY = "0123456789" * 4
KERNEL = """\
import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir import passmanager
from task import input_t, output_t

lowered = []


class Counting(passmanager.PassManager):
    @classmethod
    def parse(cls, *arguments, **named):
        lowered.append(1)
        return super().parse(*arguments, **named)


passmanager.PassManager = Counting


@cute.kernel
def kernel(n: Int32):
    if n == 1:
        cute.printf("one")


@cute.jit
def launch(n: Int32):
    kernel(n).launch(grid=(1, 1, 1), block=(32, 1, 1))


def custom_kernel(data: input_t) -> output_t:
    cute.compile(launch, Int32(1))
    print("passes:", len(lowered), flush=True)
    return [c for _, _, c in data[0]]
"""


def job(folder: Path, text: str = "def custom_kernel(data): ...\n", *, options: tuple[str, ...] = ()) -> Job:
    file = folder / "kernel.py"
    file.write_text(text)
    kernel, _ = KernelSpec.from_files(file, arch="sm_100a", compile_options=options)
    return verify_job(kernel, cases_of([Problem("one", (Group(16, 128, 256),))]), deadline_s=120)


def stored(modules: CompiledModules, asked: Job, folder: Path) -> Path:
    """Return the folder that a first process of a job stores its modules in."""
    folder.mkdir()
    variables = modules.variables(asked, folder)
    assert list(variables) == [KEEP_VARIABLE]
    kept = Path(variables[KEEP_VARIABLE])
    (kept / ENTRY).mkdir(parents=True)
    (kept / ENTRY / "manifest.json").write_text("{}")
    (kept / ENTRY / "module.mlirbc").write_bytes(b"module")
    return kept


def test_each_further_process_has_a_copy_of_its_own(tmp_path: Path) -> None:
    modules, asked = CompiledModules(tmp_path / "modules"), job(tmp_path)
    stored(modules, asked, tmp_path / "first")
    modules.take(asked, tmp_path / "first")
    for name in ("second", "third"):
        (tmp_path / name).mkdir()
        variables = modules.variables(asked, tmp_path / name)
        copy = Path(variables[COMPILED_VARIABLE])
        assert (copy / ENTRY / "module.mlirbc").read_bytes() == b"module"
        (copy / ENTRY / "module.mlirbc").write_bytes(b"changed by the kernel")
        modules.take(asked, tmp_path / name)


def test_another_kernel_has_none_of_them(tmp_path: Path) -> None:
    modules, asked = CompiledModules(tmp_path / "modules"), job(tmp_path)
    stored(modules, asked, tmp_path / "first")
    modules.take(asked, tmp_path / "first")
    for number, other in enumerate(
        [job(tmp_path, "def custom_kernel(data): 1\n"), job(tmp_path, options=("--opt-level 2",))]
    ):
        (tmp_path / f"other-{number}").mkdir()
        assert KEEP_VARIABLE in modules.variables(other, tmp_path / f"other-{number}")


@pytest.mark.parametrize("what", ["a link to a file", "a link to a folder", "another name", "a file too few"])
def test_what_is_no_module_is_left_out(tmp_path: Path, what: str) -> None:
    modules, asked = CompiledModules(tmp_path / "modules"), job(tmp_path)
    kept = stored(modules, asked, tmp_path / "first")
    (tmp_path / "secret").write_text("secret")
    other = "not a hash" if what == "another name" else "f" * 40
    (kept / other).mkdir()
    (kept / other / "manifest.json").write_text("{}")
    if what == "a link to a file":
        (kept / other / "module.mlirbc").symlink_to(tmp_path / "secret")
    elif what == "a link to a folder":
        (kept / other / "manifest.json").unlink()
        (kept / other).rmdir()
        (tmp_path / "elsewhere").mkdir()
        (kept / other).symlink_to(tmp_path / "elsewhere")
    elif what == "another name":
        (kept / other / "module.mlirbc").write_bytes(b"module")
    modules.take(asked, tmp_path / "first")
    (tmp_path / "second").mkdir()
    copy = Path(modules.variables(asked, tmp_path / "second")[COMPILED_VARIABLE])
    assert [entry.name for entry in copy.iterdir()] == [ENTRY]


@pytest.mark.slow
def test_only_the_first_process_lowers_a_kernel(tmp_path: Path) -> None:
    device = LocalDevice(probe_folder=tmp_path, backend="host")
    asked = job(tmp_path, KERNEL)
    passes = []
    for modules in (None, CompiledModules(tmp_path / "modules")):
        device.modules = modules
        for number in range(2):
            folder = tmp_path / f"{modules is None}-{number}"
            folder.mkdir()
            result = device.run(asked, folder=folder)
            line = next(line for line in result.stdout.splitlines() if line.startswith("passes:"))
            passes.append(int(line.split()[1]))
    without_first, without_second, first, second = passes
    assert without_first == without_second == first > 0
    assert second == 0


CHANGES = """\
import os
from pathlib import Path

folder = Path(os.environ["CUTE_DSL_DUMP_DIR"]).parent / "compiled"
module = folder / "one.ptx"
print("read:", module.read_text())
for change in (lambda: module.write_text("other"), module.unlink, lambda: folder.rename(folder.with_name("mine"))):
    try:
        change()
        print("changed")
    except OSError:
        print("refused")


def custom_kernel(data):
    return [c for _, _, c in data[0]]
"""


def test_a_simulated_kernel_cannot_change_what_its_trace_compiled(tmp_path: Path) -> None:
    def copy(_kernel: KernelSpec, _base: Path, into: Path) -> bool:
        into.mkdir()
        (into / "one.ptx").write_text("code")
        return True

    (tmp_path / "job").mkdir()
    result = SimDevice(compiled=copy).run(job(tmp_path, CHANGES), folder=tmp_path / "job", base=tmp_path)
    assert result.stdout.split("\n")[:4] == ["read: code", *["refused"] * 3]
