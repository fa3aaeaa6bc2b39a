"""What ``cudaLaunchKernelEx`` refuses, and CUBINs that cannot come from their PTX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pytest_nvfp4.driver.cubin import CubinKernel
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError
from pytest_nvfp4.driver.ptx_module import PtxModule

_PORTABLE_CLUSTER_CTAS: Final = 8


def check_sizes(kernels: Mapping[str, CubinKernel], written: PtxModule) -> None:
    """Raise HostSideError if the parameters of a CUBIN's kernel have other sizes than in its PTX."""
    for name, kernel in kernels.items():
        sizes = [tuple(size for _, size in each.params) for each in (kernel, written.kernels[name])]
        if sizes[0] != sizes[1]:
            raise HostSideError(
                f"{name}: the parameters have {sizes[0]} bytes in the CUBIN, {sizes[1]} in the PTX of its compile"
            )


def check_code(kernels: Mapping[str, CubinKernel], written: PtxModule) -> None:
    """Raise HostSideError for a CUBIN that cannot come from its PTX.

    ptxas keeps ``.reqntid`` and adds no instructions of tcgen05. It may remove some that cannot be reached, so that PTX
    alone with them is no error.
    """
    for name, kernel in kernels.items():
        problem, required = "", written.kernels[name].threads
        if kernel.threads != required:
            problem = f"requires CTAs of {kernel.threads} threads, and its PTX of {required}"
        elif added := kernel.cta_groups - written.cta_groups:
            problem = f"has instructions of tcgen05 with {min(added)}, and its PTX has none"
        if problem:
            raise HostSideError(f"{name}: the CUBIN {problem}: load a module with the PTX of its own compile")


def check_launch(launch: Launch, kernel: CubinKernel, device: DeviceModel, *, reserved: int, portable: bool) -> None:
    """Refuse what ``cudaLaunchKernelEx`` refuses (CUDA runtime API, execution control; programming guide, clusters).

    Args:
        reserved: Largest dynamic shared memory for which the kernel was prepared, in bytes.
        portable: Whether only cluster sizes are allowed that all devices have.
    """
    problem, name = None, short_kernel(launch.kernel)
    limits = device.attributes()
    ctas = math.prod(launch.cluster)
    for axis, extent, threads in zip("XYZ", launch.grid, launch.block, strict=True):
        if not 1 <= extent <= limits[f"MAX_GRID_DIM_{axis}"]:
            problem = f"grid {launch.grid}: {axis} must be 1 to {limits[f'MAX_GRID_DIM_{axis}']}"
        if not 1 <= threads <= limits[f"MAX_BLOCK_DIM_{axis}"]:
            problem = f"block {launch.block}: {axis} must be 1 to {limits[f'MAX_BLOCK_DIM_{axis}']}"
    if problem is None and launch.threads > device.threads_per_block:
        problem = f"block {launch.block} has {launch.threads} threads, at most {device.threads_per_block}"
    if problem is not None:
        raise LaunchRejectedError(f"cudaErrorInvalidConfiguration: {name}: {problem}")
    _check_threads(launch, kernel, device)
    if not ctas or any(extent % size for extent, size in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchRejectedError(
            f"cudaErrorInvalidClusterSize: {name}: the grid {launch.grid} is not a multiple of the cluster "
            f"{launch.cluster}"
        )
    most = _PORTABLE_CLUSTER_CTAS if portable else device.max_cluster_ctas
    if ctas > most:
        raise LaunchRejectedError(f"cudaErrorInvalidClusterSize: {name}: a cluster of {ctas} CTAs, at most {most}")
    if launch.dynamic_smem > reserved:
        raise LaunchRejectedError(
            f"cudaErrorInvalidValue: {name}: {launch.dynamic_smem} bytes of dynamic shared memory, at most "
            f"{reserved} were reserved: more need cudaFuncSetAttribute(kernel, "
            f"cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.dynamic_smem}) before the launch"
        )
    if launch.cooperative:
        _check_cooperative(launch, kernel, device)


def threads_by_registers(kernel: CubinKernel, device: DeviceModel) -> int:
    """Return the threads of the largest CTA for which an SM has registers, as an H200's driver computes them.

    Each scheduler of an SM has its own registers, so that each gets the same number of warps.
    """
    if not kernel.registers:
        return device.threads_per_block
    unit = device.registers_per_allocation
    of_warp = -(-kernel.registers * device.warp_size // unit) * unit
    warps = device.registers_per_sm // device.schedulers_per_sm // of_warp * device.schedulers_per_sm
    return min(device.threads_per_block, warps * device.warp_size)


def _check_threads(launch: Launch, kernel: CubinKernel, device: DeviceModel) -> None:
    """Check a CTA against the bounds of its kernel. The errors are those of an H200's driver."""
    name = short_kernel(launch.kernel)
    if kernel.threads not in (None, launch.block):
        raise LaunchRejectedError(
            f"cudaErrorInvalidValue: {name} is compiled for blocks of {kernel.threads} threads alone "
            f"(.reqntid), and the launch has {launch.block}"
        )
    if kernel.most_threads is not None and launch.threads > kernel.most_threads:
        raise LaunchRejectedError(
            f"cudaErrorInvalidValue: {name} is compiled for blocks of at most {kernel.most_threads} threads "
            f"(__launch_bounds__, .maxntid), and the launch has {launch.block}: {launch.threads} threads"
        )
    most = threads_by_registers(kernel, device)
    if launch.threads > most:
        raise LaunchRejectedError(
            f"cudaErrorLaunchOutOfResources: too many resources requested for launch: {name} has "
            f"{kernel.registers} registers a thread, so that a block has at most {most} threads, and the launch has "
            f"{launch.threads}: bound them by __launch_bounds__({launch.threads}), or launch fewer threads"
        )


def _check_cooperative(launch: Launch, kernel: CubinKernel, device: DeviceModel) -> None:
    """Check that all CTAs of a cooperative launch can be resident at once. The limit by registers is not checked."""
    shared = launch.dynamic_smem + kernel.static_smem + device.smem_reserved_per_block
    by_threads = device.threads_per_sm // max(device.warp_size, launch.threads)
    fit = device.sm_count * min(device.blocks_per_sm, by_threads, device.smem_per_sm // shared)
    if launch.ctas > fit:
        name = short_kernel(launch.kernel)
        raise LaunchRejectedError(
            f"cudaErrorCooperativeLaunchTooLarge: {name}: the launch has {launch.ctas} CTAs of "
            f"{launch.threads} threads and {shared} bytes of shared memory, {fit} fit on {device.name} at once"
        )
