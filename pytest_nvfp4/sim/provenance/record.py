"""What the MMAs of a call read, as JSON-ready values: ``nvfp4 prove`` checks them again (``proof.operand_record``)."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.sim.provenance.expected import OUTSIDE, Content, contents
from pytest_nvfp4.sim.provenance.recorder import Mma, Operand, OperandRecorder, Part
from pytest_nvfp4.sim.run.source import place_of


def record(recorder: OperandRecorder) -> dict[str, Any]:
    """Return the tensors, the MMAs in order of issue, and what is not followed."""
    return {
        "tensors": [[tensor.name, tensor.group] for tensor in recorder.tags.tensors],
        "unfollowed": recorder.unfollowed,
        "truncated": recorder.truncated,
        "mmas": [_mma(recorder, mma, part) for mma in recorder.mmas for part in mma.parts],
    }


def _mma(recorder: OperandRecorder, mma: Mma, part: Part) -> dict[str, Any]:
    read = contents(part, recorder.tags)
    return {
        "launch": mma.launch,
        "cta": part.cta,
        "place": _place(recorder, mma.launch, mma.at),
        "adds": mma.accumulates,
        "columns": mma.columns,
        "operands": {name: _operand(recorder, mma, content) for name, content in read.items()},
    }


def _operand(recorder: OperandRecorder, mma: Mma, content: Content) -> dict[str, Any]:
    operand: Operand = content.operand
    load = int(operand.loads.max(initial=-1))
    copy = -1 if operand.copies is None else int(operand.copies.max(initial=-1))
    return {
        "runs": _runs(content),
        "columns": operand.columns,
        "load": _place(recorder, mma.launch, recorder.loads[load].at) if load >= 0 else "",
        "copy": _place(recorder, mma.launch, recorder.copies[copy].at) if copy >= 0 else "",
    }


def _runs(content: Content) -> list[list[int]]:
    """Return (tensor, row, k, count) of consecutive rows; the tensor is -1 outside of tensors, -2 if unknown."""
    found: list[list[int]] = []
    places = zip(content.keys.tolist(), *(each.tolist() for each in content.places), strict=True)
    for key, tensor, row, k in places:
        # Elements that are read as scale factors, or the reverse, have a tensor, which says what they are.
        now = [tensor, row, k] if tensor >= 0 and key != OUTSIDE else [-1 if key == OUTSIDE else -2, 0, 0]
        if found:
            before, first, at, count = found[-1]
            if [before, first + (count if before >= 0 else 0), at] == now:
                found[-1][3] += 1
                continue
        found.append([*now, 1])
    return found


def _place(recorder: OperandRecorder, launch: int, at: int) -> str:
    return place_of(recorder.kernels[launch].instructions[at])
