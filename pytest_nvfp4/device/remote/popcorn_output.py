"""Parser of the output of popcorn-cli: JSON of newer versions, the report's text of older ones.

Sources: popcorn-cli (``--output``, ``src/cmd/submit.rs``) and kernelbot (``libkernelbot/report.py``), which makes the
report: ``Passed N/N tests``, one line per test, and for each benchmark its sizes, mean ± error, best and worst.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.text import clip

_SCORE = re.compile(
    r"^Geomean score \((?P<kind>public|secret)\) on (?P<runner>.+?): (?P<seconds>[\d.eE+-]+) s\s*$", re.M
)
_COUNT = re.compile(r"Passed (\d+)/(\d+) tests")
_TEST = re.compile(r"^\s*(?P<mark>[✅❌]) (?P<spec>[a-z]+: .*)$")
_TIME = r"(?P<{0}>[\d.]+)(?: ± (?P<{0}_err>[\d.]+))? ?(?P<{0}_unit>ns|[µμu]s|ms|s)\b"
_MEAN = re.compile("⏱\ufe0f? *" + _TIME.format("mean"))
_RANGE = re.compile("⚡ *" + _TIME.format("best") + " *🐌 *" + _TIME.format("worst"))
_FAILED = re.compile(r"# (Compilation|Running|Testing) failed")
_CODE = re.compile(r"error code \*\*(-?\d+)\*\*|(\*\*timed out\*\*)")
MOST_BYTES = 8 << 20
"""Largest size of a report that is read."""
_MOST_LINES = 1000
"""Runs of a submission, and quoted lines of the failures of all tests, that are read."""
_MOST_CHARACTERS = 300
_MOST_SECONDS = 1e6
_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Test:
    """One test: its sizes as the report writes them, whether it passed, and its message."""

    spec: str
    passed: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Times of one benchmark in nanoseconds; None for those that the report omits."""

    spec: str
    mean_ns: float
    err_ns: float | None = None
    best_ns: float | None = None
    worst_ns: float | None = None


@dataclass(frozen=True, slots=True)
class SubmissionRun:
    """One run of a submission, in the JSON of newer versions. ``score`` is in seconds."""

    mode: str
    passed: bool
    runner: str
    secret: bool
    score: float | None


@dataclass(frozen=True, slots=True)
class Submission:
    """GPU MODE's report about a submission.

    Attributes:
        format: ``json`` or ``text``.
        passed: Whether everything passed; None if the output does not tell.
        tests: The tests that the report names.
        passed_tests: Number of passed tests and of all tests, if the report counts them.
        benchmarks: The benchmarks.
        runs: The runs.
        scores: Geometric mean in seconds, by ``public`` or ``secret``.
        failure: The failed phase in the report's word: Compilation, Running or Testing.
        exit_code: Exit code of the evaluation, if the report has one; "timeout" after a timeout.
        identity: Number of the submission.
        runner: Machine that ran it.
    """

    format: str
    passed: bool | None
    tests: tuple[Test, ...] = ()
    passed_tests: tuple[int, int] | None = None
    benchmarks: tuple[Benchmark, ...] = ()
    runs: tuple[SubmissionRun, ...] = ()
    scores: tuple[tuple[str, float], ...] = ()
    failure: str | None = None
    exit_code: int | str | None = None
    identity: str = ""
    runner: str = ""

    def summary(self) -> str:
        """Return the report in one line."""
        parts = []
        if self.passed_tests is not None:
            parts.append(f"passed {self.passed_tests[0]} of {self.passed_tests[1]} tests")
        elif self.tests:
            parts.append(f"passed {sum(test.passed for test in self.tests)} of {len(self.tests)} tests")
        parts += [f"{run.mode} {'passed' if run.passed else 'failed'} on {run.runner}" for run in self.runs]
        parts += [f"geometric mean {seconds * 1e6:.3f} us ({kind})" for kind, seconds in self.scores]
        parts += [f"{benchmark.spec.strip()}: {benchmark.mean_ns / 1e3:.3f} us" for benchmark in self.benchmarks]
        if self.failure:
            code = f", exit code {self.exit_code}" if self.exit_code is not None else ""
            parts.append(f"{self.failure.lower()} failed{code}")
        return "; ".join(parts) or "nothing readable"


