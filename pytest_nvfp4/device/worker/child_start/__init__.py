"""The start of the simulator in the processes that a simulated program starts.

``FOLDER`` comes first in their ``PYTHONPATH``, so that each interpreter imports ``sitecustomize`` from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = str(Path(__file__).resolve().parent)
VARIABLE: Final = "NVFP4_SIMULATED_PROGRAM"
"""Environment variable of the processes: folder of the program and settings of the simulator, as JSON."""
BUILT: Final = "built"
"""Folder, in the program's, of the extensions that earlier runs of the program have built."""
KEPT: Final = "kept"
"""Folder, in the program's, of a folder with those that this run builds."""
UNRAISED: Final = "unraised"
"""Begins the names of files, in the program's folder, of exceptions with which native code ended a process
(``host.stashed``)."""
