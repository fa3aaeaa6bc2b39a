"""The experiment that validates the gate, on a device that is made up: doses arrive, rates are counted."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pytest_nvfp4.bench.regression import Policy
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.selfcheck.rates import __main__ as command
from pytest_nvfp4.selfcheck.rates import rounds as stored
from pytest_nvfp4.selfcheck.rates.dose import FRAME, DoseError, Schedule, dosed
from pytest_nvfp4.selfcheck.rates.error_rates import analyse
from pytest_nvfp4.selfcheck.rates.experiment import Calibration, Experiment, ExperimentError, windows
from pytest_nvfp4.selfcheck.rates.report import Rate, Report
from pytest_nvfp4.toolchain.worker.loading import load
from tests.selfcheck.made_up_device import (
    PROBLEMS,
    SOURCE,
    US_PER_CYCLE,
    MadeUp,
    experiment,
    judged,
    kernel_spec,
    plan,
    write,
)

# Doses


@pytest.mark.parametrize("untimed", [0, 1, 5, 17, 64])
def test_arms_are_told_apart_however_many_calls_were_untimed(untimed):
    schedule = Schedule.make([1, 1, 500], frame_cycles=40_000, periods=30, seed=3)
    cycles = np.array(schedule.spins())
    times = 20 + cycles[(np.arange(schedule.rounds) + untimed) % cycles.size] * US_PER_CYCLE
    times *= np.random.default_rng(0).lognormal(0, 0.01, times.size)
    arms = schedule.split(times.tolist())
    assert [arm.size for arm in arms] == [30, 30, 30]
    assert np.median(arms[2]) == pytest.approx(20.25, rel=0.005)
    assert np.median(arms[0]) == pytest.approx(20.0, rel=0.005)


def test_neighbours_stay_neighbours():
    schedule = Schedule.make([1, 2, 3], frame_cycles=100, periods=4, seed=1)
    times = np.array([*np.where(schedule.frame, 2.0, 1.0), *np.arange(100.0, 112.0)])
    table = np.array(schedule.split(times.tolist()))
    assert (np.ptp(table, axis=0) <= 2).all()  # a period is three rounds in a row
    assert sorted(table.ravel()) == list(range(100, 112))
    for period in range(4):
        order = schedule.order[3 * period : 3 * period + 3]
        assert [int(table[arm, period]) - 100 - 3 * period for arm in order] == [0, 1, 2]


def test_every_period_has_every_arm_and_orders_differ():
    order = Schedule.make([1] * 5, frame_cycles=9, periods=50, seed=2).order
    periods = [order[i : i + 5] for i in range(0, 250, 5)]
    assert all(sorted(period) == [0, 1, 2, 3, 4] for period in periods)
    assert len(set(periods)) > 30


@pytest.mark.parametrize("times", [np.full(300, 20.0), np.random.default_rng(0).lognormal(3, 0.1, 300)])
def test_doses_that_do_not_show_are_noticed(times):
    schedule = Schedule.make([1, 1], frame_cycles=1000, periods=60, seed=0)
    with pytest.raises(DoseError, match="were not found"):
        schedule.split(times.tolist())


@pytest.mark.parametrize(
    ("files", "main"),
    [
        ({"k.py": "from helper import VALUE\ncompile_kernel = lambda sizes: 7\ncustom_kernel = lambda data: VALUE\n",
          "helper.py": "VALUE = 5\n"}, "k.py"),
        ({"odd-name.py": "compile_kernel = lambda sizes: 7\ncustom_kernel = lambda data: 5\n"}, "odd-name.py"),
        ({"package_of_test/__init__.py": "", "package_of_test/helper.py": "VALUE = 5\n",
          "package_of_test/k.py": "from .helper import VALUE\ncompile_kernel = lambda sizes: 7\n"
                                  "custom_kernel = lambda data: VALUE\n"}, "package_of_test/k.py"),
    ],
)  # fmt: skip
def test_the_wrapper_calls_the_kernel_and_spins(tmp_path, monkeypatch, files, main):
    spins = []
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(_sleep=spins.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    sizes = ((96, 128, 256, 1),)
    schedule = Schedule.make([1, 50], frame_cycles=900, periods=3, seed=0)
    wrapped = dosed(kernel_spec(files, main), {sizes: schedule})
    assert wrapped.arch == "sm_90a"
    assert {file.path for file in wrapped.files} == {*files, wrapped.main}
    write(wrapped, tmp_path)
    try:
        module = load(tmp_path / wrapped.main)
        data = (None, None, None, [(96, 128, 256, 1)])
        assert [module.custom_kernel(data) for _ in range(FRAME + 6)] == [5] * (FRAME + 6)
        assert module.compile_kernel([]) == 7
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
    assert spins == schedule.spins()
    assert set(spins[:FRAME]) == {1, 900}
    assert sorted(spins[FRAME:]) == [1, 1, 1, 50, 50, 50]


def test_a_kernel_without_compile_kernel_gets_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    wrapped = dosed(kernel_spec(), {})
    write(wrapped, tmp_path)
    before = set(sys.modules)
    try:
        assert not hasattr(load(tmp_path / wrapped.main), "compile_kernel")
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


# The experiment


def test_the_spin_is_calibrated_and_the_effects_arrive(tmp_path):
    run, said = experiment(tmp_path, MadeUp(sigma=0.001))
    data = run.run()
    assert data.calibrations["small"].us_per_cycle == pytest.approx(US_PER_CYCLE, rel=0.01)
    assert data.calibrations["small"].base_us == pytest.approx(20.0, rel=0.01)
    assert len(data.sessions) == 6
    for session in data.sessions:
        base, equal, *doses = (np.median(arm) for arm in session.arms["small"])
        assert equal == pytest.approx(base, rel=0.001)
        assert [dose / base - 1 for dose in doses] == pytest.approx([0.01, 0.03, 0.05], abs=0.001)
    assert said[-1] == "session 6 of 6: 1.0 s"


def test_sessions_have_orders_of_their_own(tmp_path):
    device = MadeUp()
    experiment(tmp_path, device, sessions=3)[0].run()
    calibrate, refine, *rest = device.jobs
    assert len({job.order_seed for job in rest}) == 3
    assert len({job.kernel.sha256 for job in (calibrate, refine, *rest)}) == 5
    assert [job.id for job in device.jobs] == ["calibrate", "refine", "session-0", "session-1", "session-2"]


def test_a_job_that_does_not_pass_ends_it(tmp_path):
    run, _ = experiment(tmp_path, MadeUp(status="crashed"))
    with pytest.raises(ExperimentError, match="calibrate ended as crashed: it fell over"):
        run.run()


def test_spins_that_take_no_time_end_it(tmp_path):
    run, _ = experiment(tmp_path, MadeUp(dose=0.0))
    with pytest.raises(ExperimentError, match=r"calibrate, small: .*do not show in the device times"):
        run.run()


def test_the_budget_stops_new_sessions(tmp_path):
    times = iter(range(0, 10_000, 30))
    said = []
    run = Experiment(MadeUp(), plan(budget_s=200), folder=tmp_path, report=said.append, now=lambda: float(next(times)))
    data = run.run()
    assert 1 <= len(data.sessions) < 6
    assert data.stopped is not None
    assert "the budget of 200 s is spent" in data.stopped


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"problems": ()}, "no problems"),
        ({"problems": (PROBLEMS[0], parse_shape("96x128x256", name="twin"))}, "the same sizes"),
        ({"effects": (0.0,)}, "an effect is a share"),
    ],
)
def test_plans_that_make_no_sense(wrong, words):
    with pytest.raises(ValueError, match=words):
        plan(**wrong)


def test_windows_are_disjoint():
    arms = [np.arange(25.0), np.arange(100.0, 125.0)]
    cut = windows(arms, 10)
    assert [[part.tolist() for part in one] for one in cut] == [
        [list(range(10)), list(range(100, 110))],
        [list(range(10, 20)), list(range(110, 120))],
    ]


# Rates


@pytest.mark.slow
def test_equal_kernels_raise_no_alarm_and_slowdowns_are_seen(tmp_path):
    report = judged(tmp_path, problems=PROBLEMS, sessions=6)
    assert not report.failed
    assert report.false_alarms.events == 0
    assert report.false_alarms.trials == 6 * 4
    small, large = report.problems
    assert (small.problem, large.problem) == ("small", "large")
    assert large.base_us == pytest.approx(60, rel=0.02)
    for one in report.problems:
        assert [dose.measured for dose in one.doses] == pytest.approx([0.01, 0.03, 0.05], abs=0.002)
        assert one.doses[1].slower.events == one.doses[1].slower.trials == 24
        assert one.doses[1].same.events == 0
        assert one.noise_deviation == pytest.approx(0.001, rel=0.8)
        assert one.separate_false_alarms is not None
        assert one.separate_false_alarms.independent == 3
        assert one.separate_false_alarms.trials == 15 * 4
        assert len(one.session_medians_us) == 6
    assert "shown: small: 5.0 % slower detected in 95 %" not in report.text()  # 24 trials show no more than 86 %
    assert "not contradicted: false alarms at most 1 %" in report.text()


def test_a_device_on_which_equal_arms_differ_fails(tmp_path):
    report = judged(tmp_path, MadeUp(bias=0.03), sessions=5)
    assert report.failed
    assert report.judgements()["false alarms at most 1 %"] == "failed"
    assert report.problems[0].false_alarms.events == 20


def test_noise_that_hides_slowdowns_fails(tmp_path):
    report = judged(tmp_path, MadeUp(sigma=0.15), sessions=5)
    assert report.failed
    assert [promise for promise, one in report.judgements().items() if one == "failed"]


def test_few_sessions_have_no_rates_across_sessions(tmp_path):
    report = judged(tmp_path, sessions=3)
    (one,) = report.problems
    assert one.separate_false_alarms is None
    assert one.doses[0].separate_slower is None
    assert one.noise_limit is not None
    assert judged(tmp_path, sessions=2).problems[0].noise_limit is None


def test_sessions_too_short_for_one_comparison(tmp_path):
    with pytest.raises(ValueError, match="no session has 500 rounds"):
        judged(tmp_path, rounds=500, sessions=3)


@pytest.mark.parametrize(
    ("events", "trials", "most", "least"),
    [(0, 400, "shown", "failed"), (0, 50, "not contradicted", "failed"), (20, 100, "failed", "failed"),
     (400, 400, "failed", "shown"), (40, 40, "failed", "not contradicted")],
)  # fmt: skip
def test_what_a_rate_shows(events, trials, most, least):
    from pytest_nvfp4.bench.distributions import binomial_interval

    low, high = binomial_interval(events, trials)
    rate = Rate(events=events, trials=trials, independent=trials, low=low, high=high)
    assert rate.at_most(0.01) == most
    assert rate.at_least(0.95) == least


def test_nothing_measured_shows_nothing():
    rate = Rate(events=0, trials=0, independent=0, low=0.0, high=1.0)
    assert (rate.at_most(0.01), rate.at_least(0.95), str(rate)) == (
        "not contradicted",
        "not contradicted",
        "not measured",
    )


def test_calibration():
    assert Calibration(20.0, US_PER_CYCLE).cycles(0.03) == 1200
    assert Calibration(0.1, 1.0).cycles(0.01) == 1
    seen = ((1.0, 0.0), (1000.0, 0.4), (2000.0, 0.8))
    assert Calibration(20.0, US_PER_CYCLE, seen).cycles(0.03) == 1500
    assert Calibration(20.0, US_PER_CYCLE, seen).cycles(0.05) == 2000, "what was not tried follows the slope"


# What is kept


def test_rounds_are_kept_and_judged_again(tmp_path):
    made = experiment(tmp_path, sessions=3)[0].run()
    stored.save(made, tmp_path / "r.json.gz", effects=(0.01, 0.03, 0.05))
    back, effects = stored.load(tmp_path / "r.json.gz")
    assert effects == (0.01, 0.03, 0.05)
    first, again = (analyse(one, rounds=50, effects=effects, policy=Policy()) for one in (made, back))
    assert again.model_dump(exclude={"problems"}) == first.model_dump(exclude={"problems"})
    assert again.problems[0].doses[1].slower == first.problems[0].doses[1].slower
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08"])
def test_rounds_that_cannot_be_read(tmp_path, content):
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(ValueError, match="does not hold the rounds"):
        stored.load(tmp_path / "r")


def test_the_command_judges_kept_rounds(tmp_path):
    made = experiment(tmp_path, sessions=5)[0].run()
    stored.save(made, tmp_path / "r.json.gz", effects=(0.01, 0.03, 0.05))
    out = tmp_path / "report.json"
    result = CliRunner().invoke(command.main, ["--from-rounds", str(tmp_path / "r.json.gz"), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "measured on NVIDIA H200" in result.stdout
    assert Report.model_validate_json(out.read_text()).text() == result.stdout


def test_the_command_says_failure_by_its_exit_code(tmp_path):
    made = experiment(tmp_path, MadeUp(bias=0.03), sessions=5)[0].run()
    stored.save(made, tmp_path / "r.json.gz", effects=(0.01, 0.03, 0.05))
    result = CliRunner().invoke(command.main, ["--from-rounds", str(tmp_path / "r.json.gz")])
    assert result.exit_code == 1
    assert "failed: false alarms at most 1 %" in result.stdout


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["missing.py"], 2)])
def test_the_command_needs_something_to_measure(arguments, code):
    assert CliRunner().invoke(command.main, arguments).exit_code == code


def test_the_command_without_a_device(tmp_path, monkeypatch):
    from pytest_nvfp4.device.base import DeviceUnavailableError

    def unavailable(_):
        raise DeviceUnavailableError("no local GPU can be used: none is there")

    monkeypatch.setattr(command.LocalDevice, "describe", unavailable)
    path = Path(tmp_path) / "k.py"
    path.write_text(SOURCE)
    result = CliRunner().invoke(command.main, [str(path)])
    assert result.exit_code == 2
    assert "error: no local GPU can be used" in result.stderr
