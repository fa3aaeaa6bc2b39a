"""The kernel's process: it imports the kernel, calls it on handles of device memory, and describes what happened.

Nothing here decides a verdict. A kernel can replace all of it, and gains nothing: the device, what is watched and what
is recorded are in the other process (``kernel_process``).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pytest_nvfp4.collection import rare_collection
from pytest_nvfp4.device.worker.conversation import Player, PlayError
from pytest_nvfp4.device.worker.imported_kernel import ImportedKernel, RefusedKernelError, import_kernel, watch
from pytest_nvfp4.device.worker.kernel_stack import write_stack_to
from pytest_nvfp4.device.worker.returned_tensors import Returned, inspect_returned
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.machine.values import device_fields, host_tensor
from pytest_nvfp4.machine.wire import Channel, HungUpError, Message
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.toolchain.torch_compiler import torch_compiler_findings
from pytest_nvfp4.toolchain.worker.findings import from_exception
from pytest_nvfp4.toolchain.worker.loading import begin_imports, end_imports

_REST_S = 0.05
"""Seconds for a thread of the kernel to act after its return."""


def serve(commands: Channel, requests: Channel, room: tuple[int, int]) -> NoReturn:
    """Execute commands to the end of the process."""
    exit_process, status = os._exit, 1
    try:
        with rare_collection():
            _KernelSide(commands, requests, room).run()
        status = 0
    except HungUpError:
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        exit_process(status)
    raise AssertionError


class _KernelSide:
    """The state of the kernel's process."""

    def __init__(self, commands: Channel, requests: Channel, room: tuple[int, int]) -> None:
        self._commands = commands
        self._channel = requests
        self._room = room
        self._sources = ""
        self._failed = ""
        self._kernel: ImportedKernel | None = None
        self._notices: Callable[[], list[str]] = list
        self._kept: dict[int, Any] = {}
        self._call = 0
        self._player: Player | None = None

    def _own(self, file: str) -> bool:
        return file.startswith(self._sources)

    def run(self) -> None:
        """Execute commands until ``end``."""
        table: dict[str, Callable[[Message], dict[str, Any]]] = {
            "load": self._load,
            "prepare": self._prepare,
            "call": self._call_kernel,
            "settle": self._settle,
            "end": lambda _: {"messages": self._notices()},
        }
        while True:
            command = self._commands.receive()
            finding: Finding | None = None
            answer: dict[str, Any] = {}
            try:
                if self._player is not None:
                    said = self._player.play(command)
                    self._commands.send(said.kind, said.fields, said.blobs)
                    if command.kind == "end":
                        return
                    continue
                answer = table[command.kind](command)
            except PlayError as error:
                finding = Finding("recording", f"the recorded kernel cannot be played: {error}")
            except RefusedKernelError as error:
                finding = error.finding
            except BaseException as error:
                finding = from_exception("run", self._failed, error, self._own)
            if finding is None:
                self._commands.send("returned", answer)
            else:
                values = finding.to_dict()
                self._commands.send("raised", {"finding": {**values, "detail": values["detail"][-50_000:]}})
            if command.kind == "end":
                return

    def _load(self, command: Message) -> dict[str, Any]:
        fields = command.fields
        folder, sources = Path(fields["folder"]), Path(fields["sources"])
        self._sources = str(sources)
        _, _, function = (fields["entry"] or "").rpartition("::")
        self._failed = f"{function} failed" if function else f"{Path(fields['main']).name} failed in the simulator"
        if fields["recorded"] is not None:
            self._player = Player(sources / fields["recorded"], self._channel, self._room, sources=self._sources)
            return dict(self._player.play(command).fields)
        self._stack = write_stack_to(Path(fields["stack"]))
        begin_imports()
        from pytest_nvfp4.host import redirect, torch_cuda
        from pytest_nvfp4.host.compile_cache import CompileCache
        from pytest_nvfp4.host.remote import Requests, remote

        os.environ.update(redirect.environment(Path(fields["dump"]), arch=fields["arch"]))
        if fields["regions"]:
            os.environ["CUTE_DSL_COMPILER_OPT"] = "iket"  # the DSL reads it at import, and strips the marks without
        model = for_arch(fields["arch"])
        if fields["sms"] is not None:
            model = replace(model, sm_count=fields["sms"], max_active_clusters={})
        errors = {"Fault": lambda text: Fault("launch", text), "Unsupported": lambda text: Fault("unsupported", text)}
        side = remote(Requests(self._channel, self._room, errors))
        known = [Path(path) for path in fields["compiled"]]
        modules = CompileCache(known) if known else None
        redirect.install(side, device=model, compiled=modules, unraised=self._stack)
        torch_cuda.install(device=model, side=side)
        end_imports()

        self._refuse_torch_compiler(sources, fields)
        self._notices = watch(folder=folder, sources=sources, own=self._own)
        if fields["regions"]:
            from pytest_nvfp4.profiler.sessions import begin

            begin()
        self._kernel = import_kernel(
            sources,
            main=fields["main"],
            entry=fields["entry"],
            compile_options=fields["compile_options"],
            own=self._own,
        )
        return {"prepares": self._kernel.prepare is not None}

    @staticmethod
    def _refuse_torch_compiler(sources: Path, fields: Mapping[str, Any]) -> None:
        if fields["torch_operators"]:
            return  # what it would compile runs as torch's operators
        source, _, name = (fields["entry"] or f"{fields['main']}::custom_kernel").rpartition("::")
        for finding in torch_compiler_findings(sources.rglob("*.py"), first=sources / source, function=name):
            raise RefusedKernelError(finding)

    def _prepare(self, command: Message) -> dict[str, Any]:
        assert self._kernel is not None
        assert self._kernel.prepare is not None
        self._kernel.prepare([tuple(size) for size in command.fields["sizes"]])
        return {}

    def _call_kernel(self, command: Message) -> dict[str, Any]:
        import torch

        from pytest_nvfp4.host.tensor import HostCudaTensor

        assert self._kernel is not None
        tensors: list[Any] = []
        arguments = [self._data(value, command, tensors) for value in command.fields["arguments"]]
        given = [
            torch.empty(shape, dtype=getattr(torch, kind), device="meta") if at is None else tensors[at]
            for at, kind, shape in command.fields["outputs"]
        ]
        with self._on_stream(command.fields["stream"]):
            returned = self._kernel.function(*arguments)
        self._kept[self._call] = returned  # so that its memory is not used again
        self._call += 1
        shown = inspect_returned(torch, returned, given, returns=command.fields["returns"], kind=HostCudaTensor)
        return {"returned": [_described(one) for one in shown]}

    def _settle(self, _: Message) -> dict[str, Any]:
        if threading.active_count() > 1:
            time.sleep(_REST_S)
        return {}

    @contextlib.contextmanager
    def _on_stream(self, handle: int) -> Iterator[None]:
        import torch

        if not handle:
            yield
            return
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):  # type: ignore[no-untyped-call]
            yield

    def _data(self, value: Any, command: Message, tensors: list[Any]) -> Any:
        """Return an argument of the kernel: device tensors over blocks of the other process, and its own copies.

        ``tensors`` lists them in order.
        """
        from pytest_nvfp4.host.remote import block
        from pytest_nvfp4.host.tensor import HostCudaTensor

        if isinstance(value, list):
            return [self._data(each, command, tensors) for each in value]
        if not isinstance(value, dict):
            return value
        ((kind, fields),) = value.items()
        if kind == "tuple":
            return tuple(self._data(each, command, tensors) for each in fields)
        if kind == "float":
            return float.fromhex(fields)
        if kind == "host":
            tensors.append(host_tensor(fields[:3], command.blobs[fields[3]]))
        else:
            *shape, size = fields
            tensors.append(HostCudaTensor(block(shape, size)))
        return tensors[-1]


def _described(one: Returned) -> list[Any]:
    return [one.description, None if one.tensor is None else device_fields(one.tensor.host)]
