"""Isolated environments with another version of CuTe DSL, installed with uv into the cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.temporary import name_beside, remove_unfinished
from pytest_nvfp4.toolchain.cache_contents import ENVIRONMENTS
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, Toolchain

_MARKER = "nvfp4-environment.json"
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([=<>!~]=?[^;\s]+)?")
_MOST_BYTES = 1 << 20
_TIMEOUT_S = 1800.0
# Decoration of uv's messages: crosses, box-drawing characters, arrows, and colours.
_FRAME = re.compile("[\u00d7\u2500-\u257f\u25b6]+|\x1b\\[[0-9;]*m")


def uv_path() -> str | None:
    """Return uv's executable, from the path or from a Python package of this environment."""
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
    """Return a Python with this version of the DSL and torch: the running one, a cached one, or a new one.

    A new environment is installed under a temporary name and renamed, under a lock, so that an interrupted installation
    is never used and two commands install it once.

    Args:
        version: Version of nvidia-cutlass-dsl, such as ``4.4.0``.
        root: The cache folder.
        extra: Further packages that the kernel imports, as uv spells them.

    Raises:
        InputError: The version is malformed or does not exist, uv is missing, or the installation failed.
    """
    if not _VERSION.fullmatch(version):
        raise InputError(f"{version!r} is not a version of {DSL_DISTRIBUTION}; write it as 4.8.1")
    for requirement in extra:
        if not _REQUIREMENT.fullmatch(requirement):
            raise InputError(f"--with {requirement!r} is not a package; write it as numpy or einops==0.8.1")
    current = Toolchain.current()
    if version == current.dsl_version and not extra:
        return current
    folder = root / ENVIRONMENTS
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
    """Remove every environment that no process is installing, and return their number."""
    removed = 0
    folder = root / ENVIRONMENTS
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
    """Return a complete environment or None: its marker is written last, and its Python must still exist."""
    try:
        data = read_json(read_file(place / _MARKER, source="it", most=_MOST_BYTES), source="it")
        python = _python(place)
        return Toolchain(python, str(data["python"]), str(data["dsl"])) if python.exists() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make(place: Path, version: str, extra: Sequence[str]) -> Toolchain:
    uv = uv_path()
    if uv is None:
        raise InputError(
            f"uv is not installed, but needed for an environment with {DSL_DISTRIBUTION} {version}; get it with: "
            "pip install uv"
        )
    remove_unfinished(place.parent)
    build = name_beside(place)
    build.mkdir()
    try:
        _run(
            uv,
            ["venv", "--quiet", "--relocatable", "--allow-existing", "--python", sys.executable, str(build)],
            version,
        )
        packages = [f"{DSL_DISTRIBUTION}=={version}", "torch", *extra]
        _run(
            uv, ["pip", "install", "--quiet", "--compile-bytecode", "--python", str(_python(build)), *packages], version
        )
        made = _inspect(build)
        if made["dsl"] != version:
            raise InputError(f"uv installed {DSL_DISTRIBUTION} {made['dsl']} where {version} was requested")
        (build / _MARKER).write_text(json.dumps({**made, "packages": packages}, indent=2) + "\n", encoding="utf-8")
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
            timeout=_TIMEOUT_S,
            check=False,
            env={**environ, "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"uv did not finish within {_TIMEOUT_S / 60:.0f} minutes") from error
    if done.returncode:
        message = " ".join(_FRAME.sub(" ", done.stderr).split())
        raise InputError(f"no environment with {DSL_DISTRIBUTION} {version}: uv: {message[:600] or 'no message'}")


def _inspect(place: Path) -> dict[str, str]:
    """Return the versions of Python and the DSL that an environment's interpreter reports."""
    script = (
        "import importlib.metadata as m, json, platform as p; "
        f"print(json.dumps({{'python': p.python_version(), 'dsl': m.version({DSL_DISTRIBUTION!r})}}))"
    )
    done = subprocess.run(
        [str(_python(place)), "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the Python that uv installed does not work: {last}")
    data = read_json(done.stdout[-_MOST_BYTES:], source="the answer of its Python")
    return {"python": str(data["python"]), "dsl": str(data["dsl"])}
