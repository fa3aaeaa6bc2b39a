"""Python, the required packages and the optional ones, without importing any of them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pytest_nvfp4.cli.doctor.model import Item, State
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION

DISTRIBUTION = "pytest-nvfp4"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LEAST_PYTHON = (3, 11)
_OPTIONAL = {
    "perfetto": "timelines in modelled time (nvfp4 model --timeline)",
    "z3-solver": "proofs of the CTA map and the scale-factor layout",
    "textual": "the view of a loop (nvfp4 loop watch)",
    "mcp": "the server for agents (nvfp4 mcp)",
}
"""Packages that only some commands need, and what for."""


def requirements() -> list[str]:
    """Return the requirements of this package, from its metadata or the pyproject.toml beside it."""
    try:
        found = importlib.metadata.requires(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if found is None:
        pyproject = Path(__file__).resolve().parents[3] / "pyproject.toml"
        try:
            data = tomllib.loads(pyproject.read_text(encoding="utf-8"))
            found = list(data["project"]["dependencies"])
        except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError):
            found = []
    return [text for text in found if "extra ==" not in text]


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python() -> Iterator[Item]:
    """Yield the interpreter and the operating system."""
    version = f"{platform.python_version()} ({sys.executable})"
    yield Item.judged("python", "python", sys.version_info >= _LEAST_PYTHON, version, "uv venv --python 3.13")
    system, linux = f"{platform.system()} {platform.machine()}", sys.platform == "linux"
    purpose = "" if linux else "compiling: CuTe DSL has wheels for Linux only"
    yield Item.judged("python", "system", linux, system, needed_for=purpose, otherwise=State.WARNING)


def required() -> Iterator[Item]:
    """Yield every required package with its installed version."""
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        yield Item("packages", "packaging", State.FAILED, "not installed", "pip install packaging")
        return
    for line in requirements():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found = version_of(requirement.name)
        fits = found is not None and requirement.specifier.contains(found, prereleases=True)
        text = (found or "not installed") + (f", but {requirement.specifier} is needed" if found and not fits else "")
        fix = f"pip install '{requirement.name}{requirement.specifier}'"
        yield Item.judged("packages", requirement.name, fits, text, fix)


def dsl_libraries() -> Iterator[Item]:
    """Yield the compiled parts of the DSL, which must have the DSL's version."""
    version = version_of(DSL_DISTRIBUTION)
    if version is None:
        return
    names = {
        match[0]
        for text in importlib.metadata.requires(DSL_DISTRIBUTION) or ()
        if (match := _NAME.match(text)) and match[0].startswith(f"{DSL_DISTRIBUTION}-libs") and "extra ==" not in text
    }
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and name.startswith(f"{DSL_DISTRIBUTION}-libs"):
            names.add(name)
    for name in sorted(names):
        found = version_of(name)
        text = (found or "not installed") + ("" if found == version else f", but {DSL_DISTRIBUTION} is {version}")
        fix = f"pip install --force-reinstall {DSL_DISTRIBUTION}=={version}"
        yield Item.judged("packages", name, found == version, text, fix)


def plugin() -> Iterator[Item]:
    """Yield whether pytest loads the plugin without an option."""
    entries = importlib.metadata.entry_points(group="pytest11")
    loaded = [entry for entry in entries if entry.value.startswith("pytest_nvfp4.")]
    own = version_of(DISTRIBUTION)
    if loaded:
        yield Item("packages", DISTRIBUTION, State.OK, f"{own}, loaded by pytest as {loaded[0].name}")
    elif find_spec("pytest_nvfp4.plugin") is None:
        yield Item("packages", DISTRIBUTION, State.FAILED, "has no pytest plugin", f"pip install {DISTRIBUTION}")
    else:
        text = "runs from its source folder; pytest does not load the plugin without an option"
        purpose = "pytest KERNEL.py without -p pytest_nvfp4.plugin"
        yield Item("packages", DISTRIBUTION, State.WARNING, text, "pip install -e .", purpose)


def torch_build() -> str | None:
    """Return the CUDA version that torch was built for, ``cpu``, or None if torch is missing or has no such version."""
    # From the text of torch/version.py: importing torch takes seconds.
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda(?::[^=]+)?\s*=\s*(?:'([\d.]+)'|\"([\d.]+)\"|(None))", text, re.MULTILINE)
    if match is None:
        return None
    return match[1] or match[2] or "cpu"


def optional() -> Iterator[Item]:
    """Yield packages that only some commands need."""
    modal, purpose = version_of("modal"), "running on a rented B200"
    if modal is None:
        yield Item("optional", "modal", State.ABSENT, "not installed", "pip install modal", purpose)
    else:
        known = bool(os.environ.get("MODAL_TOKEN_ID")) or (Path.home() / ".modal.toml").is_file()
        found = modal if known else f"{modal}, not signed in"
        yield Item.judged(
            "optional", "modal", known, found, "modal token new", needed_for=purpose, otherwise=State.WARNING
        )
    for name, purpose in _OPTIONAL.items():
        version = version_of(name)
        text, fix = version or "not installed", f"pip install {name}"
        yield Item.judged("optional", name, bool(version), text, fix, needed_for=purpose, otherwise=State.ABSENT)