def parse(text: str) -> Submission:
    """Parse either format. Raises ValueError for anything else."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} characters")
    scores = tuple((match["kind"], _seconds(float(match["seconds"]))) for match in _SCORE.finditer(text))
    runners = [match["runner"] for match in _SCORE.finditer(text)]
    rest = _SCORE.sub("", text).strip()
    content = _json(rest)
    if isinstance(content, dict) and isinstance(content.get("runs"), list):
        return _of_json(content, scores)
    submission = _of_text(_plain_text(content, rest), scores, runners[0] if runners else "")
    if submission.passed is None and not submission.benchmarks and not scores:
        raise ValueError("it is neither the JSON of newer versions nor the report of older ones")
    return submission


def _json(text: str) -> Any:
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    for begin in dict.fromkeys((0, start)):
        if begin >= 0:
            try:  # the decoder finds the end, and the door reads what is before it
                _, end = json.JSONDecoder().raw_decode(text[begin:])
            except (ValueError, RecursionError):
                continue
            return read_json(text[begin : begin + end], source="the report")
    return None


def _seconds(value: object) -> float:
    """Return a score, which must be a number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_SECONDS:
        raise ValueError(f"the score {str(value)[:40]} is no number of seconds")
    return float(value)


def _flag(content: dict[str, Any], name: str, *, default: bool) -> bool:
    """Return a field that is true or false. Raises ValueError."""
    value = content.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {str(value)[:40]} is neither true nor false")
    return value


def _text(content: dict[str, Any], name: str) -> str:
    value = content.get(name, "")
    return clip(value if isinstance(value, str) else json.dumps(value), _MOST_CHARACTERS)


def _of_json(content: dict[str, Any], scores: tuple[tuple[str, float], ...]) -> Submission:
    runs = tuple(
        SubmissionRun(
            mode=_text(run, "mode"),
            passed=_flag(run, "passed", default=False),
            runner=_text(run, "runner"),
            secret=_flag(run, "secret", default=False),
            score=_seconds(run["score"]) if run.get("score") is not None else None,
        )
        for run in content["runs"][:_MOST_LINES]
        if isinstance(run, dict)
    )
    done = _flag(content, "done", default=True)
    scores = scores or tuple(("secret" if run.secret else "public", run.score) for run in runs if run.score is not None)
    return Submission(
        format="json",
        passed=all(run.passed for run in runs) if runs and done else None,
        runs=runs,
        scores=scores,
        identity=_text(content, "submission_id"),
        runner=runs[0].runner if runs else "",
    )


def _plain_text(content: Any, text: str) -> str:
    """Return the report's text; some versions write it as a JSON string, or a list of them, with escaped newlines."""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and content and all(isinstance(part, str) for part in content):
        text = "\n".join(content)
    return text.replace("\\n", "\n")


def _of_text(text: str, scores: tuple[tuple[str, float], ...], runner: str) -> Submission:
    tests: list[Test] = []
    benchmarks: list[Benchmark] = []
    before, quoted = "", 0
    for line in text.splitlines():
        if match := _TEST.match(line):
            tests.append(Test(match["spec"].strip(), match["mark"] == "✅"))
        elif line.startswith("> ") and tests:
            quoted += 1
            if quoted > _MOST_LINES:
                continue
            tests[-1] = Test(tests[-1].spec, tests[-1].passed, f"{tests[-1].message}\n{line[2:]}".strip())
        elif match := _MEAN.search(line):
            benchmarks.append(Benchmark(before.strip(), _ns(match, "mean") or 0.0, _error_ns(match)))
        elif (match := _RANGE.search(line)) and benchmarks:
            last = benchmarks[-1]
            benchmarks[-1] = Benchmark(last.spec, last.mean_ns, last.err_ns, _ns(match, "best"), _ns(match, "worst"))
        if line.strip() and not line.startswith("> "):
            before = line
    failed, count, code = _FAILED.search(text), _COUNT.search(text), _CODE.search(text)
    gpu = re.search(r"GPU: `([^`]+)`", text)
    passed: bool | None = None
    if failed is not None or any(not test.passed for test in tests) or re.search(r"^❌ .*failed", text, re.M):
        passed = False
    elif count is not None or tests or benchmarks:
        passed = True
    return Submission(
        format="text",
        passed=passed,
        tests=tuple(tests),
        passed_tests=(int(count[1]), int(count[2])) if count else None,
        benchmarks=tuple(benchmarks),
        scores=scores,
        failure=failed[1] if failed else None,
        exit_code=None if code is None else int(code[1]) if code[1] else "timeout",
        runner=runner or (gpu[1] if gpu else ""),
    )


def _ns(match: re.Match[str], name: str) -> float | None:
    unit = match[f"{name}_unit"]
    return float(match[name]) * _NS["us" if unit[0] in "µμ" else unit]


def _error_ns(match: re.Match[str]) -> float | None:
    unit, error = match["mean_unit"], match["mean_err"]
    return None if error is None else float(error) * _NS["us" if unit[0] in "µμ" else unit]
