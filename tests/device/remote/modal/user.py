"""A user of the loopback server: a folder with kernels, and pytest and nvfp4 as they are run there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.cli.helpers import ROOT
from tests.waiting import LONGEST_S

from ..loopback import Loopback
from ..loopback.server import TOKEN_ID, TOKEN_SECRET

KERNELS = Path(__file__).parents[2] / "kernels"
SM100 = Path(__file__).parents[4] / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
SMALL = ("--nvfp4-problem=7x128x256", "--nvfp4-problem=3x128x256", "--nvfp4-family=pow2_exact")
_NAMES = """
MODAL_PLANTED MODAL_API_TOKEN HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
POPCORN_API_KEY POPCORN_CLI_ID WAFER_TOKEN GITHUB_TOKEN GH_TOKEN OPENAI_API_KEY WANDB_API_KEY DATABASE_URL SSH_ASKPASS
MY_PASSWORD NVFP4_CANARY PYTEST_CANARY TORCH_CANARY CUDA_CANARY CUTE_DSL_CANARY LC_CANARY X_CANARY
"""
PLANTED = {name: f"planted-{number:02d}-8d1f0c7a42e9" for number, name in enumerate(_NAMES.split())}
"""A secret for every kind of variable, each its own, so that one that is found names where it came from."""
_ADDRESSES = """
HTTPS_PROXY http_proxy ALL_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_INDEX_URL UV_DEFAULT_INDEX NETRC_ENTRY GIT_REMOTE
"""
IN_ADDRESSES = {name: f"planted-at-{number:02d}-3c9b7d15f608" for number, name in enumerate(_ADDRESSES.split())}
"""Passwords in addresses: of proxies, package indexes, of a host in ~/.netrc, and of the repository's remote."""


class User:
    """Somebody's folder.

    Args:
        server: The server.
        folder: The folder.
        cache: Where traces and answers are kept; below the folder where None.
    """

    def __init__(self, server: Loopback, folder: Path, *, cache: Path | None = None) -> None:
        self.server = server
        self.folder = folder
        self.cache = cache or folder / "cache"
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
        home, config = folder / "home", folder / ".git" / "config"
        home.mkdir(exist_ok=True)
        (home / ".netrc").write_text(f"machine example.org login me password {IN_ADDRESSES['NETRC_ENTRY']}\n")
        config.parent.mkdir(exist_ok=True)
        config.write_text(f'[remote "origin"]\n\turl = https://me:{IN_ADDRESSES["GIT_REMOTE"]}@example.org/x.git\n')
        self._theirs = {home / ".netrc", config}

    def write(self, name: str, text: str) -> Path:
        """A file of theirs."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        """Their environment, secrets included."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PYTEST_"))}
        addresses = {
            name: f"http://me:{secret}@127.0.0.1:9"
            for name, secret in IN_ADDRESSES.items()
            if name.endswith(("XY", "xy"))
        } | {
            name: f"https://me:{secret}@example.org/simple"
            for name, secret in IN_ADDRESSES.items()
            if name.startswith(("PIP", "UV"))
        }
        ours = {"NVFP4_CACHE_DIR": str(self.cache), "HOME": str(self.folder / "home")}
        return {**kept, **PLANTED, **addresses, **self.server.environ(), **ours, **more}

    def command(self, *args: str, benchmark: bool = False) -> list[str]:
        """``pytest --nvfp4-remote=modal`` with arguments, without the plugins that it can do without."""
        lean = ["-p", "no:hypothesispytest"] + ([] if benchmark else ["-p", "no:benchmark"])
        return [sys.executable, "-m", "pytest", *lean, "--nvfp4-remote=modal", *args]

    def start(self, *args: str, **more: str) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            self.command(*args),
            env=self.environment(**more),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *args: str, benchmark: bool = False, **more: str) -> str:
        """Run it to its end; all that it said."""
        done = subprocess.run(
            self.command(*args, benchmark=benchmark),
            env=self.environment(**more),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=5 * LONGEST_S,
            check=False,
        )
        return done.stdout

    def places(self, *said: str) -> dict[str, bytes]:
        """Everything that was said, sent, written or kept, and every file that a container has or wrote."""
        server = self.server
        places = {
            "output": "\0".join(said).encode(),
            "requests": b"\0".join(server.received),
            "requests of containers": b"\0".join(server.worker_received),
            "mounts": b"\0".join(server.service.files.values()),
            "blobs": b"\0".join(server.blobs.data.values()),
        }
        for folder in {self.folder, self.cache, server.folder}:
            for path in folder.rglob("*"):
                if "site-packages" not in path.parts and path not in self._theirs and path.is_file():
                    places[str(path)] = path.read_bytes()
        return places

    def assert_no_secret(self, *said: str, secrets: Iterable[str] = (), but: Iterable[str] = ()) -> None:
        """No secret of the environment is in any of these places; beside requests is Modal's token alone."""
        places = {place: data for place, data in self.places(*said).items() if place not in but}
        headers = b"\0".join(self.server.headers)
        wanted = {**PLANTED, **IN_ADDRESSES, "MODAL_TOKEN_ID": TOKEN_ID, "MODAL_TOKEN_SECRET": TOKEN_SECRET}
        wanted |= {secret: secret for secret in secrets}
        found = [
            f"{variable} in {place}"
            for variable, secret in wanted.items()
            for place, data in places.items()
            if secret.encode() in data
        ]
        planted = PLANTED | IN_ADDRESSES
        found += [f"{variable} in headers" for variable, secret in planted.items() if secret.encode() in headers]
        assert not found, found
        assert TOKEN_SECRET.encode() in headers, "the search would find what is there"


def start(
    user: User, *arguments: object, stdin: int | None = subprocess.DEVNULL, backend: str = "none"
) -> subprocess.Popen[bytes]:
    """Start ``nvfp4 exec --device modal`` in the user's folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_nvfp4.cli", "exec", "--device", "modal", *map(str, arguments)],
        cwd=user.folder,
        env=user.environment(PYTHONPATH=str(ROOT), NVFP4_MODAL_BACKEND=backend),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
