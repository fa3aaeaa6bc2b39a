"""Responses of Modal's containers."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.device.remote.base import BatchResult, RemoteError, RemoteOptions, reported_error
from pytest_nvfp4.device.remote.modal.errors import DEPLOY
from pytest_nvfp4.device.remote.modal.settings import BACKEND_VARIABLE, ModalSettings, other_versions
from pytest_nvfp4.device.remote.serialization import decompress, unpack_result
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import read_json


def read_response(data: Any, *, options: RemoteOptions, settings: ModalSettings) -> BatchResult:
    """Return the result of a batch from what ``Runner.batch`` returned.

    Args:
        data: The response.
        options: Options of the remote.
        settings: Settings of the app.

    Raises:
        RemoteError: The response cannot be read, comes from other versions than this machine's, or is an error.
    """
    text = decompress(data)
    if text.startswith('{"error"'):
        try:
            error = read_json(text, source="the error of the container")
        except DoorError as refused:
            raise RemoteError("remote", f"{refused}: the answer is refused") from refused
        raise reported_error(error.get("error"), error.get("problem"), error.get("remedy"))
    result = _without_simulated(unpack_result(text), options=options, settings=settings)
    if options.deployed_app and (other := other_versions(result.place.versions)):
        raise RemoteError("version", f"the deployed app {options.deployed_app!r} has {other}", DEPLOY)
    place = result.place.model_copy(update={"image": result.place.image or settings.label})
    return result.model_copy(update={"place": place})


def _without_simulated(result: BatchResult, *, options: RemoteOptions, settings: ModalSettings) -> BatchResult:
    """Reject the results of a simulator unless one was requested: none may pass as a GPU's."""
    if settings.backend != "cuda":
        return result
    results = []
    for job_result in result.results:
        device = job_result.device
        if device is not None and device.simulated:
            finding = Finding(
                kind="device",
                message=f"the container returned a result of a {device}, and a real {options.gpu} was requested: "
                f"the result is rejected ({BACKEND_VARIABLE}=sim requests a simulator)",
            )
            results.append(Result(job=job_result.job, status="unsupported", device=device, findings=(finding,)))
        else:
            results.append(job_result)
    return result.model_copy(update={"results": tuple(results)})
