"""``nvfp4 model KERNEL``: the modelled time of one call, where it goes, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.call_sides import CallFacts, kernel_of
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, document_options, run_options, timeout_option
from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.report.document import Block, Document, Styled
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.cli.model.page import Answer, Modelled
    from pytest_nvfp4.cli.model.tune import Outcome, Variant
    from pytest_nvfp4.cli.simulation import Runnable
    from pytest_nvfp4.device.job import JobCase
    from pytest_nvfp4.device.modelled import ModelledCall
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.model.constants import DeviceConstants
    from pytest_nvfp4.model.recording import Recording
    from pytest_nvfp4.model.replay import Conditions, Replay
    from pytest_nvfp4.model.sample import Samples

_FILE = click.Path(path_type=Path, dir_okay=False)

_UNJUDGED = "The outputs were not judged: with --verify, a call with wrong ones has no time."


@dataclass(frozen=True)
class _How:
    """What the times are modelled for."""

    device: DeviceConstants
    conditions: Conditions
    timeout_s: float
    folder: Path
    verify: bool = False


@click.command("time")
@click.argument("kernel")
@click.argument("new", required=False)
@run_options
@click.option(
    "--device", "device_name", metavar="NAME", help="Table of a device, or a file.  [default: that of the architecture]"
)
@click.option(
    "--conditions",
    "condition_name",
    type=click.Choice(["gpumode", "single"]),
    default="gpumode",
    show_default=True,
    help="A cold L2 and, on a B200, the rate of DRAM of GPU MODE's machine or that of the table.",
)
@click.option(
    "--what-if/--no-what-if", "asked", default=True, show_default=True, help="Replay it also with single changes."
)
@click.option(
    "--verify",
    is_flag=True,
    help="Judge the result of the recorded call too, which is simulated with all data; a wrong one has no time.",
)
@click.option(
    "--tune",
    "tuned",
    multiple=True,
    metavar="NAME=V1,V2",
    help="Values to try of a constant at the top level of KERNEL; may be repeated, for all combinations.",
)
@click.option(
    "--verify-problem",
    "small",
    metavar="NAME",
    help="Problem that each combination of --tune is verified on.  [default: the smallest known]",
)
@click.option(
    "--timeline", type=_FILE, metavar="FILE", help="Write a timeline in modelled time for ui.perfetto.dev (.pftrace)."
)
@click.option(
    "--timeline-sms",
    type=click.IntRange(1, 999),
    default=8,
    show_default=True,
    metavar="N",
    help="SMs of the timeline: the first ones.",
)
@timeout_option(600.0)
@document_options(csv=True)
def time_command(
    kernel: str,
    new: str | None,
    *,
    how: RunOptions,
    device_name: str | None,
    condition_name: str,
    asked: bool,
    verify: bool,
    tuned: tuple[str, ...],
    small: str | None,
    timeline: Path | None,
    timeline_sms: int,
    timeout: float,
) -> Document:
    """Model the time of one call of KERNEL on a device, without a GPU; with NEW, compare both.

    The kernel runs in the simulator, which records what every warp issues and waits for. The recording is replayed on a
    table of the device's constants. The result is a modelled time, never a measured one: with the range in which 90 %
    of the measured times of such kernels lie, where the time goes by warp and line, how busy each unit is, and what a
    change of the device or the kernel would bring. Kernels unlike those that the model was compared with are refused.

    KERNEL and NEW are kernels, snapshots of the check model, or one of them in a git revision, REV:path. Exit code 1 if
    no time is modelled, or NEW is slower than KERNEL by more than model-tolerance.
    """
    from pytest_nvfp4.cli.model import comparison, tune
    from pytest_nvfp4.device.modelled import conditions_of

    wanted = tune.parse(tuned)
    if small is not None and not wanted:
        raise InputError("--verify-problem is that of --tune, which is not given")
    if new is not None and (wanted or timeline is not None):
        raise InputError("--tune and --timeline are for one kernel, and two are compared")
    with temporary_folder("model") as folder:

        def plan_of(subject: Runnable) -> _How:
            device = _device(subject, device_name)
            return _How(device, conditions_of(condition_name, device), timeout, Path(folder), verify)

        if new is not None:
            return comparison.compare(kernel, new, how, lambda subject: _facts(subject, plan_of(subject)))
        with kernel_of(kernel, how) as subject:
            if subject is None:
                raise InputError(f"{kernel}: is a snapshot; name what to compare it with")
            plan = plan_of(subject)
            if timeline is not None and (len(subject.cases()) > 1 or wanted):
                raise InputError("--timeline shows one call: name one --problem, and leave out --tune")
            if wanted and len(subject.cases()) > 1:
                raise InputError("--tune ranks by the time of one call: name one --problem")
            if wanted:
                return _tuned(subject, tune.variants(subject, wanted), plan, small)
            return _timed(subject, plan, timeline, timeline_sms, asked=asked)


def _device(subject: Runnable, name: str | None) -> DeviceConstants:
    """Return the table of a kernel's device. Raises InputError if there is none, or nothing simulates the kernel."""
    from pytest_nvfp4.device.modelled import device_for
    from pytest_nvfp4.device.sim import SimDevice
    from pytest_nvfp4.model.constants import ConstantsError

    if (unsupported := SimDevice(arch=subject.spec.arch).unsupported(subject.spec.arch)) is not None:
        raise InputError(f"{subject.label}: {unsupported}")
    try:
        device = device_for(subject.spec.arch, name)
    except ConstantsError as error:
        raise InputError(str(error)) from error
    if device.origin:
        output.note(f"the table of {device.name} is {device.origin}")
    return device


