"""What of the result of ``mma.sync`` depends on a register of a lane, against what changes if that one does."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.lanes import bits_of
from pytest_nvfp4.sim.ptx.parser import parse
from pytest_nvfp4.sim.wgmma.mma_dependents import dependents_of_product
from tests.sim.ptx_case import kernel_text, run_ptx

FORMS = {
    "f16": ("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, False),
    "half of k": ("m16n8k8.row.col.f32.f16.f16.f32", 2, 1, 4, False),
    "an f16 accumulator": ("m16n8k16.row.col.f16.f16.f16.f16", 4, 2, 2, False),
    "s8": ("m16n8k32.row.col.s32.s8.s8.s32", 4, 2, 4, False),
    "tf32": ("m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, 4, False),
    "scaled": (
        "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", 4, 2, 4, True,
    ),
}  # fmt: skip


def text_of(form: str) -> tuple[str, dict[str, int]]:
    opcode, a, b, c, scaled = FORMS[form]
    counts = {"a": a, "b": b, "c": c} | ({"x": 1, "y": 1} if scaled else {})
    first = {"a": 10, "b": 20, "c": 30, "x": 40, "y": 41}
    names = {key: [f"%r{first[key] + number}" for number in range(count)] for key, count in counts.items()}
    lines = ["mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4;"]
    for number, key in enumerate(counts):
        lines.append(f"add.u64 %rd{2 + number}, %rd{100 + number}, %rd1;")
        lines += [f"ld.global.b32 {name}, [%rd{2 + number}+{128 * row}];" for row, name in enumerate(names[key])]
    result = [f"%r{50 + number}" for number in range(c)]
    operands = [f"{{{', '.join(each)}}}" for each in (result, names["a"], names["b"], names["c"])]
    operands += ["{%r40}", "{0, 1}", "{%r41}", "{0, 0}"] if scaled else []
    lines.append(f"mma.sync.aligned.{opcode} {', '.join(operands)};")
    lines.append(f"add.u64 %rd9, %rd{100 + len(counts)}, %rd1;")
    lines += [f"st.global.b32 [%rd9+{128 * row}], {name};" for row, name in enumerate(result)]
    return "\n".join(lines), counts


@pytest.mark.parametrize("form", FORMS)
def test_what_changes_depends(form: str) -> None:
    body, counts = text_of(form)
    kernel = parse(kernel_text(body, buffers=len(counts) + 1)).kernels["kernel"]
    mma = next(ins for ins in kernel.instructions if ins.root == "mma")
    slots = {register.name: register.slot for register in kernel.registers}
    first = {"a": 10, "b": 20, "c": 30, "x": 40, "y": 41}
    # Elements of 1 (bytes of 0x38 in fp8, 0x3c00 in f16 ...) do not matter: any code that is no NaN will do.
    codes = {"f16": 0x3C003C00, "s8": 0x01010101, "tf32": 0x3F800000}.get(form, 0x3C003C00)
    start = {key: np.full((count, 32), codes, np.uint32) for key, count in counts.items()}
    start["c"] = np.full((counts["c"], 32), 0, np.uint32)
    for key in ("x", "y"):
        if key in start:
            start[key] = np.full((1, 32), 0x38383838, np.uint32)

    def product(values: dict[str, np.ndarray]) -> np.ndarray:
        out = np.zeros((FORMS[form][3], 32), np.uint32)
        return run_ptx(body, buffers=values | {"out": out}, arch="sm_120a" if "kind" in body else "sm_90a")["out"]

    before = product(start)
    for key, count in counts.items():
        for register, lane in {(0, 0), (count - 1, 31), (count // 2, 13), (0, 22)}:
            changed = {name: array.copy() for name, array in start.items()}
            changed[key][register, lane] += {"x": 0x08080808, "y": 0x08080808, "c": 0x3C003C00}.get(key, codes >> 1)
            differs = product(changed) != before
            found = dependents_of_product(mma, {slots[f"%r{first[key] + register}"]: 1 << lane})
            expected = {slots[f"%r{50 + row}"]: bits_of(lanes) for row, lanes in enumerate(differs) if lanes.any()}
            if expected or key in "abc":
                assert found == expected, (key, register, lane)
            else:  # a lane whose scale factors the selector does not choose
                assert key in "xy"
