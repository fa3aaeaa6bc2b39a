"""``nvfp4 schema``: JSON Schemas of documents that programs write for this package or read from it."""

from __future__ import annotations

from importlib import import_module

import click

from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.report.document import Code, Column, Document, Table
from pytest_nvfp4.text import json_text

_MODELS = {
    "worker_result": ("loop.schemas.WorkerResult", "what a worker of the loop writes about its candidate"),
    "reviewer_verdict": ("loop.schemas.ReviewerVerdict", "what a reviewer of the loop writes about an iteration"),
    "worker_progress": ("loop.schemas.WorkerProgress", "live times that a worker of the loop reports"),
    "candidate": ("loop.schemas.Candidate", "what one run of a worker left"),
    "examination": ("loop.schemas.Examination", "what the judge found about a candidate without a GPU"),
    "verdict": ("loop.schemas.Verdict", "what the judge decided about a candidate"),
    "loop_config": ("loop.configuration.config.LoopConfig", "the configuration of a loop (TOML)"),
    "loop_state": ("loop.state.LoopState", "what a loop does next"),
    "profile": ("profile.result.Profile", "`nvfp4 profile show --json`, and each profile of `nvfp4 profile --json`"),
}
"""Name -> model below ``pytest_nvfp4``, and what it describes."""


@click.command("schema")
@click.argument("name", required=False, type=click.Choice([*_MODELS]))
@document_options()
def schema_command(*, name: str | None) -> Document:
    """Write the JSON Schema of the document NAME; without NAME, list the documents.

    The keys of other commands' --json are listed in `nvfp4 guide agents`.
    """
    if name is None:
        columns = (Column("document", key="name"), Column("what it is", key="description"))
        table = Table(columns, [(one, text) for one, (_, text) in _MODELS.items()])
        return Document("Schemas", [table], {"schemas": [*table.records()]})
    module, _, model = _MODELS[name][0].rpartition(".")
    schema = getattr(import_module(f"pytest_nvfp4.{module}"), model).model_json_schema()
    return Document(f"Schema of {name}", [Code(json_text(schema) + "\n", "json")], schema)
