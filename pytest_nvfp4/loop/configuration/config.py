"""The configuration of a loop: a TOML file, with overrides ``section.key=value``.

The description of each field is its comment in the file that ``nvfp4 loop init`` writes.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

VERSION: Literal[1] = 1
Mode = Literal["command", "manual", "dry-run"]
Metric = Literal["modelled", "measured"]
Event = Literal["promoted", "stopped", "infrastructure"]
GATES = ("compile", "layouts", "launch", "codegen", "tmem", "coverage", "verify", "races", "cost", "model")
"""The gates in the order of their cost; the first eight are checks of the pytest plugin."""

_FREE = frozenset({"", "local", "cuda"})
"""Devices that cost nothing."""
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Limit = Annotated[float, Field(gt=0, le=1e9)]


class Section(BaseModel):
    """A table of the file; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KernelSection(Section):
    """``[kernel]``: what is optimised."""

    file: str = Field(description="kernel file, relative to the repository's root")
    problems: tuple[str, ...] = Field(
        default=("gpumode-bench",), min_length=1, description="problems whose times are the target, by name or as MxNxK"
    )
    verify: tuple[str, ...] = Field(
        default=(), description="problems of the gates; empty for those of the kernel's settings"
    )
    config: str = Field(default="", description="configuration of the kernel, if its settings have several")


class TargetSection(Section):
    """``[target]``: what is better."""

    metric: str = Field(
        default="modelled",
        pattern=r"^(modelled|measured|counter:\S+)$",
        description="geometric mean over the problems of the modelled or measured times in us, or of a counter of "
        "`nvfp4 cost` (counter:NAME); lower is better",
    )
    threshold: _Limit | None = Field(default=None, description="value at which the loop ends; none by default")
    confirmations: _Count = Field(
        default=2, description="iterations in a row that meet the threshold before the loop ends"
    )
    least_gain: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.005, description="share by which a candidate must be better; smaller gains are undecided"
    )


class CommandSection(Section):
    """A program that is started for each iteration."""

    command: tuple[str, ...] = Field(default=(), description="program and arguments; {name} is replaced, see the guide")
    prompt: Literal["stdin", "file"] = Field(
        default="stdin",
        description="where the prompt is: on standard input and in the file {prompt}, or only in the file",
    )
    template: str = Field(default="", description="file with a prompt of your own, in place of the shipped one")
    timeout_s: _Limit = Field(default=3600.0, description="seconds until it is ended")
    attempts: _Count = Field(default=2, description="times that it is started until it leaves something usable")
    sandbox: Literal["auto", "require", "off"] = Field(default="auto", description="sandbox around it")
    network: bool = Field(default=False, description="whether it may use the network")
    environment: tuple[str, ...] = Field(
        default=(), description="names of environment variables that it gets; all others are removed"
    )
    readable: tuple[str, ...] = Field(default=(), description="further files and folders that it may read")
    writable: tuple[str, ...] = Field(default=(), description="further files and folders that it may write")
    output_mb: _Limit = Field(
        default=16.0, description="megabytes of each output stream that are kept; the middle is dropped"
    )


class WorkerSection(CommandSection):
    """``[worker]``: who proposes candidates."""

    candidates: Annotated[int, Field(ge=1, le=64)] = Field(
        default=1,
        description="candidates of an iteration, each by a worker of its own from the same incumbent, side by side",
    )


class ReviewerSection(CommandSection):
    """``[reviewer]``: who may stop or steer the loop; without a command there is none."""

    timeout_s: _Limit = Field(default=900.0, description="seconds until it is ended")


class PolicySection(Section):
    """``[policy]``: what a worker may change."""

    may_change: tuple[str, ...] = Field(default=(), description="files or patterns beside the kernel file")
    layouts: Literal["reported", "gate"] = Field(
        default="gate",
        description="whether a layout that differs from its snapshot rejects a candidate, or is only reported",
    )
    protected: tuple[str, ...] = Field(
        default=(), description="layouts that may never change, beside those of the settings"
    )
    accepted: Literal["refused", "honoured"] = Field(
        default="refused",
        description="whether findings that the settings accept reject a candidate all the same, or pass",
    )


class JudgeSection(Section):
    """``[judge]``: the gates, none of which needs a GPU."""

    gates: tuple[str, ...] = Field(
        default=("compile", "layouts", "tmem", "coverage", "verify", "races", "cost", "model"),
        description=f"gates in order; known are {', '.join(GATES)}",
    )
    jobs: Annotated[int, Field(ge=1, le=256)] = Field(default=1, description="candidates that are examined at once")
    timeout_s: _Limit = Field(default=1800.0, description="seconds until an examination is ended")
    remote: str = Field(
        default="", description="remote whose CPU containers simulate, such as modal; empty for this machine"
    )
    containers: Annotated[int, Field(ge=1, le=1000)] = Field(default=4, description="containers of the remote")
    table: str = Field(
        default="", description="table of a device for modelled times; empty for that of the architecture"
    )
    skip_modelled_slower: bool = Field(
        default=True, description="whether a candidate that is modelled slower by more than the band is not measured"
    )

    @model_validator(mode="after")
    def _known(self) -> Self:
        unknown = [gate for gate in self.gates if gate not in GATES]
        if unknown:
            raise ValueError(f"unknown gates {', '.join(unknown)}; known are {', '.join(GATES)}")
        if "verify" not in self.gates or "compile" not in self.gates:
            raise ValueError("the gates compile and verify cannot be left out")
        return self


