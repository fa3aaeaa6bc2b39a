"""``nvfp4 prove pipeline``: small protocols, right and wrong in the ways in which people break them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_nvfp4.proof.pipeline.claims import RecordedRun, claims, runs_claim
from pytest_nvfp4.proof.pipeline.protocol import fit
from pytest_nvfp4.proof.pipeline.recording import Event, parse
from pytest_nvfp4.proof.statement import Statement, Status, judge

from .protocols import (
    COPY,
    DONE,
    EMPTY,
    FULL,
    MMA,
    RELEASE,
    STAGES,
    WAIT_EMPTY,
    WAIT_FULL,
    Pipeline,
    Steps,
    load,
    multiply,
    stage_mask,
)  # fmt: skip

pytest.importorskip("z3")


def judged(pipeline: Pipeline) -> dict[str, Statement]:
    """Return the statements on the only ring, by their last name."""
    statements = [judge(claim) for claim in claims(pipeline.protocol())]
    assert all(statement.name.startswith("pipeline.ring-0.") for statement in statements)
    return {statement.name.rpartition(".")[2]: statement for statement in statements}


def test_a_right_pipeline_is_proved_and_its_controls_are_refuted() -> None:
    found = judged(Pipeline())
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(
        ("not-overwritten", "filled", "no-deadlock"), Status.PROVED
    )
    for one in found.values():
        assert [control.status for control in one.controls] == [Status.REFUTED]
        assert one.controls[0].counterexample.startswith("N = ")


def wgmma(k: int) -> Steps:
    """A multiplying warp that releases a stage when the next one's wgmma has been issued."""
    yield Event("wait", WAIT_FULL, FULL, k % STAGES, k // STAGES)
    yield Event("wgmma", MMA, number=k + 1, reads=stage_mask(k % STAGES))
    yield Event("wgmma-done", -1, number=k)
    if k:
        yield Event("arrive", RELEASE, EMPTY, (k - 1) % STAGES, 1)


def last_wgmma(tiles: int) -> Steps:
    yield Event("wgmma-done", -1, number=tiles)
    yield Event("arrive", RELEASE, EMPTY, (tiles - 1) % STAGES, 1)


def without(steps: Steps, kind: str) -> Steps:
    return (event for event in steps if event.kind != kind)


def test_a_release_one_iteration_late_is_proved() -> None:
    found = judged(Pipeline(multiply=wgmma, after=last_wgmma))
    assert {one.status for one in found.values()} == {Status.PROVED}


def moved(k: int, place: int) -> Steps:
    """The multiplying warp with its commit before other steps."""
    *steps, commit = multiply(k)
    return iter([*steps[:place], commit, *steps[place:]])


def plain_arrive(k: int) -> Steps:
    return (event._replace(kind="arrive") if event.kind == "commit" else event for event in multiply(k))


def next_slot(k: int) -> Steps:
    for event in multiply(k):
        yield event._replace(reads=stage_mask((k + 1) % STAGES)) if event.kind == "mma" else event


def phase(steps: Steps, at: int, number: int) -> Steps:
    return (event._replace(number=number) if event.at == at else event for event in steps)


def two_stages(k: int) -> Steps:
    """The loading warp that waits for two of the three stages in turn."""
    for event in load(k):
        yield event._replace(stage=k % 2, number=k // 2 - 1) if event.kind == "wait" else event


BROKEN = {
    "commit before the MMAs": (Pipeline(multiply=lambda k: moved(k, 1)), "not-overwritten", (COPY, MMA), 4),
    "commit after two of four MMAs": (Pipeline(multiply=lambda k: moved(k, 3)), "not-overwritten", (COPY, MMA), 4),
    "commit at the top of the loop": (Pipeline(multiply=lambda k: moved(k, 0)), "not-overwritten", (COPY, MMA), 4),
    "an arrive instead of a commit": (Pipeline(multiply=plain_arrive), "not-overwritten", (COPY, MMA), 4),
    "no wait for the wgmma": (
        Pipeline(multiply=lambda k: without(wgmma(k), "wgmma-done"), after=last_wgmma),
        "not-overwritten", (COPY, MMA), 4,
    ),
    "no wait for a release": (Pipeline(load=lambda k: without(load(k), "wait")), "not-overwritten", (COPY, MMA), 4),
    "no wait until full": (Pipeline(multiply=lambda k: without(multiply(k), "wait")), "filled", (MMA, COPY), 1),
    "the parity of the reader's first wait": (
        Pipeline(multiply=lambda k: phase(multiply(k), WAIT_FULL, k // STAGES - 1)), "filled", (MMA, COPY), 1,
    ),
    "a parity that is never flipped": (
        Pipeline(multiply=lambda k: phase(multiply(k), WAIT_FULL, k // STAGES & ~1)), "filled", (MMA, COPY), 4,
    ),
    "the parity of the loader's first wait": (
        Pipeline(load=lambda k: phase(load(k), WAIT_EMPTY, k // STAGES)), "no-deadlock", (WAIT_EMPTY, WAIT_FULL), 1,
    ),
    "no release": (Pipeline(multiply=lambda k: without(multiply(k), "commit")), "no-deadlock", (WAIT_EMPTY,), 5),
    "one arrival of two": (Pipeline(empty_count=2), "no-deadlock", (WAIT_EMPTY,), 5),
    "the next stage's memory": (Pipeline(multiply=next_slot), "filled", (MMA, COPY), 2),
    "a wait for two of three stages": (Pipeline(load=two_stages), "no-deadlock", (WAIT_EMPTY,), 7),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_pipeline_is_refuted_with_the_number_of_iterations(name: str) -> None:
    pipeline, statement, lines, most = BROKEN[name]
    found = judged(pipeline)[statement]
    assert found.status is Status.REFUTED, found
    assert all(f"k.py:{100 + at}" in found.counterexample for at in lines), found.counterexample
    number = int(found.counterexample.removeprefix("N = ").split(" ")[0])
    assert 1 <= number <= most, found.counterexample


def test_what_fits_no_protocol_is_unknown_with_its_line() -> None:
    def sometimes(k: int) -> Steps:
        """The loading warp, with another wait in the seventh iteration alone."""
        yield from load(k)
        if k == 6:
            yield Event("wait", DONE, FULL, (k - 1) % STAGES, (k - 1) // STAGES)

    found = judged(Pipeline(load=sometimes))
    assert {one.status for one in found.values()} == {Status.UNKNOWN}
    assert all("k.py:10" in one.reason for one in found.values())


def test_an_order_that_only_the_longest_run_shows_is_unknown() -> None:
    def late(k: int) -> Steps:
        return moved(k, 3) if k == 8 else multiply(k)

    found = judged(Pipeline(multiply=late))
    assert found["not-overwritten"].status is Status.UNKNOWN
    assert "still changes between 7 and 9" in found["not-overwritten"].reason


def test_a_ring_that_is_never_refilled_is_unknown() -> None:
    pipeline = Pipeline()
    protocol = fit([pipeline.record(tiles) for tiles in (1, 2, 3)])
    (first, *_) = [judge(claim) for claim in claims(protocol)]
    assert first.status is Status.UNKNOWN
    assert "none of its 3 fills overwrites another" in first.reason


def test_a_run_that_does_not_end_proves_nothing() -> None:
    pipeline = Pipeline()
    runs = [pipeline.record(tiles) for tiles in (1, 2, 5, 7, 9)]
    protocol = fit([*runs, replace(pipeline.record(4), complete=False, label="4 k-tiles that stop")])
    for claim in claims(protocol):
        found = judge(claim)
        assert found.status is Status.UNKNOWN
        assert "4 k-tiles that stop does not end" in found.reason
    stuck = RecordedRun("4 k-tiles", "deadlock at k.py:3", deadlock=True)
    refuted = [one.counterexample for claim in claims(protocol, [stuck]) if (one := judge(claim)).counterexample]
    assert refuted == ["with 4 k-tiles: deadlock at k.py:3"]
    said = judge(runs_claim([RecordedRun("a"), RecordedRun("b", "deadlock at k.py:3")]))
    assert said.status is Status.REFUTED
    assert said.counterexample == "with b: deadlock at k.py:3"


def test_other_json_is_refused() -> None:
    for text in (b"[]", b'{"stopped": false, "launches": [{}]}', b"\x00"):
        with pytest.raises(ValueError):  # noqa: PT011 - pydantic's message
            parse(text, label="x")
