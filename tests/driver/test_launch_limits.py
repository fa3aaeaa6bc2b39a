"""A CUBIN that cannot come from the PTX beside it, and launches that a driver refuses."""

from __future__ import annotations

import contextlib

import pytest

from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.cubin import CubinKernel
from pytest_nvfp4.driver.device_model import H200
from pytest_nvfp4.driver.launch_limits import check_code, check_launch, threads_by_registers
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError, ModuleImage

PTX = """
.visible .entry other(.param .u64 p) { ret; }
.visible .entry k(
	.param .align 64 .b8 k_param_0[128]
)
.reqntid 192{SIZES}
{
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
	ret;
}
"""


@pytest.mark.parametrize(
    ("sizes", "threads", "groups", "problem"),
    [
        (", 1, 1", (192, 1, 1), {"cta_group::1"}, None),
        ("", (192, 1, 1), set(), None),
        (", 2", (192, 2, 1), {"cta_group::1"}, None),
        (", 2", (192, 1, 1), {"cta_group::1"}, "requires CTAs of .192, 1, 1. threads, and its PTX of .192, 2, 1."),
        (", 1, 1", None, {"cta_group::1"}, "requires CTAs of None"),
        (", 1, 1", (192, 1, 1), {"cta_group::1", "cta_group::2"}, "tcgen05 with cta_group::2, and its PTX has none"),
    ],
)
def test_code_that_ptxas_does_not_make_is_refused(
    sizes: str, threads: tuple[int, int, int] | None, groups: set[str], problem: str | None
) -> None:
    kernels = {
        "k": CubinKernel("k", (), 0, threads=threads, cta_groups=frozenset(groups)),
        "other": CubinKernel("other", (), 0),
    }
    with contextlib.nullcontext() if problem is None else pytest.raises(HostSideError, match=problem):
        check_code(kernels, ptx_module.parse(PTX.replace("{SIZES}", sizes)))


@pytest.mark.parametrize(
    ("bounds", "block", "problem"),
    [
        (".maxntid 64, 1, 1", (64, 1, 1), None),
        (".maxntid 8, 8, 1", (64, 1, 1), None),
        (".maxntid 64, 1, 1", (65, 1, 1), r"cudaErrorInvalidValue: k is .* at most 64 threads .* \(65, 1, 1\)"),
        (".maxntid 64, 1, 1", (32, 4, 1), r"cudaErrorInvalidValue: k is .* at most 64 threads .*: 128 threads"),
        (".reqntid 64, 1, 1", (64, 1, 1), None),
        (".reqntid 64, 1, 1", (32, 1, 1), r"cudaErrorInvalidValue: k is .* \(64, 1, 1\) threads alone"),
        (".reqntid 64, 1, 1", (8, 8, 1), r"cudaErrorInvalidValue: k is .* \(64, 1, 1\) threads alone"),
    ],
)
def test_a_block_must_keep_the_bounds_that_its_kernel_is_compiled_for(
    bounds: str, block: tuple[int, int, int], problem: str | None
) -> None:
    """The errors that an H200 gives."""
    kernel = ptx_module.parse(f".visible .entry k(.param .u64 p) {bounds} {{ ret; }}").kernels["k"]
    with contextlib.nullcontext() if problem is None else pytest.raises(LaunchRejectedError, match=problem):
        check(kernel, block)


def test_dynamic_shared_memory_that_was_not_reserved_names_the_call_that_does() -> None:
    with pytest.raises(LaunchRejectedError, match=r"cudaFuncAttributeMaxDynamicSharedMemorySize, 50000\) before"):
        check(CubinKernel("k", (), 0), (32, 1, 1), dynamic_smem=50000)


def check(kernel: CubinKernel, block: tuple[int, int, int], *, dynamic_smem: int = 0) -> None:
    launch = Launch(
        kernel="k", grid=(1, 1, 1), block=block, cluster=(1, 1, 1), dynamic_smem=dynamic_smem, stream=0, params=(),
        attributes={}, module=ModuleImage(cubin=b"", ptx=None, param_sizes={}, registers={}), ordinal=0,
    )  # fmt: skip
    check_launch(launch, kernel, H200, reserved=0, portable=True)


@pytest.mark.parametrize(
    ("registers", "most"),
    [(None, 1024), (40, 1024), (56, 1024), (72, 896), (80, 768), (128, 512), (168, 384), (254, 256)],
)
def test_the_registers_of_a_block_must_fit_an_sm(registers: int | None, most: int) -> None:
    """What ``cuFuncGetAttribute`` gives on an H200, and where its launches fail."""
    kernel = CubinKernel("k", (), 0, registers=registers)
    assert threads_by_registers(kernel, H200) == most
    check(kernel, (most, 1, 1))
    if most < 1024:
        with pytest.raises(LaunchRejectedError, match=f"too many resources .* has {registers} registers .* {most} thr"):
            check(kernel, (most + 32, 1, 1))
