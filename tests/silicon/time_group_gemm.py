"""Time the grouped GEMM of a Hopper GPU beside others on that GPU: ``python -m tests.silicon.time_group_gemm``.

It needs a Hopper GPU that does nothing else, torch and nvidia-cutlass-dsl. Each FILE given as an argument is a further
contestant under GPU MODE's contract. The outputs of the kernels are compared with the exact sums before anything is
timed: small, ragged and empty groups, long sums, many groups, and the problems that are timed. A time is the median of
single calls between two events, the contestants in turn, after 512 MB were written, so that L2 holds neither data nor
code. All contestants but the kernels work on operands that were dequantised before.
"""

from __future__ import annotations

import functools
import importlib.util
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.silicon import group_gemm_fp16

KERNEL = Path(__file__).parents[2] / "kernels" / "nvfp4_group_gemm" / "sm90.py"
ROUNDS = 16
HOST_CALLS = 200
FLUSHED_BYTES = 512 << 20
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Sizes = list[tuple[int, int, int, int]]
TIMED: dict[str, Sizes] = {
    "0": [(m, 4096, 7168, 1) for m in (80, 176, 128, 72, 64, 248, 96, 160)],
    "1": [(m, 7168, 2048, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160)],
    "2": [(m, 3072, 4096, 1) for m in (192, 320)],
    "3": [(m, 4096, 1536, 1) for m in (128, 384)],
    "large": [(2048, 4096, 7168, 1)] * 2,
}
"""GPU MODE's four benchmarks, and two groups of 2,048 tokens."""
CHECKED: list[Sizes] = [
    [(0, 128, 256, 1), (1, 384, 256, 1), (7, 256, 16384, 1), (33, 128, 512, 1), (300, 640, 768, 1)],
    [(1 + 37 * i % 290, 128 * (1 + i % 3), 256 * (1 + i % 4), 1) for i in range(200)],
    [(1000, 1152, 1024, 1), (0, 256, 256, 1), (257, 128, 2560, 1)],
    [(1, 128, 256, 1)],
]


