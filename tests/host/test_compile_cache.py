"""What a trace compiled is what a simulation of the same kernel runs, and of no other kernel."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.host.compile_cache import folder_name
from tests.host.redirect_worker import PRELUDE, run_script
from tests.host.traced import KERNEL, Traced

pytest.importorskip("cutlass")


IN_ONE_PROCESS = """
from pathlib import Path
from pytest_nvfp4.host.compile_cache import CompileCache
import os

redirected.__exit__(None, None, None)
side.close()
store = Path(os.environ["CUTE_DSL_DUMP_DIR"]).parent / "store"
modules = CompileCache([store], keep=store)
side = redirect.install(lambda launch: on_launch(launch), compiled=modules)
redirected = torch_cuda.install(side=side.device)

@cute.kernel
def add(x: cute.Tensor, n: cutlass.Int32):
    tidx, _, _ = cute.arch.thread_idx()
    x[tidx] = x[tidx] + n

@cute.jit
def once(x: cute.Tensor, n: cutlass.Int32):
    add(x, n).launch(grid=[n, 1, 1], block=[32, 1, 1])

@cute.jit
def twice(x: cute.Tensor, n: cutlass.Int32):
    add(x, n).launch(grid=[2 * n, 1, 1], block=[32, 1, 1])

tensor = from_dlpack(torch.zeros(32, dtype=torch.int32, device="cuda"))
said["reused"] = []
for function in (once, once, twice, twice):
    cute.compile(function, tensor, 3)(tensor, 3)
    said["reused"].append(modules.reused)
cute.compile[cute.OptLevel(1)](once, tensor, 3)
said["other options"] = modules.reused
said["grids"] = [launch.grid for launch in launches]
said["same"] = [launch.module.ptx == launches[0].module.ptx and launch.module.sha256 == launches[0].module.sha256
                for launch in launches[:2]]

def first():
    @cute.kernel
    def same(x: cute.Tensor):
        x[0] = 1
    @cute.jit
    def launch(x: cute.Tensor):
        same(x).launch(grid=[1, 1, 1], block=[32, 1, 1])
    return launch

def second():
    @cute.kernel
    def same(x: cute.Tensor):
        x[0] = 1
    @cute.jit
    def launch(x: cute.Tensor):
        same(x).launch(grid=[1, 1, 1], block=[32, 1, 1])
    return launch

said["equal functions"] = []
for function in (first(), second(), first(), second()):
    cute.compile(function, tensor)
    said["equal functions"].append(modules.reused - 2)
for entry in store.iterdir():
    (entry / "module.mlirbc").write_bytes(b"damaged")
cute.compile(once, tensor, 3)(tensor, 4)
said["damaged"] = [modules.reused, launches[-1].grid]
"""


@pytest.mark.slow
def test_the_same_ir_is_compiled_once_and_another_is_compiled(tmp_path: Path) -> None:
    said = run_script(IN_ONE_PROCESS, tmp_path, prelude=PRELUDE)
    assert said["reused"] == [0, 1, 1, 2]
    assert said["other options"] == 2
    assert said["grids"] == [[3, 1, 1], [3, 1, 1], [6, 1, 1], [6, 1, 1]]
    assert said["same"] == [True, True]
    assert said["equal functions"] == [0, 0, 1, 2], "each has its own lines"
    assert said["damaged"] == [4, [4, 1, 1]]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return Traced(tmp_path_factory.mktemp("traced"))


@pytest.mark.slow
def test_a_simulation_runs_what_the_trace_compiled(traced: Traced) -> None:
    def marked(spec: KernelSpec, base: Path, into: Path) -> bool:
        copied = traced.copy(spec, base, into)
        (ptx,) = into.glob("*/*.ptx")
        text = ptx.read_text()
        assert text.count(", 7;") == 1
        ptx.write_text(text.replace(", 7;", ", 100;"))  # a mark in the copy shows who runs it
        return copied

    assert "number 105" in traced.printed(traced.kernel, marked)
    assert "number 12" in traced.printed(traced.kernel), "the copies of a job are its own"


@pytest.mark.slow
def test_a_module_that_was_changed_in_the_cache_is_compiled_again(traced: Traced, tmp_path: Path) -> None:
    (ptx,) = Path(traced.trace.folder or "").glob("compiled-*/*/*.ptx")
    was = ptx.read_bytes()
    ptx.write_bytes(was.replace(b", 7;", b", 8;"))
    spec, base = KernelSpec.from_files(traced.kernel, arch="sm_100a")
    assert not traced.copy(spec, base, tmp_path / "copies")
    (refused,) = traced.cache.sealed.refused
    assert refused.reason == f"has a file {ptx.name} that does not have the content that was stored"
    assert "number 12" in traced.printed(traced.kernel)
    traced.retrace()


@pytest.mark.slow
def test_a_kernel_that_was_changed_or_lies_elsewhere_is_compiled(traced: Traced, tmp_path: Path) -> None:
    elsewhere = tmp_path / "kernel.py"
    elsewhere.write_text(KERNEL)
    assert "number 12" in traced.printed(elsewhere)
    spec, base = KernelSpec.from_files(traced.kernel, arch="sm_100a")
    assert traced.copy(spec, base, tmp_path / "a")
    assert not traced.copy(spec.model_copy(update={"arch": "sm_90a"}), base, tmp_path / "b")
    assert not traced.copy(spec.model_copy(update={"compile_options": ("--opt-level 1",)}), base, tmp_path / "b")
    traced.kernel.write_text(KERNEL + "\n# changed\n")
    try:
        spec, base = KernelSpec.from_files(traced.kernel, arch="sm_100a")
        assert not traced.copy(spec, base, tmp_path / "b")
    finally:
        traced.kernel.write_text(KERNEL)
    assert not (tmp_path / "b").exists()


def test_a_trace_that_was_moved_has_nothing_for_its_new_place(tmp_path: Path) -> None:
    here, there = tmp_path / "here.py", tmp_path / "there.py"
    assert folder_name(here) != folder_name(there)
    assert folder_name(here).endswith(hashlib.sha256(str(here).encode()).hexdigest()[:16])


POSITIONS = """
from cutlass._mlir_helpers import op
import sys

