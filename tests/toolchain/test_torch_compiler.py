"""Calls of torch's compiler in what a kernel's host code runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.torch_compiler import torch_compiler_findings

KERNEL = "import torch\n{before}\ndef custom_kernel(data):\n    {body}\n{after}"


def found(folder: Path, *, before: str = "", body: str = "return data", after: str = "", other: str = "") -> list[str]:
    kernel, helper = folder / "k.py", folder / "helper.py"
    kernel.write_text(KERNEL.format(before=before, body=body, after=after))
    helper.write_text(other)
    findings = torch_compiler_findings([helper, kernel], first=kernel, function="custom_kernel")
    return [
        f"{Path(f.file or '').name}:{f.line} {f.message.partition(' uses ')[2].partition(',')[0]}" for f in findings
    ]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"before": "@torch.compile"}, "k.py:2 torch.compile"),
        ({"before": "@torch.compile(fullgraph=True)"}, "k.py:2 torch.compile"),
        ({"body": "return torch.compile(print)(data)"}, "k.py:4 torch.compile"),
        ({"before": "from torch import compile as fast", "body": "return fast(print)"}, "k.py:4 torch.compile"),
        ({"before": "import torch as t", "body": "return t.compile(print)"}, "k.py:4 torch.compile"),
        ({"before": "fast = torch.compile(print)", "body": "return fast(data)"}, "k.py:2 torch.compile"),
        ({"before": "def f(x): g(x)\ng = torch.compile(print)", "body": "return f(data)"}, "k.py:3 torch.compile"),
        ({"before": "if True:\n    torch.compile(print)"}, "k.py:3 torch.compile"),
        ({"body": "return torch._dynamo.optimize('inductor')(print)"}, "k.py:4 torch._dynamo.optimize"),
        (
            {"before": "from torch._inductor.async_compile import AsyncCompile", "body": "AsyncCompile().triton('')"},
            "k.py:4 torch._inductor.async_compile.AsyncCompile",
        ),
        (
            {"before": "import torch._inductor.runtime.triton_heuristics as h\n@h.pointwise(1)\ndef kernel(x): pass",
             "body": "kernel.run(data)"},
            "k.py:3 torch._inductor.runtime.triton_heuristics.pointwise",
        ),
        (
            {"before": "from helper import fast", "body": "fast(data)",
             "other": "import torch\n@torch.compile\ndef fast(x): return x"},
            "helper.py:2 torch.compile",
        ),
    ],
)  # fmt: skip
def test_calls(tmp_path: Path, parts: dict[str, str], said: str) -> None:
    assert found(tmp_path, **parts) == [said]


@pytest.mark.parametrize(
    "parts",
    [
        {"before": "@torch.compile\ndef reference(x): return x"},
        {"before": "slow = torch.compile(print)"},
        {"after": "if __name__ == '__main__':\n    torch.compile(custom_kernel)"},
        {"before": "torch._inductor.config.max_autotune = True"},
        {"before": "from torch._inductor import config", "body": "config.triton.cudagraphs = False"},
        {"before": "from torch._inductor.runtime import triton_helpers", "body": "triton_helpers.max2(data, 1)"},
        {"body": "return torch.compiler.is_compiling()"},
        {"before": "import re", "body": "return re.compile('torch.compile')"},
        {"before": "from helper import plain", "body": "plain(data)",
         "other": "import torch\n@torch.compile\ndef fast(x): return x\ndef plain(x): return x"},
        {"before": "def broken(:"},
    ],
)  # fmt: skip
def test_what_no_kernel_runs_through_the_compiler(tmp_path: Path, parts: dict[str, str]) -> None:
    assert found(tmp_path, **parts) == []
