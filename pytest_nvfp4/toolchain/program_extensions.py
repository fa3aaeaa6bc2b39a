"""Extensions that the programs of ``nvfp4 exec`` have built, for further runs of the same program.

A program can write what it likes as an extension. So what it has built is kept under the digest of its source and of
the files that are mounted for it, and only runs of this very program load it: it could do the same there without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.cache import PROGRAMS, TraceCache, content_key, take_files

_CAPACITY = 64
"""Number of programs; what the least recently used ones beyond it have built is removed."""


class ProgramExtensions:
    """The extensions of one program.

    Args:
        name: The name of its file.
        source: Its source.
        files: The files that are mounted for it, by path.
        cache: The cache; by default that of all traces.
    """

    def __init__(self, name: str, source: str, files: Mapping[str, bytes], *, cache: TraceCache | None = None) -> None:
        self._cache = cache or TraceCache()
        self._sealed = self._cache.sealed
        digests = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
        self._key = content_key({"name": name, "source": source, "files": digests})
        self._folder = self._sealed.folder / PROGRAMS / self._key

    def copy(self, into: Path) -> None:
        """Copy the extensions that earlier runs have built. Raises OSError."""
        if not self._folder.is_dir():
            return
        os.utime(self._folder)
        for entry in sorted(self._folder.iterdir()):
            content = self._sealed.read(entry, cache=PROGRAMS, key=f"{self._key}/{entry.name}")
            if content is None:
                continue
            (target := into / entry.name).mkdir(parents=True)
            head, _, data = content.partition(b"\n")
            for name, size in json.loads(head):
                (target / name).write_bytes(data[:size])
                data = data[size:]

    def take(self, folder: Path) -> None:
        """Keep the extensions that a run has stored in a folder; what is none, or finds no room, is left out."""
        extensions: dict[str, list[tuple[str, bytes]]] = {}
        with contextlib.suppress(DoorError, OSError), temporary_folder("built") as copies:
            for path, data in take_files(folder, copies).items():
                _, _, name = path.partition("/")
                module, _, file = name.partition("/")
                extensions.setdefault(module, []).append((file, data))
            for module, found in extensions.items():
                head = json.dumps([(file, len(data)) for file, data in found]).encode()
                content = b"\n".join((head, b"".join(data for _, data in found)))
                self._sealed.write(self._folder / module, content, cache=PROGRAMS, key=f"{self._key}/{module}")
            if extensions:
                self._cache.prune(f"{PROGRAMS}/*", most=_CAPACITY)
