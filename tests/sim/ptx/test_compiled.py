"""The PTX of the shipped Blackwell kernel, compiled with the user's lines."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.sim.ptx import roles
from pytest_nvfp4.sim.ptx.flow import Flow
from pytest_nvfp4.sim.ptx.liveness import Liveness
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.ptx.syntax import Label
from tests.sim.ptx.written import registers

KERNEL = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="needs the DSL")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ptx")
    dump = folder / "dump"
    dump.mkdir()
    (folder / "task.py").write_text("input_t = output_t = object\n")
    environment = {
        **os.environ,
        "CUTE_DSL_ARCH": "sm_100a",
        "CUTE_DSL_DISABLE_FILE_CACHING": "1",
        "CUTE_DSL_DRYRUN": "0",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_LINEINFO": "1",
        "CUTE_DSL_DUMP_DIR": str(dump),
        "PYTHONPATH": os.pathsep.join([str(folder), str(KERNEL.parent)]),
    }
    command = [sys.executable, "-c", "import map_updates; map_updates.compile_kernel([(40, 128, 256, 1)])"]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    found = list(dump.glob("*.ptx"))
    assert len(found) == 1, f"no PTX:\n{result.stdout}\n{result.stderr}"
    return found[0].read_text()


@pytest.fixture(scope="module")
def kernel(text):
    (found,) = parse(text).kernels.values()
    return found


@pytest.mark.slow
def test_every_statement_is_an_instruction(text, kernel):
    """Counted with a pattern that is not the parser's: lines that end in a semicolon and start no directive."""
    body = re.sub(r"//[^\n]*|\n\s*\.(?:loc|file)[^\n]*", "", text[text.index("\n{") :])
    statements = [part for part in re.split(r"[;{}]\s|:\s", body) if re.match(r"\s*(@!?[%\w]+\s+)?[a-z]", part)]
    assert len(kernel.instructions) == len(statements)
    lines = text.split("\n")
    for ins in kernel.instructions:
        assert ins.text.split()[-1].rstrip(";") in lines[ins.ptx_line - 1]


@pytest.mark.slow
def test_every_opcode_has_a_rule_and_every_register_a_role(kernel):
    for ins in kernel.instructions:
        assert roles.known(ins), ins.text
        found = {register.slot for register in (*roles.results(ins), *roles.sources(ins))}
        guard = [ins.guard.register] if ins.guard else []
        assert found == set(registers((*guard, *ins.operands))), ins.text


def test_nothing_is_read_that_was_never_written(kernel):
    """True of this kernel; it fails if a rule takes a result for a source."""
    live = Liveness(Flow(kernel))
    assert [kernel.registers[slot].name for slot in live.live_before(0)] == []


def test_a_rule_that_takes_results_for_sources_would_show(kernel, monkeypatch):
    monkeypatch.setitem(roles._RULES, "mbarrier.try_wait", roles.Rule.NONE)
    roles.rule.cache_clear()
    try:
        live = Liveness(Flow(kernel))
        assert {kernel.registers[slot].name for slot in live.live_before(0)} == {"P1"}
    finally:
        roles.rule.cache_clear()


def test_all_of_it_can_be_reached(kernel):
    flow = Flow(kernel)
    assert sorted(flow.order) == list(range(len(flow.blocks)))
    assert kernel.instructions[-1].opcode == "ret"
    for ins in kernel.instructions:
        if ins.root == "bra":
            (label,) = ins.operands
            assert isinstance(label, Label)
            assert label.index in flow.leaders


def test_lines_are_those_of_the_calls(kernel):
    """``.loc`` inside inline assembly would lead a wait to lines further down."""
    source = KERNEL.read_text().split("\n")
    seen = set()
    for ins in kernel.instructions:
        if ins.root in ("tcgen05", "mbarrier") or ins.opcode.startswith("cp.async.bulk.tensor"):
            assert ins.location is not None, ins.text
            if Path(ins.location.file).name == KERNEL.name:
                seen.add((".".join(ins.parts[:2]), source[ins.location.line - 1].strip()))
    waits = {line for opcode, line in seen if opcode == "mbarrier.try_wait"}
    assert waits
    assert all(re.search(r"wait|acquire|advance|tail|with|for |while ", line) for line in waits), waits
    assert any("gemm" in line for opcode, line in seen if opcode == "tcgen05.mma")
