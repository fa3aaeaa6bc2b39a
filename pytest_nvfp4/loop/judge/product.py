"""The commands that examine a kernel in a worktree, and where they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.gates import SIMULATED

_CONFIGURED: Final = (
    ("pytest.toml", ""), (".pytest.toml", ""), ("pytest.ini", ""), (".pytest.ini", ""),
    ("pyproject.toml", "[tool.pytest."), ("pyproject.toml", "[tool.pytest]"),
    ("tox.ini", "[pytest]"), ("setup.cfg", "[tool:pytest]"),
)  # fmt: skip
"""Files that configure pytest, and the table without which they do not (pytest, "Rootdir and configuration")."""
_NOT_IMPORTED: Final = ("-p", "pytest_nvfp4.plugin.kernels_only", "--noconftest")
"""Options without which pytest imports a kernel that also holds tests, or that a ``conftest.py`` imports, into its own
process, where it could write the report."""
_SETTINGS: Final = "[tool.pytest_nvfp4"
_LEAST_INNER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Product:
    """The commands of one examination.

    Attributes:
        config: The configuration of the loop.
        root: The worktree.
        jobs: Compiles and simulations at once.
    """

    config: LoopConfig
    root: Path
    jobs: int

    def prepare(self) -> None:
        """Keep the settings of a folder above the worktree out: that is the user's checkout, with what he changes now.

        Settings are searched for upwards, so a worktree without any gets an empty table.
        """
        settings = self.root / "pyproject.toml"
        text = settings.read_text(encoding="utf-8") if settings.is_file() else ""
        if _SETTINGS not in text and not any(_mentions(path, _SETTINGS) for path in self._above("pyproject.toml")):
            settings.write_text(f"{text}\n{_SETTINGS}]\n", encoding="utf-8")

    def pytest(
        self,
        gates: Sequence[str],
        report: Path,
        *,
        deadline_s: float,
        stop: bool = False,
        remote_usd: float | None = None,
        update: bool = False,
    ) -> list[str]:
        """Return the command that checks some gates.

        Args:
            gates: The gates; a remote works for those that simulate.
            report: File of its report.
            deadline_s: Seconds until it is ended; a kernel that hangs is ended earlier, by the check that it hangs.
            stop: Whether the first failure ends it.
            remote_usd: Dollars that a remote may cost; None for no limit.
            update: Whether it writes snapshots.
        """
        inner = max(_LEAST_INNER_S, deadline_s / 3)
        command = ["pytest", self.config.kernel.file, *(f"--nvfp4-check={gate}" for gate in gates)]
        command += [f"--nvfp4-json={report}", "--nvfp4-device=sim", f"--nvfp4-jobs={self.jobs}"]
        command += [f"--nvfp4-timeout={inner:g}", f"--nvfp4-device-timeout={inner:g}"]
        command += [f"--nvfp4-problem={name}" for name in self.config.kernel.verify]
        command += [*_NOT_IMPORTED, "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["-x"] if stop else []
        command += ["--snapshot-update", "--snapshot-no-cleanup"] if update else ["--snapshot-warn-unused"]
        command += ["--nvfp4-accepted=off"] if self.config.policy.accepted == "refused" else []
        command += self._rooted()
        judge = self.config.judge
        if judge.remote and any(gate in SIMULATED for gate in gates):
            command += [f"--nvfp4-remote={judge.remote}", f"--nvfp4-remote-containers={judge.containers}"]
            # Above that of a kernel, so that one that hangs is ended, and found red, before the remote counts as lost.
            command += [f"--nvfp4-remote-timeout={2 * inner:g}"]
            command += [] if remote_usd is None else [f"--nvfp4-remote-max-cost={remote_usd:g}"]
        return command

    def cost(self, output: Path, *, deadline_s: float) -> list[str]:
        """Return the command that counts the very calls whose results it judges."""
        options = ["--verify", f"--timeout={deadline_s:g}", "--json", f"--output={output}"]
        return ["nvfp4", "cost", *self._kernel(), *options]

    def model(self, output: Path, *, deadline_s: float) -> list[str]:
        """Return the command that models the times of the very calls whose results it judges.

        The other gates verify other problems: a kernel that does less on those of the target is met here.
        """
        table = [f"--device={self.config.judge.table}"] if self.config.judge.table else []
        options = ["--verify", "--no-what-if", f"--timeout={deadline_s:g}", "--json", f"--output={output}"]
        return ["nvfp4", "model", *self._kernel(), *table, *options]

    def _kernel(self) -> list[str]:
        kernel = self.config.kernel
        problems = [f"--problem={name}" for name in kernel.problems]
        return [kernel.file, *problems, *([f"--config={kernel.config}"] if kernel.config else [])]

    def _rooted(self) -> list[str]:
        """Return the options that keep the configuration of a folder above the worktree out of pytest."""
        for name, table in _CONFIGURED:
            if any(_mentions(path, table) for path in self._above(name)):
                return [f"--confcutdir={self.root}"]
        return [f"--rootdir={self.root}", f"--confcutdir={self.root}", "-c", str(self.root / "pyproject.toml")]

    def _above(self, name: str) -> list[Path]:
        """Return the files of a name beside the kernel and in the folders above it, up to the worktree."""
        folder = (self.root / self.config.kernel.file).parent
        folders = [place for place in (folder, *folder.parents) if place == self.root or self.root in place.parents]
        return [place / name for place in folders if (place / name).is_file()]


def _mentions(file: Path, text: str) -> bool:
    return text in file.read_text(encoding="utf-8", errors="replace")
