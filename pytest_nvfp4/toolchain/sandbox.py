"""Which parts of the sandbox stand on this machine, as a worker finds them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pytest_nvfp4 import isolation
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.isolation.wall import Part, Wall
from pytest_nvfp4.isolation.wall.remedies import PURPOSES, remedy
from pytest_nvfp4.temporary import temporary_folder

_PROBE = "pytest_nvfp4.isolation.wall.probe"
_PROBE_S = 60.0


class SandboxError(RuntimeError):
    """The sandbox is required and not complete on this machine."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The parts of the sandbox on this machine.

    Attributes:
        landlock: Version of Landlock; 0 if there is none.
        missing: The reason for each missing part.
    """

    landlock: int
    missing: dict[Part, str]

    @classmethod
    def probe(cls) -> Sandbox:
        """Enter a wall in a process of its own, and return what stood."""
        with temporary_folder("probe") as folder:
            outcome = isolation.run(
                worker(_PROBE), cwd=folder, deadline_s=_PROBE_S, wall=Wall(folder=str(folder)), environ={}
            )
        try:
            told = json.loads(outcome.result or b"")
            return cls(int(told["landlock"]), {Part(part): str(reason) for part, reason in told["missing"].items()})
        except (ValueError, KeyError, TypeError):
            reason = f"the process that looks {outcome.describe_end()}: {outcome.stderr.text.strip()[-300:]}"
            return cls(0, dict.fromkeys(Part, reason))

    def describe(self) -> str:
        """Return the parts in one line."""
        standing = [_name(part, self.landlock) for part in Part if part not in self.missing]
        text = "sandbox " + (", ".join(standing) or "of limits alone")
        return text + (f"; missing: {', '.join(self.missing)} (nvfp4 doctor)" if self.missing else "")

    def require(self) -> None:
        """Raise SandboxError if a part is missing; its message names each one and how to get it."""
        if self.missing:
            lines = [f"  {part} ({reason}): {remedy(part)}" for part, reason in self.missing.items()]
            raise SandboxError("the sandbox is required, and this machine lacks parts of it:\n" + "\n".join(lines))


def _name(part: Part, version: int) -> str:
    return f"{part} {version}" if part is Part.LANDLOCK else str(part)


__all__ = ["PURPOSES", "Part", "Sandbox", "SandboxError", "remedy"]
