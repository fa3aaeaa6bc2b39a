"""Compare the skills in a folder with those of this package, and write what is missing or out of date.

Nothing is touched that was not written by this module: each file is compared with the hashes of the manifest first, and
a link with the targets there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_nvfp4.cli.skills.manifest import Manifest, Written, read_manifest, write_manifest
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.skills import Skill
from pytest_nvfp4.writing import write_whole

State = Literal["current", "missing", "outdated", "obsolete", "changed", "foreign"]
"""``changed`` was written by this command and edited since; ``foreign`` was never written by it."""
Form = Literal["copy", "link"]
_MOST_BYTES = 1 << 20
_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """A skill in a folder.

    Attributes:
        name: Its name.
        state: How it compares with that of this package.
        because: Why it is changed or foreign.
        form: Whether it shall be files or a link.
    """

    name: str
    state: State
    because: str = ""
    form: Form = "copy"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of skills.

    Attributes:
        folder: The folder; it need not exist.
        form: Whether skills shall be files or links; None for what they are, and files where there is nothing.
        root: The repository around it, within which links are relative and can be committed; None for no repository.
    """

    folder: Path
    form: Form | None
    root: Path | None = None

    def examine(self, skills: Mapping[str, Skill]) -> list[Found]:
        """Return the state of each skill of this package, and of those that an older one wrote. Raises InputError."""
        manifest = read_manifest(self.folder)
        found = [self._examine(one, manifest.skills.get(name)) for name, one in skills.items()]
        return found + [self._obsolete(name, manifest.skills[name]) for name in manifest.skills.keys() - skills.keys()]

    def write(self, skills: Mapping[str, Skill], *, force: bool) -> list[tuple[Found, bool]]:
        """Bring the folder up to date, and return what was found with whether it was written or removed.

        Args:
            skills: Skills of this package by name.
            force: Whether files that this command wrote and that were edited since are written again.

        Raises:
            InputError: The manifest cannot be read.
            OSError: A file cannot be written; every file is then in its old or its new state.
        """
        found = self.examine(skills)
        chosen = {"missing", "outdated", "obsolete", *(("changed",) if force else ())}
        work = [one for one in found if one.state in chosen]
        if not work:
            return [(one, False) for one in found]
        self.folder.mkdir(parents=True, exist_ok=True)
        before = read_manifest(self.folder)
        after = dict(before.skills)
        for one in work:
            if one.name in skills:
                after[one.name] = self._wanted(skills[one.name], one.form)
            else:
                del after[one.name]
        # Whoever is killed in between leaves a manifest that knows the files of both states.
        both = {**before.skills, **{name: _union(before.skills.get(name), new) for name, new in after.items()}}
        write_manifest(self.folder, Manifest(skills=both))
        for one in work:
            self._write(one, before.skills.get(one.name), skills.get(one.name))
        write_manifest(self.folder, Manifest(skills=after))
        return [(one, one in work) for one in found]

    def _target(self, one: Skill) -> str:
        source = Path(str(one.folder)).resolve()
        inside = self.root is not None and source.is_relative_to(self.root)
        return os.path.relpath(source, self.folder.resolve()) if inside else str(source)

    def _wanted(self, one: Skill, form: Form) -> Written:
        if form == "link":
            return Written(files={}, links=(self._target(one),))
        return Written(files={name: (_sha256(content),) for name, content in one.files.items()})

    def _examine(self, one: Skill, written: Written | None) -> Found:
        place = self.folder / one.name
        if place.is_symlink():
            target = os.readlink(place)  # noqa: PTH115 - the text, not a path
            form = self.form or "link"
            if target == self._target(one):
                return Found(one.name, "current" if form == "link" or written is None else "outdated", form=form)
            if written is not None and target in written.links:
                return Found(one.name, "outdated", form=form)
            return Found(one.name, "foreign", f"is a link to {target}", form)
        form = self.form or "copy"
        if not place.exists():
            return Found(one.name, "missing", form=form)
        if not place.is_dir():
            return Found(one.name, "foreign", "is no folder", form)
        expected = {name: _sha256(content) for name, content in one.files.items()}
        if written is None or not written.files:
            same = all(_hash_of(place, name) == wanted for name, wanted in expected.items())
            reason = "is a folder that this command did not write"
            return Found(one.name, "current" if same else "foreign", "" if same else reason, form)
        return self._compare(one.name, place, written, expected, form)

    def _compare(self, name: str, place: Path, written: Written, expected: Mapping[str, str], form: Form) -> Found:
        """Compare the files of a folder that this command wrote."""
        outdated, edited = form == "link", ""
        for file in sorted(written.files.keys() | expected.keys()):
            there, wanted = _hash_of(place, file), expected.get(file)
            outdated = outdated or there != wanted
            if there is None or there == wanted or there in written.files.get(file, ()):
                continue
            if file not in written.files or (place / file).parent.resolve() != (place.resolve() / file).parent:
                return Found(name, "foreign", f"{file} was not written by this command", form)
            edited = f"{file} was edited"
        if form == "link" and (more := _others(place, written)):
            return Found(name, "foreign", f"a link would replace {more}, which this command did not write", form)
        return Found(name, "changed" if edited else "outdated" if outdated else "current", edited, form)

    def _obsolete(self, name: str, written: Written) -> Found:
        place = self.folder / name
        if place.is_symlink():
            own = os.readlink(place) in written.links  # noqa: PTH115 - the text, not a path
            return Found(name, "obsolete") if own else Found(name, "foreign", "is a link of yours")
        for file in written.files:
            there = _hash_of(place, file)
            if there is not None and there not in written.files[file]:
                return Found(name, "changed", f"{file} was edited, and this package has no such skill any more")
        return Found(name, "obsolete")

    def _write(self, one: Found, written: Written | None, new: Skill | None) -> None:
        place = self.folder / one.name
        if place.is_symlink():
            place.unlink()
        keep = set(new.files) if new is not None and one.form == "copy" else set()
        for name in sorted(written.files if written is not None else ()):
            if name not in keep:
                _remove(place, name)
        if new is None:
            return
        if one.form == "link":
            place.symlink_to(self._target(new), target_is_directory=True)
            return
        for name, content in new.files.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():  # `write_whole` writes to the file that a link names
                file.unlink()
            write_whole(file, content)