def _facts(subject: Runnable, how: _How) -> dict[str, CallFacts]:
    """Return the facts of the modelled time of a kernel on each of its problems."""
    from pytest_nvfp4.bench.line_texts import LineTexts
    from pytest_nvfp4.bench.modelled_facts import modelled_facts, no_text, origin

    text_of = no_text if subject.request is None else LineTexts(subject.request.kernel, subject.root)
    with output.working(f"modelling {subject.label} on {how.device.title}"):
        done = [_modelled(each, how, asked=False) for each in _record(subject, subject.cases(), how)]
    found = {}
    for each in done:
        if each.call is not None and not each.call.refused:
            facts = modelled_facts(each.call, text_of=text_of)
            found[each.problem] = CallFacts(facts, {"problem": each.problem, **origin(each.call)})
            continue
        reasons = each.call.refused if each.call is not None else [subject.finding_text(one) for one in each.findings]
        found[each.problem] = CallFacts({}, {"problem": each.problem}, "; ".join(reasons) or each.status)
    return found


def _timed(subject: Runnable, how: _How, timeline: Path | None, sms: int, *, asked: bool) -> Document:
    from pytest_nvfp4.cli.model import page

    with output.working(f"recording {subject.label} in the simulator"):
        done = _record(subject, subject.cases(), how)
    with output.working(f"replaying it on {how.device.title}"):
        modelled = [_modelled(each, how, asked=asked) for each in done]
    if timeline is not None and modelled[0].ok:
        _write_timeline(timeline, done[0], how, sms=sms)
    elif timeline is not None:
        output.note(f"{timeline} was not written: no time is modelled")
    sections = [
        page.section(
            each, f"{subject.label} on {each.problem}", [subject.finding_text(finding) for finding in each.findings]
        )
        for each in modelled
    ]
    data = {
        "kernel": subject.label,
        "arch": subject.spec.arch,
        "note": page.NO_MEASUREMENT,
        "problems": [page.as_data(each) for each in modelled],
    }
    note = page.NO_MEASUREMENT if how.verify else f"{page.NO_MEASUREMENT} {_UNJUDGED}"
    blocks: list[Block] = [page.summary(modelled), *sections, Styled(note, "muted")]
    return Document(f"Modelled times of {subject.label}", blocks, data, all(each.ok for each in modelled))


def _record(
    subject: Runnable, cases: Sequence[JobCase], how: _How, *, recording: bool = True
) -> list[SimulationResult]:
    from pytest_nvfp4.device.simulate import simulate

    return simulate(
        subject.simulator(timeout_s=how.timeout_s),
        subject.spec,
        cases,
        folder=how.folder,
        base=subject.base,
        deadline_s=how.timeout_s,
        outputs=how.verify or not recording,
        origins=how.verify,
        recording=recording,
        sampled=recording and not how.verify,
    )


def _modelled(done: SimulationResult, how: _How, *, asked: bool) -> Modelled:
    """Return the modelled time of a simulated call, with what-if answers if they are asked for."""
    from pytest_nvfp4.cli.model.page import Modelled
    from pytest_nvfp4.device.modelled import recordings_of, replayed_call
    from pytest_nvfp4.model.sample import Samples

    call: ModelledCall | None = None
    answers: list[Answer] = []
    if done.status == "passed" and not done.errors:
        recordings = recordings_of(done)
        samples = Samples()
        call, replays = replayed_call(recordings, how.device, how.conditions, samples)
        answers = _answers(recordings, replays, how, samples) if asked and replays else []
    return Modelled(done.case.problem.name, call, answers, done.findings, done.status)


