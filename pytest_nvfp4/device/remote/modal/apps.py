"""Apps of this tool on Modal: the one that a connection uses, the warmed ones, and what other sessions left running."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_nvfp4.device.remote.base import RemoteError
from pytest_nvfp4.device.remote.modal import timeouts
from pytest_nvfp4.device.remote.modal.requests import inside, run_inside
from pytest_nvfp4.device.remote.modal.settings import APP, ModalSettings
from pytest_nvfp4.device.remote.parts import sent_code
from pytest_nvfp4.text import clip, plural, printed

WARM = f"{APP}-warm-"
"""Start of the names of warmed apps."""
_SHARED_LIMIT_S = 900.0
"""Time limit of the containers of a warmed app, which sessions with a shorter one share."""
_POLL_S = 0.2


@dataclass(slots=True)
class UsedApp:
    """The app of a connection.

    Attributes:
        id: Identifier on Modal; empty if it is unknown, as that of an app that was deployed before.
        url: Its page.
        name: Name of its deployment; empty for an app of the session, which ends with it.
        ended: Whether the server has confirmed its end.
    """

    id: str = ""
    url: str = ""
    name: str = ""
    ended: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, ["app", self.name, self.id, self.url]))


@dataclass(frozen=True, slots=True)
class FoundApp:
    """An app of this tool that was found by its name.

    Attributes:
        id: Identifier.
        name: Name or description.
        deployed: Whether the user deployed it; it then stays deployed when its containers are stopped.
        containers: Number of its running containers.
    """

    id: str
    name: str
    deployed: bool
    containers: int

    def __str__(self) -> str:
        what = "the containers of the deployed app" if self.deployed else "app"
        return f"{what} {self.name} ({self.id}, {plural(self.containers, 'container')})"


def shared_settings(settings: ModalSettings) -> ModalSettings:
    """Return the settings of the warmed app that sessions with these settings use."""
    return replace(settings, timeout_s=max(_SHARED_LIMIT_S, settings.timeout_s))


def warm_name(settings: ModalSettings) -> str:
    """Return the name of the warmed app for some settings and the present code: no other session may use it."""
    text = json.dumps([asdict(shared_settings(settings)), sent_code(settings.backend)], sort_keys=True)
    return WARM + hashlib.sha256(text.encode()).hexdigest()[:16]


async def live_apps(client: Any) -> list[Any]:
    """Return every app of the environment that has not ended, as Modal describes it."""
    from modal.config import config
    from modal_proto import api_pb2

    environment = str(config.get("environment") or "")

    async def listed() -> Any:
        return await inside(client)._stub.AppList(api_pb2.AppListRequest(environment_name=environment))

    ended = (api_pb2.APP_STATE_STOPPED, api_pb2.APP_STATE_STOPPING, api_pb2.APP_STATE_DISABLED)
    return [app for app in (await run_inside(listed)).apps if app.state not in ended]


async def running_apps(client: Any, *, named: str | None = None) -> list[FoundApp]:
    """Return the apps of this tool, or those of one name, that run or have containers."""
    from modal_proto import api_pb2

    found = []
    for app in await live_apps(client):
        name = app.name or app.description
        ours = name == named if named is not None else name == APP or name.startswith(WARM)
        deployed = app.state == api_pb2.APP_STATE_DEPLOYED and not name.startswith(WARM)
        if ours and (not deployed or app.n_running_tasks):
            found.append(FoundApp(app.app_id, printed(clip(name, 100)), deployed, app.n_running_tasks))
    return found


async def stop_app(client: Any, app_id: str) -> None:
    """Stop an app for good, with its containers."""
    from modal_proto import api_pb2

    async def stop() -> None:
        request = api_pb2.AppStopRequest(app_id=app_id, source=api_pb2.APP_STOP_SOURCE_PYTHON_CLIENT)
        await inside(client)._stub.AppStop(request)

    await run_inside(stop)


async def stop_containers(client: Any, app_id: str) -> None:
    """Stop the containers of an app, which stays."""
    from modal_proto import api_pb2

    stub = inside(client)._stub

    async def stop() -> None:
        tasks = (await stub.TaskList(api_pb2.TaskListRequest(app_id=app_id))).tasks
        await asyncio.gather(
            *(stub.ContainerStop(api_pb2.ContainerStopRequest(task_id=task.task_id)) for task in tasks)
        )

    await run_inside(stop)


async def end_apps(client: Any, *, named: str | None = None) -> list[FoundApp]:
    """End the running apps of this tool, or the containers of deployed ones, and wait until they have ended.

    Raises:
        RemoteError: Some have not ended in time.
    """

    found = left = await running_apps(client, named=named)
    until = time.monotonic() + timeouts.STOP_S
    for app in found:
        await (stop_containers if app.deployed else stop_app)(client, app.id)
    while found and (left := await running_apps(client, named=named)) and time.monotonic() < until:
        await asyncio.sleep(_POLL_S)
    if missed := [app for app in left if app.id in {one.id for one in found}]:
        names = ", ".join(f"{app.name} ({app.id})" for app in missed)
        raise RemoteError("remote", f"still running after {timeouts.STOP_S:.0f} s: {names}", "stop them on modal.com")
    return found
