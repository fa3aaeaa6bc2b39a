"""The phase ``RUN_WORKER``: workers make the candidates of an iteration, side by side."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.loop.machine.context import Context, twice
from pytest_nvfp4.loop.protocols import InfrastructureError, Task
from pytest_nvfp4.loop.schemas import Candidate
from pytest_nvfp4.loop.state import LoopState, Spent, write_model
from pytest_nvfp4.writing import write_whole


def numbers(context: Context, state: LoopState) -> range:
    """Return the numbers of the iteration's candidates."""
    return range(state.next_candidate, state.next_candidate + context.config.worker.candidates)


def propose(context: Context, state: LoopState) -> list[Candidate]:
    """Run the workers that have not ended, and return all candidates of the iteration in order.

    Raises:
        StoppedError: The loop has to end; workers that have ended are not started again.
        OSError: A record cannot be written.
    """
    # All of them before any worker begins: one without a sandbox could write those of the others.
    found = {number: context.candidate(number) for number in numbers(context, state)}
    made = {number: candidate for number, candidate in found.items() if candidate is not None}
    pending: list[tuple[int, Future[Candidate]]] = []
    with context.side_by_side(context.config.worker.candidates) as begin:
        for slot, number in enumerate(found):
            if number not in made:
                task = _task(context, state, number=number, slot=slot)
                context.pulse.doing("workers make candidates", start=[number])
                context.log(f"iteration {state.iteration}: a worker begins candidate {number}")
                pending.append((number, begin(partial(_run, context, task))))
        for number, future in pending:
            made[number] = future.result()
            context.pulse.doing("workers make candidates", end=[number])
            context.log(f"iteration {state.iteration}: the worker of candidate {number} has ended: {made[number].end}")
    for number, _ in pending if len(pending) > 1 else ():
        write_model(context.folder.candidate(number) / "candidate.json", made[number])
    for number, candidate in made.items():
        if candidate.result is not None:
            spent = Spent(tokens=candidate.result.tokens, usd=candidate.result.usd)
            context.budget.record(f"worker/{number:04d}", spent)
    return [made[number] for number in sorted(made)]


def _task(context: Context, state: LoopState, *, number: int, slot: int) -> Task:
    folder = context.folder.candidate(number)
    folder.mkdir(parents=True, exist_ok=True)
    prompt = context.parts.prompts.worker_prompt(state, number=number, slot=slot)
    write_whole(folder / "prompt.txt", prompt)
    manual = context.config.mode == "manual"
    most_s = context.config.limits.wait_s if manual else context.config.worker.timeout_s
    return Task(
        number=number,
        iteration=state.iteration,
        slot=slot,
        parent=state.incumbent,
        folder=folder,
        prompt=prompt,
        timeout_s=max(1.0, min(most_s, context.pulse.left_s())),
    )


def _run(context: Context, task: Task) -> Candidate:
    """Run a worker; one that cannot be started, also not the second time, is a candidate that has failed."""
    try:
        candidate = twice(lambda: context.parts.worker.run(task))
    except InfrastructureError as error:
        candidate = Candidate(
            number=task.number,
            iteration=task.iteration,
            slot=task.slot,
            parent=task.parent,
            end="failed",
            problems=(f"the worker cannot be started: {error}"[:10_000],),
        )
    if candidate.commit is not None:
        write_whole(task.folder / "diff.patch", context.parts.repository.diff(task.parent, candidate.commit))
    cancellation.check()  # it may have been cut short, and is started again when the loop goes on
    write_model(task.folder / "candidate.json", candidate)
    return candidate
