"""Draw the picture of the README: ``python -m tests.guide.picture`` runs pytest on a kernel that lacks a wait."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.guide.examples import environment

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / ".github" / "pictures" / "session.svg"
COMMAND = ("pytest", "my_kernel.py", "-k", "compile or tmem or races", "--color=yes", "--no-header")
_WAIT = re.compile(r"^( +)cute\.arch\.mbarrier_wait\(full_mbar \+ stage, parity\)$", re.MULTILINE)
_HOST_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(path: Path = PICTURE) -> None:
    """Run the command in an empty folder and write its output as SVG, without fonts from elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = (ROOT / "kernels/nvfp4_group_gemm/steps/map_updates.py").read_text()
        (folder / "my_kernel.py").write_text(_WAIT.sub(r"\1pass", source))
        environ = {**environment(folder / "cache"), "COLUMNS": "118"}
        shell = shutil.which(COMMAND[0], path=environ["PATH"])
        assert shell is not None
        done = subprocess.run(
            [shell, *COMMAND[1:]], cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
    console = Console(record=True, width=118, file=io.StringIO())
    console.print(Text(f"$ {shlex.join(COMMAND[:4])}", style="bold"))
    console.print(Text.from_ansi(done.stdout))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_HOST_FONT.sub("", console.export_svg(title="no GPU on this machine")))


if __name__ == "__main__":
    draw()
