"""Schemas: every document that is listed has one, which accepts what the model writes and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from pytest_nvfp4.cli.schema import _MODELS
from pytest_nvfp4.loop.schemas import ReviewerVerdict, WorkerResult
from tests.cli.helpers import Result

Cli = Callable[..., Result]


def schema(cli: Cli, name: str) -> dict[str, Any]:
    """The schema that the command writes."""
    done = cli("schema", name)
    assert done.code == 0
    assert json.loads(cli("schema", name, "--json").out) == json.loads(done.out)
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.parametrize("name", _MODELS)
def test_every_listed_document_has_a_schema(cli: Cli, name: str) -> None:
    found = schema(cli, name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["type"] == "object"
    assert found["additionalProperties"] is False
    assert name in cli("schema").out


def test_a_schema_accepts_what_the_model_writes_and_refuses_the_rest(cli: Cli) -> None:
    result = WorkerResult(iteration=1, kernel_path="k.py", decision="KEEP").model_dump(mode="json")
    review = ReviewerVerdict(
        iteration=1, verdict="CONTINUE", confidence="low", reason="x", next_change_hint="y", requires_revert=False
    ).model_dump(mode="json")
    for name, good in (("worker_result", result), ("reviewer_verdict", review)):
        checker = jsonschema.Draft202012Validator(schema(cli, name))
        assert checker.is_valid(good)
        for wrong in ({**good, "more": 1}, {**good, "iteration": 0}, {**good, "version": 2}, {}):
            assert not checker.is_valid(wrong)


def test_an_unknown_document_is_wrong_usage(cli: Cli) -> None:
    done = cli("schema", "nothing")
    assert done.code == 2
    assert "worker_result" in done.err