class DeviceSection(Section):
    """``[device]``: where survivors are measured; only for the metric ``measured``."""

    name: str = Field(default="", description="device or remote that measures, such as local or modal; empty for none")
    gpu: str = Field(default="", description="GPU of the remote, such as B200")
    rounds: Annotated[int, Field(ge=12, le=100_000)] = Field(
        default=120, description="timed calls of each kernel and problem"
    )
    confirm_rounds: Annotated[int, Field(ge=12, le=100_000)] = Field(
        default=240, description="timed calls of the second, fresh comparison that confirms a win"
    )
    smoke_s: _Limit = Field(default=180.0, description="seconds of the first stage: right, and not far slower")
    candidate_s: _Limit = Field(default=420.0, description="seconds of a comparison")
    final_s: _Limit = Field(default=900.0, description="seconds of the confirming comparison")


class BudgetSection(Section):
    """``[budget]``: what may be spent, over all restarts; the first limit that is reached ends the loop."""

    iterations: _Count = Field(default=40, description="number of iterations")
    minutes: _Limit = Field(default=360.0, description="minutes of wall clock while the loop runs")
    gpu_seconds: _Limit | None = Field(default=None, description="seconds of GPUs; no limit by default")
    dollars: Annotated[float, Field(ge=0, le=1e9)] | None = Field(
        default=None, description="dollars, of remotes and of what workers report; required with a remote"
    )
    tokens: _Count | None = Field(
        default=None, description="tokens that workers and reviewers report; no limit by default"
    )
    disk_mb: _Limit = Field(
        default=2000.0, description="megabytes of the directory of state; old outputs are removed first"
    )


class LimitsSection(Section):
    """``[limits]``: when the loop gives up."""

    no_progress: _Count = Field(default=6, description="iterations in a row without a promotion")
    infrastructure_failures: _Count = Field(
        default=3, description="iterations in a row that failed for reasons of the surroundings"
    )
    wait_s: _Limit = Field(default=3600.0, description="seconds that the mode manual waits for a file")
    lock_minutes: _Limit = Field(
        default=10.0, description="minutes without a heartbeat after which a lock of another host is stale"
    )


class MemorySection(Section):
    """``[memory]``: what of the history is part of a prompt."""

    prompt_characters: Annotated[int, Field(ge=500, le=1_000_000)] = Field(
        default=12_000, description="characters of a prompt for the table of earlier candidates"
    )


class NotifySection(Section):
    """``[notify]``: a command of yours at promotions and at the end."""

    command: tuple[str, ...] = Field(
        default=(), description="program and arguments; {event}, {title} and {text} are replaced"
    )
    events: tuple[Event, ...] = Field(default=("promoted", "stopped"), description="events that start it")
    timeout_s: _Limit = Field(default=30.0, description="seconds until it is ended")


class LoopConfig(Section):
    """The configuration of a loop."""

    version: Literal[1] = Field(default=VERSION, description="version of this file's schema")
    name: str = Field(
        default="loop",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name of the loop; its branch is nvfp4-loop/NAME",
    )
    mode: Mode = Field(
        default="command",
        description="how an iteration runs: command (starts the worker), manual (waits for files) or dry-run",
    )
    kernel: KernelSection
    target: TargetSection = TargetSection()
    worker: WorkerSection = WorkerSection()
    reviewer: ReviewerSection = ReviewerSection()
    policy: PolicySection = PolicySection()
    judge: JudgeSection = JudgeSection()
    device: DeviceSection = DeviceSection()
    budget: BudgetSection = BudgetSection()
    limits: LimitsSection = LimitsSection()
    memory: MemorySection = MemorySection()
    notify: NotifySection = NotifySection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mode == "command" and not self.worker.command:
            raise ValueError(
                "worker.command is missing; the mode command starts it in each iteration; mode = 'manual' waits for "
                "files that people or other programs write"
            )
        if self.target.metric == "measured" and not self.device.name:
            raise ValueError("target.metric = 'measured' needs device.name")
        for key, name in (("judge.remote", self.judge.remote), ("device.name", self.device.name)):
            if name.partition(":")[0] == "popcorn":
                raise ValueError(f"{key} = {name!r} submits to a public leaderboard, which a loop never does")
            if name not in _FREE and self.budget.dollars is None:
                raise ValueError(f"{key} = {name!r} may cost money; set a ceiling: budget.dollars or --max-cost")
        return self
