"""A copy of the installed torch in which no library of CUDA's toolkit can be loaded, as links, for ``PYTHONPATH``.

A CPU-only build of torch cannot be installed beside another one. The copy comes close: the libraries of ``nvidia``
(cudart, cuDNN, cuBLAS, NCCL, ...) are empty ones whose functions fail, and ``torch._C`` and ``torch.version`` have no
names of CUDA, so that Python code takes the path of a build without it. ``libtorch_cuda.so`` itself is still there.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

SITE = Path(sysconfig.get_path("purelib"))
_GLOBAL = "libtorch_global_deps.so"
_STRIP = """\
    import torch._C
    for _name in list(vars(torch._C)):
        own = _name.startswith(("_cuda", "_Cuda", "_CUDA", "_construct_CUDA", "_StaticCuda", "_FastCuda", "_MemPool"))
        if own and "benchmark" not in _name:
            delattr(torch._C, _name)
    torch._C._has_cuda = False
"""
"""Removes the names that a build without CUDA does not have."""


def write(folder: Path) -> None:
    """Write the copy, as links, to a folder for ``PYTHONPATH``, and hide the packages of CUDA's libraries there."""
    torch, real = folder / "torch", SITE / "torch"
    (torch / "lib").mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in ("lib", "__init__.py", "version.py", "__pycache__"):
            (torch / entry.name).symlink_to(entry)
    text = (real / "__init__.py").read_text()
    text, found = re.subn(r"^    from torch\._C import \*.*\n", rf"\g<0>{_STRIP}", text, flags=re.MULTILINE)
    assert found
    (torch / "__init__.py").write_text(text)
    version = (real / "version.py").read_text()
    (torch / "version.py").write_text(re.sub(r"^(cuda\b.*=).*$", r"\1 None", version, flags=re.MULTILINE))
    (folder / "nvidia").mkdir()
    (folder / "nvidia" / "__init__.py").write_text("")
    libraries = [path for path in (real / "lib").iterdir() if ".so" in path.name and path.name != _GLOBAL]
    for entry in (real / "lib").iterdir():
        if entry.name != _GLOBAL:
            (torch / "lib" / entry.name).symlink_to(entry)
    _write_empty(torch / "lib" / _GLOBAL, {}, {})
    wanted = dict(pair for library in libraries for pair in _undefined(library))
    for name in {name for library in libraries for name in _needed(library)}:
        if found := next(SITE.glob(f"nvidia/**/{name}"), None):
            _write_empty(torch / "lib" / name, _defined(found), wanted)


def _needed(library: Path) -> list[str]:
    """Return the names of the libraries that a library needs."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-d", str(library)))


def _write_empty(library: Path, defined: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Write a library in which the wanted symbols are functions that return an error, or zeros, with their versions."""
    names = sorted(defined.keys() & wanted.keys())
    lines = ['.section .note.GNU-stack,"",@progbits']
    for name in names:
        body = ".text\n{0}: mov $100, %eax\n ret" if defined[name] in "TWit" else ".data\n{0}: .fill 512, 1, 0"
        lines.append(f".globl {name}\n{body.format(name)}")
    versions: dict[str, list[str]] = {}
    for name in names:
        if wanted[name]:
            versions.setdefault(wanted[name], []).append(name)
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder) / "empty.s", Path(folder) / "versions"
        source.write_text("\n".join(lines) + "\n")
        script.write_text("".join(f"{each} {{ global: {'; '.join(of)}; }};\n" for each, of in versions.items()))
        how = [f"-Wl,--version-script={script}"] if versions else []
        _run("gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}", *how, "-o", str(library), str(source))


def _undefined(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the symbols that a library takes from others, each with its version or nothing."""
    for line in _run("nm", "-D", "--undefined-only", str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def _defined(library: Path) -> dict[str, str]:
    """Return the symbols that a library defines, each with its kind."""
    lines = (line.split() for line in _run("nm", "-D", "--defined-only", str(library)).splitlines())
    return {name.partition("@")[0]: kind for *_, kind, name in lines}


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
