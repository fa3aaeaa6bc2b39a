"""The product of 8-bit integers that the simulator gets from torch: exact, and only where it is safe."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from pytest_nvfp4.isolation.blas import variables

_PROGRAM = """
import sys
import numpy as np
from pytest_nvfp4.device.worker.int8_product import int8_product
assert int8_product() is None, "torch is not imported for it"
assert "torch" not in sys.modules
import torch
product = int8_product()
torch.cpu._is_vnni_supported = lambda: False
assert int8_product() is None, "without VNNI it is slow"
torch.cpu._is_vnni_supported = lambda: True
torch.set_num_threads(2)
assert int8_product() is None, "threads do not survive a fork"
if product is None:
    sys.exit(77)
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 16), (3, 8, 64), (128, 24, 7168), (127, 256, 16384)):
    for low, high in ((-128, 128), (-128, -127), (127, 128)):
        a, b = (rng.integers(low, high, (rows, k), dtype=np.int8) for rows in (m, n))
        found = product(a[:m], b)
        assert found.dtype == np.int32
        assert (found == a.astype(np.int64) @ b.astype(np.int64).T).all(), (m, n, k, low)
    assert (product(a, -b) == -product(a, b)).all()


class Seen(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise AssertionError(function)


class Dispatched(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(function)


for mode in (Seen, Dispatched):
    with mode():
        assert (product(a, b) == found).all(), "modes of the kernel's torch do not see it"
        try:
            torch.ones(1) + 1
        except AssertionError:
            continue
        raise SystemExit(f"{mode} sees nothing")
"""


def test_it_is_exact_and_only_where_it_is_safe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=False, capture_output=True, text=True, env={**variables(), "PATH": ""}
    )
    if done.returncode == 77:
        pytest.skip("this CPU has no VNNI")
    assert done.returncode == 0, done.stderr


_SATURATING = """
import torch
from pytest_nvfp4.device.worker.int8_product import int8_product
torch.cpu._is_vnni_supported = lambda: True
large = torch.full((64, 1024), 127, dtype=torch.int8)
wrong = bool((torch._int_mm(large, large.t()) != 127 * 127 * 1024).any())
assert wrong == (int8_product() is None), wrong
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN has no other product there")
@pytest.mark.parametrize("isa", ["AVX512_CORE", "AVX2", "SSE41"])
def test_sums_that_saturate_are_seen(isa: str) -> None:
    """oneDNN adds pairs of products in 16 bits without VNNI, in versions of today."""
    environ = {**variables(), "PATH": "", "ONEDNN_MAX_CPU_ISA": isa}
    done = subprocess.run([sys.executable, "-c", _SATURATING], check=False, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
