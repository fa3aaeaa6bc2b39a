"""Sides of a comparison: a snapshot file, a kernel, or either of them in a git revision."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_nvfp4.cli import revisions
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions
from pytest_nvfp4.cli.subject import findings_text, resolve
from pytest_nvfp4.cli.tracing import Traced, of_archive, trace
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.layout.errors import ListingError
from pytest_nvfp4.layout.listing import FORMAT, Listing
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.settings import find_root
from pytest_nvfp4.toolchain.bundle import BUNDLE_FOLDER
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.sheet import Sheet, SheetError, codegen_facts, launch_facts
from pytest_nvfp4.toolchain.trace_archive import SUFFIX

_MOST_BYTES = 64 << 20
_SHEETS = {f"# nvfp4-{kind}": kind for kind in ("launch", "codegen", "cost", "model")}
"""Kinds of facts by the beginning of the first line; the version of the format follows."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        label: The file or revision as the user named it.
        listing: Layouts; None for a snapshot of facts.
        facts: Facts by name, under ``launch``, ``codegen``, ``cost`` and ``model`` as far as present.
        traced: Trace of the kernel; None for a snapshot.
        protected: Patterns of layouts that its settings protect.
        failure: Why the kernel did not compile, so that it has nothing to compare.
        header: Header of the snapshot, or what a snapshot of the kernel would have.
    """

    label: str
    listing: Listing | None = None
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    traced: Traced | None = None
    protected: tuple[str, ...] = ()
    failure: str | None = None
    header: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the side without its contents as JSON-ready values."""
        return {
            "label": self.label,
            "kind": "kernel" if self.traced else "snapshot",
            "header": dict(self.header),
            "layouts": None if self.listing is None else len(self.listing.records),
            "trace": self.traced.to_json() if self.traced else None,
            "failure": self.failure,
        }


def load(text: str, how: KernelOptions, *, problem: Problem | None = None) -> Side:
    """Read one side.

    Args:
        text: A file, or ``REV:path``. An existing file takes precedence over a revision.
        how: How a kernel is compiled.
        problem: Problem that a kernel is compiled for unless ``how`` names one.

    Raises:
        InputError: The text is neither, or it cannot be read.
    """
    path = Path(text)
    if not text:
        raise InputError("an empty argument names neither a file nor a revision")
    if path.exists():
        if path.is_dir():
            raise InputError(f"{text}: is a folder; name a snapshot file or a kernel's Python file in it")
        if not path.is_file():
            raise InputError(f"{text}: is not a regular file")
        if path.suffix == ".py":
            return of_kernel(trace(resolve(path, how, label=text, problem=problem)))
        if path.suffix == SUFFIX:
            return of_kernel(of_archive(path))
        return of_snapshot(_read(path, label=text), label=text)
    if revisions.split(text) is None:
        raise InputError(f"{text}: no such file, and not REV:path of a git revision")
    revision = revisions.find(text, cwd=Path.cwd())
    if revision.path.suffix != ".py":
        return of_snapshot(revisions.read(revision), label=text)
    with revisions.extracted(revision, below=TraceCache().root) as tree:
        bases = (tree / revision.prefix, tree)
        subject = resolve(tree / revision.path, how, label=text, within=tree, bases=bases, problem=problem)
        return of_kernel(_with_bundle_saved(trace(subject)))


def _read(path: Path, *, label: str) -> bytes:
    try:
        return read_file(path, source=f"{label}:", most=_MOST_BYTES)
    except DoorError as error:
        raise InputError(str(error)) from error


def _with_bundle_saved(traced: Traced) -> Traced:
    """Return the trace with its debug bundle, if any, copied out of the tree that is about to be removed."""
    bundle = traced.trace.bundle
    if bundle is None or not Path(bundle).is_dir():
        return traced
    saved = find_root(Path.cwd()) / BUNDLE_FOLDER / f"{Path(bundle).name}-revision"
    place: str | None = str(saved)
    try:
        saved.parent.mkdir(parents=True, exist_ok=True)
        (saved.parent.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        shutil.rmtree(saved, ignore_errors=True)
        shutil.copytree(bundle, saved)
    except OSError:
        place = None
    return replace(traced, trace=traced.trace.model_copy(update={"bundle": place}))


def of_kernel(traced: Traced) -> Side:
    """Return a traced kernel as a side."""
    # A poisoned layout is an error of that layout alone, which the diff names; the rest of the listing is complete.
    failed = not traced.trace.ok and any(finding.kind != "poisoned" for finding in traced.trace.errors)
    return Side(
        label=traced.subject.label,
        listing=None if failed else traced.listing,
        facts={} if failed else {"launch": launch_facts(traced.trace), "codegen": codegen_facts(traced.trace)},
        traced=traced,
        protected=traced.subject.settings.protected,
        failure=f"{traced.subject.description} did not compile\n{findings_text(traced.trace, traced.subject)}"
        if failed
        else None,
        header=traced.header,
    )


def of_snapshot(data: bytes, *, label: str) -> Side:
    """Read a snapshot file of layouts, launch facts, code facts or costs, identified by its first line.

    Raises:
        InputError: The file is none of them, or it is damaged; the message names the line.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{label}: is not a layout snapshot: it is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise InputError(f"{label}: is not a layout snapshot: it contains NUL bytes")
    first = text.split("\n", 1)[0].rstrip()
    kind = _SHEETS.get(first.rpartition(" ")[0])
    try:
        if kind is not None:
            sheet = Sheet.parse(text, kind=kind)
            return Side(label, facts={kind: dict(sheet.facts)}, header=dict(sheet.header))
        if not first.startswith("# nvfp4-") and "\n# end " not in text:
            raise InputError(
                f"{label}: is not a layout snapshot: its first line is {first[:40]!r}, not {FORMAT!r}; name a "
                "snapshot, or a kernel's Python file (.py)"
            )
        listing = Listing.parse(text)
    except (ListingError, SheetError) as error:
        raise InputError(f"{label}: {error}") from error
    return Side(label, listing=listing, header=dict(listing.header))
