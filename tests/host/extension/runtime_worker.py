"""Call the functions of a library on the simulated device, and print what they return and raise, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from pytest_nvfp4.device.worker.simulator import Session, simulate
from pytest_nvfp4.driver.device_model import B200
from pytest_nvfp4.host.device_side import local
from pytest_nvfp4.host.extension.runtime_calls import ExtensionCalls
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.host.stashed import Stashed


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def main(path: str) -> None:
    """Print a JSON object."""
    with simulate(races=True) as session:
        json.dump(dict(_calls(session, path)), sys.stdout)


def _calls(session: Session, path: str) -> list[tuple[str, Any]]:
    stashed = Stashed()
    side = local(session.launch, memory=session.memory, streams=session.streams, variables=session.variables)
    calls = ExtensionCalls(B200, side, LoadedModules(B200, side, iter(range(1, 1000))), stashed)
    os.environ.update(calls.variables)
    library = ctypes.CDLL(path)

    def attempt(call: Callable[[], int]) -> list[Any]:
        status, error = call(), stashed.take()
        return [status, None if error is None else f"{type(error).__name__}: {error}"]

    made: list[tuple[str, Any]] = []
    data = torch.arange(40, dtype=torch.float32, device="cuda")
    made.append(("scaled", attempt(lambda: library.scaled(_pointer(data), 40, ctypes.c_float(2.0)))))
    made.append(("data", data.tolist()))
    made.append(("outside", attempt(lambda: library.scaled(_pointer(data), 96, ctypes.c_float(2.0)))))
    source, target = torch.arange(128, dtype=torch.float32, device="cuda"), torch.empty(128, device="cuda")
    made.append(("reverse", attempt(lambda: library.reverse(_pointer(source), _pointer(target), 128))))
    made.append(("target", target.tolist()))
    ranks = torch.empty(8, dtype=torch.int32, device="cuda")
    made.append(("clustered", [attempt(lambda: library.clustered(_pointer(ranks), 8, 4)), ranks.tolist()]))
    made.append(("uneven", attempt(lambda: library.clustered(_pointer(ranks), 6, 4))))
    image, part = torch.arange(512, dtype=torch.float32, device="cuda"), torch.empty(32, device="cuda")
    made.append(("tiled", [attempt(lambda: library.tiled(_pointer(image), _pointer(part))), part.tolist()]))
    made.append(("unaligned", attempt(lambda: library.tiled(_pointer(image[1:]), _pointer(part)))))
    host, sums = torch.arange(64, dtype=torch.float32), torch.zeros(2)
    made.append(("totals", attempt(lambda: library.totals(_pointer(host), _pointer(sums), 64))))
    made.append(("sums", sums.tolist()))
    facts = (ctypes.c_int * 6)()
    made.append(("facts", [attempt(lambda: library.facts(facts)), list(facts)]))
    looked, two, known = torch.empty(8, device="cuda"), (ctypes.c_float * 2)(20, 30), (ctypes.c_int * 3)()
    made.append(("symbols", [attempt(lambda: library.symbols(_pointer(looked), two, known)), looked.tolist()]))
    made.append(("known", list(known)))
    made.append(("misplaced", [attempt(lambda what=what: library.misplaced(what)) for what in range(2)]))
    made.append(("wanting", [attempt(lambda what=what: library.wanting(what)) for what in range(3)]))
    return made


if __name__ == "__main__":
    main(sys.argv[1])
