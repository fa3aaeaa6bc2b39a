"""Run the programs of the corpus as kernels, each in a worker process, and report what became of them."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.local import LocalDevice
from pytest_nvfp4.device.sim import SimDevice
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.problem import parse_shape

PROGRAMS = Path(__file__).parent / "programs"
SHARED = PROGRAMS / "shared"
SECRET = "a secret that no kernel may read"
_FIELD = re.compile(r"^(\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A kernel of the corpus, described by its docstring.

    Attributes:
        path: Its file.
        fields: The lines ``name: value`` at the end of its docstring.
    """

    path: Path
    fields: dict[str, str]

    @property
    def name(self) -> str:
        """Class and name, as in ``wall/reads_home``."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def expected(self) -> tuple[str, ...]:
        """The statuses that are right; ``contained`` allows every one, and no breach."""
        return tuple(self.fields.get("expected", "passed").split(" or "))

    @property
    def says(self) -> str:
        """A pattern in the text of its findings."""
        return self.fields.get("says", "")

    @property
    def shape(self) -> str:
        """The problem."""
        return self.fields.get("shape", "3x128x64")

    @property
    def deadline_s(self) -> float:
        """Seconds after which it is ended."""
        return float(self.fields.get("deadline", "900"))

    @property
    def backend(self) -> str:
        """``sim``, or ``host`` for programs whose C is computed by torch's operators."""
        return self.fields.get("backend", "sim")


def programs(kind: str) -> list[Program]:
    """Return the programs of a class, in order."""
    found = []
    for path in sorted((PROGRAMS / kind).glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found.append(Program(path, dict(_FIELD.findall(docstring))))
    return found


@dataclass(frozen=True)
class Ran:
    """What became of a program: its status, the text of its findings, and its output."""

    status: str
    said: str
    output: str

    @property
    def breaches(self) -> list[str]:
        """What the program says that it reached."""
        return re.findall(r"^BREACH: .*$", self.output, re.MULTILINE)


@dataclass(frozen=True)
class Bait:
    """What a hostile program is to reach: its places are told to it in the module ``bait``.

    Attributes:
        folder: The user's folder, with ``home`` and ``repository``.
        port: A TCP port of this machine that accepts connections.
        mark: A word by which processes are found that the program leaves behind.
    """

    folder: Path
    port: int
    mark: str

    def source(self, parent: int) -> str:
        """Return the module ``bait``."""
        values = {
            "HOME": str(self.folder / "home"),
            "REPOSITORY": str(self.folder / "repository"),
            "CACHE": str(self.folder / "cache"),
            "PORT": self.port,
            "PARENT": parent,
            "MARK": self.mark,
            "SECRET": SECRET[:12],
        }
        return "".join(f"{name} = {value!r}\n" for name, value in values.items())

    def lay(self) -> dict[Path, bytes]:
        """Write the files, and return their content."""
        files = {
            self.folder / "home/.ssh/id_ed25519": SECRET,
            self.folder / "home/.netrc": SECRET,
            self.folder / "repository/secret.py": SECRET,
            self.folder / "repository/snapshots/other.txt": SECRET,
            self.folder / "cache/seal.key": SECRET,
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return {path: path.read_bytes() for path in files}


@contextmanager
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """Accept connections on a port of this machine: the port, and what was received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                received.append(b"a connection")
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], received
        server.shutdown(socket.SHUT_RDWR)


def run(program: Program, folder: Path, *, bait: str = "") -> Ran:
    """Verify a program in a worker process."""
    sources = folder / "kernel"
    shutil.copytree(SHARED, sources, ignore=shutil.ignore_patterns("__pycache__"))
    for data in program.path.parent.glob(program.path.stem + "_*.data.py"):
        shutil.copy(data, sources)
    shutil.copy(program.path, sources)
    (sources / "bait.py").write_text(bait, encoding="utf-8")
    main = sources / program.path.name
    spec, base = KernelSpec.from_files(main, others=sources.glob("*.py"), arch="sm_100a")
    case = JobCase(problem=ProblemSpec.of(parse_shape(program.shape)), family="pow2_exact")
    job = Job(
        id="t",
        action="verify",
        kernel=spec,
        cases=(case,),
        order_seed=7,
        row_key=23,
        deadline_s=program.deadline_s,
    )
    place = folder / "job"
    place.mkdir()
    device = SimDevice() if program.backend == "sim" else LocalDevice(probe_folder=folder, backend=program.backend)
    result = device.run(job, folder=place, base=base)
    (verdict,) = Judge().judge(job, result, folder=place)
    findings = [*verdict.findings, *(finding for finding in result.findings if finding not in verdict.findings)]
    return Ran(verdict.status, "\n".join(map(str, findings)), result.stdout + result.stderr)


def left_processes(mark: str) -> list[int]:
    """Return the processes whose command line contains a mark; the ended ones have none."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


def left_files(mark: str) -> list[Path]:
    """Return the files of this name in the places that all processes share."""
    return [path for folder in ("/tmp", "/var/tmp", "/dev/shm") if (path := Path(folder, mark)).exists()]
