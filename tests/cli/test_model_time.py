"""``nvfp4 model KERNEL``: arguments, and the tables of ``--tune``; the guide's page runs the command itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.cli.model import time, tune
from pytest_nvfp4.cli.options import RunOptions
from pytest_nvfp4.cli.simulation import runnable
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.device.modelled import conditions_of
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.model.constants import load_device
from pytest_nvfp4.model.storage import dumps
from pytest_nvfp4.problem import ProblemError
from pytest_nvfp4.report.document import Document, cell_text
from pytest_nvfp4.report.render import OutputFormat, render
from tests.cli.helpers import ROOT
from tests.model.main_loop import main_loop

SHIPPED = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
CASE = JobCase(problem=ProblemSpec(name="p", sizes=(), seed=0), family="gpumode")
OWN = ROOT / "kernels" / "copy_transpose" / "sm90.py"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tune", "NUM_STAGES"), "must be NAME=VALUE,VALUE..."),
        (("--tune", "NUM_STAGES=2,,3"), "must be NAME=VALUE,VALUE..."),
        (("--tune", "NUM_STAGES=2", "--tune", "NUM_STAGES=3"), "names NUM_STAGES twice"),
        (("--tune", "STAGES=2"), "STAGES is not assigned at the top level of the file"),
        (("--tune", "AB_DTYPE=2"), "AB_DTYPE is not a constant"),
        (("--tune", "NUM_STAGES=two"), "'two' is not of this type (int)"),
        (("--tune", "NUM_STAGES=3,True"), "True is not of this type (int)"),
        (("--tune", "NUM_STAGES=1,True"), "True is not of this type (int)"),
        (("--tune", "NUM_STAGES=-1e400"), "NUM_STAGES cannot be -inf, which is not a finite number"),
        (("--tune", "A=1,2,3,4,5,6,7,8,9", "--tune", "B=1,2,3,4,5,6,7,8"), "asks for 72 combinations"),
        (("--tune", "NUM_STAGES=2", "--problem", "gpumode-0", "--problem", "gpumode-1"), "name one --problem"),
        (("--timeline", "t.pftrace", "--tune", "NUM_STAGES=2"), "--timeline shows one call"),
        (("--verify-problem", "gpumode-0"), "--verify-problem is that of --tune"),
        (("--device", "b201"), "there is no device 'b201'"),
        (("--device", "h200"), "is for sm_100a, which NVIDIA H200"),
        (("--arch", "sm_89"), "the simulator supports sm_90a, sm_100a"),
        (("--arch", "sm_120a"), "there is no table of"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_error(cli, arguments: tuple[str, ...], said: str) -> None:
    for command in (("model",), ("model", "time")):
        done = cli(*command, str(SHIPPED), *arguments)
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1 or "Usage" in done.err


@pytest.mark.slow
def test_a_kernel_with_a_contract_of_its_own_is_modelled_on_its_problems() -> None:
    subject = runnable(OWN, RunOptions(), simulated=True)
    assert [case.problem.name for case in subject.cases()] == ["16-bit"]
    assert (subject.spec.entry or "").endswith("sm90.py::transpose_into")
    other = runnable(OWN, RunOptions(names=("32-bit",)), simulated=True)
    assert [case.problem.name for case in other.cases()] == ["32-bit"]
    with pytest.raises(ProblemError, match="the contract has no problem 'gpumode-0'; it has 16-bit, 32-bit"):
        runnable(OWN, RunOptions(names=("gpumode-0",)), simulated=True)


def test_a_kernel_that_nothing_calls_needs_a_contract(cli, tmp_path: Path) -> None:
    file = tmp_path / "k.py"
    file.write_text("import cutlass\n")
    done = cli("model", str(file))
    assert done.code == 2
    assert "name a contract of your own for it" in done.err


def test_variants_are_verified_on_the_smallest_problem_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("import cutlass\ndef custom_kernel(data): ...\n")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest_nvfp4]\nproblems.tiny = { m = 1, n = 128, k = 256 }\n"
        'verify-problems = ["gpumode-9", "gpumode-0"]\n'
    )
    subject = runnable(tmp_path / "k.py", RunOptions(names=("gpumode-9",)), simulated=True)
    assert time._small_case(subject, None).problem.name == "gpumode-0"
    assert time._small_case(subject, "tiny").problem.name == "tiny"


class TestTune:
    @pytest.fixture
    def made(self) -> list[tune.Variant]:
        subject = runnable(SHIPPED, RunOptions(names=("gpumode-0",)), simulated=True)
        return tune.variants(subject, tune.parse(["NUM_STAGES=2,3", "CTAS_PER_SM=1,2"]))

    def text(self, variant: tune.Variant) -> str:
        spec = variant.subject.spec
        return next(file.text for file in spec.files if file.path == spec.main)

    def test_the_file_is_the_first_variant_and_no_other_equals_it(self, made: list[tune.Variant]) -> None:
        assert [tuple(variant.values.values()) for variant in made] == [(3, 2), (2, 1), (2, 2), (3, 1)]
        assert [variant.as_it_is for variant in made] == [True, False, False, False]
        assert self.text(made[0]) == SHIPPED.read_text()
        assert "\nNUM_STAGES = 2\n" in self.text(made[1])
        assert "\nCTAS_PER_SM = 1\n" in self.text(made[1])
        assert len({variant.subject.spec.sha256 for variant in made}) == 4

    def test_variants_are_ranked_and_failures_come_last_with_their_reason(self, made: list[tune.Variant]) -> None:
        outcomes = {
            (3, 2): tune.Outcome(20.0, "TMA load"),
            (2, 1): tune.Outcome(None, reason="failed on gpumode-2: k.py:7: too much shared memory"),
            (2, 2): tune.Outcome(25.0, "latency"),
            (3, 1): tune.Outcome(15.0, "DRAM"),
        }
        found = tune.tried(made, lambda variant: outcomes[tuple(variant.values.values())])
        document = Document("t", [tune.table(found)], {"variants": tune.as_data(found)})
        rows = render(document, OutputFormat.CSV).splitlines()
        assert rows == [
            "NUM_STAGES,CTAS_PER_SM,modelled_us,difference,bound,result",
            "3,1,15,-25.0 %,DRAM,right",
            '3,2,20,,TMA load,"right, as it is"',
            "2,2,25,+25.0 %,latency,right",
            "2,1,,,,failed on gpumode-2: k.py:7: too much shared memory",
        ]
        data = json.loads(render(document, OutputFormat.JSON))["variants"]
        assert data[0] == {
            "constants": {"NUM_STAGES": 3, "CTAS_PER_SM": 1},
            "as_it_is": False,
            "modelled_us": 15.0,
            "bound": "DRAM",
            "reason": "",
        }

    def test_a_file_in_another_encoding_stays_in_it(self, tmp_path: Path) -> None:
        file = tmp_path / "k.py"
        file.write_bytes(
            '# coding: latin-1\n"é"\nimport cutlass\nSTAGES = 2\ndef custom_kernel(data): ...\n'.encode("latin-1")
        )
        subject = runnable(file, RunOptions(names=("gpumode-0",)), simulated=True)
        variant = tune.variants(subject, {"STAGES": [3]})[1]
        (source,) = variant.subject.spec.files
        assert source.data == file.read_bytes().replace(b"STAGES = 2", b"STAGES = 3")
        assert replace(variant, as_it_is=True) != variant


@pytest.mark.parametrize("refused", [(), ("its tiles are taken from a counter",)])
def test_a_refused_call_has_no_what_if_answers(tmp_path: Path, refused: tuple[str, ...]) -> None:
    recording = replace(main_loop(128, 128, 128, 4, 20), arch="sm_100a", refused=refused)
    done = SimulationResult(CASE, "passed", (), None, recording=dumps([recording]))
    device = load_device("b200")
    how = time._How(device, conditions_of("single", device), 10.0, tmp_path)
    modelled = time._modelled(done, how, asked=True)
    assert modelled.verdict == ("refused" if refused else "modelled")
    assert bool(modelled.answers) != bool(refused)
    assert not time._modelled(done, how, asked=False).answers
    time._write_timeline(tmp_path / "t.pftrace", done, how, sms=1)
    assert (tmp_path / "t.pftrace").exists() != bool(refused)


def test_a_call_outside_the_modelled_kinds_has_no_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimulationResult(CASE, "passed", (), None, recording=dumps([main_loop(128, 128, 128, 4, 20)]))
    monkeypatch.setattr(time, "_record", lambda *_: [done])
    monkeypatch.setattr("pytest_nvfp4.device.modelled.refusals", lambda _: ["it is attention"])
    subject = runnable(SHIPPED, RunOptions(names=("gpumode-0",)), simulated=True)
    device = load_device("b200")
    how = time._How(device, conditions_of("single", device), 10.0, tmp_path)
    document = time._timed(subject, how, tmp_path / "t.pftrace", 1, asked=False)
    assert not document.ok
    assert not (tmp_path / "t.pftrace").exists()
    judged = time._timed(subject, replace(how, verify=True), None, 1, asked=False)
    assert "The outputs were not judged: with --verify" in cell_text(document.blocks[-1])
    assert "not judged" not in cell_text(judged.blocks[-1])
