from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Captured, Outcome
from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import Entry, EntryError, TraceRequest, installed_dsl_version
from pytest_nvfp4.toolchain.sheet import codegen_facts, launch_facts
from pytest_nvfp4.toolchain.trace import SCHEMA, Trace
from pytest_nvfp4.toolchain.tracer import Limits, Tracer, cache_key
from tests.waiting import LONGEST_S, far_enough, locked, until

from .conftest import TraceIt
from .kernels import CONTRACT, TINY

pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed")


def types(trace: Trace) -> dict[str, str]:
    return {value.name: value.type for value in trace.values}


def only_error(trace: Trace) -> tuple[str, str, int | None]:
    assert not trace.ok
    assert len(trace.errors) == 1, trace.findings
    finding = trace.errors[0]
    return finding.kind, str(finding), finding.line


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


_DECREASE = "        cute.arch.setmaxregister_decrease(40)\n"
_BOUND = ", min_blocks_per_mp=1"


class TestCapture:
    @pytest.mark.slow
    def test_every_layout_has_its_authors_name(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY)
        assert trace.ok, trace.findings
        found = types(trace)
        assert found["Tile.smem_layout"] == '!cute.composed_layout<"S<3,4,3> o 0 o (8,64):(64,1)">'
        assert found["Tile.__call__.layout"] == '!cute.layout<"(16,4):(1,16)">'
        assert found["Tile.__call__.layout#2"] == '!cute.layout<"(16,8):(1,16)">'
        assert found["Tile.__call__.pair[0]"] == '!cute.layout<"2:1">'
        assert found["Tile.__call__.pair[1][0]"] == '!cute.layout<"3:1">'
        # inside a branch and a loop, which the DSL turns into functions of its own
        assert found["Tile.kernel.inner"] == '!cute.layout<"(4,4):(1,4)">'
        assert found["Tile.kernel.looped"] == '!cute.layout<"(2,2):(2,1)">'
        # an argument bound anew
        assert found["Tile.__call__.x"].startswith("!cute.ptr<f16, gmem")
        assert found["Tile.__call__.x#2"].startswith("!cute.memref<f16, gmem")

    @pytest.mark.slow
    def test_a_value_names_the_line_that_bound_it(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY)
        lines = {value.name: value.line for value in trace.values}
        assert lines["Tile.__call__.layout#2"] == line_of(TINY, "layout = cute.make_layout((self.rows, 8))")
        assert lines["Tile.kernel.looped"] == line_of(TINY, "looped =")
        assert lines["Tile.kernel.x"] == line_of(TINY, "def kernel(self, x: cute.Tensor")
        several = TINY.replace(
            "def kernel(self, x: cute.Tensor,", "def kernel(\n        self,\n        x: cute.Tensor,"
        )
        lines = {value.name: value.line for value in trace_it(several).values}
        assert lines["Tile.kernel.x"] == line_of(several, "        x: cute.Tensor,")

    @pytest.mark.slow
    def test_names_that_the_dsl_adds_are_not_recorded(self, trace_it: TraceIt) -> None:
        names = [value.name for value in trace_it(TINY).values]
        assert not [name for name in names if "locals" in name or "block" in name or "region" in name]
        assert "Tile.__call__._" not in names

    @pytest.mark.slow
    def test_the_ir_and_the_ptx_are_those_of_an_untraced_compile(self, trace_it: TraceIt) -> None:
        traced, plain = trace_it(TINY), trace_it(TINY, capture=False)
        assert traced.values
        assert not plain.values
        for kind in ("mlir", "ptx"):
            with_capture = [path.read_bytes() for path in traced.artifact_paths(kind)]  # type: ignore[arg-type]
            without = [path.read_bytes() for path in plain.artifact_paths(kind)]  # type: ignore[arg-type]
            assert with_capture == without
            assert with_capture

    @pytest.mark.slow
    def test_values_known_only_to_the_device_are_not_compared(self, trace_it: TraceIt) -> None:
        """`==` between two of them would emit IR, and asking whether it holds is an error of the DSL."""
        source = TINY.replace(
            "        pair = ",
            "        size = (n, n)\n        size = (n + 1, n)\n        sizes = [size]\n        pair = ",
        )
        traced, plain = trace_it(source), trace_it(source, capture=False)
        assert traced.ok
        assert not traced.findings
        assert [path.read_bytes() for path in traced.artifact_paths("mlir")] == [
            path.read_bytes() for path in plain.artifact_paths("mlir")
        ]

    @pytest.mark.slow
    def test_what_an_earlier_compile_left_behind_is_not_touched(self, trace_it: TraceIt) -> None:
        """A kernel object keeps values whose IR is gone; to read one ends the process."""
        source = (
            TINY.replace("        pair = ", "        self.mma = cute.make_layout((self.rows, 9))\n        pair = ")
            + """

def twice():
    tile = Tile(16)
    for rows in (16, 32):
        tile.rows = rows
        done = cute.compile(tile, pointer(), cutlass.Int32(3))
        print("compiled")
    return done
"""
        )
        trace = trace_it(source, entry="twice")
        assert trace.ok, trace.findings
        found = types(trace)
        assert found["Tile.mma"] == '!cute.layout<"(16,9):(1,16)">'
        assert found["Tile.mma#2"] == '!cute.layout<"(32,9):(1,32)">'
        assert "Tile.mma#3" not in found

    @pytest.mark.slow
    def test_slots_and_named_tuples_are_read_by_name(self, trace_it: TraceIt) -> None:
        source = (
            """
import dataclasses
import typing


@dataclasses.dataclass(slots=True)
class Slotted:
    inner: object
    later: object = None


class Named(typing.NamedTuple):
    first: object
    second: object
"""
            + TINY
        ).replace(
            "        pair = ",
            "        slotted = Slotted(cute.make_layout(11))\n        slotted.later = cute.make_layout(12)\n"
            "        named = Named(cute.make_layout(13), (cute.make_layout(14),))\n        pair = ",
        )
        found = types(trace_it(source))
        assert found["Slotted.inner"] == '!cute.layout<"11:1">'
        assert found["Slotted.later"] == '!cute.layout<"12:1">'
        assert found["Tile.__call__.named.first"] == '!cute.layout<"13:1">'
        assert found["Tile.__call__.named.second[0]"] == '!cute.layout<"14:1">'

    @pytest.mark.slow
    def test_a_struct_shows_where_its_members_start(self, trace_it: TraceIt) -> None:
        """The names are the author's in every version of the DSL, which keeps them under names of its own."""
        source = TINY.replace(
            "        if tid == 0:\n",
            "        @cute.struct\n"
            "        class Shared:\n"
            "            barriers: cute.struct.MemRange[cutlass.Int64, 4]\n"
            "            maps: cute.struct.Align[cute.struct.MemRange[cutlass.Int64, 16], 128]\n"
            "            holding: cutlass.Int32\n"
            "        shared = cutlass.utils.SmemAllocator().allocate(Shared)\n"
            "        if tid == 0:\n",
        )
        found = types(trace_it(source))
        names = {name: text for name, text in found.items() if "Shared" in name}
        assert list(names) == ["Tile.kernel.Shared", "Tile.kernel.Shared.maps"]  # what is not aligned is so by chance
        assert names["Tile.kernel.Shared.maps"] == "!cute.ptr<i8, smem, align<128>>"

    @pytest.mark.slow
    def test_a_container_that_grows_is_looked_at_again(self, trace_it: TraceIt) -> None:
        source = TINY.replace(
            "        pair = ", "        tiles = []\n        tiles.append(cute.make_layout(5))\n        pair = "
        )
        assert types(trace_it(source))["Tile.__call__.tiles[0]"] == '!cute.layout<"5:1">'

    @pytest.mark.slow
    def test_another_kernel_has_another_ir(self, trace_it: TraceIt) -> None:
        """The comparison above can fail."""
        one, other = (
            trace_it(TINY),
            trace_it(TINY.replace("(2, 2), stride=(2, 1)", "(2, 2), stride=(1, 2)").replace("x[i, 1]", "x[i, 2]")),
        )
        assert one.artifact_paths("mlir")[0].read_bytes() != other.artifact_paths("mlir")[0].read_bytes()

    @pytest.mark.slow
    def test_helper_modules_of_the_user_are_watched_and_tracked(self, trace_it: TraceIt, tmp_path: Path) -> None:
        helper = tmp_path / "tiling.py"
        helper.write_text(
            "import cutlass.cute as cute\n\n\n@cute.jit\ndef tile(rows: cutlass.Constexpr):\n"
            "    piece = cute.make_layout((rows, 5))\n    return piece\n".replace(
                "import cutlass.cute as cute", "import cutlass\nimport cutlass.cute as cute"
            )
        )
        source = TINY.replace("import cutlass\n", "import cutlass\nfrom tiling import tile\n", 1).replace(
            "layout = cute.make_layout((self.rows, 8))", "layout = tile(self.rows)"
        )
        trace = trace_it(source)
        assert trace.ok, trace.findings
        assert types(trace)["tile.piece"] == '!cute.layout<"(16,5):(1,16)">'
        assert str(helper) in trace.dependencies
        helper.write_text(helper.read_text().replace("5", "6"))
        assert types(trace_it(source))["tile.piece"] == '!cute.layout<"(16,6):(1,16)">'


