"""Runs features in a process of their own, since the DSL reads its environment when it is imported.

``python -m tests.sim.features.worker compile|simulate NAME...`` writes one JSON line per feature as it ends. In mode
``compile`` launches are recorded and nothing executes; mode ``simulate`` also compares outputs with the reference.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import operator
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch

from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.host import redirect, torch_cuda

from . import catalogue

MARK = "FEATURE "
SEED = 20


def differences(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> dict[str, Any] | None:
    """How ``got`` differs from ``want``; ``None`` where it does not."""
    got = got.cpu()
    if got.shape != want.shape or got.dtype != want.dtype:
        return {"got": f"{got.dtype}{tuple(got.shape)}", "want": f"{want.dtype}{tuple(want.shape)}"}
    wide_got, wide_want = got.double(), want.double()
    if tolerance:
        wrong = ~torch.isclose(wide_got, wide_want, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        wrong = (wide_got != wide_want) & ~(wide_got.isnan() & wide_want.isnan())
    if not bool(wrong.any()):
        return None
    where = wrong.nonzero()
    first = tuple(int(i) for i in where[0])
    return {
        "wrong": len(where),
        "of": wrong.numel(),
        "first": list(first),
        "last": [int(i) for i in where[-1]],
        "got": float(wide_got[first]),
        "want": float(wide_want[first]),
    }


def said_by(launches: Sequence[Launch]) -> dict[str, Any]:
    texts = {launch.module.sha256: launch.module.ptx or "" for launch in launches}
    return {
        "launches": [
            {"grid": launch.grid, "block": launch.block, "cluster": launch.cluster, "smem": launch.dynamic_smem}
            for launch in launches
        ],
        "ptx": "\n".join(texts.values()),
    }


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Compile and record launches; nothing executes."""
    launches: list[Launch] = []
    with redirect.install(launches.append) as side, torch_cuda.install(side=side.device):
        yield launches


def facts(feature: Any, launches: Sequence[Launch]) -> dict[str, Any]:
    """What the compile gave: launches, the opcodes that are there, and which features' opcodes all are."""
    said = said_by(launches)
    return said | {
        "opcodes": feature.opcodes,
        "expected_launches": feature.launches,
        "lost": feature.lost(said["ptx"]),
        "has": [name for name, other in catalogue.load().items() if not other.lost(said["ptx"])],
    }


def compile_one(feature: Any) -> dict[str, Any]:
    with recording() as launches:
        feature.run(feature.kernel_inputs(SEED))
    return facts(feature, launches)


def simulate_one(feature: Any) -> dict[str, Any]:
    from pytest_nvfp4.device.worker.simulator import simulate

    inputs = feature.kernel_inputs(SEED)
    stdout = io.StringIO()
    said: dict[str, Any] = {"prints": feature.prints}
    with simulate(arch="sm_100a") as sim, redirect_stdout(stdout):
        try:
            outputs = {name: tensor.cpu() for name, tensor in feature.run(inputs).items()}
        except BaseException:  # the compile may be right where the run is not
            return said | facts(feature, [record.launch for record in sim.launches]) | {"error": traceback.format_exc()}
    want = feature.reference(inputs)
    found = {name: differences(outputs[name], want[name], feature.tolerance) for name in want}
    said |= facts(feature, [record.launch for record in sim.launches])
    return said | {
        "differences": {name: difference for name, difference in found.items() if difference is not None},
        "compared": sorted(want),
        "findings": [str(finding) for finding in sim.findings],
        "stdout": sim.output + stdout.getvalue(),
    }


def missing(needs: Sequence[str]) -> list[str]:
    """Which of ``needs``, attributes below ``cutlass``, this DSL does not have."""
    import cutlass
    import cutlass.cute
    import cutlass.pipeline
    import cutlass.utils

    def absent(name: str) -> bool:
        try:
            operator.attrgetter(name)(cutlass)
        except AttributeError:
            return True
        return False

    return [name for name in needs if absent(name)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("compile", "simulate"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ptx", action="store_true", help="print the PTX instead of the JSON")
    parser.add_argument("--brief", action="store_true", help="leave the PTX out of the JSON")
    options = parser.parse_args(arguments)
    features = catalogue.load()
    for name in options.names or features:
        feature = features[name]
        print(f"{MARK}{json.dumps({'name': name, 'began': True})}", flush=True)  # noqa: T201
        began = time.perf_counter()
        said: dict[str, Any] = {"name": name}
        try:
            absent = missing(feature.needs)
            if absent:
                said["absent"] = absent
            else:
                said |= compile_one(feature) if options.mode == "compile" else simulate_one(feature)
        except BaseException:  # a worker reports whatever ended the run
            said["error"] = traceback.format_exc()
        said["seconds"] = round(time.perf_counter() - began, 2)
        if options.ptx:
            sys.stdout.write(said.get("ptx") or said.get("error") or str(said))
        else:
            if options.brief:
                said.pop("ptx", None)
            print(f"{MARK}{json.dumps(said)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    if importlib.util.find_spec("cutlass") is None:
        raise SystemExit("nvidia-cutlass-dsl is not installed")
    main()
