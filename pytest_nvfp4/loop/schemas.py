"""What workers, reviewers and the judge write, as JSON with versions.

A *candidate* is one state of the files that a worker may change. A *verdict* is what the judge found about it. A
worker's result and a reviewer's verdict come from programs that are not trusted: every number is finite, and every text
and list is bounded.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StrictBool, StrictFloat

from pytest_nvfp4.isolation.door.fields import STRICT, Count, Index, Microseconds, Name, Seconds, Sentence, Sha256

_MOST = 1000
_Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]
_Number = Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]
_Dollars = Annotated[float, Field(ge=0, le=1e9, strict=True)]
_Tokens = Annotated[Count, Field(strict=True)]
_Short = Annotated[str, Field(max_length=10_000)]
_Texts = Annotated[tuple[_Short, ...], Field(max_length=_MOST)]


class Model(BaseModel):
    """An immutable model without unknown fields and without numbers that are not finite."""

    model_config = STRICT


class WorkerResult(Model):
    """What a worker writes about its candidate. Only `decision`, `summary` and what it spent have an effect.

    Attributes:
        version: Version of this schema.
        iteration: Iteration that it belongs to.
        kernel_path: The kernel file, relative to the worktree.
        decision: ``KEEP`` proposes the candidate, ``REVERT`` withdraws it.
        summary: What was changed, and why it should be faster. It becomes part of the memory and the commit.
        metric_name: Name of the worker's own metric.
        metric_value: Its value; a claim, which is shown beside the judge's and never compared.
        tests_passed: A claim.
        benchmark_passed: A claim.
        artifacts: Names of files that it wrote.
        errors: What went wrong.
        tokens: Tokens that it used; counted against the budget.
        usd: Dollars that it spent; counted against the budget.
    """

    version: Literal[1] = 1
    iteration: _Number
    kernel_path: Annotated[str, Field(min_length=1, max_length=4096)]
    decision: Literal["KEEP", "REVERT"]
    summary: _Short = ""
    metric_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    metric_value: StrictFloat | None = None
    tests_passed: StrictBool | None = None
    benchmark_passed: StrictBool | None = None
    artifacts: _Texts = ()
    errors: _Texts = ()
    tokens: _Tokens = 0
    usd: _Dollars = 0.0


ReviewerDecision = Literal["CONTINUE", "STOP_TARGET_REACHED", "STOP_NO_PROGRESS", "STOP_BLOCKED"]


class ReviewerVerdict(Model):
    """What a reviewer writes about an iteration. It can stop or steer the loop, and never promotes a candidate.

    Attributes:
        version: Version of this schema.
        iteration: Iteration that it belongs to.
        verdict: Whether the loop goes on.
        confidence: How sure the reviewer is.
        reason: Why.
        next_change_hint: What the next worker should try; part of its prompt.
        requires_revert: Whether what this iteration would promote is not promoted.
        tokens: Tokens that it used; counted against the budget.
        usd: Dollars that it spent; counted against the budget.
    """

    version: Literal[1] = 1
    iteration: _Number
    verdict: ReviewerDecision
    confidence: Literal["low", "medium", "high"]
    reason: Annotated[str, Field(min_length=1, max_length=10_000)]
    next_change_hint: Annotated[str, Field(min_length=1, max_length=10_000)]
    requires_revert: StrictBool
    tokens: _Tokens = 0
    usd: _Dollars = 0.0


WorkerEnd = Literal["proposed", "unchanged", "withdrawn", "violation", "failed"]
"""How a worker ended: with a changed kernel, without a change, with ``REVERT``, with a change that the policy forbids,
or without a usable candidate (crash, timeout, no file)."""


class Candidate(Model):
    """What one run of a worker left.

    Attributes:
        version: Version of this schema.
        number: Number of the candidate in its loop, from 1.
        iteration: Iteration in which it was made.
        slot: Position among the candidates of its iteration, from 0.
        parent: Commit of the incumbent that the worker began with.
        by: Who made it: the name of the worker's program, or of the mode.
        end: How the worker ended.
        commit: Commit of the parent with the candidate's files; None if there is no usable candidate.
        tree: Git tree of that commit. Equal trees are equal candidates.
        source_sha256: `source.source_sha256` of all files that the worker may change, as the candidate has them.
        files: Files that the candidate changes.
        violations: Changes that the policy forbids; a file and what is wrong with it.
        problems: Why the worker failed, and what of its result could not be read.
        result: The worker's own words; None if there are none that can be read.
        attempts: Times that the worker was started.
        wall_s: Seconds that the worker ran.
    """

    version: Literal[1] = 1
    number: _Number
    iteration: _Number
    slot: Index = 0
    parent: _Commit
    by: Name = ""
    end: WorkerEnd
    commit: _Commit | None = None
    tree: _Commit | None = None
    source_sha256: Sha256 | None = None
    files: _Texts = ()
    violations: _Texts = ()
    problems: _Texts = ()
    result: WorkerResult | None = None
    attempts: Index = 1
    wall_s: Seconds = 0.0


class GateResult(Model):
    """The result of one gate.

    Attributes:
        gate: Name of the gate: that of a check, or ``cost`` or ``model``.
        outcome: ``skipped`` and ``unavailable`` do not pass unless the configuration allows it.
        wall_s: Seconds that it took.
        message: The finding with its line and hint, or why it did not run.
    """

    gate: Name
    outcome: Literal["passed", "failed", "skipped", "unavailable"]
    wall_s: Seconds = 0.0
    message: Sentence = ""


class ProblemTime(Model):
    """The time of one problem: modelled, or the median of measured ones."""

    problem: Name
    us: Annotated[float, Field(gt=0, le=1e13)]


class Counter(Model):
    """A counter of ``cost`` that differs between incumbent and candidate; None where it does not exist."""

    problem: Name
    name: Name
    incumbent: float | None
    candidate: float | None


class Examination(Model):
    """What can be found about a candidate without a GPU. It depends on the candidate and on its parent only.

    Attributes:
        version: Version of this schema.
        candidate: Number of the candidate; 0 for the baseline.
        gates: Results of the gates in the order they ran; the first one that does not pass is the last one.
        passed: Whether all gates passed.
        infrastructure: Why the examination says nothing about the candidate; empty if it does.
        ptx_sha256: Hash of what was compiled and how it is launched; None if it did not compile.
        duplicate_of: Earlier candidate with the same hash; 0 for the baseline, None if there is none. The gates that
            follow ``compile`` have not run then.
        layouts: Layouts that differ from their snapshots, a line each.
        counters: All counters of ``cost`` by ``problem`` and name, as ``problem/name``.
        modelled: Modelled times by problem.
        path: Time on the modelled critical path in us, by ``problem/warps: cause``; the longest parts.
        table: Table of constants, model version and conditions of the modelled times.
        kind: Kinds of kernel that the time model takes it for.
        band: Share by which 90 % of the measured times of such kernels differ from modelled ones at most; 1 if unknown.
        wall_s: Seconds that it took.
        gpu_s: Seconds of a rented machine that it used.
        usd: Dollars that it cost.
    """

    version: Literal[1] = 1
    candidate: Index
    gates: Annotated[tuple[GateResult, ...], Field(max_length=_MOST)] = ()
    passed: bool = False
    infrastructure: Sentence = ""
    ptx_sha256: Sha256 | None = None
    duplicate_of: Index | None = None
    layouts: _Texts = ()
    counters: Annotated[dict[str, float], Field(max_length=100_000)] = {}
    modelled: Annotated[tuple[ProblemTime, ...], Field(max_length=_MOST)] = ()
    path: Annotated[dict[str, float], Field(max_length=100_000)] = {}
    table: Name = ""
    kind: Name = ""
    band: Annotated[float, Field(ge=0, le=1)] = 1.0
    wall_s: Seconds = 0.0
    gpu_s: Seconds = 0.0
    usd: _Dollars = 0.0


class Comparison(Model):
    """One interleaved measurement of incumbent and candidate (A B B A in one allocation).

    Attributes:
        device: Name of the device that measured.
        incumbent: Median times of the incumbent by problem.
        candidate: Median times of the candidate by problem.
        ratio: Geometric mean of candidate over incumbent.
        low: Lower end of the 95 % interval of the ratio.
        high: Upper end of it.
        outcome: ``faster`` if the whole interval is below 1 by the least gain, ``slower`` if it is above 1.
        gpu_s: Seconds of the device.
        usd: Dollars that it cost.
    """

    device: Name
    incumbent: Annotated[tuple[ProblemTime, ...], Field(max_length=_MOST)]
    candidate: Annotated[tuple[ProblemTime, ...], Field(max_length=_MOST)]
    ratio: Annotated[float, Field(gt=0, le=1e9)]
    low: Annotated[float, Field(ge=0, le=1e9)]
    high: Annotated[float, Field(ge=0, le=1e12)]
    outcome: Literal["faster", "slower", "undecided"]
    gpu_s: Seconds = 0.0
    usd: _Dollars = 0.0


Outcome = Literal["faster", "undecided", "slower", "rejected", "duplicate", "no-candidate", "infrastructure"]
"""Only ``faster`` promotes. ``undecided`` is what noise or the least gain leave open."""


class Verdict(Model):
    """What the judge decided about a candidate.

    Attributes:
        version: Version of this schema.
        candidate: Number of the candidate.
        iteration: Iteration in which it was made.
        against: Commit that it was compared with.
        outcome: The decision.
        reason: Why, in one sentence.
        feedback: What the next worker is given: the finding with its line and hint, or the counters that got worse.
        duplicate_of: Number of the earlier candidate that is the same; 0 for the baseline.
        metric: Name of the target's metric.
        value: Its value for the candidate; lower is better. None if it was not determined.
        incumbent_value: Its value for the commit that it was compared with.
        worse: Counters that got worse.
        comparisons: Measurements, the confirming ones last.
        artifacts: SHA-256 of each file of evidence, by its name in the candidate's folder.
        gpu_s: Seconds of rented or local GPUs.
        usd: Dollars.
    """

    version: Literal[1] = 1
    candidate: _Number
    iteration: _Number
    against: _Commit
    outcome: Outcome
    reason: Sentence
    feedback: Sentence = ""
    duplicate_of: Index | None = None
    metric: Name = ""
    value: float | None = None
    incumbent_value: float | None = None
    worse: Annotated[tuple[Counter, ...], Field(max_length=_MOST)] = ()
    comparisons: Annotated[tuple[Comparison, ...], Field(max_length=100)] = ()
    artifacts: Annotated[dict[Name, Sha256], Field(max_length=_MOST)] = {}
    gpu_s: Seconds = 0.0
    usd: _Dollars = 0.0


ProgressStatus = Literal["init", "running", "benchmark", "blocked", "completed"]


class WorkerProgress(Model):
    """Live times that a worker reports with ``nvfp4 loop progress``; claims, which are only shown.

    Attributes:
        version: Version of this schema.
        metric_name: Name of the metric; lower is better.
        status: What the worker does.
        best_time_us: Smallest time so far.
        last_time_us: Last time.
        best_artifact: File that the best time is from.
        last_artifact: File that the last time is from.
        note: A line for people.
        errors: The last 20 errors.
        updates: Number of reports.
        source: Who reports.
        iteration: Iteration, if the worker says.
        updated_at: Time of the last report (UTC, ISO 8601).
    """

    version: Literal[1] = 1
    metric_name: Name = "gmean_us"
    status: ProgressStatus = "init"
    best_time_us: Microseconds | None = None
    last_time_us: Microseconds | None = None
    best_artifact: _Short | None = None
    last_artifact: _Short | None = None
    note: _Short = ""
    errors: Annotated[tuple[_Short, ...], Field(max_length=20)] = ()
    updates: Count = 0
    source: Name = "worker"
    iteration: _Number | None = None
    updated_at: Name = ""
