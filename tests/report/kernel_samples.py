"""Evidence of a kernel that nobody ran, with every part that a page draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import SimulatedCall
from pytest_nvfp4.report.evidence import Evidence, Measured
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.toolchain.trace import Trace

SOURCE = "def kernel():\n    load()\n" + "    pass\n" * 9 + "    multiply()\n"
SWIZZLED = '!cute.memref<f16, smem, align<128>, S<3,4,3>, "(16,64,2):(64,1,1024)">'


def call(source: str = "k.py", *, ctas: int = 300, what: str = "accumulator") -> SimulatedCall:
    """A call of a launch that copies at line 2, multiplies at line 12, and writes a tile with each CTA."""
    detail: dict[str, Any] = {
        "lines": [
            {"source": f"{source}:2", "counters": {"instructions": 40, "tma.load.bytes": 4096}},
            {"source": f"{source}:12", "counters": {"instructions": 10, "mma.flops": 1 << 24, "mbarrier.waits": 3}},
        ],
        "columns": [
            {"what": what, "column": 0, "columns": 128, "first": 1, "last": 5, "source": f"{source}:12"},
            {"what": "load", "column": 0, "columns": 128, "first": 6, "last": 9, "source": f"{source}:12"},
        ],
        "shared": [
            {"what": "load", "offset": 1024 * at, "bytes": 1024, "source": f"{source}:2", "times": 2} for at in range(4)
        ],
    }
    launch = {
        "kernel": "kernel_fill",
        "grid": (ctas, 1, 1),
        "block": (128, 1, 1),
        "cluster": (1, 1, 1),
        "shared_bytes": 8192,
        "ctas_per_sm": 1,
        "counters": {},
        "writers": ctas,
        "detail": detail,
    }
    written = [
        {"launch": 0, "cta": at, "row": 128 * (at // 10), "column": 128 * (at % 10), "rows": 128, "columns": 128}
        for at in range(ctas)
    ]
    output = {"group": 0, "elements": ctas << 14, "never": 0, "by_two": 0, "twice": 0, "ctas": ctas, "tiles": ctas}
    output |= {"written": written, "size": (128 * -(-ctas // 10), 1280)}
    fields = {"call": 0, "case": 0, "model": "NVIDIA B200", "sms": 148, "launches": [launch], "outputs": [output]}
    return SimulatedCall.model_validate(fields)


def modelled(source: str = "k.py") -> ModelledCall:
    """A modelled call, most of it at line 12."""
    launch = dict.fromkeys(("us", "kernel_us", "launch_us", "fill_us", "drain_us", "tail_us", "waves"), 1.0)
    path = [{"role": "mma", "source": f"{source}:12", "cause": "MMA", "us": 7.5}]
    more = {"kernel": "kernel_fill", "ctas": 300, "bound": "tensor core", "busy": [], "path": path, "us": 9.0}
    names = ("warps: mma", "tensor core", f"barrier: mma at {source}:12")
    timeline = [
        {"track": track, "name": "run", "begin_ns": 100.0 * at, "end_ns": 100.0 * at + 60, "source": f"{source}:12"}
        for track in names
        for at in range(8)
    ]
    fields = {"device": "b200", "title": "NVIDIA B200", "table": "1 x", "model": "m", "conditions": "c", "kind": "gemm"}
    return ModelledCall.model_validate(fields | {"launches": [launch | more], "timeline": timeline})


def trace(kernel: Path, name: str = "kernel.sA", type_: str = SWIZZLED) -> Trace:
    """A trace with one tensor in shared memory."""
    fields: Mapping[str, Any] = {
        "kernel": str(kernel),
        "entry": None,
        "problem": "p",
        "problem_sizes": [(128, 128, 256, 1)],
        "arch": "sm_100a",
        "options": [],
        "dsl_version": "4.8.1",
        "python": "3.11",
        "ok": True,
        "values": [{"name": name, "type": type_, "file": str(kernel), "line": 2}],
        "launches": [],
        "launch_count": 1,
        "code": [],
        "artifacts": [],
        "findings": [],
        "dependencies": {},
        "stages": {},
        "seconds": 1.0,
    }
    return Trace.model_validate(fields)


def report(folder: Path, *, text: str = "", kernels: int = 1, ctas: int = 300) -> Report:
    """A report of kernels with all evidence; ``text`` is what a hostile one puts into every name."""
    checks = []
    for number in range(kernels):
        kernel = folder / f"k{number}" / "k.py"
        kernel.parent.mkdir(exist_ok=True)
        kernel.write_text(SOURCE + (f"# {' '.join(text.splitlines())}\n" if text else ""))
        source = f"{text}/k.py" if text else "k.py"
        evidence = Evidence(
            configuration=text,
            arch="sm_100a",
            path=str(kernel),
            base=str(kernel.parent),
            problem=text or "gpumode-0",
            flops=1 << 34,
            bytes=1 << 24,
            trace=trace(kernel),
            call=call(source, ctas=ctas, what=text or "accumulator"),
            modelled=modelled(source),
            measured=Measured(device="NVIDIA B200", us=11.0, p10_us=10.0, p90_us=12.0),
        )
        counters = ({"a" + text: "8", "b": "2"}, {"a" + text: "6", "b": "2"}, [(text or "one", {"a" + text: 9.0})])
        checks.append(CheckReport(f"k{number}/k.py{text}", "cost[p]", "passed", evidence=evidence, counters=counters))
    return Report(checks)
