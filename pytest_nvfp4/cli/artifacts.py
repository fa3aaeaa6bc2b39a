"""Artifacts of a compile, in files named after their kernels."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.subject import matching
from pytest_nvfp4.cli.tracing import Traced
from pytest_nvfp4.driver import cubin
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.toolchain import binaries, ptx
from pytest_nvfp4.toolchain.trace import Trace

Kind = Literal["ptx", "cubin", "sass", "mlir"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MANIFEST = "manifest.json"
_MOST_MANIFEST = 16 << 20


@dataclass(frozen=True)
class Module:
    """One PTX module with the files that were made from it.

    Attributes:
        name: Unique name for files: the kernel's function, or the module's number.
        functions: Source names and symbols of its kernels.
        files: File of each kind that exists.
    """

    name: str
    functions: tuple[str, ...]
    files: dict[Kind, Path]


def modules(trace: Trace) -> list[Module]:
    """Return the modules of a trace in compile order.

    PTX, CUBIN and SASS are matched by their kernels; MLIR by its number, since it names no kernel.
    """
    sources = {code.symbol: code.source_name for code in trace.code}
    cubins = {_cubin_symbols(path): path for path in trace.artifact_paths("cubin")}
    irs = trace.artifact_paths("mlir")
    texts = trace.artifact_paths("ptx")
    found: list[tuple[tuple[str, ...], dict[Kind, Path]]] = []
    for index, path in enumerate(texts):
        text = path.read_text(encoding="utf-8", errors="replace")
        symbols = tuple(sorted(kernel.symbol for kernel in ptx.parse(text).kernels))
        files: dict[Kind, Path] = {"ptx": path}
        if binary := cubins.pop(symbols, None):
            files["cubin"] = binary
        if len(irs) == len(texts):
            files["mlir"] = irs[index]
        found.append((symbols, files))
    found += [(symbols, {"cubin": path}) for symbols, path in cubins.items()]
    if len(irs) != len(texts):
        found += [((), {"mlir": path}) for path in irs]
    for _, files in found:
        if "cubin" in files and (sass := files["cubin"].with_suffix(".sass")).is_file():
            files["sass"] = sass
    names = [_name(symbols, sources) for symbols, _ in found]
    return [
        Module(
            name=name if name and names.count(name) == 1 else ".".join(filter(None, (name, str(index)))),
            functions=tuple(
                dict.fromkeys(text for symbol in symbols for text in (sources.get(symbol), symbol) if text)
            ),
            files=files,
        )
        for index, (name, (symbols, files)) in enumerate(zip(names, found, strict=True))
    ]


def _cubin_symbols(path: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(cubin.parse(path.read_bytes())))
    except cubin.CubinError:
        return (path.name,)


def _name(symbols: tuple[str, ...], sources: dict[str, str | None]) -> str:
    known = [source for symbol in symbols if (source := sources.get(symbol))]
    return re.sub(r"\W", "_", known[0]) if len(known) == len(symbols) == 1 else ""


def chosen(found: list[Module], kernel: str | None, *, label: str) -> list[Module]:
    """Return the modules with a kernel whose source name or symbol matches a pattern, or all modules.

    Raises:
        InputError: No module matches.
    """
    if kernel is None:
        return found
    fitting = [module for module in found if matching(module.functions, [kernel])]
    if not fitting:
        names = ", ".join(module.functions[0] for module in found if module.functions) or "none"
        raise InputError(f"{label}: compiled no kernel {kernel!r}; its kernels are {names}")
    return fitting


def content(module: Module, kind: Kind, *, label: str) -> bytes:
    """Return the file of one kind; disassemble the CUBIN if the compile left no SASS.

    Raises:
        InputError: The module has no such file.
    """
    path = module.files.get(kind)
    if path is not None:
        # DSL 4.4.0 ends its PTX with a NUL byte.
        return path.read_bytes().rstrip(b"\0") if kind == "ptx" else path.read_bytes()
    if kind == "sass" and "cubin" in module.files:
        return binaries.run("nvdisasm", "--print-code", cubin=module.files["cubin"]).encode()
    raise InputError(f"{label}: the compile produced no {kind.upper()} of {module.name}")


def write(traced: Traced, found: list[Module], kinds: Iterable[Kind], folder: Path) -> list[Path]:
    """Write artifacts to a folder as ``<file>.<kernel>.<kind>``, and a ``manifest.json`` that lists them.

    Files of an earlier manifest of the same kernel file are removed unless they are written again, so that the folder
    never contains code of an older compile.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from error
    stem = Path(traced.trace.kernel).stem
    manifest = folder / MANIFEST
    stale = _listed(manifest, stem)
    requested = list(kinds)
    entries, paths = [], []
    for module in found:
        for kind in requested:
            if kind not in module.files and not (kind == "sass" and "cubin" in module.files and requested == ["sass"]):
                continue
            data = content(module, kind, label=traced.subject.label)
            path = folder / f"{stem}.{module.name}.{kind}"
            output.write_file(path, data)
            paths.append(path)
            entries.append(
                {
                    "name": path.name,
                    "kind": kind,
                    "kernels": list(module.functions),
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
            )
    for path in stale:
        if path not in paths:
            path.unlink(missing_ok=True)
    output.write_file(manifest, json.dumps({"file": stem, **traced.to_json(), "artifacts": entries}, indent=2) + "\n")
    return [*paths, manifest]


def _listed(manifest: Path, stem: str) -> list[Path]:
    """Return the artifacts that a manifest lists for this kernel file; none if it is not a manifest of this command."""
    try:
        data = read_json(read_file(manifest, source="it", most=_MOST_MANIFEST), source="it")
        names = [entry["name"] for entry in data["artifacts"]] if data["file"] == stem else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    artifact = re.compile(rf"{re.escape(stem)}\.[\w.]+\.(?:{'|'.join(KINDS)})")
    return [manifest.parent / name for name in names if isinstance(name, str) and artifact.fullmatch(name)]
