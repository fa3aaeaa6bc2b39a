"""Isolated environments with another version of CuTe DSL, made with uv and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, Toolchain

FOLDER = "environments"
_MARKER = "nvfp4-environment.json"
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([=<>!~]=?[^;\s]+)?")
_DEADLINE_S = 1800.0
# What uv draws around its messages: box-drawing characters, arrows and crosses.
_FRAME = re.compile("[\u00d7\u2500-\u257f\u25b6]+|\x1b\\[[0-9;]*m")


def uv_path() -> str | None:
    """Where uv is: on the path, or in a Python package of this environment."""
    if found := shutil.which("uv"):
        return found
    if find_spec("uv") is not None:
        import uv  # type: ignore[import-not-found, unused-ignore]

        try:
            return str(uv.find_uv_bin())
        except FileNotFoundError:
            return None
    return None


def toolchain(version: str, *, root: Path, extra: Sequence[str] = ()) -> Toolchain:
    """A Python with this version of the DSL and torch: this one if it fits, a kept one, or one made now.

    It is made beside its place and renamed, under a lock, so that an interrupted installation is never taken for an
    environment and two commands make it once.

    Args:
        version: Version of nvidia-cutlass-dsl, such as ``4.4.0``.
        root: The cache folder.
        extra: Further packages that the kernel imports, as uv spells them.

    Raises:
        InputError: the version is malformed or does not exist, uv is missing, or the installation failed.
    """
    if not _VERSION.fullmatch(version):
        raise InputError(f"{version!r} is no version of {DSL_DISTRIBUTION}; write it as 4.8.1")
    for requirement in extra:
        if not _REQUIREMENT.fullmatch(requirement):
            raise InputError(f"--with {requirement!r} is no package; write it as numpy or einops==0.8.1")
    current = Toolchain.current()
    if version == current.dsl_version and not extra:
        return current
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = f"dsl-{version}-python-{platform.python_version()}"
    if extra:
        name += "-" + hashlib.sha256("\0".join(sorted(extra)).encode()).hexdigest()[:8]
    place = folder / name
    with FileLock(folder / f".{name}.lock"):
        known = _load(place)
        if known is None:
            with output.working(f"installing {DSL_DISTRIBUTION} {version} and torch in {place} (once)"):
                known = _make(place, version, extra)
    return known


def clear(root: Path) -> int:
    """Remove every environment that nobody is making; their number."""
    removed = 0
    folder = root / FOLDER
    for place in sorted(folder.glob("[!.]*")) if folder.is_dir() else ():
        try:
            with FileLock(folder / f".{place.name}.lock", timeout=0):
                shutil.rmtree(place, ignore_errors=True)
                removed += 1
        except Timeout:
            continue
    return removed


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _load(place: Path) -> Toolchain | None:
    """The environment at a place if it is whole: its marker is written last, and its Python still exists."""
    try:
        data = json.loads((place / _MARKER).read_text(encoding="utf-8"))
        python = _python(place)
        return Toolchain(python, str(data["python"]), str(data["dsl"])) if python.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(place: Path, version: str, extra: Sequence[str]) -> Toolchain:
    uv = uv_path()
    if uv is None:
        raise InputError(
            f"uv is not installed, which makes the environment with {DSL_DISTRIBUTION} {version}; get it with: "
            "pip install uv"
        )
    build = Path(tempfile.mkdtemp(dir=place.parent, prefix=".build-"))
    try:
        _run(
            uv,
            ["venv", "--quiet", "--relocatable", "--allow-existing", "--python", sys.executable, str(build)],
            version,
        )
        wanted = [f"{DSL_DISTRIBUTION}=={version}", "torch", *extra]
        _run(uv, ["pip", "install", "--quiet", "--python", str(_python(build)), *wanted], version)
        made = _inspect(build)
        if made["dsl"] != version:
            raise InputError(f"uv installed {DSL_DISTRIBUTION} {made['dsl']} where {version} was asked for")
        (build / _MARKER).write_text(json.dumps({**made, "packages": wanted}, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        build.rename(place)
    finally:
        shutil.rmtree(build, ignore_errors=True)
    return Toolchain(_python(place), made["python"], made["dsl"])


def _run(uv: str, arguments: Sequence[str], version: str) -> None:
    environ = {
        key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    }
    try:
        done = subprocess.run(
            [uv, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE_S,
            check=False,
            env={**environ, "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"uv did not finish within {_DEADLINE_S / 60:.0f} minutes") from error
    if done.returncode:
        said = " ".join(_FRAME.sub(" ", done.stderr).split())
        raise InputError(f"no environment with {DSL_DISTRIBUTION} {version}: uv says: {said[:600] or 'nothing'}")


def _inspect(place: Path) -> dict[str, str]:
    """Versions of Python and the DSL in an environment, asked of its own interpreter."""
    script = (
        "import importlib.metadata as m, json, platform as p; "
        f"print(json.dumps({{'python': p.python_version(), 'dsl': m.version({DSL_DISTRIBUTION!r})}}))"
    )
    done = subprocess.run(
        [str(_python(place)), "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise InputError(f"the Python that uv made does not work: {last}")
    data = json.loads(done.stdout)
    return {"python": str(data["python"]), "dsl": str(data["dsl"])}
