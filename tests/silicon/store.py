"""The file of recorded outputs: one compressed npz, with a JSON header under ``header``.

``python -m tests.silicon.store KEPT.npz NEW.npz`` puts the records of the second into the first; ``--pending`` prints
the arguments of ``tests.silicon.record`` for what waits to be recorded.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.model import Case
from tests.silicon.runners import Outputs

__all__ = ["CHUNK", "Record", "Recording", "digests", "load", "merged", "save"]

CHUNK = 1024
"""Bytes of an output that one digest stands for."""


@dataclass(frozen=True)
class Record:
    """What a device made of a case, or why it made nothing."""

    ptx_sha256: str
    inputs_sha256: str
    outputs: Outputs = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Recording:
    """Records by the case's name, and on what they were made."""

    device: str
    driver: str
    date: str
    records: Mapping[str, Record]


def digests(data: NDArray[Any]) -> NDArray[np.uint64]:
    """Eight bytes of BLAKE2 for each chunk of the bytes."""
    raw = np.ascontiguousarray(data).tobytes()
    parts = [hashlib.blake2b(raw[at : at + CHUNK], digest_size=8).digest() for at in range(0, len(raw), CHUNK)]
    return np.frombuffer(b"".join(parts), np.uint64)


def keep(case: Case, outputs: Outputs) -> Outputs:
    """The outputs as they are kept."""
    return {name: digests(data) for name, data in outputs.items()} if case.chunked else dict(outputs)


def save(path: Path, recording: Recording) -> None:
    """Write the file. The same recording gives the same bytes."""
    header: dict[str, Any] = {key: value for key, value in asdict(recording).items() if key != "records"}
    header["cases"] = {}
    arrays: Outputs = {}
    for name, record in sorted(recording.records.items()):
        header["cases"][name] = {
            "ptx_sha256": record.ptx_sha256,
            "inputs_sha256": record.inputs_sha256,
            "error": record.error,
            "outputs": list(record.outputs),
        }
        arrays |= {f"{name}/{output}": data for output, data in record.outputs.items()}
    text = np.frombuffer(json.dumps(header, indent=1).encode(), np.uint8)
    np.savez_compressed(path, header=text, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> Recording:
    """Read the file."""
    with np.load(path) as file:
        header = json.loads(file["header"].tobytes())
        records = {
            name: Record(
                kept["ptx_sha256"],
                kept["inputs_sha256"],
                {output: file[f"{name}/{output}"] for output in kept["outputs"]},
                kept["error"],
            )
            for name, kept in header["cases"].items()
        }
    return Recording(header["device"], header["driver"], header["date"], records)


def merged(old: Recording, new: Recording) -> Recording:
    """The records of both, the new ones first. Raises ValueError if they are of different devices or drivers."""
    if (old.device, old.driver) != (new.device, new.driver):
        raise ValueError(f"recorded on {old.device} ({old.driver}) and on {new.device} ({new.driver})")
    return Recording(old.device, old.driver, new.date, {**old.records, **new.records})


def main(arguments: list[str]) -> None:
    if arguments == ["--pending"]:
        from tests.silicon.recorded import PENDING

        sys.stdout.write(" ".join(f"--only {name}" for name in PENDING) + "\n")
        return
    kept, new = (Path(name) for name in arguments)
    save(kept, merged(load(kept), load(new)))


if __name__ == "__main__":
    main(sys.argv[1:])
