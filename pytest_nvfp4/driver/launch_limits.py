"""What ``cudaLaunchKernelEx`` refuses, and what the parameters of a kernel are according to its PTX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from pytest_nvfp4.driver.cubin import CubinKernel
from pytest_nvfp4.driver.device_model import DeviceModel
from pytest_nvfp4.driver.launches import HostSideError, Launch, LaunchRejectedError

_PORTABLE_CLUSTER_CTAS: Final = 8
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)")
_PTX_THREADS = re.compile(r"\.entry\s+([\w$]+)\s*\([^)]*\)[^{;]*?\.reqntid\s+([\d\s,]+)")
_PTX_CTA_GROUP = re.compile(r"\btcgen05\.[\w.:]*\b(cta_group::[12])")
_PTX_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+(?:\.ptr[^,\[]*?\s)?([\w$]+)(?:\[(\d+)\])?")


def ptx_entries(text: str) -> list[str]:
    """Return the names of the kernels of a PTX text."""
    return [match[1] for match in _PTX_ENTRY.finditer(text)]


def check_sizes(sizes: Mapping[str, tuple[int, ...]], text: str) -> None:
    """Raise HostSideError if the parameters of a kernel have other sizes in its PTX than in its CUBIN."""
    written = {
        entry[1]: tuple(int(p[2]) // 8 * int(p[4] or 1) for p in _PTX_PARAM.finditer(entry[2]))
        for entry in _PTX_ENTRY.finditer(text)
    }
    for name, expected in sizes.items():
        if written[name] != expected:
            raise HostSideError(
                f"{name}: the parameters have {expected} bytes in the CUBIN, {written[name]} in the PTX of its compile"
            )


def check_code(kernels: Mapping[str, CubinKernel], text: str) -> None:
    """Raise HostSideError for a CUBIN that cannot come from its PTX.

    ptxas keeps ``.reqntid`` and adds no instructions of tcgen05. It may remove some that cannot be reached, so that PTX
    alone with them is no error.
    """
    required = {
        name: tuple((*(int(number) for number in sizes.replace(",", " ").split()), 1, 1)[:3])
        for name, sizes in _PTX_THREADS.findall(text)
    }
    written = set(_PTX_CTA_GROUP.findall(text))
    for name, kernel in kernels.items():
        problem = ""
        if kernel.threads != required.get(name):
            problem = f"requires CTAs of {kernel.threads} threads, and its PTX of {required.get(name)}"
        elif added := kernel.cta_groups - written:
            problem = f"has instructions of tcgen05 with {min(added)}, and its PTX has none"
        if problem:
            raise HostSideError(f"{name}: the CUBIN {problem}: load a module with the PTX of its own compile")


def check_launch(launch: Launch, kernel: CubinKernel, device: DeviceModel, *, reserved: int, portable: bool) -> None:
    """Refuse what ``cudaLaunchKernelEx`` refuses (CUDA runtime API, execution control; programming guide, clusters).

    Args:
        reserved: Largest dynamic shared memory for which the kernel was prepared, in bytes.
        portable: Whether only cluster sizes are allowed that all devices have.
    """
    problem = None
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
        raise LaunchRejectedError(f"cudaErrorInvalidConfiguration: {launch.kernel}: {problem}")
    if not ctas or any(extent % size for extent, size in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchRejectedError(
            f"cudaErrorInvalidClusterSize: {launch.kernel}: the grid {launch.grid} is not a multiple of the cluster "
            f"{launch.cluster}"
        )
    most = _PORTABLE_CLUSTER_CTAS if portable else device.max_cluster_ctas
    if ctas > most:
        raise LaunchRejectedError(
            f"cudaErrorInvalidClusterSize: {launch.kernel}: a cluster of {ctas} CTAs, at most {most}"
        )
    if launch.dynamic_smem > reserved:
        raise LaunchRejectedError(
            f"cudaErrorInvalidValue: {launch.kernel}: {launch.dynamic_smem} bytes of dynamic shared memory, at most "
            f"{reserved} were reserved"
        )
    if launch.cooperative:
        _check_cooperative(launch, kernel, device)


def _check_cooperative(launch: Launch, kernel: CubinKernel, device: DeviceModel) -> None:
    """Check that all CTAs of a cooperative launch can be resident at once. The limit by registers is not checked."""
    shared = launch.dynamic_smem + kernel.static_smem + device.smem_reserved_per_block
    by_threads = device.threads_per_sm // max(device.warp_size, launch.threads)
    fit = device.sm_count * min(device.blocks_per_sm, by_threads, device.smem_per_sm // shared)
    if launch.ctas > fit:
        raise LaunchRejectedError(
            f"cudaErrorCooperativeLaunchTooLarge: {launch.kernel}: the launch has {launch.ctas} CTAs of "
            f"{launch.threads} threads and {shared} bytes of shared memory, {fit} fit on {device.name} at once"
        )
