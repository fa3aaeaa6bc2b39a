"""The user's own device tables, which ``nvfp4 model calibrate`` writes."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "NVFP4_DATA_DIR"
"""Environment variable that overrides the folder of the user's data."""


def calibrated_folder() -> Path:
    """Return the folder of the user's device tables."""
    if chosen := os.environ.get(DATA_VARIABLE):
        return Path(chosen) / "devices"
    import platformdirs

    return Path(platformdirs.user_data_dir("pytest-nvfp4", appauthor=False)) / "devices"


def calibrated_path(name: str) -> Path:
    """Return the file of a device's own table, which need not exist."""
    return calibrated_folder() / f"{name}.toml"


def calibrated_names() -> list[str]:
    """Return the names of the tables in the user's folder."""
    return sorted(path.stem for path in calibrated_folder().glob("*.toml"))
