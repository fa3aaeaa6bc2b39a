"""The two sides of a comparison: a snapshot file, a kernel, or either of them in a git revision."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_nvfp4.cli import revisions
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions
from pytest_nvfp4.cli.subject import findings_text, resolve
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.layout.errors import ListingError
from pytest_nvfp4.layout.listing import FORMAT, Listing
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.settings import find_root
from pytest_nvfp4.toolchain.bundle import BUNDLE_FOLDER
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.sheet import Sheet, SheetError, codegen_facts, launch_facts

_SHEETS = {f"# nvfp4-{kind} 1": kind for kind in ("launch", "codegen", "cost")}


@dataclass(frozen=True)
class Side:
    """What one side of a comparison says.

    Attributes:
        label: What the user called it.
        listing: Its layouts; None for a snapshot of facts.
        launch: Its launch facts by name; None where it has none.
        codegen: Its code facts by name; None where it has none.
        cost: Its costs by name; None where it has none.
        traced: The kernel's trace; None for a snapshot.
        protected: Patterns of layouts that its settings protect.
        failure: Why the kernel has nothing to compare: it did not compile.
    """

    label: str
    listing: Listing | None = None
    launch: Mapping[str, str] | None = None
    codegen: Mapping[str, str] | None = None
    cost: Mapping[str, str] | None = None
    traced: Traced | None = None
    protected: tuple[str, ...] = ()
    failure: str | None = None
    header: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """What it is, as JSON-ready values."""
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
        text: A file, or ``REV:path``. A file that exists is meant before a revision is.
        how: How a kernel is compiled.
        problem: What a kernel is compiled for where ``how`` does not say.

    Raises:
        InputError: it is neither, or cannot be read.
    """
    path = Path(text)
    if not text:
        raise InputError("the empty text names neither a file nor a revision")
    if path.exists():
        if path.is_dir():
            raise InputError(f"{text}: is a folder; name a snapshot file or a kernel's Python file in it")
        if not path.is_file():
            raise InputError(f"{text}: is no regular file")
        if path.suffix == ".py":
            return of_kernel(trace(resolve(path, how, label=text, problem=problem)))
        return of_snapshot(path.read_bytes(), label=text)
    if revisions.split(text) is None:
        raise InputError(f"{text}: no such file, and no REV:path of a git revision")
    revision = revisions.find(text, cwd=Path.cwd())
    if revision.path.suffix != ".py":
        return of_snapshot(revisions.read(revision), label=text)
    with revisions.extracted(revision, below=TraceCache().root) as tree:
        bases = (tree / revision.prefix, tree)
        subject = resolve(tree / revision.path, how, label=text, within=tree, bases=bases, problem=problem)
        return of_kernel(_with_bundle_kept(trace(subject)))


def _with_bundle_kept(traced: Traced) -> Traced:
    """The trace with its debug bundle, if it has one, moved out of the tree that is about to be removed."""
    bundle = traced.trace.bundle
    if bundle is None or not Path(bundle).is_dir():
        return traced
    kept = find_root(Path.cwd()) / BUNDLE_FOLDER / f"{Path(bundle).name}-revision"
    place: str | None = str(kept)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        (kept.parent.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(bundle, kept)
    except OSError:
        place = None
    return replace(traced, trace=traced.trace.model_copy(update={"bundle": place}))


def of_kernel(traced: Traced) -> Side:
    """The side that a traced kernel is."""
    # A poisoned layout is an error of that layout, which the diff names; the rest of the listing is whole.
    failed = not traced.trace.ok and any(finding.kind != "poisoned" for finding in traced.trace.errors)
    return Side(
        label=traced.subject.label,
        listing=None if failed else traced.listing,
        launch=None if failed else launch_facts(traced.trace),
        codegen=None if failed else codegen_facts(traced.trace),
        traced=traced,
        protected=traced.subject.settings.protected,
        failure=f"{traced.subject.description} did not compile\n{findings_text(traced.trace, traced.subject)}"
        if failed
        else None,
        header=traced.header,
    )


def decode(data: bytes, *, label: str) -> str:
    """The text of a snapshot file. Raises InputError where it is none."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{label}: is no layout snapshot: it is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise InputError(f"{label}: is no layout snapshot: it holds NUL bytes")
    return text


def of_snapshot(data: bytes, *, label: str) -> Side:
    """The side that a snapshot file is: layouts, launch facts, code facts or costs, as its first line says.

    Raises:
        InputError: it is none of them, or damaged; the message names the line.
    """
    text = decode(data, label=label)
    first = text.split("\n", 1)[0].rstrip()
    kind = _SHEETS.get(first)
    try:
        if kind is not None:
            sheet = Sheet.parse(text, kind=kind)
            facts = dict(sheet.facts)
            return Side(
                label,
                launch=facts if kind == "launch" else None,
                codegen=facts if kind == "codegen" else None,
                cost=facts if kind == "cost" else None,
                header=dict(sheet.header),
            )
        if not first.startswith("# nvfp4-") and "\n# end " not in text:
            raise InputError(
                f"{label}: is no layout snapshot: its first line is {first[:40]!r} where {FORMAT!r} belongs; name a "
                "snapshot, or a kernel's Python file (.py)"
            )
        listing = Listing.parse(text)
    except (ListingError, SheetError) as error:
        raise InputError(f"{label}: {error}") from error
    return Side(label, listing=listing, header=dict(listing.header))
