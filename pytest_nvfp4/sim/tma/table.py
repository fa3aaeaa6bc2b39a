"""The opcodes of this package, by prefix."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lower.emitter import Emitter, Lowering
from pytest_nvfp4.sim.ptx.opcode import OpcodeReader
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.tma.bulk import lower_bulk, lower_prefetch_bulk, lower_prefetch_tensor
from pytest_nvfp4.sim.tma.groups import commit_group, wait_group
from pytest_nvfp4.sim.tma.issue import SPACES
from pytest_nvfp4.sim.tma.load import lower_load
from pytest_nvfp4.sim.tma.map_changes import lower_copy, lower_replace
from pytest_nvfp4.sim.tma.store import lower_store
from pytest_nvfp4.sim.tma.tensormap import lower_prefetch


def _tensor(ins: Instruction, e: Emitter) -> None:
    """A tensor copy: the first state space says which way."""
    first = next((part for part in ins.parts if part in SPACES), None)
    if first is None:
        raise Unsupported(f"{ins.opcode}: no state spaces")
    (lower_store if first == "global" else lower_load)(ins, e)


def _commit(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 4, ordered=False)
    read.end(0)
    e.line(e.call(commit_group, "w", e.mask, str(e.at)))


def _wait(ins: Instruction, e: Emitter) -> None:
    read = OpcodeReader(ins, 4, ordered=False)
    reads_only = read.has("read")
    read.done()
    allowed = read.immediate(read.operands(1)[0], "the number of groups")
    name = e.temporary(e.call(wait_group, "w", e.mask, str(e.at), str(allowed), str(reads_only)))
    e.park_if_none(name)


LOWERINGS: Mapping[str, Lowering] = {
    "cp.async.bulk": lower_bulk,
    "cp.async.bulk.commit_group": _commit,
    "cp.async.bulk.prefetch": lower_prefetch_bulk,
    "cp.async.bulk.prefetch.tensor": lower_prefetch_tensor,
    "cp.async.bulk.tensor": _tensor,
    "cp.async.bulk.wait_group": _wait,
    "cp.reduce.async.bulk": lower_bulk,
    "cp.reduce.async.bulk.tensor": lower_store,
    "prefetch.const.tensormap": lower_prefetch,
    "prefetch.param.tensormap": lower_prefetch,
    "prefetch.tensormap": lower_prefetch,
    "tensormap.cp_fenceproxy": lower_copy,
    "tensormap.replace": lower_replace,
}
BLOCKING = frozenset({"cp.async.bulk.wait_group"})
