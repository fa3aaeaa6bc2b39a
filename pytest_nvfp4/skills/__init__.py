"""Skills for agents: one folder a skill, with a ``SKILL.md``; ``nvfp4 skills`` lists and installs them.

The format is that of https://agentskills.io: front matter with ``name`` (that of the folder) and ``description`` (when
to use it), then Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

NAMES = (
    "nvfp4-gate-kernel",
    "nvfp4-read-races",
    "nvfp4-read-cost-and-model",
    "nvfp4-profile",
    "nvfp4-remote-run",
    "nvfp4-loop-worker",
    "nvfp4-loop-reviewer",
)
"""Skills in the order of a kernel's life."""
MAIN = "SKILL.md"


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill.

    Attributes:
        name: Its name, and that of its folder.
        description: When an agent should use it, on one line.
        text: The Markdown below the front matter.
        files: Content of each file by its path below the folder.
        folder: Its folder in this package.
    """

    name: str
    description: str
    text: str
    files: Mapping[str, bytes]
    folder: Traversable


def skill(name: str) -> Skill:
    """Return a skill. Raises KeyError for one that does not exist."""
    if name not in NAMES:
        raise KeyError(name)
    folder = resources.files(__name__).joinpath(name)
    files = dict(sorted(_files(folder, "")))
    _, front, text = files[MAIN].decode().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    return Skill(fields["name"], fields["description"], text.lstrip("\n"), files, folder)


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_bytes()
