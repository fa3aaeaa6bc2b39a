"""``nvfp4 accept``: let a finding about a kernel pass until a day, with a reason, in the repository's settings."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import read_json
from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.report.document import Document, Facts, Section
from pytest_nvfp4.report.model import SCHEMA
from pytest_nvfp4.settings import AcceptedFinding, find_root
from pytest_nvfp4.settings.accepting import with_accepted
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import printed

_MOST_BYTES = 64 << 20
_DAYS = 90


@dataclass(slots=True)
class _Found:
    """A finding that can be accepted, in all items of one check.

    Attributes:
        check: Name of the check.
        kind: Kind of the finding.
        text: Text of its line.
        message: First line of its message.
        kernel: The kernel file, relative to the folder whose settings the run read; None in older reports.
        others: Texts of further lines that it names.
        lines: By item, the lines at which it is.
    """

    check: str
    kind: str
    text: str
    message: str
    kernel: str | None = None
    others: set[str] = field(default_factory=set)
    lines: dict[str, set[int | None]] = field(default_factory=dict)

    @property
    def at(self) -> set[int | None]:
        """The lines at which it is."""
        return set().union(*self.lines.values())


@click.command("accept")
@click.argument("kernel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("pytest_options", metavar="[PYTEST OPTION]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--reason", help="Why the finding is acceptable. Without it, the findings are listed.")
@click.option(
    "--expires", metavar="DATE|DAYS", default=str(_DAYS), show_default=True, help="Last day, or days from now."
)
@click.option("--check", "of_check", metavar="NAME", help="Only the findings of this check.")
@click.option("--line", type=click.IntRange(min=1), help="Only the finding at this line.")
@click.option("--kind", help="Only findings of this kind, such as race.")
@click.option(
    "--report", type=click.Path(path_type=Path), metavar="FILE", help="Report of pytest --nvfp4-json, to run nothing."
)
@document_options()
def accept_command(
    kernel: Path,
    pytest_options: tuple[str, ...],
    *,
    reason: str | None,
    expires: str,
    of_check: str | None,
    line: int | None,
    kind: str | None,
    report: Path | None,
) -> Document:
    """Accept one finding about KERNEL: it fails no check until it expires, and every summary shows it.

    Runs the checks, or reads the report of an earlier run, and writes an entry into [tool.pytest_nvfp4] of
    pyproject.toml: check, kernel, kind, the texts of the lines that it names, reason and dates. A finding that changes
    in any of these, or expires, fails again. Wrong results, deadlocks and accesses out of bounds cannot be accepted.
    Commit the entry after a review: it is a decision of the repository's owner.
    """
    until = _until(expires)
    data = _run(kernel, pytest_options, of_check) if report is None else _load(report)
    every = list(_findings(data, kernel))
    chosen = [
        found
        for found in every
        if of_check in (None, found.check) and kind in (None, found.kind) and (line is None or line in found.at)
    ]
    if not chosen:
        left = f"; there are {len(every)} others" if every else ""
        raise InputError(
            f"{kernel}: no finding that can be accepted was found{left} (wrong results, deadlocks and accesses out of "
            "bounds never can: nvfp4 guide checks)"
        )
    sections = [_section(found, kernel) for found in chosen]
    listed = {"findings": [_json(found) for found in chosen]}
    if reason is None:
        return Document("Findings that can be accepted", sections, {"accepted": False, "file": None, **listed})
    if not reason.strip():
        raise InputError("--reason is empty; say why the finding is acceptable")
    if len({(found.kind, found.text) for found in chosen}) > 1:
        which = "; ".join(f"--line {_line(found)} --kind {found.kind}" for found in chosen)
        raise InputError(f"{kernel}: {len(chosen)} findings can be accepted; choose one: {which}")
    file = _write(kernel, chosen, reason=" ".join(reason.split()), until=until)
    head = f"accepted until {until} in {file}; review and commit it"
    return Document("Accepted findings", [head, *sections], {"accepted": True, "file": str(file), **listed})


def _until(text: str) -> datetime.date:
    """Return the last day. Raises InputError."""
    today = datetime.datetime.now(datetime.UTC).date()
    try:
        until = today + datetime.timedelta(int(text)) if text.isdecimal() else datetime.date.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise InputError(f"--expires {text!r}: a date such as 2027-01-31, or a number of days, is expected") from error
    if until < today:
        raise InputError(f"--expires {text!r}: {until} has passed")
    return until


def _run(kernel: Path, options: Sequence[str], of_check: str | None) -> Mapping[str, Any]:
    """Run the checks, and return their report. Raises InputError."""
    with temporary_folder("accept") as folder:
        file = Path(folder) / "report.json"
        chosen = [] if of_check is None else [f"--nvfp4-check={of_check}"]
        command = [sys.executable, "-m", "pytest", str(kernel), f"--nvfp4-json={file}", "-q", *chosen, *options]
        with output.working(f"{kernel.name}: running its checks"):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if not file.exists():
            said = printed(done.stdout.decode("utf-8", "replace").strip())[-2000:]
            raise InputError(f"pytest ended with {done.returncode} and has no report: {said}")
        return _load(file)


def _load(file: Path) -> Mapping[str, Any]:
    try:
        data = read_json(read_file(file, source=f"{file}:", most=_MOST_BYTES), source=f"{file}:")
    except DoorError as error:
        raise InputError(str(error)) from error
    if isinstance(data, dict) and data.get("schema_version", SCHEMA) != SCHEMA:
        raise InputError(f"{file} {other_version(data['schema_version'], SCHEMA)}")
    if not isinstance(data, dict) or not isinstance(data.get("checks"), list):
        raise InputError(f"{file}: is not a report of pytest --nvfp4-json")
    return data


def _findings(data: Mapping[str, Any], kernel: Path) -> Iterator[_Found]:
    """Yield the findings about a kernel that can be accepted, each once for each check. Raises InputError."""
    name = kernel.resolve().as_posix()
    found: dict[tuple[str, str, str], _Found] = {}
    try:
        for item in data["checks"]:
            if name != item["kernel"] and not name.endswith(f"/{item['kernel']}"):
                continue
            check = item["check"].partition("[")[0]
            for each in (*item["findings"], *item["warnings"]):
                if (lines := each.get("acceptable")) is None:
                    continue
                key = check, each["kind"], lines["text"]
                message = each["message"].partition("\n")[0]
                one = found.setdefault(key, _Found(*key, message, lines.get("kernel")))
                one.others.update(lines["others"])
                one.lines.setdefault(item["check"], set()).add(each["line"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"the report cannot be read: {error!r}; write it with this version of pytest-nvfp4") from error
    yield from found.values()


def _write(kernel: Path, chosen: Sequence[_Found], *, reason: str, until: datetime.date) -> Path:
    """Write the entries into the settings that the run read, and return their file."""
    root = _root(kernel.resolve(), chosen[0].kernel)
    file = root / "pyproject.toml"
    entries = [
        AcceptedFinding(
            check=found.check,
            kernel=kernel.resolve().relative_to(root).as_posix(),
            kind=found.kind,
            text=found.text,
            reason=reason,
            date=datetime.datetime.now(datetime.UTC).date(),
            expires=until,
            others=tuple(sorted(found.others)),
            places=max(map(len, found.lines.values())),
        )
        for found in chosen
    ]
    text = file.read_text("utf-8") if file.exists() else ""
    output.write_file(file, with_accepted(text, entries, file=file))
    return file


def _root(kernel: Path, named: str | None) -> Path:
    """Return the folder whose settings the run read: pytest's root need not be the nearest pyproject.toml's folder."""
    parts = PurePosixPath(named or kernel.as_posix()).parts
    if kernel.parts[-len(parts) :] == parts and len(parts) < len(kernel.parts):
        return kernel.parents[len(parts) - 1]
    return find_root(kernel)


def _line(found: _Found) -> str:
    return min((str(line) for line in found.at if line is not None), default="(none)")


def _section(found: _Found, kernel: Path) -> Section:
    facts = [("kind", found.kind), ("checks", ", ".join(sorted(found.lines))), ("line", found.text)]
    facts += [("names", text) for text in sorted(found.others)]
    place = "" if found.at == {None} else f"{kernel.name}:{_line(found)}: "
    return Section(f"{place}{printed(found.message)}", [Facts(facts)])


def _json(found: _Found) -> dict[str, object]:
    return {
        "check": found.check,
        "kind": found.kind,
        "text": found.text,
        "others": sorted(found.others),
        "lines": sorted(line for line in found.at if line is not None),
        "message": found.message,
    }
