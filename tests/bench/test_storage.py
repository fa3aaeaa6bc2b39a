"""One storage for each kind of GPU, and hooks that never start one."""

import subprocess
import sys
from types import SimpleNamespace

import numpy  # noqa: F401 - a run unloads what it loaded, and numpy cannot be loaded twice
import pytest

from pytest_nvfp4.bench.storage import (
    BenchmarkHooks,
    gpu_slug,
    gpu_storage,
    use_gpu_storage,
)
from tests.bench.helpers import B200, H200

# Plugins without a part in this, which take a second to load.
WITHOUT = [
    word for name in ("nvfp4", "hypothesispytest", "syrupy", "cacheprovider") for word in ("-p", f"no:{name}")
] + ["--assert=plain"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
        ("../../etc", "etc"),
        ("", "unnamed"),
    ],
)
def test_slugs_are_plain_names(name, slug):
    assert gpu_slug(name) == slug


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file://./.benchmarks", "file://./.benchmarks/nvidia-h200"),
        (".benchmarks", "file://.benchmarks/nvidia-h200"),
        ("file:///abs/path/", "file:///abs/path/nvidia-h200"),
        ("elasticsearch+https://host/index", "elasticsearch+https://host/index"),
    ],
)
def test_each_kind_of_gpu_has_its_own_folder(uri, expected):
    assert gpu_storage(uri, "NVIDIA H200") == expected
    assert gpu_storage(expected, "NVIDIA H200") == expected


def test_the_option_is_set_before_the_storage_opens(pytester):
    pytester.makeconftest("""
        from pytest_nvfp4.bench.storage import use_gpu_storage

        def pytest_benchmark_generate_machine_info():
            return {}  # the plugin's own takes seconds to look at the processor

        def pytest_configure(config):
            use_gpu_storage(config, "NVIDIA H200")
    """)
    pytester.makepyfile("def test_it(benchmark): benchmark(lambda: None)")
    result = pytester.runpytest_inprocess(*WITHOUT, "--benchmark-autosave", "--benchmark-max-time=0.01")
    result.assert_outcomes(passed=1)
    assert len(list(pytester.path.glob(".benchmarks/nvidia-h200/*/0001_*.json"))) == 1


def test_without_pytest_benchmark_nothing_happens():
    config = SimpleNamespace(option=SimpleNamespace())
    use_gpu_storage(config, "NVIDIA H200")
    assert not hasattr(config.option, "benchmark_storage")


def test_hooks_are_no_trouble_without_pytest_benchmark(pytester):
    pytester.makeconftest("""
        from pytest_nvfp4.bench.storage import BenchmarkHooks

        def pytest_configure(config):
            config.pluginmanager.register(BenchmarkHooks(), "device-hooks")
    """)
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*WITHOUT, "-p", "no:benchmark")
    result.assert_outcomes(passed=1)


def test_marking_and_storing_load_nothing_heavy():
    code = "import pytest_nvfp4.bench.mark, pytest_nvfp4.bench.storage, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pytest_nvfp4.bench.storage" in loaded
    assert not {"numpy", "pydantic", "rich", "torch", "cutlass", "pytest_benchmark"} & set(loaded)


def test_each_device_is_described_once_and_in_order():
    hooks, info = BenchmarkHooks(), {"node": "x"}
    hooks.pytest_benchmark_update_machine_info(machine_info=info)
    assert info == {"node": "x"}
    for device in (H200, B200, H200):
        hooks.note(device)
    hooks.pytest_benchmark_update_machine_info(machine_info=info)
    assert [device["name"] for device in info["nvfp4"]["devices"]] == ["NVIDIA B200", "NVIDIA H200"]
