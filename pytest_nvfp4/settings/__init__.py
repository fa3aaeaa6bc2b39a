"""The user's settings for their kernels: ``[tool.pytest_nvfp4]`` in pyproject.toml.

::

    [tool.pytest_nvfp4]
    arch = "sm_100a"                                  # default for every kernel
    problems.small = { m = [40, 96], n = 128, k = 256 }

    [[tool.pytest_nvfp4.kernel]]
    path = "kernels/*/sm100.py"                       # glob, relative to the pyproject.toml
    problems = ["small", "gpumode-0"]                 # compiled for these
    verify-problems = ["gpumode", "small"]            # run on these (default: GPU MODE's ten tests)
    simulate-problems = ["small"]                     # coverage and cost are counted on these (default: `problems`)
    benchmark-problems = ["gpumode-bench-2"]          # timed on these (default: GPU MODE's four benchmarks)
    protected = ["*.sA", "*.tCtAcc"]
    cost-tolerance = { "instructions*" = "10%", "tma.load.requests" = "any" }    # growth that passes the cost check
    model-problems = ["gpumode-0"]                    # its time is modelled on these (default: none)
    model-tolerance = "10%"                           # growth of the modelled time that passes the model check

    [[tool.pytest_nvfp4.kernel]]
    path = "examples/dense_gemm.py"
    name = "2cta"                                     # several configurations of one file
    entry = "examples/build.py::two_cta"
    contract = "examples/contract.py::DenseGemm"      # its problems, inputs and reference, or a name
    call = "examples/build.py::call_two_cta"          # the function that the contract calls
    compile-options = ["--opt-level 2"]
    side-stream = false                               # its callers use the default stream alone
    torch-operators = true                            # a reference: operators of torch may compute its outputs
    readable = ["data/tables"]                        # what it reads beside its own files, relative to this file
    network = true                                    # its host code uses the network, to build an extension

    [[tool.pytest_nvfp4.accepted]]                    # a finding that fails nothing; `nvfp4 accept` writes it
    check = "races"
    kernel = "kernels/nvfp4_group_gemm/sm100.py"
    kind = "race"
    text = "cute.copy(tma_atom_b, source, target)"    # the line that it names first
    others = ["cute.gemm(mma, acc, a, b, acc)"]       # other lines that it names
    reason = "both write the same value"
    date = 2026-09-01
    expires = 2026-12-01
"""

from __future__ import annotations

from pytest_nvfp4.settings.accepted import ACCEPTABLE, AcceptedFinding
from pytest_nvfp4.settings.error import SettingsError
from pytest_nvfp4.settings.files import find_root, load
from pytest_nvfp4.settings.globs import glob_pattern, matches_any
from pytest_nvfp4.settings.kernel import DEFAULT_ARCH, JobSettings, KernelSettings
from pytest_nvfp4.settings.project import Settings

__all__ = [
    "ACCEPTABLE",
    "DEFAULT_ARCH",
    "AcceptedFinding",
    "JobSettings",
    "KernelSettings",
    "Settings",
    "SettingsError",
    "find_root",
    "glob_pattern",
    "load",
    "matches_any",
]
