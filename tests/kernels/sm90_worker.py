"""Runs the sm_90a kernels outside the contract in the simulator, in a process of its own: JSON, one line a case.

``python -m tests.kernels.sm90_worker FOLDER`` runs the kernels as they are, and then each with the edits of EDITS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from pytest_nvfp4.host import redirect

KERNELS = Path(__file__).parents[2] / "kernels"
SHAPES = {
    "copy_transpose": [(64, 64), (8, 8), (72, 200), (136, 64)],
    "reduce_sum": [(1, 8), (3, 72), (2, 4096), (2, 10000)],
    "softmax_online": [(1, 8), (4, 72), (2, 2048), (1, 10000)],
}

EDITS = [
    # Right, but threads that shared memory serves together share a chunk.
    ("copy_transpose", "i = j ^ (thread // CHUNKS)", "i = thread // CHUNKS"),
    ("copy_transpose", "turned[(e, f)] = block[(f, e)]", "turned[(e, f)] = block[(e, f)]"),
    # Another order of additions.
    (
        "reduce_sum",
        "partial = [partial[e] + partial[e + half] for e in range(half)]",
        "partial = [partial[2 * e] + partial[2 * e + 1] for e in range(half)]",
    ),
    ("softmax_online", "total = total * power(maximum, base)", "total = total * Float32(1.0)"),
]


def load(name: str, folder: Path, edit: tuple[str, str, str] | None, number: int) -> Any:
    source = (KERNELS / name / "sm90.py").read_text()
    label = name
    if edit is not None:
        _, old, new = edit
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {name}"
        source = source.replace(old, new).replace('"kernels_sm90::', f'"edited_{number}::')
        label = f"{name}_{number}"
    path = folder / f"{label}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ.update(redirect.environment(folder, arch="sm_90a"))
    import torch

    from pytest_nvfp4.device.worker.simulator import simulate

    def draw(shape: tuple[int, int], dtype: torch.dtype, *, bits: bool) -> torch.Tensor:
        if bits:
            whole = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
            limits = torch.iinfo(whole)
            return torch.randint(limits.min, limits.max, shape, dtype=whole).view(dtype)
        return (torch.randn(shape) * torch.exp2(torch.randint(-4, 5, shape).float())).to(dtype)

    def judge(name: str, module: Any, x: torch.Tensor) -> dict[str, Any]:
        if name == "copy_transpose":
            got, want = module.transpose(x.cuda()).cpu(), module.reference(x)
            whole = torch.int16 if x.element_size() == 2 else torch.int32
            return {"equal": torch.equal(got.view(whole), want.view(whole))}
        if name == "reduce_sum":
            got, want = module.row_sums(x.cuda()).cpu(), module.reference(x)
            return {
                "equal": torch.equal(got, module.ordered_reference(x)),
                "near": bool(((got.double() - want.double()).abs() <= module.tolerance(x)).all()),
            }
        if x.shape[0] > 3:
            x[0, 1:] = -torch.inf
            x[1] = -torch.inf
            x[2, 5] = torch.nan
        got, want = module.softmax(x.cuda()).cpu(), module.reference(x)
        relative, absolute = module.TOLERANCE[x.dtype]
        apart = (got.double() - want.double()).abs()
        near = (apart <= absolute + relative * want.double()) | (got.isnan() & want.isnan())
        return {"near": bool(near.all()), "nan_rows": int(want.isnan().any(dim=1).sum())}

    runs: list[tuple[str, tuple[str, str, str] | None]] = [(name, None) for name in SHAPES]
    runs += [(edit[0], edit) for edit in EDITS]
    with simulate(arch="sm_90a") as session:
        for number, (name, edit) in enumerate(runs):
            module = load(name, folder, edit, number)
            for dtype in (torch.float16, torch.bfloat16, torch.float32)[0 if edit is None else 2 :]:
                for shape in SHAPES[name]:
                    torch.manual_seed(len(name) + sum(shape))
                    found = len(session.findings)
                    said = judge(name, module, draw(shape, dtype, bits=name == "copy_transpose"))
                    said |= {"kernel": name, "edit": edit and edit[2], "dtype": str(dtype), "shape": shape}
                    said["findings"] = [f"{finding.kind}: {finding.message}" for finding in session.findings[found:]]
                    said["counters"] = session.launches[-1].counters
                    print("CASE " + json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
