"""Findings that the tracer adds to those of the worker: crashes, timeouts, poisoned layouts, kernels without code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.source import read_source, syntax_problem
from pytest_nvfp4.toolchain.trace import Value

_DIAGNOSTIC = re.compile(r"^loc\(.*\): ((?:error|note): .*)$", re.MULTILINE)
_OF_CUDA = re.compile(
    r"^(?P<file>/[^\n(]{1,4000})\((?P<line>\d{1,9})\): (?P<what>(?:catastrophic )?error\b.*)$", re.MULTILINE
)
"""An error in the log of NVRTC, which host code may not show (``host.nvrtc_calls`` writes it)."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE)


def source_finding(request: TraceRequest) -> Finding | None:
    """Return the finding of a kernel that is missing or not Python, without starting a process."""
    for path in (request.kernel, *([request.entry.file] if request.entry else [])):
        if problem := syntax_problem(path):
            message = f"{path.name} is not valid Python: {problem.message}"
            return Finding("import", message, file=str(path), line=problem.line, text=problem.text)
    return None


def ending(request: TraceRequest, outcome: Outcome, stage: str) -> Finding:
    """Return the finding of a worker that ended early in ``stage``."""
    file, line = _last_frame(outcome.stderr.text, (request.kernel, *([request.entry.file] if request.entry else [])))
    during = {
        "import kernel": f"while {request.kernel.name} was imported",
        "compile": f"while {request.kernel.name} compiled",
        "run": f"while the host code of {request.kernel.name} ran",
    }.get(stage, f"in stage {stage!r}")
    end = outcome.describe_end()
    if outcome.timed_out:
        kind, message = "timeout", f"the kernel {end}, {during}; raise --nvfp4-timeout if it needs more"
    elif outcome.result_overflow:
        kind, message = "internal", "the worker's result exceeded the accepted size"
    elif outcome.returncode < 0:
        kind, message = "crash", f"the process {end} {during}"
    else:
        kind, message = "vanished", f"the process {end} {during}, before it had a result (os._exit?)"
    text = _source_line(file, line) if file and line else None
    return Finding(kind, message, file=file, line=line, text=text, detail=outcome.stderr.text.strip()[-4000:])


def _source_line(file: str, line: int) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[line - 1].strip()
    except (OSError, IndexError):
        return None


def _last_frame(stderr: str, files: Iterable[Path]) -> tuple[str | None, int | None]:
    """Return the innermost frame in the user's files from faulthandler's output (most recent call first)."""
    own = set(map(str, files))
    for match in _FRAME.finditer(stderr):
        if match["file"] in own:
            return match["file"], int(match["line"])
    return None, None


def with_diagnostics(finding: Finding, stderr: str) -> Finding:
    """Add the compiler's stderr to the finding of a failed compile.

    DSL 4.4 raises only "Operation creation failed" and writes its C++ diagnostics to file descriptor 2. Host code that
    compiles CUDA source may raise no more than a number: the finding is then at the line of the source.
    """
    if finding.kind != "compile" or finding.severity != "error":
        return finding
    if (found := _OF_CUDA.search(stderr)) is not None and found["what"] not in finding.message:
        errors = [f"{match['file']}:{match['line']}: {match['what']}" for match in _OF_CUDA.finditer(stderr)]
        message = finding.message + "".join(f"\n  the compiler wrote: {text[:1000]}" for text in errors[:3])
        # No text: what the worker writes may name any file.
        return replace(finding, message=message, file=found["file"], line=int(found["line"]), text=None)
    diagnostics = [text for text in dict.fromkeys(_DIAGNOSTIC.findall(stderr)) if text not in finding.message]
    message = finding.message + "".join(f"\n  the compiler wrote: {text[:1000]}" for text in diagnostics[-3:])
    return replace(finding, message=message)


def poisoned(values: Iterable[Value]) -> list[Finding]:
    """Return a finding for each poisoned layout, printed as ``x``: the DSL could not compute it."""
    return [
        Finding(
            "poisoned",
            f"{value.name} has a poisoned layout ({value.type}): the DSL could not compute it and reported no error",
            file=value.file,
            line=value.line,
        )
        for value in values
        if re.search(r'"(?:[^"]*\bo )?x"', value.type)
    ]


def nothing_compiled(request: TraceRequest) -> Finding:
    """Return the finding of a kernel file that compiled nothing."""
    source = read_source(request.kernel)
    why = (
        "neither its entry nor custom_kernel compiled or launched a @cute.jit function"
        if source is not None and source.mentions_dsl
        else "it does not use CuTe DSL, and launched no kernel of Triton or CUDA C++; if it launches one on other "
        "problems only, name one of these (the setting problems, or --nvfp4-problem)"
    )
    message = f"{request.kernel.name} compiled no kernel: {why}"
    return Finding("no-compile", message, file=str(request.kernel))
