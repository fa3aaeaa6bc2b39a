"""The prompts of workers and reviewers. The same history gives the same text: no times of clocks are in it.

A prompt is a template in which ``<name>`` stands for a section; ``<<name>`` is the text ``<name>``. The user may write
templates of their own (`worker.template`, `reviewer.template`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.loop.configuration.config import GATES, LoopConfig
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.memory.history import history
from pytest_nvfp4.loop.memory.memory import CandidateMemory
from pytest_nvfp4.loop.memory.quoting import one_line, quoted
from pytest_nvfp4.loop.schemas import Candidate, Examination, Model, ReviewerVerdict, Verdict, WorkerResult
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model

RESULT_VARIABLE = "NVFP4_LOOP_RESULT"
"""Environment variable of a worker that names the file of its result."""
_PLACEHOLDER = re.compile(r"(<?)<([a-z_]+)>")
_TEMPLATE_BYTES = 1 << 20
_FEEDBACK, _HINT, _SUMMARY, _DIFF, _LAYOUTS = 6000, 4000, 1500, 24_000, 6000
_COUNTERS = 40
_NONE = "There is none."

CHECKED: Mapping[str, str] = {
    "compile": "it compiles, without a GPU",
    "layouts": "no named layout differs from its snapshot",
    "launch": "grid, block, cluster, shared memory, TMEM columns and TMA descriptors are those of the snapshot",
    "codegen": "no spills, and no opcode that appears or disappears",
    "tmem": "it allocates the TMEM columns that it uses, and nothing in them overlaps",
    "coverage": "each element of an output is written, by one CTA, also in later calls",
    "verify": "all outputs are right on all problems, bit for bit where that is provable, on inputs of other seeds",
    "races": "no race, no missing fence or barrier, no deadlock",
    "cost": "counters of one call (bytes, instructions, bank conflicts, ...) are compared with the incumbent's",
    "model": "the modelled time is compared with the incumbent's",
}
"""What each gate asks of a candidate."""
assert set(CHECKED) == set(GATES)


class Prompts:
    """Writer of the prompts of a loop.

    Args:
        config: The configuration.
        folder: The directory of state.
        memory: The earlier candidates.
        root: Root of the repository, which paths of templates are relative to.

    Raises:
        ConfigError: A template cannot be read, or has an unknown placeholder.
    """

    def __init__(self, config: LoopConfig, folder: StateFolder, memory: CandidateMemory, *, root: Path) -> None:
        self._config, self._folder, self._memory = config, folder, memory
        self._worker = _template(config.worker.template, "worker", _WORKER, root)
        self._reviewer = _template(config.reviewer.template, "reviewer", _REVIEWER, root)

    def worker_prompt(self, state: LoopState, *, number: int, slot: int) -> str:
        """Return the prompt for a candidate of the current iteration. Raises DoorError and OSError."""
        config = self._config
        earlier = self._memory.before(state.iteration)
        last = [record for record in earlier if record.candidate.iteration == state.iteration - 1]
        several = config.worker.candidates
        return _filled(
            self._worker,
            {
                "loop": config.name,
                "candidate": str(number),
                "iteration": str(state.iteration),
                "iterations": str(config.budget.iterations),
                "others": "You work alone."
                if several == 1
                else f"You are worker {slot + 1} of {several}, which begin with the same incumbent and do not see each "
                "other; take an idea that another one is unlikely to take.",
                "kernel": config.kernel.file,
                "target": _target(config),
                "incumbent": self._incumbent(state),
                "policy": _policy(config),
                "checks": "\n".join(
                    f"{at}. `{gate}`: {CHECKED[gate]}" for at, gate in enumerate(config.judge.gates, 1)
                ),
                "testing": _testing(config),
                "feedback": "\n\n".join(_feedback(each.number, each.verdict) for each in last if each.verdict) or _NONE,
                "hint": quoted(state.hint, most=_HINT) if state.hint.strip() else _NONE,
                "history": history(earlier, most=config.memory.prompt_characters),
                "report": self._worker_report(state.iteration, number),
            },
        )

    def reviewer_prompt(self, iteration: int, candidates: Sequence[tuple[Candidate, Verdict]], *, answer: Path) -> str:
        """Return the prompt for the review of an iteration.

        Args:
            iteration: The iteration.
            candidates: Its candidates with their verdicts.
            answer: File that the reviewer writes its verdict to.

        Raises:
            DoorError, OSError: A record cannot be read.
        """
        return _filled(
            self._reviewer,
            {
                "loop": self._config.name,
                "iteration": str(iteration),
                "kernel": self._config.kernel.file,
                "target": _target(self._config),
                "trajectory": history(self._memory.before(iteration), most=self._config.memory.prompt_characters),
                "candidates": "\n\n".join(self._reviewed(*each) for each in candidates) or _NONE,
                "report": _reviewer_report(iteration, answer),
            },
        )

    def _incumbent(self, state: LoopState) -> str:
        number = state.incumbent_candidate
        folder = self._folder.candidate(number) if number else self._folder.baseline
        examined = read_model(folder / "examination.json", Examination)
        name = f"candidate {number}" if number else "the kernel where the loop began"
        lines = [f"It is {name}, commit `{state.incumbent}`."]
        if state.best_value is not None:
            lines.append(f"Its value of the target is {_figure(state.best_value)}{_gain_text(state)}.")
        if examined is not None:
            lines += [f"- {one_line(each.problem, most=200)}: {each.us:.3f} us modelled" for each in examined.modelled]
            counters = sorted(examined.counters.items())
            if counters:
                lines.append("\nCounters of one call:\n")
            lines += [f"- {one_line(name, most=200)}: {_figure(value)}" for name, value in counters[:_COUNTERS]]
            if len(counters) > _COUNTERS:
                lines.append(f"- {len(counters) - _COUNTERS} more: `nvfp4 cost {self._config.kernel.file}`")
        return "\n".join(lines)

    def _worker_report(self, iteration: int, number: int) -> str:
        example = WorkerResult(
            iteration=iteration, kernel_path=self._config.kernel.file, decision="KEEP", summary="what, and why"
        )
        return (
            f"When you are done, write one JSON object to `{self._folder.result(number)}` (the environment variable "
            f"{RESULT_VARIABLE} names it too):\n\n"
            f"{_json(example, 'artifacts', 'errors')}\n\n"
            "`decision` is `KEEP` or `REVERT`. Only `decision`, `summary`, `tokens` and `usd` have an effect; later "
            "workers read the summary. `nvfp4 loop check FILE --kind worker` checks the file. While you work, "
            "`nvfp4 loop progress --time-us T --status running --note TEXT` shows a time to the people who watch."
        )

    def _reviewed(self, candidate: Candidate, verdict: Verdict) -> str:
        folder = self._folder.candidate(candidate.number)
        examined = read_model(folder / "examination.json", Examination)
        parts = [f"### Candidate {candidate.number}: {verdict.outcome}"]
        if verdict.value is not None and verdict.incumbent_value is not None:
            parts.append(f"Target: {_figure(verdict.value)}, against {_figure(verdict.incumbent_value)} before.")
        parts += [
            f"Measured on {one_line(each.device, most=100)}: {each.ratio:.4f} of the incumbent's time, 95 % interval "
            f"{each.low:.4f} to {each.high:.4f}."
            for each in verdict.comparisons
        ]
        parts.append(f"Reason:\n\n{quoted(verdict.reason, most=_SUMMARY)}")
        if candidate.result is not None and candidate.result.summary.strip():
            parts.append(f"The worker says:\n\n{quoted(candidate.result.summary, most=_SUMMARY)}")
        if examined is not None and examined.layouts:
            parts.append(f"Layouts:\n\n{quoted(chr(10).join(examined.layouts), most=_LAYOUTS)}")
        diff = _diff(folder / "diff.patch")
        parts.append(f"Diff:\n\n{quoted(diff, most=_DIFF)}" if diff else "There is no diff.")
        return "\n\n".join(parts)


def _template(own: str, name: str, known: Sequence[str], root: Path) -> str:
    """Return the text of a template. Raises ConfigError."""
    if not own:
        return (files(__package__) / "templates" / f"{name}.md").read_text(encoding="utf-8")
    path = root / Path(own).expanduser()
    try:
        text = read_text(path, source=str(path), most=_TEMPLATE_BYTES)
    except DoorError as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}; {name}.template names it"]) from None
    for found in _PLACEHOLDER.finditer(text):
        if not found[1] and found[2] not in known:
            number = text.count("\n", 0, found.start()) + 1
            raise ConfigError(
                [
                    f"{path}:{number}: the placeholder <{found[2]}> is unknown; known are "
                    f"{', '.join(f'<{each}>' for each in known)}. Write <<{found[2]}> for the text itself"
                ]
            )
    return text


def _filled(template: str, sections: Mapping[str, str]) -> str:
    """Return a template with its sections; what a section holds is not looked at again."""
    return _PLACEHOLDER.sub(lambda found: found[0][1:] if found[1] else sections[found[2]], template)


_WORKER = (
    *("loop", "candidate", "iteration", "iterations", "others", "kernel", "target", "incumbent", "policy", "checks"),
    *("testing", "feedback", "hint", "history", "report"),
)
_REVIEWER = ("loop", "iteration", "kernel", "target", "trajectory", "candidates", "report")


def _target(config: LoopConfig) -> str:
    metric = config.target.metric
    what = f"the counter `{metric.partition(':')[2]}`" if metric.startswith("counter:") else f"the {metric} times in us"
    text = f"Geometric mean of {what} over {', '.join(config.kernel.problems)}; lower is better. "
    text += f"A gain below {100 * config.target.least_gain:g} % does not count."
    if config.target.threshold is not None:
        text += f" The loop ends at {_figure(config.target.threshold)}."
    return text


def _policy(config: LoopConfig) -> str:
    others = config.policy.may_change
    text = f"The file `{config.kernel.file}`" + (
        f", and files that match {', '.join(f'`{each}`' for each in others)}" if others else ""
    )
    text += (
        ". A candidate that changes any other file (tests, snapshots, settings) is rejected unseen. The kernel may not "
        "find out how it is judged, nor keep results of earlier calls."
    )
    if config.policy.layouts == "gate":
        text += " No named layout may change."
    if config.policy.protected:
        text += f" These layouts never change: {', '.join(f'`{each}`' for each in config.policy.protected)}."
    return text


def _testing(config: LoopConfig) -> str:
    kernel = shlex.quote(config.kernel.file)
    how = f" --problem {shlex.quote(config.kernel.problems[0])}"
    how += f" --config {shlex.quote(config.kernel.config)}" if config.kernel.config else ""
    commands = (
        (f"pytest {kernel} -x", "all checks; `-k verify` and others choose"),
        (f"nvfp4 cost {kernel}{how}", "counters of one call"),
        (f"nvfp4 model {kernel}{how}", "modelled time, and where it goes"),
    )
    return "\n".join(f"- `{command}`: {what}" for command, what in commands)


def _feedback(number: int, verdict: Verdict) -> str:
    text = f"{verdict.reason}\n{verdict.feedback}"
    worse = [
        f"{each.problem}/{each.name}: {_figure(each.incumbent)} -> {_figure(each.candidate)}" for each in verdict.worse
    ]
    return f"Candidate {number}: {verdict.outcome}.\n\n{quoted(chr(10).join([text, *worse]), most=_FEEDBACK)}"


def _reviewer_report(iteration: int, answer: Path) -> str:
    example = ReviewerVerdict(
        iteration=iteration,
        verdict="CONTINUE",
        confidence="medium",
        reason="why",
        next_change_hint="what the next worker should try",
        requires_revert=False,
    )
    return (
        f"Write exactly one JSON object to `{answer}`:\n\n"
        f"{_json(example)}\n\n"
        "`confidence` is `low`, `medium` or `high`. `nvfp4 loop check FILE --kind reviewer` checks the file."
    )


def _gain_text(state: LoopState) -> str:
    if state.best_value is None or not state.baseline_value or not state.incumbent_candidate:
        return ""
    return f", {100 * (1 - state.best_value / state.baseline_value):.1f} % better than where the loop began"


def _json(example: Model, *without: str) -> str:
    values = example.model_dump(mode="json", exclude_none=True, exclude={"version", *without})
    return f"```json\n{json.dumps(values, indent=2)}\n```"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _diff(path: Path) -> str:
    """Return the beginning of a candidate's diff; empty if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_DIFF + 1)
    except FileNotFoundError:
        return ""