def looked_up(look):
    frame = sys._getframe()
    return [tuple(look(frame).positions), tuple(look(frame).positions)]

def wrapper(look):
    return look()

library = {"__name__": "cutlass.of_a_library", "wrapper": wrapper}
exec("def within(look): return wrapper(look)", library)

def passed_on(*given, **named):
    return wrapper(*given, **named)

def used(*given, **named):
    return wrapper(given[0])

def asking(call, look):
    return call(look).function

def called_from(look):
    found = []
    for call in (wrapper, library["within"]):
        place = call(look)
        found.append((place.filename, place.lineno, place.function, place.code_context, tuple(place.positions)))
    return found

op._INCLUDE_LIB_FRAME, op._ENABLE_FRAME_FILTERING = False, True
modules = ("__main__", "cutlass.of_a_library", "cutlass.operators.gemm", "cutlass.kernels", "cutlass.operatorsx")
names = ("_fast_frameinfo", "_is_framework_stack_frame", "_get_caller_frame_info")
ours = [getattr(op, name, None) for name in names]
said["patched"] = [hasattr(each, "__wrapped__") for each in ours]
if all(said["patched"]):
    theirs = [each.__wrapped__ for each in ours]
    said["same"] = looked_up(ours[0]) == looked_up(theirs[0])
    said["many"] = len(set(looked_up(ours[0])))
    said["from"] = called_from(ours[2])
    said["again"] = called_from(ours[2]) == called_from(ours[2])
    said["passed on"] = [asking(call, ours[2]) for call in (passed_on, used) for _ in range(2)]
    of_dsl = lambda look, name: look(eval("sys._getframe()", {"__name__": name, "sys": sys}))
    locate, place = op._get_location_from_frame_info, wrapper(ours[2])
    located = []
    for context in (op.ir.Context(), op.ir.Context()):
        with context:
            here = [locate(place), locate(place), locate.__wrapped__(place)]
            located.append((here[0] is here[1], str(here[0]) == str(here[2]), here[0].context is context))
    said["located"] = located
    said["library"] = [of_dsl(ours[1], name) for name in modules]
    said["their library"] = [of_dsl(theirs[1], name) for name in modules]
    side.close()
    said["given back"] = [getattr(op, name) for name in names] == theirs
    said["theirs"] = called_from(theirs[2])
"""


@pytest.mark.slow
def test_places_of_operations_are_those_of_the_dsl(tmp_path: Path) -> None:
    pytest.importorskip("cutlass._mlir_helpers.op", reason="DSL 4.4 looks up the line alone")
    said = run_script(POSITIONS, tmp_path, prelude=PRELUDE)
    assert len(set(said["patched"])) == 1
    if said["patched"][0]:
        assert said["same"]
        assert said["many"] == 2
        assert said["again"]
        assert said["located"] == [[True] * 3] * 2
        assert said["library"] == [False, True, False, False, True]
        assert said["their library"] == [False, True, True, True, True], "NVIDIA's kernels need no exception any more"
        assert said["from"] == said["theirs"]
        assert [function for _, _, function, _, _ in said["from"]] == ["called_from"] * 2
        assert said["passed on"] == ["asking", "asking", "used", "used"]
        assert said["given back"]
