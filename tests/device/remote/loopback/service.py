"""What each RPC does. Messages are filled by name, so that a client with other fields can still be served."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from .blobs import Blobs
from .containers import Container, start

_SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
_POLL_S = 0.02
_DEPLOYED = 3
MOUNTS_AT = "/root/"
"""Where the client mounts Python source in a container: a convention of Modal's, not a place of this machine."""


@dataclass
class App:
    """An app and what is in it."""

    app_id: str
    name: str = ""
    functions: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    state: int = 0
    ended: bool = False


@dataclass
class Function:
    """A function, its definition and its queue."""

    function_id: str
    app_id: str
    name: str
    metadata: api_pb2.FunctionHandleMetadata
    definition: api_pb2.Function | None = None
    queue: deque[str] = field(default_factory=deque)
    failures: int = 0


@dataclass
class Input:
    """One input of a call, from its arrival to its output."""

    input_id: str
    call_id: str
    function_id: str
    message: api_pb2.FunctionInput
    kind: int
    output: api_pb2.FunctionGetOutputsItem | None = None
    cancelled: bool = False
    started: float = 0.0
    chunks: list[api_pb2.DataChunk] = field(default_factory=list)


class Service:
    """The state of the server; only its own thread touches it."""

    def __init__(self, *, folder: Path, packages: Path, environ: dict[str, str], blobs: Blobs, capacity: int) -> None:
        self.url = ""
        self.capacity = capacity
        self.apps: dict[str, App] = {}
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, str] = {}
        self.inputs: dict[str, Input] = {}
        self.calls: dict[str, str] = {}
        self.mounts: dict[str, list[api_pb2.MountFile]] = {}
        self.files: dict[str, bytes] = {}
        self.images: list[api_pb2.Image] = []
        self.containers: dict[str, Container] = {}
        self.dead: list[Container] = []
        self.image_status = _SUCCESS
        self.image_log: list[str] = []
        """What the build of an image writes, in pieces; without, every image is built before it is asked for."""
        self.attempts = False
        """Whether functions may be called by attempts too, which is offered and not there."""
        self.restarts = False
        """Whether a call whose container is lost is run once more, from its beginning, as Modal says that it does after
        a preemption; else it has failed."""
        self._folder, self._packages, self.environ = folder, packages, environ
        self._blobs = blobs
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watch = asyncio.ensure_future(self._reap())

    def end(self) -> None:
        for container in list(self.containers.values()):
            container.kill()

    def kill(self, task_id: str | None = None) -> None:
        for container in list(self.containers.values()):
            if container.alive and task_id in (None, container.task_id):
                container.kill()

    def _new(self, prefix: str) -> str:
        return f"{prefix}-{next(self._numbers)}"

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # apps, images and mounts

    async def ClientHello(self, _: Any, __: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    async def AppCreate(self, request: Any, _: Any) -> Any:
        app = App(self._new("ap"), name=request.description)
        self.apps[app.app_id] = app
        return api_pb2.AppCreateResponse(app_id=app.app_id, app_page_url="http://127.0.0.1/app")

    async def AppGetOrCreate(self, request: Any, task: Any) -> Any:
        return await self.AppCreate(request, task)

    async def AppGetByDeploymentName(self, request: Any, _: Any) -> Any:
        deployed = (app for app in self.apps.values() if app.state == _DEPLOYED and not app.ended)
        found = next((app for app in deployed if app.name == request.name), None)
        return api_pb2.AppGetByDeploymentNameResponse(app_id=found.app_id if found else "")

    async def AppGetLayout(self, request: Any, _: Any) -> Any:
        return api_pb2.AppGetLayoutResponse(app_layout=self._layout(self.apps[request.app_id]))

    async def AppHeartbeat(self, _: Any, __: Any) -> Any:
        return Empty()

    async def AppPublish(self, request: Any, _: Any) -> Any:
        app = self.apps[request.app_id]
        app.functions, app.classes = dict(request.function_ids), dict(request.class_ids)
        app.name, app.state = request.name or app.name, request.app_state
        return api_pb2.AppPublishResponse(url="http://127.0.0.1/app", deployed_at=time.time())

    async def AppClientDisconnect(self, request: Any, _: Any) -> Any:
        self._end_app(self.apps[request.app_id])
        return Empty()

    async def AppList(self, _: Any, __: Any) -> Any:
        answer = api_pb2.AppListResponse()
        for app in self.apps.values():
            deployed = app.state == _DEPLOYED
            running = sum(
                one.alive and self.functions[one.function_id].app_id == app.app_id for one in self.containers.values()
            )
            state = api_pb2.APP_STATE_STOPPED if app.ended else app.state or api_pb2.APP_STATE_EPHEMERAL
            answer.apps.add(
                app_id=app.app_id,
                description="" if deployed else app.name,
                name=app.name if deployed else "",
                state=state,  # type: ignore[arg-type]
                n_running_tasks=running,
            )
        return answer

    async def AppStop(self, request: Any, _: Any) -> Any:
        self._end_app(self.apps[request.app_id])
        return Empty()

    async def TaskList(self, request: Any, _: Any) -> Any:
        answer = api_pb2.TaskListResponse()
        for one in self.containers.values():
            if one.alive and self.functions[one.function_id].app_id == request.app_id:
                answer.tasks.add(task_id=one.task_id, app_id=request.app_id)
        return answer

    async def ContainerStop(self, request: Any, _: Any) -> Any:
        self.kill(request.task_id)
        return api_pb2.ContainerStopResponse()

    def end_apps(self) -> None:
        """End every app of a session, as Modal does when its client is not heard of any more."""
        for app in list(self.apps.values()):
            if app.state != _DEPLOYED:
                self._end_app(app)

    def _end_app(self, app: App) -> None:
        app.ended = True
        for container in list(self.containers.values()):
            if self.functions[container.function_id].app_id == app.app_id:
                container.kill()

    async def EnvironmentGetOrCreate(self, request: Any, _: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def ImageGetOrCreate(self, request: Any, _: Any) -> Any:
        self.images.append(request.image)
        answer = api_pb2.ImageGetOrCreateResponse(image_id=self._new("im"))
        if not self.image_log:
            answer.result.status = self.image_status
        if self.image_status != _SUCCESS:
            answer.result.exception = "step 3: pip could not find torch==99"
        answer.metadata.image_builder_version = "2025.06"
        return answer

    async def ImageJoinStreaming_stream(self, _: Any) -> AsyncIterator[Any]:
        for text in self.image_log:
            yield api_pb2.ImageJoinStreamingResponse(task_logs=[api_pb2.TaskLogs(data=text)])
            await asyncio.sleep(0)
        answer = api_pb2.ImageJoinStreamingResponse(eof=True)
        answer.result.status = self.image_status
        answer.metadata.image_builder_version = "2025.06"
        yield answer

    async def MountGetOrCreate(self, request: Any, _: Any) -> Any:
        mount = self._new("mo")
        self.mounts[mount] = list(request.files)
        return api_pb2.MountGetOrCreateResponse(mount_id=mount)

    async def MountBatchedCheckExistence(self, request: Any, _: Any) -> Any:
        missing = [name for name in request.sha256_hex_hashes if name not in self.files]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, request: Any, _: Any) -> Any:
        if request.data_blob_id:
            self.files[request.sha256_hex] = self._blobs.data[request.data_blob_id]
        elif request.data or request.WhichOneof("data_oneof") is not None:
            self.files[request.sha256_hex] = request.data
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in self.files)

    async def BlobCreate(self, _: Any, __: Any) -> Any:
        blob = self._new("bl")
        answer = api_pb2.BlobCreateResponse(blob_ids=[blob])
        answer.upload_urls.items.append(f"{self._blobs.url}/{blob}")
        return answer

    async def BlobGet(self, request: Any, _: Any) -> Any:
        return api_pb2.BlobGetResponse(download_url=f"{self._blobs.url}/{request.blob_id}")

    # functions and classes

    async def FunctionPrecreate(self, request: Any, _: Any) -> Any:
        function_id = request.existing_function_id or self._new("fu")
        metadata = api_pb2.FunctionHandleMetadata(
            function_name=request.function_name, function_type=request.function_type, app_id=request.app_id
        )
        metadata.supported_input_formats.extend(request.supported_input_formats)
        metadata.supported_output_formats.extend(request.supported_output_formats)
        self._methods(metadata, request.method_definitions)
        self.functions[function_id] = Function(function_id, request.app_id, request.function_name, metadata)
        return api_pb2.FunctionPrecreateResponse(function_id=function_id, handle_metadata=metadata)

    def _methods(self, metadata: Any, definitions: Any) -> None:
        for name, method in definitions.items():
            made = metadata.method_handle_metadata[name]
            made.function_name, made.function_type = method.function_name, method.function_type
            made.is_method, made.use_method_name = True, name
            if self.attempts:
                made.input_plane_url, made.input_plane_region = self.url, "nowhere"
            made.supported_input_formats.extend(method.supported_input_formats)
            made.supported_output_formats.extend(method.supported_output_formats)

    async def FunctionCreate(self, request: Any, _: Any) -> Any:
        function = self.functions[request.existing_function_id]
        function.definition = request.function
        function.metadata.is_method = request.function.is_method
        function.metadata.class_parameter_info.CopyFrom(request.function.class_parameter_info)
        function.metadata.definition_id = self._new("de")
        answer = api_pb2.FunctionCreateResponse(
            function_id=function.function_id, function=request.function, handle_metadata=function.metadata
        )
        answer.function_data.function_name = request.function.function_name
        answer.function_data.ranked_functions.add(rank=0, function=request.function)
        return answer

    async def ClassCreate(self, request: Any, _: Any) -> Any:
        class_id = request.existing_class_id or self._new("cs")
        self.classes[class_id] = request.app_id
        return api_pb2.ClassCreateResponse(class_id=class_id, handle_metadata=api_pb2.ClassHandleMetadata())

    def _deployed(self, name: str) -> App:
        for app in reversed(self.apps.values()):
            if app.state == _DEPLOYED and app.name == name and not app.ended:
                return app
        raise GRPCError(Status.NOT_FOUND, f"App '{name}' not found")

    async def ClassGet(self, request: Any, _: Any) -> Any:
        app = self._deployed(request.app_name)
        return api_pb2.ClassGetResponse(
            class_id=app.classes[request.object_tag], handle_metadata=api_pb2.ClassHandleMetadata()
        )

    async def FunctionGet(self, request: Any, _: Any) -> Any:
        app = self._deployed(request.app_name)
        function = self.functions[app.functions[request.object_tag]]
        answer = api_pb2.FunctionGetResponse(function_id=function.function_id, handle_metadata=function.metadata)
        answer.function.function_name = function.name
        answer.function.ranked_functions.add(rank=0, function=function.definition)
        return answer

    async def FunctionBindParams(self, request: Any, _: Any) -> Any:
        base = self.functions[request.function_id]
        return api_pb2.FunctionBindParamsResponse(bound_function_id=base.function_id, handle_metadata=base.metadata)

    async def FunctionGetCurrentStats(self, request: Any, _: Any) -> Any:
        function = self.functions[request.function_id]
        running = sum(one.alive and one.function_id == function.function_id for one in self.containers.values())
        return api_pb2.FunctionStats(backlog=len(function.queue), num_total_tasks=running)

    # calls

    async def FunctionMap(self, request: Any, _: Any) -> Any:
        function = self.functions[request.function_id]
        call = self._new("fc")
        answer = api_pb2.FunctionMapResponse(function_call_id=call, function_call_jwt=f"jwt-{call}")
        for item in request.pipelined_inputs:
            made = Input(self._new("in"), call, function.function_id, item.input, request.function_call_invocation_type)
            self.inputs[made.input_id] = made
            self.calls[call] = made.input_id
            function.queue.append(made.input_id)
            answer.pipelined_inputs.add(idx=item.idx, input_id=made.input_id, input_jwt=f"jwt-{made.input_id}")
        self._scale(function)
        self._tell()
        return answer

    async def FunctionGetOutputs(self, request: Any, _: Any) -> Any:
        made = self.inputs[self.calls[request.function_call_id]]
        until = time.monotonic() + request.timeout
        while made.output is None and time.monotonic() < until:
            await self._change(until - time.monotonic())
        answer = api_pb2.FunctionGetOutputsResponse(last_entry_id="1-0")
        if made.output is None:
            answer.num_unfinished_inputs = 1
        else:
            answer.outputs.append(made.output)
            answer.idxs.append(0)
        return answer

    async def FunctionCallCancel(self, request: Any, _: Any) -> Any:
        made = self.inputs[self.calls[request.function_call_id]]
        made.cancelled = True
        for container in self.containers.values():
            if container.current == made.input_id:
                container.cancel.append(made.input_id)
        if made.output is None and not made.started:
            self._finish(made, self._failed(api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, "cancelled"))
        self._tell()
        return Empty()

    async def FunctionCallGetDataOut_stream(self, request: Any) -> AsyncIterator[Any]:
        made = self.inputs[self.calls[request.function_call_id]]
        last, until = request.last_index, time.monotonic() + 50
        while time.monotonic() < until:
            for chunk in made.chunks[last:]:
                last = chunk.index
                yield chunk
            if made.output is not None and last >= len(made.chunks):
                return
            await self._change(0.5)

    async def _change(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), min(seconds, 1.0))
        except TimeoutError:
            return

    def _finish(self, made: Input, result: Any, data_format: int = 0, task: str = "") -> None:
        if made.output is None:
            made.output = api_pb2.FunctionGetOutputsItem(
                result=result, idx=0, input_id=made.input_id, data_format=data_format, task_id=task
            )
        self._tell()

    @staticmethod
    def _failed(status: int, text: str) -> Any:
        return api_pb2.GenericResult(status=status, exception=text)  # type: ignore[arg-type]

    # containers

    def _scale(self, function: Function) -> None:
        alive = [one for one in self.containers.values() if one.alive and one.function_id == function.function_id]
        definition = function.definition
        assert definition is not None
        most = definition.autoscaler_settings.max_containers or definition.concurrency_limit or 1
        idle = sum(one.current is None for one in alive)
        total = sum(one.alive for one in self.containers.values())
        while len(function.queue) > idle and len(alive) < most and total < self.capacity:
            alive.append(self._start(function, definition))
            idle, total = idle + 1, total + 1

    def _start(self, function: Function, definition: Any) -> Container:
        task = self._new("ta")
        app = self.apps[function.app_id]
        arguments = api_pb2.ContainerArguments(
            task_id=task,
            function_id=function.function_id,
            app_id=app.app_id,
            function_def=definition,
            app_layout=self._layout(app),
            environment_name="main",
        )
        container = start(
            task_id=task,
            function_id=function.function_id,
            arguments=arguments,
            server_url=self.url,
            root=self._root(definition),
            packages=self._packages,
            environ=self.environ,
            folder=self._folder,
        )
        self.containers[task] = container
        return container

    def _layout(self, app: App) -> Any:
        layout = api_pb2.AppLayout(function_ids=app.functions, class_ids=app.classes)
        for function_id in app.functions.values():
            layout.objects.add(object_id=function_id, function_handle_metadata=self.functions[function_id].metadata)
        for class_id in app.classes.values():
            layout.objects.add(object_id=class_id, class_handle_metadata=api_pb2.ClassHandleMetadata())
        return layout

    def _root(self, definition: Any) -> Path:
        """The files of a function's mounts, as they would lie below ``MOUNTS_AT``."""
        names = "-".join(sorted(definition.mount_ids)) or "none"
        root = self._folder / "roots" / names
        if not root.exists():
            for mount in definition.mount_ids:
                for file in self.mounts[mount]:
                    target = root / file.filename.removeprefix(MOUNTS_AT).lstrip("/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(self.files[file.sha256_hex])
            root.mkdir(parents=True, exist_ok=True)
        return root

    async def _reap(self) -> None:
        """Notice containers that ended: their input is lost, and what waits gets another one."""
        while True:
            for container in list(self.containers.values()):
                if not container.alive:
                    del self.containers[container.task_id]
                    self.dead.append(container)
                    self._lost(container)
            await asyncio.sleep(_POLL_S)

    def _lost(self, container: Container) -> None:
        function = self.functions[container.function_id]
        made = self.inputs.get(container.current or "")
        if made is not None and made.output is None and self.restarts and not made.cancelled:
            function.queue.appendleft(made.input_id)
        elif made is not None and made.output is None:
            code = container.process.returncode
            text = f"Container {container.task_id} ended with signal {-code}" if code < 0 else f"exit code: {code}"
            status = api_pb2.GenericResult.GENERIC_STATUS_INTERNAL_FAILURE
            self._finish(made, self._failed(status, text))
        if container.inputs == 0:
            function.failures += 1
        if function.failures >= 3:
            for input_id in list(function.queue):
                status = api_pb2.GenericResult.GENERIC_STATUS_INIT_FAILURE
                self._finish(self.inputs[input_id], self._failed(status, "the container does not start"))
            function.queue.clear()
        elif not self.apps[function.app_id].ended:
            self._scale(function)

    async def ContainerHello(self, _: Any, __: Any) -> Any:
        return Empty()

    async def ContainerHeartbeat(self, _: Any, task: Any) -> Any:
        container = self.containers.get(task)
        answer = api_pb2.ContainerHeartbeatResponse()
        if container is not None and container.cancel:
            answer.cancel_input_event.input_ids.extend(container.cancel)
            container.cancel.clear()
        return answer

    async def FunctionGetInputs(self, request: Any, task: Any) -> Any:
        container = self.containers[task]
        function = self.functions[request.function_id]
        container.current = None
        until = time.monotonic() + 50
        while time.monotonic() < until:
            while function.queue:
                made = self.inputs[function.queue.popleft()]
                if made.output is None and not made.cancelled:
                    return self._hand_over(container, made)
            await self._change(until - time.monotonic())
        return api_pb2.FunctionGetInputsResponse()

    def _hand_over(self, container: Container, made: Input) -> Any:
        made.started = time.monotonic()
        container.current = made.input_id
        container.inputs += 1
        answer = api_pb2.FunctionGetInputsResponse()
        answer.inputs.add(
            input_id=made.input_id,
            input=made.message,
            function_call_id=made.call_id,
            function_call_invocation_type=made.kind,  # type: ignore[arg-type]
        )
        return answer

    async def FunctionPutOutputs(self, request: Any, task: Any) -> Any:
        for item in request.outputs:
            made = self.inputs[item.input_id]
            self._finish(made, item.result, item.data_format, task or "")
        return Empty()

    async def FunctionCallPutDataOut(self, request: Any, _: Any) -> Any:
        made = self.inputs[self.calls[request.function_call_id]]
        made.chunks += list(request.data_chunks)
        self._tell()
        return Empty()

    async def TaskResult(self, request: Any, task: Any) -> Any:
        container = self.containers.get(task)
        if container is not None and container.inputs == 0:
            function = self.functions[container.function_id]
            for input_id in list(function.queue):
                self._finish(self.inputs[input_id], request.result)
            function.queue.clear()
        return Empty()
