"""Device times in pytest-benchmark: saved, compared, exported, left alone where it is disabled; real runs of pytest."""

import json

import numpy  # noqa: F401 - a run unloads what it loaded, and numpy cannot be loaded twice
import pytest

from pytest_nvfp4.bench.provenance import Provenance
from tests.bench.helpers import METHOD

CONFTEST = """
    import pytest
    from pytest_nvfp4.bench.mark import mark_item
    from pytest_nvfp4.bench.replay import BenchmarkReplay
    from pytest_nvfp4.bench.storage import BenchmarkHooks

    HOOKS = BenchmarkHooks()

    def pytest_benchmark_generate_machine_info():
        return {"node": "here", "cpu": "quick"}  # the plugin's own takes seconds to look at the processor

    def pytest_configure(config):
        config.pluginmanager.register(HOOKS, "device-hooks")

    def pytest_itemcollected(item):
        if "replay" in item.fixturenames:
            mark_item(item)

    @pytest.fixture
    def replay(benchmark):
        return BenchmarkReplay(benchmark)
"""

MEASURED = f"""
    import os
    import pytest
    from pytest_nvfp4.bench.baseline import baseline_rounds
    from pytest_nvfp4.device.result import DeviceInfo, Measurement
    from pytest_nvfp4.problem import parse_shape

    PROBLEM = parse_shape("96x128x256", name="small")
    TIMES = (21.5, 20.25, 23.125, 20.0)

    def measure(factor=1.0, **more):
        given = dict(device_us=tuple(factor * t for t in TIMES), host_us=(60.0,), call_us=20.0, late_rounds=1,
                     method={METHOD!r}, l2="cold", sets=3, clocks_mhz=(345, 1980, 1965))
        return Measurement(case=0, **(given | more))

    def device(name="NVIDIA H200"):
        return DeviceInfo(name=name, capability=(9, 0), driver="580.1", dsl="4.8.1")

    def test_it(replay, request):
        found = baseline_rounds(request.config, request.node.nodeid)
        print("baseline", None if found is None else [round(t, 6) for t in found.rounds_us])
        print("enabled", replay.enabled)
        import conftest
        conftest.HOOKS.note(device())
        replay.replay(measure(), device=device(), problem=PROBLEM, kernel_sha256="abc")
"""


@pytest.fixture
def project(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_sample=MEASURED)
    return pytester


def run(project, *options, subprocess=False):
    # Plugins without a part in this, which take a second to load.
    without = [
        word for name in ("nvfp4", "hypothesispytest", "syrupy", "cacheprovider") for word in ("-p", f"no:{name}")
    ]
    arguments = (*without, "--assert=plain", "-rA", "-W", "error", *options)
    return project.runpytest_subprocess(*arguments) if subprocess else project.runpytest_inprocess(*arguments)


def stored(project, pattern="*/0001_*.json", root=".benchmarks"):
    (path,) = (project.path / root).glob(pattern)
    return json.loads(path.read_text())


TIMES_S = [21.5e-6, 20.25e-6, 23.125e-6, 20.0e-6]