class TestFacts:
    @pytest.mark.slow
    def test_compiled_code_is_described(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY)
        (code,) = trace.code
        assert code.source_name == "kernel"
        assert code.registers is not None
        assert code.registers >= 8
        assert (code.local_bytes, code.spill_stores, code.spill_loads) == (0, 0, 0)
        assert code.max_threads == 64
        assert sum(count for opcode, count in code.ptx_mix.items() if opcode.startswith("st.global")) >= 2
        assert "EXIT" in code.sass_mix
        assert [artifact.kind for artifact in trace.artifacts] == ["cubin", "mlir", "ptx", "sass"]
        assert ".target sm_100a" in trace.artifact_paths("ptx")[0].read_text()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("decrease", "bound", "dropped"), [("", "", False), (_DECREASE, "", True), (_DECREASE, _BOUND, False)]
    )
    def test_setmaxnreg_that_ptxas_drops_is_a_warning(
        self, trace_it: TraceIt, decrease: str, bound: str, dropped: bool
    ) -> None:
        source = TINY.replace("block=(64, 1, 1), smem=1024", f"block=(128, 1, 1), smem=1024{bound}")
        trace = trace_it(source.replace("        if tid == 0:", f"{decrease}        if tid == 0:"))
        warnings = [finding.message for finding in trace.findings if finding.kind == "setmaxnreg"]
        assert len(warnings) == dropped
        assert all(message.startswith("ptxas has dropped setmaxnreg from kernel, and") for message in warnings)

    @pytest.mark.slow
    def test_a_launch_is_recorded_with_the_sizes_of_its_arguments(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY, entry="launch")
        assert trace.ok, trace.findings
        (launch,) = trace.launches
        assert (launch.grid, launch.block, launch.cluster) == ((5, 2, 1), (64, 1, 1), (1, 1, 1))
        assert launch.smem_bytes == 1024
        assert trace.launch_count == 1

    @pytest.mark.slow
    def test_compiling_alone_launches_nothing(self, trace_it: TraceIt) -> None:
        assert trace_it(TINY).launch_count == 0

    @pytest.mark.slow
    @pytest.mark.skipif(
        installed_dsl_version() in (None, "4.4.0"), reason="this version has no cute.experimental front end"
    )
    def test_the_experimental_front_end_leaves_its_code_too(self, trace_it: TraceIt) -> None:
        source = TINY.replace("@cute.jit", "@cute.experimental.jit").replace(
            "@cute.kernel", "@cute.experimental.kernel"
        )
        source = source.replace(
            "import cutlass.cute as cute", "import cutlass.cute as cute\nimport cutlass.cute.experimental"
        )
        trace = trace_it(source, entry="launch")
        assert trace.ok, trace.findings
        assert trace.launches[0].grid == (5, 2, 1)
        assert [code.source_name for code in trace.code] == ["kernel"]
        assert ".target sm_100a" in trace.artifact_paths("ptx")[0].read_text()
        assert types(trace)["Tile.smem_layout"] == '!cute.composed_layout<"S<3,4,3> o 0 o (8,64):(64,1)">'

    @pytest.mark.slow
    def test_a_contract_kernel_launches_for_its_problem(self, trace_it: TraceIt) -> None:
        trace = trace_it(CONTRACT, entry=None)
        assert trace.ok, trace.findings
        assert trace.launches[0].grid == (3, 1, 1)
        other = trace_it(CONTRACT, entry=None, problem=GPUMODE[1])
        assert other.launches[0].grid == (2 * 4 + 1 * 3, 1, 1)

    @pytest.mark.slow
    def test_a_compile_kernel_is_called_first(self, trace_it: TraceIt) -> None:
        source = CONTRACT + "\n\ndef compile_kernel(problem_sizes):\n    1 / 0\n"
        kind, _, line = only_error(trace_it(source, entry=None))
        assert (kind, line) == ("compile", line_of(source, "1 / 0"))

    def test_compile_kernel_is_called_if_its_signature_is_known(self) -> None:
        """Published kernels give this name to functions of any form; the evaluation itself does not call them."""
        from pytest_nvfp4.toolchain.worker.contract import prepare

        sizes = [(96, 128, 256, 1)]
        assert prepare(lambda: "none", sizes) == "none"
        assert prepare(lambda stages=1: stages, sizes) == 1
        assert prepare(lambda problem_sizes, stages=None: (problem_sizes, stages), sizes) == (sizes, None)
        assert prepare(lambda shapes=(): shapes, sizes) == sizes
        assert prepare(lambda num_groups: num_groups, sizes) is None
        assert prepare(lambda problem_sizes, tiles: (problem_sizes, tiles), sizes) is None
        assert prepare(lambda problem_sizes, *, tiles: (problem_sizes, tiles), sizes) is None

    def test_custom_kernel_takes_the_inputs_alone(self, trace_it: TraceIt) -> None:
        taken = "def custom_kernel(data: input_t"
        source = CONTRACT.replace(taken, f"{taken}, stream, *, tile=128")
        kind, text, line = only_error(trace_it(source, entry=None))
        assert (kind, line) == ("contract", line_of(source, "def custom_kernel"))
        assert "custom_kernel(data, stream, *, tile=128) cannot be called" in text
        assert text.endswith("\n    " + source.splitlines()[line - 1 if line else 0].strip())

    def test_any_callable_that_takes_the_inputs_will_do(self) -> None:
        from pytest_nvfp4.toolchain.worker.contract import uncallable

        fit = (len, lambda data: data, lambda *data: data, lambda data, tile=128: (data, tile), dict)
        assert [uncallable(each) for each in fit] == [None] * len(fit)
        assert uncallable(lambda: None) is not None
        assert uncallable(lambda data, *, tile: (data, tile)) is not None

    def test_modules_of_the_evaluation_can_be_imported_and_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Many submissions import them and call none of their functions."""
        from pytest_nvfp4.toolchain.worker.contract import provide_task

        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
        # DSL 4.4 appends a folder of its own that has a package of the name.
        monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.endswith("base_dsl")])
        for name in ("task", "utils", "reference"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        provide_task()
        assert import_module("task").TestSpec is dict
        utils, reference = import_module("utils"), import_module("reference")
        judge = utils.make_match_reference(reference.ref_kernel, rtol=1e-3)
        with pytest.raises(NotImplementedError, match=r"utils\.make_match_reference is a function of GPU MODE's"):
            judge(None, None)
        with pytest.raises(NotImplementedError, match=r"reference\.ref_kernel .* put the file beside the kernel"):
            reference.ref_kernel(None)
        assert not hasattr(utils, "swizzle")
        (tmp_path / "utils.py").write_text("swizzle = 128\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "utils")
        assert import_module("utils").swizzle == 128

    def test_a_submission_that_imports_them_compiles(self, trace_it: TraceIt) -> None:
        source = CONTRACT + "from reference import ref_kernel\nfrom utils import make_match_reference\n"
        trace = trace_it(source, entry=None)
        assert trace.ok, trace.findings
        kind, text, _ = only_error(trace_it(source + "from utils import swizzle\n", entry=None))
        assert (kind, "cannot import name 'swizzle' from 'utils'" in text) == ("import", True)

    @pytest.mark.slow
    def test_the_task_module_beside_the_kernel_is_the_one_used(self, trace_it: TraceIt, tmp_path: Path) -> None:
        source = CONTRACT.replace("import input_t, output_t", "import input_t, output_t, tile_m")
        kind, text, _ = only_error(trace_it(source, entry=None))
        assert kind == "import"
        assert "tile_m" in text
        (tmp_path / "task.py").write_text("input_t = output_t = object\ntile_m = 128\n")
        assert trace_it(source + "# with its task\n", entry=None).ok

    @pytest.mark.slow
    def test_kernels_of_the_dsl_are_told_from_the_users(self, trace_it: TraceIt) -> None:
        source = TINY.replace(
            "def launch():\n", "def launch():\n    cutlass.utils.HardwareInfo().get_max_active_clusters(1)\n"
        )
        trace = trace_it(source, entry="launch")
        assert trace.ok, trace.findings
        assert [(code.source_name, code.library) for code in trace.code] == [(None, True), ("kernel", False)]
        facts = launch_facts(trace) | codegen_facts(trace)
        assert facts["launches"] == "1"
        assert facts["code.0.kernel"] == "kernel"
        assert "code.1.kernel" not in facts

    @pytest.mark.slow
    def test_the_architecture_is_the_one_asked_for(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY, arch="sm_90a")
        assert trace.ok, trace.findings
        assert ".target sm_90a" in trace.artifact_paths("ptx")[0].read_text()

    @pytest.mark.slow
    def test_host_code_meets_a_device_of_that_architecture(self, trace_it: TraceIt) -> None:
        source = TINY.replace(
            "    build()(pointer(), cutlass.Int32(5))\n",
            "    import torch\n    assert torch.cuda.get_device_capability() == (9, 0)\n"
            "    build()(pointer(), cutlass.Int32(cutlass.utils.HardwareInfo().get_max_active_clusters(1)))\n",
        )
        trace = trace_it(source, entry="launch", arch="sm_90a")
        assert trace.ok, trace.findings
        assert trace.launches[-1].grid == (132, 2, 1)

    @pytest.mark.slow
    def test_an_entry_may_take_the_problem(self, trace_it: TraceIt) -> None:
        source = TINY + "\n\ndef sized(sizes):\n    build()(pointer(), cutlass.Int32(sizes[0][0]))\n"
        assert trace_it(source, entry="sized").launches[0].grid == (96, 2, 1)

    @pytest.mark.slow
    def test_compile_options_are_overridden(self, trace_it: TraceIt) -> None:
        plain = trace_it(TINY, entry="build")
        asserting = trace_it(TINY, entry="build", options=("--enable-assertions",))
        assert asserting.ok, asserting.findings
        slow = trace_it(TINY, options=("--opt-level 0",))
        assert slow.ok, slow.findings
        assert slow.artifact_paths("cubin")[0].read_bytes() != plain.artifact_paths("cubin")[0].read_bytes()

    @pytest.mark.parametrize(
        ("option", "word"), [("--no-such-option", "does not accept"), ("--gpu-arch sm_90a", "--nvfp4-arch")]
    )
    def test_options_that_cannot_be_set_are_refused(self, trace_it: TraceIt, option: str, word: str) -> None:
        kind, text, _ = only_error(trace_it(TINY, options=(option,)))
        assert kind == "options"
        assert word in text


class TestFailures:
    def test_not_python(self, trace_it: TraceIt) -> None:
        kind, text, line = only_error(trace_it(TINY.replace("def build():", "def build(:")))
        assert (kind, line) == ("import", line_of(TINY, "def build()"))
        assert "def build(:" in text

    def test_import_error(self, trace_it: TraceIt) -> None:
        kind, text, line = only_error(trace_it("import cutlass\nimport surely_not_installed\n"))
        assert (kind, line) == ("import", 2)
        assert "surely_not_installed" in text

    @pytest.mark.slow
    def test_compile_error_names_the_kernels_line(self, trace_it: TraceIt) -> None:
        source = TINY.replace("inner = cute.make_layout((4, 4))", "inner = cute.make_layout((4, 4), stride=(1,))")
        trace = trace_it(source)
        kind, _text, line = only_error(trace)
        assert (kind, line) == ("compile", line_of(source, "stride=(1,)"))
        source = TINY.replace("if tid == 0:", "if cutlass.const_expr(tid == 0):")
        kind, text, line = only_error(trace_it(source))
        assert (kind, line) == ("compile", line_of(source, "const_expr"))
        assert "\x1b" not in text  # the DSL colours this message

    def test_what_the_compiler_wrote_is_part_of_the_message(self, trace_it: TraceIt) -> None:
        """4.4 raises "Operation creation failed" and writes the reason; 4.8 raises both."""
        source = TINY.replace("inner = cute.make_layout((4, 4))", "cute.group_modes(cute.make_layout((4, 4)), 0, 9)")
        kind, text, line = only_error(trace_it(source))
        assert (kind, line) == ("compile", line_of(source, "group_modes"))
        assert text.count("got end [9] and rank [2]") == 1

    def test_diagnostics_are_taken_from_stderr_once(self) -> None:
        from pytest_nvfp4.toolchain.diagnosis import with_diagnostics

        reason = 'expected "shape" but got \'!cute.layout<"(4,2):(1,4)">\''
        line = f'loc("f(("x")"("/k.py":8:3)): error: {reason}\n'
        stderr = f"{line}UserWarning: cache\n{line}"
        finding = Finding(kind="compile", message="k.py did not compile: ValueError: Operation creation failed")
        assert with_diagnostics(finding, stderr).message == f"{finding.message}\n  the compiler wrote: error: {reason}"
        known = replace(finding, message=f"said: error: {reason}")
        assert with_diagnostics(known, stderr) == known
        other = replace(finding, kind="run")
        assert with_diagnostics(other, stderr) == other

    @pytest.mark.slow
    def test_a_failure_leaves_a_bundle(self, trace_it: TraceIt) -> None:
        source = TINY.replace("return cute.compile", "print('hello'); 1 / 0\n    return cute.compile")
        trace = trace_it(source)
        assert trace.bundle is not None
        bundle = Path(trace.bundle)
        summary = json.loads((bundle / "summary.json").read_text())
        assert "ZeroDivisionError" in summary["findings"][0]["message"]
        assert summary["arch"] == "sm_100a"
        assert (bundle / "stdout.txt").read_text() == "hello\n"
        assert (bundle / "stderr.txt").exists()
        assert (bundle / "kernel.py").read_text() == source
        environment = json.loads((bundle / "environment.json").read_text())
        assert environment["CUTE_DSL_ARCH"] == "sm_100a"

    @pytest.mark.slow
    def test_a_second_compile_that_fails_is_not_host_code(self, trace_it: TraceIt) -> None:
        source = TINY.replace("def launch():\n", "def launch():\n    build()\n    Tile.bad = True\n").replace(
            "        pair = ",
            "        if cutlass.const_expr(hasattr(self, 'bad')):\n            1 / 0\n        pair = ",
        )
        kind, text, line = only_error(trace_it(source, entry="launch"))
        assert (kind, line) == ("compile", line_of(source, "1 / 0"))
        assert "kernel.py did not compile: ZeroDivisionError" in text

    @pytest.mark.slow
    def test_an_entry_that_looks_at_results_is_told_that_there_are_none(self, trace_it: TraceIt) -> None:
        kind, text, _ = only_error(trace_it(TINY + "\n\ndef check():\n    launch()\n    assert 0\n", entry="check"))
        assert kind == "run"
        assert "not executed" in text

    @pytest.mark.slow
    def test_a_wrong_call_is_at_the_line_of_the_call(self, trace_it: TraceIt) -> None:
        source = TINY.replace("build()(pointer(), cutlass.Int32(5))", "build()(pointer())")
        kind, text, line = only_error(trace_it(source, entry="launch"))
        assert (kind, line) == ("run", line_of(source, "build()(pointer())"))
        assert "pytest_nvfp4" not in text

    @pytest.mark.slow
    def test_the_wrong_architecture_is_said_with_the_option(self, trace_it: TraceIt) -> None:
        source = TINY.replace(
            "        pair = ",
            "        warpgroup = cute.nvgpu.warpgroup\n"
            "        major, smem = warpgroup.OperandMajorMode.K, warpgroup.OperandSource.SMEM\n"
            "        types = cutlass.Float16, cutlass.Float32\n"
            "        warpgroup.MmaF16BF16Op(*types, (64, 64, 16), smem, major, major)\n"
            "        pair = ",
        )
        _, text, _ = only_error(trace_it(source))
        assert "it was compiled for sm_100a" in text
        assert "--nvfp4-arch" in text
        assert trace_it(source, arch="sm_90a").ok

    @pytest.mark.slow
    def test_a_failure_after_the_compile_keeps_what_was_seen(self, trace_it: TraceIt) -> None:
        trace = trace_it(TINY.replace("build()(pointer()", "build(); 1 / 0; (pointer()"), entry="launch")
        kind, text, _ = only_error(trace)
        assert kind == "run"
        assert "failed after a compile" in text
        assert trace.values
        assert trace.code
        assert trace.bundle is not None
        assert list(Path(trace.bundle).glob("*.ptx"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("statement", "kind", "words"),
        [
            ("import os; os._exit(0)", "vanished", "exited with status 0 while kernel.py was imported"),
            ("import sys; sys.exit(3)", "exit", "sys.exit(3)"),
            ("import ctypes; ctypes.string_at(0)", "crash", "SIGSEGV"),
            ("import os; os.abort()", "crash", "SIGABRT"),
            ("raise KeyboardInterrupt", "import", "KeyboardInterrupt"),
            ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "import", "Mute: no message"),
        ],
    )
    def test_ends_of_the_process(self, trace_it: TraceIt, statement: str, kind: str, words: str) -> None:
        source = TINY.replace("class Tile:", f"{statement}\n\n\nclass Tile:")
        found, text, line = only_error(trace_it(source))
        assert found == kind
        assert words in text
        if "os._exit" not in statement:
            assert line == line_of(source, statement)

    @pytest.mark.slow
    def test_a_hang_is_stopped(self, trace_it: TraceIt) -> None:
        source = TINY.replace("def build():", "def build():\n    import time\n    time.sleep(10_000)")
        trace = far_enough(
            lambda deadline_s: trace_it(source, limits=Limits(deadline_s=deadline_s)),
            lambda trace: "while kernel.py compiled" in str(trace.errors) and only_error(trace)[2],
            first_s=3,
        )
        kind, text, line = only_error(trace)
        assert kind == "timeout"
        assert line == line_of(source, "time.sleep(10_000)")
        assert "while kernel.py compiled" in text
        assert "--nvfp4-timeout" in text

    @pytest.mark.slow
    def test_too_much_memory(self, trace_it: TraceIt) -> None:
        source = TINY.replace("def build():", "def build():\n    x = bytearray(8 << 30)")
        kind, text, line = only_error(trace_it(source, limits=Limits(memory_bytes=4 << 30)))
        assert (kind, line) == ("memory", line_of(source, "bytearray"))
        assert "out of memory" in text

    @pytest.mark.slow
    def test_a_flood_of_output_is_survived(self, trace_it: TraceIt) -> None:
        source = TINY.replace("def build():", "def build():\n    [print('x' * 10000) for _ in range(5000)]")
        assert trace_it(source).ok

    @pytest.mark.slow
    def test_a_forked_child_does_not_outlive_the_trace(self, trace_it: TraceIt, tmp_path: Path) -> None:
        source = TINY.replace(
            "def build():",
            "def build():\n    import fcntl, os, time\n    file = open(__file__)\n    read, write = os.pipe()\n"
            "    if os.fork() == 0:\n        fcntl.flock(file, fcntl.LOCK_SH); os.setsid(); os.write(write, b'.')\n"
            "        time.sleep(600)\n    file.close(); os.read(read, 1)",
        )
        assert trace_it(source).ok
        assert until(lambda: not locked(tmp_path / "kernel.py"))

    @pytest.mark.slow
    def test_files_written_in_the_working_directory_stay_out_of_the_tree(
        self, trace_it: TraceIt, tmp_path: Path
    ) -> None:
        assert trace_it(TINY + "\nopen('left_behind.txt', 'w').write('x')\n").ok
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.py"]

    def test_a_poisoned_layout_is_an_error(self) -> None:
        """DSL 4.4.0 computes such a layout for scale factors at K = 512 and says nothing."""
        from pytest_nvfp4.toolchain.diagnosis import poisoned
        from pytest_nvfp4.toolchain.trace import Value

        value = Value(name="k.sfa", type='!cute.layout<"x">', file="k.py", line=7)
        (finding,) = poisoned([value, replace_type(value, '!cute.layout<"(4,2):(1,4)">')])
        assert (finding.kind, finding.line, finding.severity) == ("poisoned", 7, "error")

    @pytest.mark.slow
    def test_nothing_compiled(self, trace_it: TraceIt) -> None:
        kind, text, _ = only_error(trace_it("import cutlass\n\n\ndef build():\n    return 1\n"))
        assert kind == "no-compile"
        assert "compiled or launched a @cute.jit function" in text
        assert "on other problems" not in text
        kind, text, _ = only_error(trace_it("def custom_kernel(data):\n    return []\n", entry=None))
        assert kind == "no-compile"
        assert "does not use CuTe DSL" in text
        assert "if it launches one on other problems only, name one of these" in text

    @pytest.mark.slow
    def test_entries_that_cannot_be_called(self, trace_it: TraceIt) -> None:
        kind, text, _ = only_error(trace_it(TINY, entry="missing"))
        assert kind == "entry"
        assert "build" in text
        kind, text, _ = only_error(trace_it(TINY + "\n\ndef two(a, b):\n    pass\n", entry="two"))
        assert kind == "entry"
        assert "two(a, b)" in text

    @pytest.mark.slow
    def test_an_entry_in_another_file_comes_first(self, trace_it: TraceIt, tmp_path: Path) -> None:
        """It may prepare the path that its kernel needs; the folder tests are started in is on it anyway."""
        folder = tmp_path / "kernels" / "blackwell"
        folder.mkdir(parents=True)
        (folder / "shared.py").write_text("rows = 16\n")
        entry = tmp_path / "entry.py"
        entry.write_text("def build():\n    from kernels.blackwell import kernel\n    kernel.build()\n")
        source = TINY.replace("import cutlass\n", "from kernels.blackwell.shared import rows\nimport cutlass\n", 1)
        trace = trace_it(source, name="kernels/blackwell/kernel.py", entry=Entry(entry, "build"))
        assert trace.ok, trace.findings
        assert str(folder / "shared.py") in trace.dependencies
        entry.write_text("def build():\n    pass\n")
        kind, text, _ = only_error(trace_it(source, name="kernels/blackwell/kernel.py", entry=Entry(entry, "build")))
        assert kind == "entry"
        assert "never imported kernel.py" in text

    def test_a_kernel_of_another_task_is_told_what_it_was_given(self, trace_it: TraceIt) -> None:
        source = CONTRACT.replace("    abc, _, _, sizes = data\n", "    a, b, sfa, sfb, sfa_perm, sfb_perm, c = data\n")
        kind, text, line = only_error(trace_it(source, entry=None))
        assert (kind, line) == ("compile", line_of(source, "sfa_perm"))
        assert "the data of nvfp4_group_gemm" in text
        assert "--nvfp4-entry" in text

    def test_without_contract_or_entry(self, trace_it: TraceIt) -> None:
        kind, text, _ = only_error(trace_it(TINY, entry=None))
        assert kind == "contract"
        assert "--nvfp4-entry" in text


def replace_type(value: object, text: str) -> object:
    return value.model_copy(update={"type": text})  # type: ignore[attr-defined]


class TestCache:
    @pytest.mark.slow
    def test_a_second_tracer_reuses_the_trace(self, trace_it: TraceIt, tmp_path: Path, trace_cache: TraceCache) -> None:
        first = trace_it(TINY)
        request = TraceRequest(tmp_path / "kernel.py", GPUMODE[0], Entry(tmp_path / "kernel.py", "build"))
        again = Tracer(root=tmp_path, cache=trace_cache).cached(request)
        assert again == first

    def test_what_decides_a_trace_is_in_its_key(self, tmp_path: Path) -> None:
        path = tmp_path / "k.py"
        path.write_text(TINY)
        base = TraceRequest(path, GPUMODE[0], Entry(path, "build"))
        keys = {
            cache_key(request)
            for request in (
                base,
                replace(base, problem=GPUMODE[1]),
                replace(base, arch="sm_90a"),
                replace(base, options=("--opt-level 2",)),
                replace(base, entry=Entry(path, "launch")),
                replace(base, entry=None),
                replace(base, toolchain=replace(base.toolchain, dsl_version="0.0")),
                replace(base, toolchain=replace(base.toolchain, python_version="3.99")),
            )
        }
        assert len(keys) == 8
        before = cache_key(base)
        path.write_text(TINY + "# changed\n")
        assert cache_key(replace(base)) != before

    @pytest.mark.slow
    @pytest.mark.parametrize("damage", ["truncate", "garbage", "artifact", "version"])
    def test_a_damaged_entry_is_made_anew(
        self, trace_it: TraceIt, tmp_path: Path, trace_cache: TraceCache, damage: str
    ) -> None:
        trace = trace_it(TINY)
        assert trace.folder is not None
        entry = Path(trace.folder)
        stored = entry / "trace.json"
        text = stored.read_text()
        match damage:
            case "truncate":
                stored.write_text(text[: len(text) // 2])
            case "garbage":
                stored.write_bytes(os.urandom(200))
            case "artifact":
                trace.artifact_paths("ptx")[0].unlink()
            case "version":
                stored.write_text(text.replace(f'"schema_version":{SCHEMA}', '"schema_version":0'))
        request = TraceRequest(tmp_path / "kernel.py", GPUMODE[0], Entry(tmp_path / "kernel.py", "build"))
        assert Tracer(root=tmp_path, cache=trace_cache).cached(request) is None
        again = trace_it(TINY)
        assert again.ok
        assert again.values == trace.values

    def test_a_folder_that_cannot_be_written_is_replaced(self, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        cache = TraceCache(blocked / "cache")
        assert cache.root != blocked / "cache"
        assert cache.root.is_dir()

    def test_a_full_disk_is_said_with_its_folder_and_is_no_error_of_this_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "k.py"
        path.write_text(TINY)
        cache = TraceCache(tmp_path / "cache")
        found = [errno.ENOSPC]

        def building(_: TraceCache) -> None:
            raise OSError(found[0], os.strerror(found[0]))

        monkeypatch.setattr(TraceCache, "building", building)
        request = TraceRequest(path, GPUMODE[0], Entry(path, "build"))
        kind, text, _ = only_error(Tracer(root=tmp_path, cache=cache).trace(request))
        assert kind == "environment"
        assert f"the cache of traces {cache.root} cannot be written: No space left on device; free disk space" in text
        assert "--nvfp4-cache-dir or NVFP4_CACHE_DIR" in text
        found[0] = errno.EMFILE  # no matter of room
        with pytest.raises(OSError, match="Too many open files"):
            Tracer(root=tmp_path, cache=cache).trace(request)

    def test_a_bundle_without_room_hides_no_finding(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "k.py"
        path.write_text(TINY)
        ended = Outcome(
            returncode=-6,
            timed_out=False,
            wall_s=0.1,
            result=None,
            result_overflow=False,
            stdout=Captured(""),
            stderr=Captured(""),
        )
        monkeypatch.setattr("pytest_nvfp4.isolation.run", lambda *_, **__: ended)

        def write(*_: object, **__: object) -> Path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("pytest_nvfp4.toolchain.bundle.write", write)
        request = TraceRequest(path, GPUMODE[0], Entry(path, "build"))
        trace = Tracer(root=tmp_path, cache=TraceCache(tmp_path / "cache")).trace(request)
        assert [finding.kind for finding in trace.errors] == ["crash", "environment"]
        assert f"the debug bundle cannot be written below {tmp_path}: No space left" in trace.errors[1].message
        assert trace.bundle is None

    def test_what_else_decides_a_trace_makes_it_anew(
        self, tmp_path: Path, trace_cache: TraceCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that it reads, a module of PYTHONPATH, and modules that would take the place of those it imported."""
        path, table, elsewhere = tmp_path / "k.py", tmp_path / "table.txt", tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "aside.py").write_text("ROWS = 1\n")
        table.write_text("16")
        path.write_text(
            "import pathlib\nimport aside\nimport cutlass\n"
            "ROWS = int((pathlib.Path(__file__).parent / 'table.txt').read_text())\n"
        )
        monkeypatch.syspath_prepend(str(elsewhere))
        monkeypatch.setenv("PYTHONPATH", str(elsewhere))
        request = TraceRequest(path, GPUMODE[0], Entry(path, "build"))
        made = Tracer(root=tmp_path, cache=trace_cache, session="s").trace(request)
        assert [finding.kind for finding in made.errors] == ["entry"], made.errors

        def known() -> bool:
            return Tracer(root=tmp_path, cache=trace_cache, session="s").cached(request) is not None

        assert known()
        changes = {
            table: "32",
            elsewhere / "aside.py": "ROWS = 2\n",
            tmp_path / "aside.py": "",
            tmp_path / "cutlass.py": "",
        }
        for file, text in changes.items():
            before = file.read_text() if file.exists() else None
            file.write_text(text)
            assert not known(), file
            if before is None:
                file.unlink()
            else:
                file.write_text(before)
            assert known(), file
        for name, value in (("PYTHONPATH", str(tmp_path)), ("LC_ALL", "C.UTF-8"), ("NVFP4_SANDBOX", "off")):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert not known(), name
        for name in ("HOME", "TMPDIR", "NVFP4_OTHER"):
            with monkeypatch.context() as patch:
                patch.setenv(name, str(tmp_path))
                assert known(), name

    def test_failures_are_not_kept_beyond_a_run(self, tmp_path: Path, trace_cache: TraceCache) -> None:
        path = tmp_path / "k.py"
        path.write_text("import cutlass\n1 / 0\n")
        request = TraceRequest(path, GPUMODE[0], Entry(path, "build"))
        assert not Tracer(root=tmp_path, cache=trace_cache, session="one").trace(request).ok
        assert Tracer(root=tmp_path, cache=trace_cache, session="one").cached(request) is not None
        assert Tracer(root=tmp_path, cache=trace_cache, session="two").cached(request) is None
        assert Tracer(root=tmp_path, cache=trace_cache).cached(request) is None


