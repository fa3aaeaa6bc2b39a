"""Build an extension that defines operators, call them on the simulated device, and print what they do, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils import cpp_extension

from pytest_nvfp4.device.worker.simulator import simulate

SOURCE: Final = r"""
#include <torch/library.h>
#include <ATen/ATen.h>

__global__ void add(const float* in, float by, float* out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] + by;
}

static void launch(const at::Tensor& in, float by, at::Tensor& out, int64_t count) {
    add<<<(count + 31) / 32, 32>>>(in.data_ptr<float>(), by, out.data_ptr<float>(), count);
}

void into(const at::Tensor& in, double by, at::Tensor& out) {
    TORCH_CHECK(in.is_cuda() && out.is_cuda(), "into takes device tensors");
    launch(in, by, out, in.numel());
}

void beyond(const at::Tensor& in, at::Tensor& out) { launch(in, 0, out, in.numel() + 1); }

at::Tensor plus(const at::Tensor& in, const std::optional<at::Tensor>& other, at::TensorList list, int64_t times,
                at::IntArrayRef more) {
    at::Tensor out = at::empty_like(in);
    double by = times + more[0] + list.size() + (other ? 100 : 0);
    launch(in, by, out, in.numel());
    return out;
}

at::Tensor plus_on_host(const at::Tensor& in, const std::optional<at::Tensor>&, at::TensorList, int64_t,
                        at::IntArrayRef) {
    return in - 1;
}

at::Tensor filled(int64_t count, double value) {
    at::Tensor out = at::zeros({count}, at::TensorOptions().device(at::kCUDA).dtype(at::kFloat));
    launch(out, value, out, count);
    return out;
}

TORCH_LIBRARY(nvfp4_tried, m) {
    m.def("into(Tensor a, float by, Tensor(a!) out) -> ()", &into);
    m.def("beyond(Tensor a, Tensor(a!) out) -> ()");
    m.impl("beyond", &beyond);
    m.def("plus(Tensor a, Tensor? other, Tensor[] list, int times=2, int[] more=[5]) -> Tensor");
    m.def("filled(int count, float value) -> Tensor", &filled);
    m.def("nowhere(Tensor a) -> Tensor");
}
TORCH_LIBRARY_IMPL(nvfp4_tried, CUDA, m) { m.impl("plus", &plus); }
TORCH_LIBRARY_IMPL(nvfp4_tried, CPU, m) { m.impl("plus", &plus_on_host); }
"""


def _attempt(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _calls() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["returned"] = cpp_extension.load_inline(
        "nvfp4-tried",
        cpp_sources="",
        cuda_sources=SOURCE,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cuda_cflags=[
            "-gencode=arch=compute_100a,code=sm_100a",
            "-gencode=arch=compute_120a,code=sm_120a",
            "-Xptxas=-v",
        ],
    )
    ops = torch.ops.nvfp4_tried
    a = torch.arange(40, dtype=torch.float32, device="cuda")
    out = torch.empty_like(a)
    ops.into(a, 1.5, out)
    made["into"] = out.tolist()
    with torch.inference_mode():
        ops.into.default(a, 2.5, out)
    made["inference"] = out.tolist()
    plus = ops.plus(a, None, [a, a])
    made["plus"] = [plus.tolist(), str(plus.device), type(plus) is type(a)]
    made["optional"] = ops.plus(a, a, [], times=3, more=[7])[0].item()
    made["host"] = ops.plus(torch.ones(2), None, []).tolist()
    filled = ops.filled(3, 0.5)
    made["filled"] = [filled.tolist(), str(filled.device)]
    made["beyond"] = _attempt(lambda: ops.beyond(a, out))
    made["after"] = _attempt(lambda: ops.into(a, 1.0, out))
    made["unlike"] = _attempt(lambda: ops.into(a.cpu(), 1.0, out))
    made["nowhere"] = _attempt(lambda: ops.nowhere(a))
    return made


def main() -> None:
    """Print a JSON object."""
    with simulate():
        json.dump(_calls(), sys.stdout)


if __name__ == "__main__":
    main()
