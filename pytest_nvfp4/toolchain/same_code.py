"""Hash of what a compile made: equal for two versions of a kernel that run the same code in the same launches.

It covers the PTX, without what only names places in the source (``.loc``, ``.file``, debug sections, comments), and the
launches with their tensor maps on the problem of the trace. The rest of the kernel's host code, which runs for each
call, is not part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.toolchain.ptx import COMMENT
from pytest_nvfp4.toolchain.trace import Trace

_MOST_BYTES = 256 << 20
_PLACES = (".loc", ".file")
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def code_sha256(trace: Trace) -> str:
    """Return the hash of a trace. Raises OSError and DoorError if its PTX cannot be read."""
    digest = hashlib.sha256()
    made = {
        "arch": trace.arch,
        "dsl": trace.dsl_version,
        "options": trace.options,
        "problem": trace.problem_sizes,
        "launches": [launch.model_dump(mode="json") for launch in trace.launches],
        "launch_count": trace.launch_count,
    }
    addresses: dict[str, str] = {}  # they differ from process to process; which of them are equal does not
    text = _ADDRESS.sub(
        lambda found: addresses.setdefault(found[0], f"@{len(addresses)}"), json.dumps(made, sort_keys=True)
    )
    digest.update(text.encode())
    for path in trace.artifact_paths("ptx"):
        digest.update(b"\0")
        for line in plain_lines(read_text(path, source=f"the PTX {path}", most=_MOST_BYTES)):
            digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def plain_lines(ptx: str) -> Iterator[str]:
    """Yield the lines of a PTX module without those that only name places in the source."""
    section = False
    for line in COMMENT.sub(" ", ptx).splitlines():
        words = " ".join(line.split())
        if section:
            section = not words.startswith("}")
        elif words.startswith(".section"):
            section = True
        elif words and not words.startswith(_PLACES):
            yield words
