import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.driver.device_model import B200
from tests.host.extension import sources

pytestmark = [pytest.mark.slow, sources.needs_nvcc]  # nvcc takes seconds; one process makes all calls


@pytest.fixture(scope="module")
def made(scale_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environ = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "CUTE_DSL_DUMP_DIR": str(tmp_path_factory.mktemp("dump"))}
    command = [sys.executable, "-m", "tests.host.extension.runtime_worker", str(scale_library)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_a_kernel_is_launched_with_its_arguments(made: dict[str, Any]) -> None:
    assert made["scaled"] == [0, None]
    assert made["data"] == [2.0 * i for i in range(40)]


def test_a_fault_is_an_error_and_names_the_line(made: dict[str, Any]) -> None:
    status, error = made["outside"]
    assert status != 0
    assert "outside every tensor" in error
    assert "device allocation" in error


def test_clusters_attributes_and_dynamic_shared_memory(made: dict[str, Any]) -> None:
    assert made["reverse"] == [0, None]
    assert made["target"] == [127.0 - i for i in range(128)]


def test_the_size_of_a_cluster_is_an_attribute_of_the_launch(made: dict[str, Any]) -> None:
    assert made["clustered"] == [[0, None], [40, 41, 42, 43, 40, 41, 42, 43]]
    assert made["uneven"][0] != 0
    assert "cluster" in made["uneven"][1]


def test_a_tensor_map_that_host_code_encodes(made: dict[str, Any]) -> None:
    outcome, part = made["tiled"]
    assert outcome == [0, None]
    assert part == [32.0 * row + column for row in range(4, 8) for column in range(8, 16)]
    assert made["unaligned"][0] != 0


def test_memory_streams_and_events(made: dict[str, Any]) -> None:
    assert made["totals"] == [0, None]
    assert made["sums"] == [sum(range(32)), sum(range(32, 64))]


def test_the_device_is_described(made: dict[str, Any]) -> None:
    outcome, (sms, major, smem, blocks, registers, encode) = made["facts"]
    assert outcome == [0, None]
    assert (sms, major, smem) == (B200.sm_count, 10, B200.smem_per_block_optin)
    assert (blocks, registers, encode) == (2, 1, 1)


def test_variables_are_reached_by_their_symbols(made: dict[str, Any]) -> None:
    outcome, looked = made["symbols"]
    assert outcome == [0, None]
    assert looked == [1, 2, 3, 4, 1, 20, 30, 4]
    assert made["known"] == [16, 20, 20]
    (no_symbol, unknown), (too_long, beyond) = made["misplaced"]
    assert no_symbol != 0
    assert "is no __device__ or __constant__ variable" in unknown
    assert too_long != 0
    assert "cudaMemcpyToSymbol: bytes [0, 20) of the variable factors, which has 16" in beyond


def test_what_has_no_stand_in_is_named(made: dict[str, Any]) -> None:
    (_, function), (_, memory), (_, device) = made["wanting"]
    assert "cuMulticastCreate" in function
    assert "300000 bytes of dynamic shared memory" in memory
    assert "device 3" in device
