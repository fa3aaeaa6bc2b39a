"""Files of measured rounds, to judge the benchmark check with other settings on them without a device."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.selfcheck.rates.experiment import Calibration, Data, Session

_SCHEMA = 1


def save(data: Data, path: Path, *, effects: tuple[float, ...]) -> None:
    """Write the rounds of an experiment as compressed JSON, atomically. Raises OSError."""
    content = {
        "schema_version": _SCHEMA,
        "device": data.device.model_dump(mode="json"),
        "effects": list(effects),
        "calibrations": {name: [it.base_us, it.us_per_cycle, it.seen] for name, it in data.calibrations.items()},
        "wall_s": data.wall_s,
        "stopped": data.stopped,
        "sessions": [
            {
                "wall_s": session.wall_s,
                "arms": {name: [np.round(arm, 4).tolist() for arm in arms] for name, arms in session.arms.items()},
                # The arms hold the rounds already.
                "measurements": {
                    name: measurement.model_copy(update={"device_us": measurement.device_us[:1]}).model_dump(
                        mode="json"
                    )
                    for name, measurement in session.measurements.items()
                },
            }
            for session in data.sessions
        ],
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    beside.replace(path)


def _calibration(base_us: Any, us_per_cycle: Any, seen: Any = ()) -> Calibration:
    pairs = tuple((float(cycles), float(us)) for cycles, us in seen)
    return Calibration(float(base_us), float(us_per_cycle), pairs)


def load(path: Path) -> tuple[Data, tuple[float, ...]]:
    """Read the rounds of an experiment and the effects of its arms.

    Raises:
        OSError: The file cannot be read.
        ValueError: It does not hold rounds of this version.
    """
    try:
        content: Any = json.loads(gzip.decompress(path.read_bytes()))
        if content["schema_version"] != _SCHEMA:
            raise ValueError(f"version {content['schema_version']!r}")
        sessions = [
            Session(
                arms={
                    name: [np.asarray(arm, dtype=np.float64) for arm in arms] for name, arms in entry["arms"].items()
                },
                measurements={name: Measurement.model_validate(m) for name, m in entry["measurements"].items()},
                wall_s=float(entry["wall_s"]),
            )
            for entry in content["sessions"]
        ]
        data = Data(
            device=DeviceInfo.model_validate(content["device"]),
            calibrations={name: _calibration(*values) for name, values in content["calibrations"].items()},
            sessions=sessions,
            wall_s=float(content["wall_s"]),
            stopped=content["stopped"],
        )
        return data, tuple(float(effect) for effect in content["effects"])
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} does not hold the rounds of a validation of this version: {error}") from error