@pytest.mark.slow
def test_interrupting_a_trace_leaves_nothing_running(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "import fcntl, time\nfile = open(__file__)\nfcntl.flock(file, fcntl.LOCK_SH)\ntime.sleep(600)\nimport cutlass\n"
    )
    script = (
        "import sys\nfrom pathlib import Path\nfrom pytest_nvfp4.problem import GPUMODE\n"
        "from pytest_nvfp4.toolchain.cache import TraceCache\n"
        "from pytest_nvfp4.toolchain.request import Entry, TraceRequest\n"
        "from pytest_nvfp4.toolchain.tracer import Tracer\n"
        "root = Path(sys.argv[1])\n"
        "request = TraceRequest(root / 'kernel.py', GPUMODE[0], Entry(root / 'kernel.py', 'b'))\n"
        "Tracer(root=root, cache=TraceCache(root / 'c')).trace(request)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.DEVNULL, env=environ)
    assert until(lambda: locked(kernel))
    parent.send_signal(signal.SIGINT)
    assert parent.wait(timeout=LONGEST_S) != 0
    assert until(lambda: not locked(kernel))
    assert not list(temporary.glob("nvfp4-*"))


@pytest.mark.parametrize("text", ["build", "k.py::", "::build", "k.py::not a name", "missing.py::build"])
def test_entries_are_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "k.py").write_text("")
    with pytest.raises(EntryError, match=r"pyproject\.toml"):
        Entry.parse(text, root=tmp_path, source="pyproject.toml")
    assert Entry.parse("k.py::build", root=tmp_path, source="x").file == tmp_path / "k.py"


@pytest.mark.slow
def test_a_trace_sees_no_gpu_that_is_there(trace_it: TraceIt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    trace = trace_it("import os\nassert not os.environ['CUDA_VISIBLE_DEVICES']\n" + TINY)
    assert trace.ok, trace.findings
