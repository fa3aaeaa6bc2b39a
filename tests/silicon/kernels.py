"""The shipped sm_90a kernels on silicon: ``python -m tests.silicon.kernels OUT_DIR [--simulate] [--only KERNEL]``.

On a machine with an H200, torch and nvidia-cutlass-dsl it writes ``kernels.npz``, with ``--simulate`` the same from the
simulator as ``kernels-simulated.npz``: outputs, and a hash of the PTX that the DSL made. What runs is the device
worker's own way to run a program (`pytest_nvfp4.device.worker.program`), once for each kernel.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytest_nvfp4 import isolation
from pytest_nvfp4.host import redirect
from pytest_nvfp4.isolation.environment import NO_GPU
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Wall
from tests.silicon.model import Approximate, Case, Part, Rule
from tests.silicon.runners import Outputs
from tests.silicon.store import Record, Recording, save

__all__ = ["KERNELS", "Kernel", "as_case", "run", "same_ptx"]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("kernel_program.py")
KERNEL_FILES = ROOT / "kernels"
DEADLINE_S = 900


@dataclass(frozen=True)
class Kernel:
    """A kernel, and by a pattern of its outputs' names what may differ."""

    name: str
    rules: tuple[tuple[str, Rule], ...] = ()


_EX2 = "ex2.approx.ftz.f32 has an error of up to 2 ulp, which sums and a multiplication carry on"
KERNELS = (
    Kernel("copy_transpose"),
    Kernel("reduce_sum"),
    # 2e-5 is the bound that the kernel states; the same exponents and roundings are on both sides, so that only what
    # ex2.approx leaves open remains: two units in the last place of fp32, and at most one of the halves.
    Kernel(
        "softmax_online",
        (
            ("float32 .*", Approximate("f32", 2, _EX2, 2.0**-126)),
            ("float16 .*", Approximate("f16", 1, _EX2)),
            ("bfloat16 .*", Approximate("bf16", 1, _EX2)),
        ),
    ),
    Kernel("nvfp4_group_gemm"),
)


def normal(ptx: bytes) -> bytes:
    """PTX without what names the machine: NULs, comments, files, lines, debug sections."""
    text = ptx.replace(b"\0", b"").decode()
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^\s*\.(loc|file)\b[^\n]*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*\.section\s[^{]*\{[^}]*\}", "", text, flags=re.MULTILINE)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()).encode()


def ptx_sha256(folder: Path) -> str:
    """Of all modules that were compiled, whatever their order and names."""
    digests = sorted(hashlib.sha256(normal(path.read_bytes())).hexdigest() for path in folder.rglob("*.ptx"))
    if not digests:
        raise RuntimeError(f"the DSL wrote no PTX to {folder}")
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def run(kernel: Kernel, *, backend: str) -> tuple[Record, dict[str, str]]:
    """Run a kernel in a process of its own. The backend is ``cuda`` or ``sim``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dump, out = folder / "ptx", folder / "out.npz"
        dump.mkdir()
        arguments = [PROGRAM, folder, backend, backend, kernel.name, out]
        no_gpu = NO_GPU if backend == "sim" else {}
        done = isolation.run(
            worker("pytest_nvfp4.device.worker.program", *arguments),
            cwd=folder,
            deadline_s=DEADLINE_S,
            environ={**redirect.environment(dump, arch="sm_90a"), **no_gpu, "PYTHONPATH": _path()},
            wall=Wall(folder=name, readable=(str(PROGRAM), str(KERNEL_FILES)), gpu=backend == "cuda"),
        )
        if done.returncode != 0:
            error = (done.stderr.text or done.stdout.text)[-3000:] or f"status {done.returncode}"
            return Record("", "", error=error), {}
        with np.load(out) as file:
            outputs = {label: file[label] for label in file.files}
        about: dict[str, str] = json.loads(out.with_suffix(".json").read_text())
        return Record(ptx_sha256(folder), about["inputs_sha256"], outputs), about


def _path() -> str:
    """Where this process finds packages, the repository first."""
    return os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])


def as_case(kernel: Kernel, outputs: Outputs) -> Case:
    """What `tests.silicon.compare.differences` compares by."""
    parts = tuple(
        Part(label, label, 0, data.size, rule)
        for label, data in outputs.items()
        for pattern, rule in kernel.rules
        if re.fullmatch(pattern, label)
    )
    return Case(kernel.name, "", outputs, tuple(outputs), parts=parts)


def same_ptx(left: Record, right: Record) -> bool:
    """Whether the DSL made the same of a kernel in both places."""
    return left.ptx_sha256 == right.ptx_sha256


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.silicon.kernels", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for the file")
    parser.add_argument("--simulate", action="store_true", help="run on the simulator instead of the GPU")
    parser.add_argument("--only", action="append", default=[], help="a kernel's name; may be repeated")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    records: dict[str, Record] = {}
    device = driver = "simulator"
    if not given.simulate:
        from tests.silicon.driver import Gpu

        gpu = Gpu()
        device, driver = gpu.name, f"CUDA {gpu.driver // 1000}.{gpu.driver % 1000 // 10}"
    for kernel in KERNELS:
        if given.only and kernel.name not in given.only:
            continue
        record, about = run(kernel, backend="sim" if given.simulate else "cuda")
        records[kernel.name] = record
        driver += f", dsl {about['dsl']}, torch {about['torch']}" if about and "dsl" not in driver else ""
        said = (
            f"FAILED\n{record.error}"
            if record.error
            else f"{len(record.outputs)} outputs, PTX {record.ptx_sha256[:12]}"
        )
        sys.stdout.write(f"{kernel.name}: {said}\n")
        sys.stdout.flush()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    path = given.out / ("kernels-simulated.npz" if given.simulate else "kernels.npz")
    save(path, Recording(device, driver, date, records))
    return int(any(record.error for record in records.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
