"""Reports to render in tests: of ordinary, hostile and very large content."""

from typing import Any

from pytest_nvfp4.layout.change import (
    Change,
    Delta,
    FirstDifference,
    HeaderChange,
    ListingDiff,
    ModeChange,
    Severity,
    worst_first,
)
from pytest_nvfp4.layout.launch_facts import diff_facts
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.report.model import CheckReport, Outcome, Report

OLD = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "((128,64),1,4,1):((256,1),0,64,0)">'
NEW = '!cute.memref<f4E2M1FN, smem, align<128>, S<3,4,3>, "((128,64),1,4,1):((512,1),0,64,0)">'
HOSTILE = [
    "<script>alert(1)</script>",
    "]]><!--",
    "a`b``c|d*_e_*",
    "@everyone #1 &amp; {{ 7*7 }} ${{ secrets.X }}",
    "line\nbreak\r\n::error::x",
    "\x1b[31mred\x1b[0m",
    "right\u202eto left\u200b",
    "\ud800",
    "quo\"te' onmouseover=x",
    "%25%0A::set-output name=x::y",
    "x" * 3000,
]


def change(
    severity: Severity = Severity.DIFFERENT, name: str = "kernel.sA", *, old: str = OLD, new: str = NEW, **more: Any
) -> Change:
    kind = more.pop("kind", "changed")
    return Change(
        name=name,
        kind=kind,
        old=None if kind == "added" else Record("kernel.old", old),
        new=None if kind == "removed" else Record("kernel.new", new),
        severity=severity,
        **more,
    )


def full_change(**more: Any) -> Change:
    return change(
        method="canonical",
        reasons=("index 1, coordinate ((1,0),0,0,0), is at 256 in one and at 512 in the other",),
        modes=(ModeChange((0, 0), "MMA.M", "128:256", "128:512"),),
        roles=("MMA", "MMA_M", "MMA_K", "STAGE"),
        role_source="grouped_blockscaled_gemm.py",
        first=FirstDifference(1, "((1,0),0,0,0)", "256", "512"),
        deltas=(Delta("align", 1024, 128, "B", Severity.DIFFERENT, "S<3,4,3> repeats every 1024 bytes"),),
        protected=True,
        **more,
    )


def check(
    *changes: Change,
    outcome: Outcome = "failed",
    kernel: str = "kernels/gemm/sm100.py",
    identical: int = 40,
    **more: Any,
) -> CheckReport:
    diff = ListingDiff(worst_first(changes), identical, HeaderChange("dsl", "4.4.0", "4.8.1"))
    facts = diff_facts({"registers": "128", "grid": "(148,1,1)"}, {"registers": "168", "grid": "(74,1,1)"})
    settings: dict[str, Any] = {
        "check": "layouts",
        "message": "a layout changed",
        "file": "kernels/gemm/sm100.py",
        "line": 12,
    }
    return CheckReport(kernel=kernel, outcome=outcome, diff=diff, facts=facts, **(settings | more))


def every_severity() -> list[Change]:
    """One change of each severity above identical; the worst first."""
    return [change(severity, f"kernel.{severity.name}") for severity in reversed(Severity) if severity]


def ordinary() -> Report:
    return Report(
        [
            check(full_change(), change(Severity.COSMETIC, "kernel.tiny")),
            CheckReport("kernels/gemm/sm100.py", "verify[gpumode-0]", "passed"),
            CheckReport("kernels/gemm/sm100.py", "races", "skipped", "no device"),
        ],
        {"dsl": "4.8.1", "python": "3.11"},
    )


def hostile(text: str) -> Report:
    """A report in which every field that a kernel or its environment can fill holds ``text``."""
    bad = full_change(error=text, old=text, new=text + "!", name=text, old_name=text)
    return Report(
        [
            check(bad, kernel=text, check=text, message=text, file=text),
            CheckReport(text, text, "passed", text),
        ],
        {text: text},
    )


def large(count: int, *, name: str = "kernel.layout_with_a_long_name") -> Report:
    return Report([check(*(full_change(name=f"{name}_{at}") for at in range(count)))], {"dsl": "4.8.1"})
