"""What a hostile kernel tries is refused: by the whole wall, and by each part that claims to, alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.wall import Part, Wall
from pytest_nvfp4.toolchain.sandbox import Sandbox
from tests.waiting import alive

from .attacks import ATTACKS, HONEST, REFUSED, REPORT
from .behind import OTHER_USER, as_function, behind, is_root, other_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no wall elsewhere")


@dataclass(frozen=True, slots=True)
class Victim:
    """What belongs to the user: a file, its folder, a process, a port that listens, and shared memory."""

    secret: Path
    process: int
    port: int

    @property
    def arguments(self) -> tuple[object, ...]:
        return self.secret, self.secret.parent, self.process, self.port, 0x5EC2E7


@pytest.fixture(scope="module")
def standing() -> set[Part]:
    """The parts of this machine."""
    return set(Part) - set(Sandbox.probe().missing)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """What an attack aims at; anybody may read the file, and so may a wall without its part."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    outside = tmp_path / "home"
    outside.mkdir()
    outside.chmod(0o777)
    secret = outside / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    listening = socket.create_server(("127.0.0.1", 0))
    process = subprocess.Popen(["sleep", "600"], start_new_session=True, user=OTHER_USER if is_root() else None)
    yield Victim(secret, process.pid, listening.getsockname()[1])
    process.kill()
    process.wait()
    listening.close()


def folder_in(tmp_path: Path) -> str:
    folder = tmp_path / "job"
    folder.mkdir()
    return str(folder)


def done(names: Iterable[str], victim: Victim, wall: Wall, *, user: int = 0) -> set[str]:
    """The attacks that were not refused."""
    named = dict(enumerate(names))
    functions = [as_function(ATTACKS[name].source).replace("attack", f"attack_{at}") for at, name in named.items()]
    table = ", ".join(f"{name!r}: attack_{at}" for at, name in named.items())
    outcome = behind(wall, "\n".join([*functions, f"attacks = {{{table}}}", REPORT]), *victim.arguments, user=user)
    assert outcome.returncode == 0, outcome.stderr.text
    ends = dict(line.rpartition("|")[::2] for line in outcome.stdout.text.splitlines() if "|" in line)
    assert set(ends) == set(named.values()), outcome.stderr.text
    assert alive(victim.process)
    assert victim.secret.read_text() == "secret"
    return {name for name, status in ends.items() if int(status) != REFUSED}


AS_ROOT = {
    "writes a setting of the system",
    "mounts",
    "sets the clock",
    "becomes another user",
    "reads the password file",
}
"""Attacks that only root could try at all."""


@pytest.mark.parametrize("another", [False, True], ids=["as this user", "as another"])
def test_the_wall_refuses_all(another: bool, victim: Victim, tmp_path: Path, standing: set[Part]) -> None:
    user = other_user() if another else 0
    if another and not user:
        pytest.skip("only root can become another user")
    names = [name for name, one in ATTACKS.items() if not one.parts or standing.intersection(one.parts)]
    names = [name for name in names if not user or name not in AS_ROOT]
    wall = Wall(folder=folder_in(tmp_path), memory_bytes=1 << 30, file_bytes=1 << 20, descriptors=1024)
    assert done(names, victim, wall, user=user) == set()


@pytest.mark.slow
@pytest.mark.parametrize("part", Part)
def test_each_part_refuses_its_own_alone(part: Part, victim: Victim, tmp_path: Path, standing: set[Part]) -> None:
    # A PID namespace shows in /proc only with one for mounts, which needs the former.
    needed = {part, Part.PROCESSES} if part is Part.MOUNTS else {part}
    if not needed <= standing:
        pytest.skip("this machine lacks the part")
    names = {name for name, one in ATTACKS.items() if part in one.parts}
    for user, chosen in ((0, names & AS_ROOT), (other_user(), names - AS_ROOT)):
        folder = tmp_path / str(user)
        folder.mkdir(exist_ok=True)
        wall = Wall(folder=str(folder), without=tuple(set(Part) - needed))
        if chosen:
            assert done(chosen, victim, wall, user=user) == set()


@pytest.mark.slow
def test_without_a_wall_they_succeed(victim: Victim, tmp_path: Path) -> None:
    names = {"reads a file of the user", "lists a folder of the user", "connects", "unshares", "binds"}
    wall = Wall(folder=folder_in(tmp_path), mode="off")
    assert done(names, victim, wall, user=other_user()) == names


@pytest.mark.parametrize("another", [False, True], ids=["as this user", "as another"])
def test_honest_programs_work(another: bool, tmp_path: Path) -> None:
    user = other_user() if another else 0
    if another and not user:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if is_root() and folder != Path("/tmp"):
            folder.chmod(0o755)
    outcome = behind(Wall(folder=folder_in(tmp_path)), _all_honest(), *"abc", 0, 0, user=user)
    assert (outcome.returncode, outcome.stderr.text) == (0, ""), outcome.stderr.text
    assert outcome.stdout.text.endswith("all\n")


def _all_honest() -> str:
    bodies = [as_function(body).replace("attack", f"honest_{index}") for index, body in enumerate(HONEST.values())]
    calls = [f"honest_{index}()" for index in range(len(bodies))]
    return "\n".join([*bodies, *calls, "print('\\nall', flush=True)", "os._exit(0)"])
