"""A real sshd on a free port of this machine, as a user without privileges, with keys and a config of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import RemoteOptions
from pytest_nvfp4.device.remote.ssh import SshRemote
from tests.device.remote.programs import script
from tests.waiting import LONGEST_S, until

_UID = 4711
_USER = "tester"


@dataclass
class Sshd:
    """The server, and how to reach it.

    Attributes:
        folder: Where everything of it lies.
        port: Its port.
        config: A client's config that knows it as ``box``; ``strangers`` has another key, ``unknown`` no host key,
            ``closed`` a port where nothing listens, ``nowhere`` a name that cannot be resolved.
        sent: What the far Python was given, one file a line.
        environments: What was in its environment, one file a line.
        python: A Python that keeps both.
    """

    folder: Path
    port: int
    config: Path
    process: subprocess.Popen[bytes]
    python: Path

    @property
    def sent(self) -> list[Path]:
        return sorted(self.folder.glob("seen/stdin.*"))

    @property
    def environments(self) -> list[Path]:
        return sorted(self.folder.glob("seen/environ.*"))

    @property
    def far(self) -> Path:
        return self.folder / "far"

    def target(self, host: str = "box", **more: object) -> str:
        said = {"config": self.config, "python": self.python, "folder": self.far, **more}
        return f"{host}?" + "&".join(f"{name}={value}" for name, value in said.items())


def _found() -> str:
    path = os.environ.get("NVFP4_TEST_SSHD") or shutil.which(
        "sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
    )
    if path is None or shutil.which("ssh") is None:
        pytest.skip("no sshd here: install openssh-server, or name one in NVFP4_TEST_SSHD")
    return path


@contextlib.contextmanager
def _taken_port() -> Iterator[int]:
    """A port that nobody else is given meanwhile, so that nothing listens there but who asks for it, as sshd does."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def _key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path


def _command(sshd: str, folder: Path, config: Path) -> tuple[list[str], str]:
    """The command that starts it without privileges, and the user it lets in.

    It is this user. For root, it is a user that exists for this server alone: a namespace in which root has another
    number, and a passwd file that knows the number.
    """
    plain = [sshd, "-D", "-e", "-f", str(config)]
    if os.getuid() != 0:
        return plain, getpass.getuser()
    passwd = folder / "passwd"
    passwd.write_text(f"{Path('/etc/passwd').read_text()}{_USER}:x:{_UID}:{_UID}::{folder}:/bin/sh\n")
    inner = ["unshare", "-U", f"--map-user={_UID}", f"--map-group={_UID}"]
    outer = ["unshare", "-m", "sh", "-c"]
    mount = f"mount --bind {shlex.quote(str(passwd))} /etc/passwd && exec "
    tried = subprocess.run([*outer, mount + shlex.join([*inner, "true"])], check=False, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"sshd is not started as root, and a user for it cannot be made here: {tried.stderr.strip()}")
    return [*outer, mount + shlex.join([*inner, *plain])], _USER


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    path = _found()
    with (
        tempfile.TemporaryDirectory(prefix="nvfp4-sshd-", ignore_cleanup_errors=True) as name,
        _taken_port() as port,
        _taken_port() as nothing_listens,
    ):
        folder = Path(name).resolve()
        host, user, stranger = (_key(folder / key) for key in ("host", "user", "stranger"))
        (folder / "authorized").write_text(Path(f"{user}.pub").read_text())
        server = folder / "sshd_config"
        server.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host}\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nMaxStartups 50\n"
            "AcceptEnv *\n"  # it would take every variable it is sent
        )
        command, login = _command(path, folder, server)
        known = folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {Path(f'{host}.pub').read_text()}")
        common = f"HostName 127.0.0.1\nPort {port}\nUser {login}\nIdentitiesOnly yes\nStrictHostKeyChecking yes\n"
        common += f"UserKnownHostsFile {known}\nSendEnv *\n"  # and a user may well have said so
        config = folder / "ssh_config"
        config.write_text(
            f"Host box\n{common}IdentityFile {user}\n"
            f"Host strangers\n{common}IdentityFile {stranger}\n"
            f"Host unknown\n{common.replace(str(known), '/dev/null')}IdentityFile {user}\n"
            f"Host closed\n{common.replace(f'Port {port}', f'Port {nothing_listens}')}IdentityFile {user}\n"
            "Host nowhere\nHostName no-such-host.invalid\n"
        )
        (folder / "seen").mkdir()
        (folder / "remote").mkdir()
        seen = f"{folder}/seen"
        python = script(
            folder / "python with a space",
            f'env > "{seen}/environ.$$"; echo "$@" >> "{seen}/environ.$$"\n'
            f'tee "{seen}/stdin.$$" | exec {shlex.quote(sys.executable)} "$@"',
        )
        log = folder / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        try:
            if not until(lambda: process.poll() is not None or "Server listening" in log.read_text()):
                pytest.skip(f"sshd does not come up: {log.read_text()}")
            if process.poll() is not None:
                pytest.skip(f"sshd does not run here: {log.read_text().strip()}")
            yield Sshd(folder, port, config, process, python)
        finally:
            process.terminate()
            process.wait(timeout=LONGEST_S)


@pytest.fixture
def remote(sshd: Sshd) -> Iterator[Callable[..., SshRemote]]:
    """Makes remotes on the server, and stops them."""
    made: list[SshRemote] = []

    def make(host: str = "box", *, options: RemoteOptions | None = None, **more: object) -> SshRemote:
        given = options or RemoteOptions()
        one = SshRemote(
            RemoteOptions(target=sshd.target(host, **more), timeout_s=given.timeout_s, containers=given.containers)
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.stop()