def _answers(recordings: Sequence[Recording], replays: Sequence[Replay], how: _How, samples: Samples) -> list[Answer]:
    """Return the what-if answers of a call, the largest gain first.

    A launch to which a change does not apply takes the time that it takes without the change. A change that is possible
    for none of the launches has the reason instead of a time.
    """
    from pytest_nvfp4.cli.model.page import Answer
    from pytest_nvfp4.model.replay import ReplayError
    from pytest_nvfp4.model.what_if import what_if

    saved: dict[str, float] = {}
    refused: dict[str, str] = {}
    for recording, base in zip(recordings, replays, strict=True):
        try:
            answers = what_if(
                recording,
                how.device,
                base,
                conditions=how.conditions,
                samples=samples,
                whole_call=len(recordings) == 1,
            )
            for answer in answers:
                if answer.replay is None:
                    refused[answer.question] = answer.refused
                    continue
                question = f"{answer.question} ({answer.provided})" if answer.provided else answer.question
                saved[question] = saved.get(question, 0.0) - answer.change * base.total_us
        except ReplayError as error:
            output.note(f"no what-if answers for {base.kernel}: {error}")
    whole = sum(base.total_us for base in replays)
    ranked = sorted(saved.items(), key=lambda pair: -pair[1])
    answered = [Answer(question, whole - gain) for question, gain in ranked]
    return answered + [Answer(question, None, reason) for question, reason in refused.items() if question not in saved]


def _write_timeline(file: Path, done: SimulationResult, how: _How, *, sms: int) -> None:
    """Write the timeline of a call.

    Raises:
        InputError: The package for it is not installed, or the file cannot be written.
    """
    from pytest_nvfp4.device.modelled import conditions_text, recordings_of
    from pytest_nvfp4.model.replay import ReplayError, replay_sequence
    from pytest_nvfp4.model.timeline import slices_of
    from pytest_nvfp4.profiler.perfetto_trace import TimelineUnavailableError, perfetto_trace

    if done.recording is None:
        output.note(f"{file} was not written: nothing was recorded")
        return
    try:
        recordings = recordings_of(done)
        replays = replay_sequence(recordings, how.device, conditions=how.conditions, timeline=True)
        title = f"modelled on {how.device.title} ({conditions_text(how.conditions)}); not measured"
        output.write_file(file, perfetto_trace(slices_of(recordings, replays, sms=sms), title=title))
    except ReplayError as error:
        output.note(f"{file} was not written: {error}")
        return
    except TimelineUnavailableError as error:
        raise InputError(str(error)) from error
    output.note(f"{file}: open it at https://ui.perfetto.dev; its time is modelled, not measured")


def _tuned(subject: Runnable, made: Sequence[Variant], how: _How, small: str | None) -> Document:
    from pytest_nvfp4.cli.model import page, tune
    from pytest_nvfp4.device.modelled import conditions_text

    verified_on = _small_case(subject, small)
    with output.working(f"verifying and modelling {len(made)} variants of {subject.label}"):
        found = tune.tried(made, lambda variant: _attempt(variant, how, verified_on))
    (case,) = subject.cases()
    where = verified_on.problem.name
    conditions = conditions_text(how.conditions)
    blocks: list[Block] = [
        Styled(f"{subject.label} on {case.problem.name}, modelled on {how.device.title} ({conditions})", "strong"),
        tune.table(found),
        f"each combination is right on {where} by the exact oracle, unless its row says otherwise; {subject.label} is "
        "unchanged",
        Styled(page.NO_MEASUREMENT, "muted"),
    ]
    data = {
        "kernel": subject.label,
        "arch": subject.spec.arch,
        "problem": case.problem.name,
        "device": how.device.name,
        "conditions": conditions,
        "verified_on": where,
        "is_a_measurement": False,
        "note": page.NO_MEASUREMENT,
        "variants": tune.as_data(found),
    }
    return Document(
        f"Modelled variants of {subject.label}", blocks, data, any(each.us is not None for _, each in found)
    )


def _small_case(subject: Runnable, name: str | None) -> JobCase:
    """Return the case that variants are verified on."""
    from pytest_nvfp4.device.job import ProblemSpec
    from pytest_nvfp4.settings import load

    (case,) = subject.cases()
    contract = case.problem.contract
    named = load(subject.root).resolve_problems([name], contract=contract) if name else ()
    problems = named or (*subject.verified, case.problem.problem())
    problem = min(problems, key=lambda problem: problem.work)
    contract_of(problem).require(problem)
    return case.model_copy(update={"problem": ProblemSpec.of(problem)})


def _attempt(variant: Variant, how: _How, verified_on: JobCase) -> Outcome:
    """Verify a variant on a small problem, and model its time."""
    from pytest_nvfp4.cli.model.tune import Outcome

    (judged,) = _record(variant.subject, [verified_on], how, recording=False)
    if judged.status != "passed":
        return Outcome(None, reason=_reason(variant, judged))
    (done,) = _record(variant.subject, variant.subject.cases(), how)
    modelled = _modelled(done, how, asked=False)
    if modelled.call is None:
        return Outcome(None, reason=_reason(variant, done))
    if modelled.call.refused:
        return Outcome(None, reason=f"no time is modelled: {modelled.call.refused[0]}")
    return Outcome(modelled.call.us, ", ".join(dict.fromkeys(launch.bound for launch in modelled.call.launches)))


def _reason(variant: Variant, done: SimulationResult) -> str:
    finding = next(iter(done.errors), None)
    text = variant.subject.finding_text(finding).partition("\n")[0] if finding is not None else "no reason is known"
    return f"{done.status} on {done.case.problem.name}: {text}"
