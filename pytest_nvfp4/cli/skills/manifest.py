"""What an earlier ``nvfp4 skills install`` wrote: a file beside the skills, so that nothing else is ever changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Name, Sha256
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.models import parsed
from pytest_nvfp4.text import json_text
from pytest_nvfp4.writing import write_whole

FILE = ".nvfp4-skills.json"
_MOST_BYTES = 1 << 20
_MOST = 1000
_SkillName = Annotated[str, Field(pattern=r"^nvfp4(-[a-z0-9]+)+$", max_length=64)]
_FileName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*/){0,4}[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class Written(BaseModel):
    """What was written for one skill.

    Attributes:
        files: SHA-256 of each file by its path below the skill's folder. There are several while an update runs: one
            that is killed leaves files of both states.
        links: Targets of the symbolic link that stands in the folder's place.
    """

    model_config = STRICT
    files: Annotated[dict[_FileName, Annotated[tuple[Sha256, ...], Field(max_length=_MOST)]], Field(max_length=_MOST)]
    links: Annotated[tuple[Name, ...], Field(max_length=_MOST)] = ()


class Manifest(BaseModel):
    """What was written into one folder of skills, by the skills' names."""

    model_config = STRICT
    version: Literal[1] = 1
    skills: Annotated[dict[_SkillName, Written], Field(max_length=_MOST)] = {}


def read_manifest(folder: Path) -> Manifest:
    """Return what was written into a folder; nothing if it has no manifest. Raises InputError."""
    file = folder / FILE
    try:
        if file.is_symlink():
            raise DoorError(str(file), "is a link, and links are not followed")
        return parsed(Manifest, read_file(file, source=str(file), most=_MOST_BYTES), source=str(file))
    except FileNotFoundError:
        return Manifest()
    except DoorError as error:
        raise InputError(f"{error}; remove the file, and skills that are in {folder} count as yours") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what was written into a folder. Raises OSError."""
    write_whole(folder / FILE, f"{json_text(manifest.model_dump(mode='json'))}\n")
