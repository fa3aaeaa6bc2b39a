"""``nvfp4 skills install``: write or link the skills into a repository, and never touch what others wrote."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.mounts import repository
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.cli.skills.installation import Form, Found, Place
from pytest_nvfp4.report.document import Block, Column, Document, Section, Style, Styled, Table
from pytest_nvfp4.skills import NAMES, skill

FOLDERS = {
    "agents": ".agents/skills",
    "claude": ".claude/skills",
    "codex": ".agents/skills",
    "copilot": ".github/skills",
    "cursor": ".cursor/skills",
    "gemini": ".gemini/skills",
}
"""Agent -> folder of a repository in which it looks for skills; ``.agents/skills`` is what several of them share."""
_STYLES: dict[str, Style] = {"changed": "warning", "foreign": "warning"}
_LEFT = {"changed": "left as it is; --force writes it again", "foreign": "left as it is; this command did not write it"}


@click.command("install")
@click.option(
    "--for",
    "agents",
    multiple=True,
    type=click.Choice([*FOLDERS]),
    help="Agent whose folder of this repository receives the skills; may be repeated.  [default: agents]",
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder that receives the skills instead."
)
@click.option(
    "--link/--copy",
    "link",
    default=None,
    help="Link to the skills of this installation, or copy them.  [default: as they are, else copies]",
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a skill is not up to date.")
@click.option("--force", is_flag=True, help="Write skills again that this command wrote and that were edited since.")
@document_options()
def install_command(
    *, agents: tuple[str, ...], folder: Path | None, link: bool | None, check: bool, force: bool
) -> Document:
    """Write the skills of this package into the repository around the working folder, or bring them up to date.

    What this command wrote is listed with its hashes in .nvfp4-skills.json beside the skills. A file that was edited
    since, a skill of the same name that is yours, and links of yours are reported and left alone. A link leads to this
    installation: commit it only where the package lies in the same repository. Exit code 1 if a skill is left that is
    not up to date.
    """
    if check and force:
        raise click.UsageError("--check writes nothing, and --force does; choose one")
    if folder is not None and agents:
        raise click.UsageError("--folder takes the place of --for; choose one")
    skills = {name: skill(name) for name in NAMES}
    form: Form | None = None if link is None else "link" if link else "copy"
    sections: list[Block] = []
    data = []
    ok = True
    root = None if folder is not None else repository(Path.cwd()).resolve()
    for place, label in _folders(agents or ("agents",), root, folder).items():
        here = Place(place, form, root)
        try:
            done = [(one, False) for one in here.examine(skills)] if check else here.write(skills, force=force)
        except OSError as error:
            raise InputError(f"{error.filename or place}: cannot be written: {error.strerror or error}") from error
        good = [written or one.state == "current" for one, written in done]
        ok = ok and all(good)
        rows = [
            (one.name, Styled(one.state, _STYLES.get(one.state, "")), _action(one, written)) for one, written in done
        ]
        columns = (Column("skill"), Column("found"), Column("what was done"))
        sections.append(Section(label, [Table(columns, rows)]))
        data.append(
            {
                "folder": str(place),
                "skills": [
                    {"name": one.name, "state": one.state, "because": one.because, "written": written}
                    for one, written in done
                ],
            }
        )
    return Document("Skills", sections, {"ok": ok, "folders": data}, ok)


def _action(one: Found, written: bool) -> str:
    if written:
        return "removed" if one.state == "obsolete" else "linked" if one.form == "link" else "written"
    if one.state == "current":
        return ""
    return "; ".join(filter(None, (one.because, _LEFT.get(one.state, "`nvfp4 skills install` writes it"))))


def _folders(agents: tuple[str, ...], root: Path | None, folder: Path | None) -> dict[Path, str]:
    """Return the folders that receive skills, each once, with its label. Raises InputError."""
    if root is None:
        assert folder is not None
        return {folder.absolute(): str(folder)}
    chosen: dict[Path, str] = {}
    for agent in agents:
        place = (root / FOLDERS[agent]).resolve()
        if not place.is_relative_to(root):
            raise InputError(
                f"{root / FOLDERS[agent]} leads to {place}, outside of the repository; name that folder with --folder"
            )
        chosen.setdefault(place, FOLDERS[agent])
    return chosen
