"""The simulator needs no CUDA build of torch: a kernel is verified with the libraries of CUDA hidden."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.helpers import ROOT, run_process
from tests.host import cpu_torch

SHIPPED = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
LOOK = """
import torch
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "/nvidia/" in line]
print(torch.version.cuda, torch.cuda.is_available(), hasattr(torch._C, "_cuda_getDeviceCount"), loaded)
"""


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("gcc", "nm", "readelf"))), reason="needs gcc and binutils")
@pytest.mark.skipif(not any(cpu_torch.SITE.glob("nvidia/**/libcudart*")), reason="torch has no libraries of CUDA here")
def test_a_kernel_is_verified_without_the_libraries_of_cuda(tmp_path):
    copy = tmp_path / "copy"
    cpu_torch.write(copy)
    path = os.pathsep.join((str(copy), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    seen = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["None", "False", "False", "[]"], "the control: torch itself finds no CUDA"
    hidden = {"PYTHONPATH": path, "NVFP4_SANDBOX": "off", "NVFP4_CACHE_DIR": str(tmp_path / "cache")}
    shown = run_process("run", str(SHIPPED), "--problem", "40x128x256", "--device", "sim", **hidden)
    assert shown.code == 0, shown.out + shown.err
    assert "passed, simulated on a model of NVIDIA B200" in shown.out