def _union(old: Written | None, new: Written) -> Written:
    if old is None:
        return new
    names = old.files.keys() | new.files.keys()
    files = {name: tuple(dict.fromkeys((*old.files.get(name, ()), *new.files.get(name, ())))) for name in names}
    return Written(files=files, links=tuple(dict.fromkeys((*old.links, *new.links))))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _hash_of(place: Path, name: str) -> str | None:
    """Return the hash of a file below a skill's folder; None if it is not there, and no hash if it is no such file."""
    file = place / name
    if any(parent.is_symlink() for parent in (file, *file.parents[: name.count("/")])):
        return "a link"
    try:
        return _sha256(read_file(file, source=name, most=_MOST_BYTES))
    except FileNotFoundError:
        return None
    except (DoorError, OSError):
        return "not readable"


def _others(place: Path, written: Written) -> str:
    """Return a file below a folder that this command did not write; empty if there is none."""
    for folder, folders, files in os.walk(place):
        for name in (*files, *(one for one in folders if (Path(folder) / one).is_symlink())):
            below = (Path(folder) / name).relative_to(place).as_posix()
            if below not in written.files:
                return below
    return ""


def _remove(place: Path, name: str) -> None:
    """Remove a file and the folders up to the skill's that become empty."""
    file = place / name
    file.unlink(missing_ok=True)
    for folder in (*file.parents[: name.count("/")], place):
        with contextlib.suppress(OSError):  # it holds files of others
            folder.rmdir()