def test_json_holds_exactly_the_device_times(project):
    result = run(project, "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    data = json.loads((project.path / "out.json").read_text())
    (bench,) = data["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx(TIMES_S, rel=1e-15)
    assert bench["stats"]["median"] == pytest.approx(20.875e-6)
    assert bench["stats"]["rounds"] == 4
    assert bench["options"]["timer"] == "nvfp4_device_time"
    kept = Provenance.read(bench["extra_info"]["nvfp4"])
    assert (kept.method, kept.l2, kept.sets, kept.late_rounds, kept.clock_mhz) == (METHOD, "cold", 3, 1, 1972.5)
    assert (kept.device.name, kept.kernel_sha256, kept.host_us, kept.call_us) == ("NVIDIA H200", "abc", 60.0, 20.0)
    assert kept.problem.problem().name == "small"
    assert kept.roofline_percent is not None
    (device,) = data["machine_info"]["nvfp4"]["devices"]
    assert device["name"] == "NVIDIA H200"
    assert "cpu" in data["machine_info"]


def test_the_table_of_pytest_benchmark_shows_them(project):
    result = run(project, "--benchmark-columns=median,rounds")
    result.stdout.fnmatch_lines(["*Median*Rounds*", "*test_it*20.8750*4*"])


@pytest.mark.parametrize("option", ["--benchmark-autosave", "--benchmark-save=mine"])
def test_saving_keeps_the_rounds_without_being_asked(project, option):
    run(project, option).assert_outcomes(passed=1)
    (bench,) = stored(project)["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx(TIMES_S)


def test_comparing_finds_the_rounds_of_the_latest_run(project):
    run(project, "--benchmark-autosave").assert_outcomes(passed=1)
    project.makepyfile(test_sample=MEASURED.replace("(21.5, ", "(99.0, "))
    run(project, "--benchmark-autosave").assert_outcomes(passed=1)
    result = run(project, "--benchmark-compare")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["baseline [[]99.0, 20.25, 23.125, 20.0[]]", "*test_it*(0002_*", "*test_it*(NOW)*"])
    first = run(project, "--benchmark-compare=0001")
    first.stdout.fnmatch_lines(["baseline [[]21.5, 20.25, 23.125, 20.0[]]"])


def test_comparing_does_not_warn_about_devices_that_nobody_has_used_yet(project):
    run(project, "--benchmark-autosave").assert_outcomes(passed=1)
    result = run(project, "--benchmark-compare")
    assert "machine_info is different" not in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
def test_comparing_still_warns_about_another_machine(project):
    run(project, "--benchmark-autosave").assert_outcomes(passed=1)
    (path,) = (project.path / ".benchmarks").glob("*/0001_*.json")
    data = json.loads(path.read_text())
    data["machine_info"]["cpu"] = "another"
    path.write_text(json.dumps(data))
    result = run(project, "--benchmark-compare", "-W", "default", subprocess=True)
    assert "machine_info is different" in result.stdout.str() + result.stderr.str()
    result.stdout.fnmatch_lines(["baseline [[]21.5, *"])


def test_without_a_comparison_there_is_no_baseline(project):
    run(project, "--benchmark-autosave")
    run(project).stdout.fnmatch_lines(["baseline None", "enabled True"])


def test_a_test_that_the_baseline_does_not_have(project):
    run(project, "--benchmark-autosave")
    project.makepyfile(test_sample=MEASURED.replace("test_it", "test_new"))
    run(project, "--benchmark-compare").stdout.fnmatch_lines(["baseline None"])


def test_compare_fail_of_pytest_benchmark_works_on_device_times(project):
    run(project, "--benchmark-autosave")
    project.makepyfile(test_sample=MEASURED.replace("replay(measure()", "replay(measure(factor=2.0)"))
    result = run(project, "--benchmark-compare", "--benchmark-compare-fail=median:5%")
    assert "Performance has regressed" in result.stdout.str() + result.stderr.str()


def test_histogram_gets_the_times(project):
    pytest.importorskip("pygal", reason="pytest-benchmark draws histograms with pygal")
    run(project, "--benchmark-histogram=hist").assert_outcomes(passed=1)
    assert list(project.path.glob("hist*.svg"))


def test_disabled_benchmarks_replay_nothing_and_do_not_warn(project):
    result = run(project, "--benchmark-disable", "--benchmark-json=out.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["enabled False"])
    assert not (project.path / "out.json").exists()


def test_skipped_benchmarks_are_skipped(project):
    run(project, "--benchmark-skip").assert_outcomes(skipped=1)


def test_only_benchmarks_includes_them(project):
    project.makepyfile(test_other="def test_other(): pass")
    run(project, "--benchmark-only").assert_outcomes(passed=1, skipped=1)


@pytest.mark.slow
def test_under_xdist_they_are_disabled(project):
    pytest.importorskip("xdist")
    result = run(project, "-n1", "--benchmark-autosave", "-W", "default", subprocess=True)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["enabled False"])
    assert not list(project.path.glob(".benchmarks/*/*.json"))


def test_profiling_asks_for_one_round_more(project):
    run(project, "--benchmark-cprofile=cumtime", "--benchmark-json=out.json").assert_outcomes(passed=1)
    (bench,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert bench["stats"]["rounds"] == 4


def test_a_test_that_was_not_marked(pytester):
    pytester.makepyfile("""
        from pytest_nvfp4.bench.replay import BenchmarkReplay

        def test_it(benchmark):
            benchmark(lambda: None)
            BenchmarkReplay(benchmark)
    """)
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ReplayError: the benchmark fixture of this test reads a host clock*"])


def test_other_settings_of_a_marker_are_kept(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        test_sample=MEASURED.replace(
            "def test_it", '@pytest.mark.benchmark(group="mine", timer=print)\n    def test_it'
        )
    )
    run(pytester, "--benchmark-json=out.json").assert_outcomes(passed=1)
    (bench,) = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert (bench["group"], bench["options"]["timer"]) == ("mine", "nvfp4_device_time")


def test_replay_by_hand_with_the_marker(pytester):
    pytester.makeconftest(CONFTEST)
    body = MEASURED.replace("def test_it(replay,", "@replay_mark()\n    def test_it(benchmark,")
    imports = "from pytest_nvfp4.bench.mark import replay_mark; from pytest_nvfp4.bench.replay import BenchmarkReplay"
    body = body.replace("import os", imports)
    body = body.replace('print("enabled", replay.enabled)', "replay = BenchmarkReplay(benchmark)")
    pytester.makepyfile(test_sample=body)
    run(pytester).assert_outcomes(passed=1)


def test_a_measurement_without_times_is_refused(project):
    project.makepyfile(test_sample=MEASURED.replace("measure(), device", "measure(device_us=(1.0, 0.0)), device"))
    result = run(project, "-W", "default")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RoundsError: small: round 1 is 0.0 us; times must be positive and finite*"])


def test_a_benchmark_of_the_host_is_no_baseline(project):
    project.makepyfile(test_sample="def test_it(benchmark): benchmark(lambda: None)")
    run(project, "--benchmark-autosave", "--benchmark-max-time=0.01").assert_outcomes(passed=1)
    project.makepyfile(test_sample=MEASURED)
    result = run(project, "--benchmark-compare", "-W", "default")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*BaselineError: *: the baseline of test_sample.py::test_it is not a device time*"])


def test_a_host_benchmark_beside_it_is_stored_as_usual(project):
    project.makepyfile(test_other="def test_other(benchmark): benchmark(lambda: None)")
    run(project, "--benchmark-autosave", "--benchmark-max-time=0.01").assert_outcomes(passed=2)
    by_name = {one["name"]: one for one in stored(project)["benchmarks"]}
    assert "data" not in by_name["test_other"]["stats"]
    assert "data" in by_name["test_it"]["stats"]


def test_from_storage_to_verdict(project):
    """A whole gate: save a baseline, run 10 % slower, and get ``slower`` from the stored rounds."""
    gate = """
        import conftest
        import numpy as np
        import os
        from pytest_nvfp4.bench.baseline import against, baseline_rounds
        from pytest_nvfp4.bench.regression import compare
        from pytest_nvfp4.device.result import DeviceInfo, Measurement
        from pytest_nvfp4.problem import parse_shape

        def test_it(replay, request):
            factor = float(os.environ["FACTOR"])
            times = tuple(20 * factor * np.random.default_rng(int(100 * factor)).lognormal(0, 0.005, 50))
            measured = Measurement(case=0, device_us=times, host_us=(60.0,), call_us=20.0, late_rounds=0,
                                   method="m", l2="cold", sets=3, clocks_mhz=(1980, 1980))
            device = DeviceInfo(name="NVIDIA H200", capability=(9, 0))
            kept = replay.replay(measured, device=device, problem=parse_shape("96x128x256", name="small"))
            baseline = baseline_rounds(request.config, request.node.nodeid)
            if baseline is not None:
                pair = against(baseline, rounds_us=times, provenance=kept, name="small", noise=0.002)
                verdict = compare([pair.rounds])
                assert verdict.state != "slower", str(verdict.shapes[0])
    """
    project.makepyfile(test_sample=gate)
    patch = pytest.MonkeyPatch()
    with patch.context() as environ:
        environ.setenv("FACTOR", "1.0")
        run(project, "--benchmark-autosave").assert_outcomes(passed=1)
        run(project, "--benchmark-compare").assert_outcomes(passed=1)
        environ.setenv("FACTOR", "1.1")
        result = run(project, "--benchmark-compare")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*AssertionError: slower +9.* %*"])