def load(path: Path) -> Any:
    """A kernel file as a module."""
    task = types.ModuleType("task")
    task.input_t = task.output_t = Any  # type: ignore[attr-defined]
    sys.modules.setdefault("task", task)
    spec = importlib.util.spec_from_file_location(f"timed_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Data:
    """Random operands of a problem, of which every sum is exact in fp32, also dequantised, and the right results."""

    def __init__(self, sizes: Sizes) -> None:
        abc, scales, self.plain, self.right = [], [], [], []
        for m, n, k, _ in sizes:
            operands, codes, factors = [], [], []
            for rows in (m, n):
                code = torch.randint(0, 256, (rows, k // 2, 1), dtype=torch.uint8, device="cuda")
                # E4M3 from 0.5 to 2: blocks of 128 rows and 4 scales
                shape = -(-rows // 128), k // 64, 32, 4, 4
                factor = torch.randint(0x30, 0x41, shape, dtype=torch.uint8, device="cuda")
                codes.append(code)
                factors.append(factor)
                table = torch.tensor([*E2M1, *(-value for value in E2M1)], device="cuda", dtype=torch.float16)
                elements = torch.stack((code & 15, code >> 4), 2).view(rows, k).int()
                by_row = factor.permute(0, 3, 2, 1, 4).reshape(-1, k // 16)[:rows]
                scale = by_row.contiguous().view(torch.float8_e4m3fn).half().repeat_interleave(16, 1)
                operands.append(table[elements] * scale)
            abc.append((*codes, torch.empty((m, n, 1), dtype=torch.float16, device="cuda")))
            scales.append(tuple(factors))
            self.plain.append(tuple(operands))
            self.right.append((operands[0].double() @ operands[1].double().t()).float().half())
        self.given = (abc, None, scales, sizes)

    def check(self, name: str, call: Callable[[], Sequence[torch.Tensor]], *, exact: bool = True) -> None:
        """Raise AssertionError unless all outputs are the sums, rounded once; or near, if not ``exact``."""
        for repeat in range(2):
            for _, _, c in self.given[0]:
                c.fill_(float("nan"))
            for group, (output, right) in enumerate(zip(call(), self.right, strict=True)):
                got = output.reshape(right.shape)
                good = torch.equal(got, right) if exact else torch.allclose(got.float(), right.float(), 0.02, 1.0)
                if not good:
                    wrong = int((got != right).sum())
                    raise AssertionError(f"{name}: group {group} of {self.given[3]} has {wrong} wrong, call {repeat}")


def grouped_torch(data: Data, dtype: torch.dtype) -> Callable[[], Any]:
    """One launch of torch's grouped product: tokens one behind the other, weights of equal sizes."""
    tokens = torch.cat([a for a, _ in data.plain]).to(dtype)
    weights = torch.stack([b for _, b in data.plain]).to(dtype).transpose(1, 2)
    ends = torch.tensor([m for m, _, _, _ in data.given[3]], device="cuda").cumsum(0).int()
    heights = [m for m, _, _, _ in data.given[3]]
    return lambda: torch._grouped_mm(tokens, weights, offs=ends).split(heights)


@functools.cache
def compiled_fp16() -> Any:
    """The grouped GEMM in fp16."""
    return group_gemm_fp16.compile_launch()


def contestants(data: Data, kernels: dict[str, Any]) -> dict[str, tuple[bool, Callable[[], Any]]]:
    """Calls by name, and whether their results are exact."""
    calls: dict[str, tuple[bool, Callable[[], Any]]] = {
        name: (True, functools.partial(kernel.custom_kernel, data.given)) for name, kernel in kernels.items()
    }
    outputs = [torch.empty_like(right) for right in data.right]
    pairs = [(a, b.t()) for a, b in data.plain]

    def each() -> list[torch.Tensor]:
        return [torch.mm(a, b, out=out) for (a, b), out in zip(pairs, outputs, strict=True)]

    calls["cuBLAS in fp16, a call a group"] = (False, each)
    calls["group_gemm_fp16.py, one launch"] = (True, group_gemm_fp16.grouped_gemm(compiled_fp16(), data.plain))
    calls["torch's grouped_mm in bf16"] = (False, grouped_torch(data, torch.bfloat16))
    calls["torch's grouped_mm in fp16"] = (False, grouped_torch(data, torch.float16))
    little = torch.zeros(1, device="cuda")
    calls["an element-wise kernel"] = (False, lambda: little.add_(1))
    return calls


def time_in_turn(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of each."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(ROUNDS + 2):
        for name, call in calls.items():
            flushed.fill_(round_)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1000 * start.elapsed_time(end))
    return {name: statistics.median(each[2:]) for name, each in times.items()}


def host_time(call: Callable[[], Any]) -> float:
    """Median microseconds that a call takes of the host, while the device is idle."""
    times = []
    for _ in range(HOST_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def main(files: Sequence[str]) -> None:
    kernels = {"this kernel": load(KERNEL)} | {file: load(Path(file)) for file in files}
    torch.manual_seed(0)
    for sizes in CHECKED:
        data = Data(sizes)
        for name, kernel in kernels.items():
            data.check(name, functools.partial(kernel.custom_kernel, data.given))
    columns: dict[str, dict[str, float]] = {}
    host: dict[str, float] = {}
    for problem, sizes in TIMED.items():
        data = Data(sizes)
        calls = contestants(data, kernels)
        for name, (exact, call) in calls.items():
            if "element" not in name:
                data.check(name, call, exact=exact)
        columns[problem] = time_in_turn({name: call for name, (_, call) in calls.items()})
        if not host:
            host = {name: host_time(call) for name, (_, call) in calls.items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: us of the problems (geometric mean), host")
    for name in host:
        of = [columns[problem][name] for problem in TIMED]
        mean = statistics.geometric_mean(of[:4])
        times = "".join(f"{value:7.1f}" for value in of[:4])
        print(f"{name:44}{times}  ({mean:5.1f}) {of[4]:6.1f}  {host[name]:5.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
