"""What a container answered, as the session is to have it."""

from __future__ import annotations

import json
from typing import Any

from pytest_nvfp4.device.remote.base import Answer, RemoteError, RemoteOptions
from pytest_nvfp4.device.remote.modal.errors import DEPLOY
from pytest_nvfp4.device.remote.modal.settings import BACKEND_VARIABLE, ModalSettings, other_versions
from pytest_nvfp4.device.remote.wire import unpack_answer, unsqueeze
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.finding import Finding


def read(data: Any, *, options: RemoteOptions, settings: ModalSettings) -> Answer:
    """The answer of a container.

    Args:
        data: What its ``Runner.batch`` returned.
        options: What the user asked for.
        settings: What the app was made of.

    Raises:
        RemoteError: it cannot be read, is of other versions than this machine's, or is trouble itself.
    """
    text = unsqueeze(data)
    try:
        said = json.loads(text) if text.startswith('{"trouble"') else None
    except ValueError:
        said = None
    if isinstance(said, dict):
        raise RemoteError(said.get("trouble", "far"), str(said.get("what")), str(said.get("do")))
    answer = _honest(unpack_answer(text), options=options, settings=settings)
    if options.deployed_app and (other := other_versions(answer.place.versions)):
        raise RemoteError("version", f"the deployed app {options.deployed_app!r} has {other}", DEPLOY)
    place = answer.place.model_copy(update={"image": answer.place.image or settings.label})
    return answer.model_copy(update={"place": place})


def _honest(answer: Answer, *, options: RemoteOptions, settings: ModalSettings) -> Answer:
    """The answer, in which no simulator passes as a GPU: one that nobody asked for has answered nothing."""
    if settings.backend != "cuda":
        return answer
    results = []
    for result in answer.results:
        if result.device is not None and result.device.simulated:
            finding = Finding(
                kind="device",
                message=f"the container answered from a {result.device}, and a real {options.gpu} was asked for: "
                f"the answer is not taken ({BACKEND_VARIABLE}=sim asks for a simulator)",
            )
            results.append(Result(job=result.job, status="unsupported", device=result.device, findings=(finding,)))
        else:
            results.append(result)
    return answer.model_copy(update={"results": tuple(results)})
