"""Runs one of the shipped sm_90a kernels on deterministic inputs and writes what came out.

The program of ``python -m pytest_nvfp4.device.worker.program kernel_program.py FOLDER cuda|sim KERNEL OUT``: the same
for a GPU and for the simulator (see `tests.silicon.kernels`, which starts it).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cutlass
import numpy as np
import torch
from numpy.typing import NDArray

from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.memory import CudaMemory, DeviceMemory, HostMemory
from pytest_nvfp4.numerics.families import family
from pytest_nvfp4.problem import parse_shape
from pytest_nvfp4.toolchain.worker import contract

KERNELS = Path(__file__).parents[2] / "kernels"
SHAPES = {
    "copy_transpose": [(64, 64), (8, 8), (72, 200), (136, 64)],
    "reduce_sum": [(1, 8), (3, 72), (2, 4096), (2, 10000)],
    "softmax_online": [(1, 8), (4, 72), (2, 2048), (1, 10000)],
}
PROBLEMS = (("40x128x256", "pow2_exact"), ("96x256x512,40x128x1536", "pow2_exact"), ("96x256x512", "gpumode"))
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

Outputs = Iterator[tuple[str, NDArray[Any]]]
Hash = Any  # hashlib's type is private


def module_of(name: str) -> Any:
    """The kernel's module."""
    path = KERNELS / name / "sm90.py"
    contract.provide_task()
    spec = importlib.util.spec_from_file_location(f"silicon_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def drawn(name: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A matrix: any bits for what only moves them, else numbers of several magnitudes. It is made by numpy."""
    random = np.random.default_rng([len(name), *shape, DTYPES.index(dtype)])
    if name == "copy_transpose":
        whole: Any = np.int16 if dtype.itemsize == 2 else np.int32
        limits = np.iinfo(whole)
        return torch.from_numpy(random.integers(limits.min, limits.max, shape, whole)).view(dtype)
    values = random.standard_normal(shape) * np.exp2(random.integers(-4, 5, shape))
    made = torch.from_numpy(values.astype(np.float32)).to(dtype)
    if name == "softmax_online" and shape[0] > 3:
        made[0, 1:], made[1] = -torch.inf, -torch.inf
        made[2, 5] = torch.nan
    return made


def bits_of(tensor: torch.Tensor) -> NDArray[Any]:
    """The patterns of a tensor's elements, on the host."""
    return tensor.cpu().contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32).numpy()


def matrices(name: str, inputs: Hash) -> Outputs:
    """The outputs of a kernel that takes one matrix. The hash takes in the bytes of each."""
    module = module_of(name)
    call = {"copy_transpose": "transpose", "reduce_sum": "row_sums", "softmax_online": "softmax"}[name]
    for dtype in DTYPES:
        for shape in SHAPES[name]:
            x = drawn(name, shape, dtype)
            inputs.update(np.ascontiguousarray(bits_of(x)))
            label = f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]}"
            yield label, bits_of(getattr(module, call)(x.cuda()))


def group_gemm(memory: DeviceMemory, inputs: Hash) -> Outputs:
    """C of every group, as fp16 patterns, guard rows included. The hash takes in what the buffers hold before."""
    module = module_of("nvfp4_group_gemm")
    for shape, kind in PROBLEMS:
        generated = family(kind).generate(parse_shape(shape))
        buffers = CallBuffers(torch, generated)
        buffers.fill(memory, generated)
        for part in (part for buffer in buffers.buffers for part in buffer.content()):
            inputs.update(part)
        (data,), _ = buffers.arguments()
        module.custom_kernel(data)
        memory.synchronize()
        for index, output in enumerate(buffers.outputs):
            values = np.frombuffer(output.read(memory), np.int16)
            yield f"{shape} {kind} group {index}", values.reshape(output.tensor.all_rows, output.tensor.columns)


def main() -> None:
    backend, name, out = sys.argv[1:]
    memory: DeviceMemory = CudaMemory() if backend == "cuda" else HostMemory()
    inputs = hashlib.sha256()
    found = dict(group_gemm(memory, inputs) if name == "nvfp4_group_gemm" else matrices(name, inputs))
    np.savez(out, **found)  # type: ignore[arg-type]
    about = {
        "dsl": getattr(cutlass, "__version__", "unknown"),
        "torch": torch.__version__,
        "inputs_sha256": inputs.hexdigest(),
    }
    Path(out).with_suffix(".json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
