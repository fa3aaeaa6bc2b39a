"""Profiles explained: simulations of the same call beside them, and what cannot stand beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.simulate import simulate
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.profile.explain import Explanation, Simulated, explain, simulated_call
from pytest_nvfp4.profile.result import Metric, Profile, ProfiledDevice, ProfiledLaunch
from pytest_nvfp4.report.document import Document
from pytest_nvfp4.report.profiles import explanation_data, explanation_sections
from pytest_nvfp4.report.render import OutputFormat, render
from tests.profile.launches import counted, measured, modelled

KERNELS = Path(__file__).parents[2] / "kernels"
TMA = "smsp__sass_inst_executed_op_tma_ld.sum"
"""A metric that both have."""


def simulated(capability: tuple[int, int] = (9, 0)) -> Simulated:
    """A simulated call of one launch that loads five times by TMA."""
    call = SimulatedCall(call=0, case=0, model="m", sms=132, launches=(counted({"tma.load.requests": 5}),), outputs=())
    return Simulated(call, capability, {0: modelled(stage=-0.25)})


def profile(*launches: ProfiledLaunch, capability: tuple[int, int] | None = (9, 0)) -> Profile:
    """A profile of an H200."""
    return Profile(device=ProfiledDevice(name="g", capability=capability, sms=132), launches=launches)


def shown(explanation: Explanation) -> str:
    """The text of an explanation, whose data must be JSON."""
    json.dumps(explanation_data(explanation), allow_nan=False)
    return render(Document("t", list(explanation_sections(explanation))), OutputFormat.TEXT)


def test_a_report_of_anybody_is_explained_without_a_simulation() -> None:
    fast = measured({}).model_copy(update={"metrics": {"tensor_pipe": Metric.of(81.0, "%")}})
    text = shown(explain(profile(fast)))
    assert "tensor: the tensor core (tensor pipe active 81 %, at least 60 %)" in text
    assert "unknown: memory, latency" not in text  # a busy tensor pipe excludes latency
    assert "unknown: memory" in text
    assert "counted beside measured" not in text


def test_a_report_of_times_has_one_line() -> None:
    timed = [
        ProfiledLaunch(name=name, metrics={"duration": Metric.of(50.0, "us")}) for name in ("gemm", "fill", "copy")
    ]
    text = shown(explain(profile(*timed)))
    assert text.strip() == "what limits the launches is unknown: the report has none of the metrics that decide it"
    assert shown(explain(profile())).strip() == ""


def test_counted_beside_measured_and_gains() -> None:
    explanation = explain(profile(measured({TMA: 6.0}), measured({}, name="elementwise")), simulated())
    assert explanation.notes == ()
    (launch,) = explanation.compared
    (differing,) = launch.differing
    assert (differing.counter.name, differing.difference) == ("tma.loads", 1)
    text = shown(explanation)
    assert "TMA loads" in text
    assert "+1 (+20 %)" in text
    assert "one more stage in the ring of copies [25.0 % modelled]" in text
    assert {hint.gain for hint in explanation.analyses[1].hints} == {None}
    data = explanation_data(explanation)
    counters = data["counted_beside_measured"][0]["counters"]
    (loads,) = [one for one in counters if one["name"] == "tma.loads"]
    assert {"counted": 5, "measured": 6.0, "difference": 1.0, "verdict": "differs"}.items() <= loads.items()


@pytest.mark.parametrize(
    ("own", "simulation", "said"),
    [
        (profile(measured({TMA: 5.0})), simulated((10, 0)), "measured on sm_90, simulated for sm_100"),
        (profile(measured({TMA: 5.0}), capability=(12, 0)), simulated((12, 0)), "counters of sm_120 are not known"),
        (profile(measured({}, name="elementwise")), simulated(), "no launch of the profile is of a simulated kernel"),
    ],
)
def test_what_cannot_be_compared_says_why(own: Profile, simulation: Simulated, said: str) -> None:
    explanation = explain(own, simulation)
    assert explanation.compared == ()
    assert said in explanation.notes[0]
    assert said in shown(explanation)


def test_the_chip_of_a_report_that_does_not_say_is_that_of_the_simulation() -> None:
    unnamed = profile(measured({TMA: 5.0}), capability=None)
    assert explain(unnamed, simulated()).compared[0].differing == ()
    other = explain(profile(measured({TMA: 5.0}, grid=(9, 1, 1))), simulated())
    assert "grid of 9x1x1" in shown(other)
    assert not [hint for hint in other.analyses[0].hints if hint.basis]  # no gain of another launch


@pytest.mark.slow
def test_gains_of_a_shipped_kernel_are_modelled(tmp_path: Path) -> None:
    pytest.importorskip("cutlass")
    spec, base = KernelSpec.from_files(KERNELS / "nvfp4_group_gemm/steps/map_updates.py", arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape("96x128x512")), family="gpumode")
    (done,) = simulate(SimDevice(arch="sm_100a"), spec, [case], folder=tmp_path, base=base, recording=True)
    found = simulated_call(done, "sm_100a")
    assert found is not None
    assert found.notes == ()
    gains = found.gains[0]
    assert {"l2", "launch", "maps"} <= set(gains.changes)
    assert gains.changes["maps"] < 0
    launch = measured({}, name=found.call.launches[0].kernel, grid=found.call.launches[0].grid)
    whole = launch.model_copy(update={"block": found.call.launches[0].block})
    (analysis,) = explain(profile(whole, capability=(10, 0)), found).analyses
    assert any(hint.line.startswith("map_updates.py:") for hint in analysis.hints)
