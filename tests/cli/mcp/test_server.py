"""The server over standard input and output, with the client of its own package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent

from pytest_nvfp4.cli.mcp.tools import TOOLS
from tests.cli.helpers import KERNEL, ROOT, ROW_MAJOR
from tests.waiting import LONGEST_S, locked, until

Act = Callable[[ClientSession], Awaitable[None]]
SLEEPER = f"import fcntl, time\nfile = open(__file__)\nfcntl.flock(file, fcntl.LOCK_SH)\ntime.sleep({10 * LONGEST_S})\n"
CHILD = "pytest_nvfp4.isolation.run_module"


def parameters(folder: Path, cache: Path, *options: str) -> StdioServerParameters:
    """A server with a folder as its root."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NVFP4_CACHE_DIR": str(cache)}
    arguments = ["-m", "pytest_nvfp4.cli", "mcp", "--root", str(folder), *options]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environ, cwd=folder)


@pytest.fixture
def serve(tmp_path: Path, cache_folder: Path) -> Callable[..., None]:
    """Run a client's part against a server whose root is the temporary folder."""

    def run(act: Act, *options: str) -> None:
        async def main() -> None:
            async with (
                stdio_client(parameters(tmp_path, cache_folder, *options)) as (read, write),
                ClientSession(read, write) as session,
            ):
                await session.initialize()
                await act(session)

        anyio.run(main)

    return run


def text(result: CallToolResult) -> str:
    """The text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def data(result: CallToolResult) -> dict[str, Any]:
    """The structured content of a result."""
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def children() -> list[str]:
    """Command lines of the running processes of calls."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        if CHILD in line:
            found.append(line)
    return found


@pytest.mark.slow
def test_tools_are_listed_and_wrong_calls_are_errors_of_the_tool(
    serve: Callable[..., None], cli: Any, tmp_path: Path
) -> None:
    (tmp_path / "out.py").symlink_to("/etc/passwd")

    async def act(session: ClientSession) -> None:
        listed = (await session.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in TOOLS]
        written = json.loads(cli("mcp", "--json").out)["tools"]
        assert [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed] == written
        for name, arguments, says in (
            ("cost", {"kernel": "../k.py"}, "leads out of the folders"),
            ("cost", {"kernel": "out.py"}, "leads out of the folders"),
            ("check", {"kernel": "nothing.py"}, "no such file"),
            ("cost", {}, "lacks kernel"),
            ("cost", {"kernel": "k.py", "sandbox": "off"}, "unknown field sandbox"),
            ("check", {"kernel": "k.py", "checks": ["benchmark"]}, "checks.0"),
            ("diff", {"old": "HEAD:k.py", "new": "k.py"}, "--revisions"),
            ("rm", {"kernel": "k.py"}, "no such tool; tools are check"),
        ):
            result = await session.call_tool(name, arguments)
            assert result.is_error, name
            assert says in text(result)
            assert data(result)["exit_code"] == 2
        await session.send_ping()

    serve(act)


@pytest.mark.parametrize(
    "missing", ["sys.modules['mcp'] = None", "import mcp.server; del mcp.server.ServerRequestContext"]
)
def test_without_the_extra_the_way_out_is_named(tmp_path: Path, missing: str) -> None:
    script = f"import sys; {missing}; from pytest_nvfp4.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "mcp"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "nvfp4: error: the server needs the package mcp, version 2: pip install 'pytest-nvfp4[agents]'"
    )


@pytest.mark.slow
def test_the_end_of_the_client_is_the_end_of_the_server(tmp_path: Path, cache_folder: Path) -> None:
    server = parameters(tmp_path, cache_folder)
    for end in (lambda one: one.stdin.close(), lambda one: one.send_signal(signal.SIGTERM)):
        process = subprocess.Popen(
            [server.command, *server.args], env=server.env, cwd=tmp_path,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert process.stdout.readline()
            end(process)
            assert process.wait(LONGEST_S) in (0, 130)
        finally:
            process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                assert stream is not None
                stream.close()
            process.wait()


@pytest.mark.slow
def test_tools_answer_about_a_kernel(serve: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "--help").write_text("")
    (tmp_path / "k.py").write_text(ROW_MAJOR)
    (tmp_path / "other.py").write_text(ROW_MAJOR.replace("COLUMNS = 128, 64", "COLUMNS = 128, 128"))
    (tmp_path / "report.csv").write_text(
        '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","gemm","12500"\n'
    )
    notes = []

    async def progress(seconds: float, total: float | None, message: str | None) -> None:
        notes.append((seconds, total, message))

    async def act(session: ClientSession) -> None:
        listed = await session.call_tool(
            "layouts", {"kernel": "k.py", "entry": "k.py::build", "format": "json"}, progress_callback=progress
        )
        assert any(row["name"].endswith("sC") for row in data(listed)["document"]["layouts"]), text(listed)
        assert json.loads(text(listed)) == data(listed)["document"]
        differ = await session.call_tool("diff", {"old": "k.py", "new": "other.py", "entry": "build"})
        assert data(differ)["exit_code"] == 1, text(differ)
        assert "DIFFERENT" in text(differ)
        assert not differ.is_error
        shown = await session.call_tool("profile_show", {"report_file": "report.csv"})
        assert "12.5 us" in text(shown)
        none = await session.call_tool("cost", {"kernel": "--help"})
        assert none.is_error
        assert str(tmp_path / "--help") in text(none)

    serve(act)
    assert notes[0][2] == "layouts waits for its turn, 0 s"
    assert any("layouts runs" in str(one[2]) for one in notes)
    assert [one[0] for one in notes] == sorted(one[0] for one in notes)


HOSTILE = {
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p evil'\npythonpath = ['.']\nnvfp4_sandbox = 'off'\n",
    "conftest.py": "open({marker!r} + '-conftest', 'w')\n",
    "evil.py": "open({marker!r} + '-plugin', 'w')\n",
    "jinja2.py": "open({marker!r} + '-module', 'w')\n",
    "package/__init__.py": "open({marker!r} + '-package', 'w')\n",
    "package/k.py": ROW_MAJOR + "\n\ncustom_kernel = build\n\ndef custom_kernel(data):\n    return build()\n\n"
    "def test_here():\n    open({marker!r} + '-test', 'w')\n\ntry:\n    open({marker!r} + '-import', 'w')\n"
    "except OSError:\n    pass\n",
}
"""A repository whose every file runs code in pytest's own process, or opens the sandbox for the kernel's."""


@pytest.mark.slow
def test_no_code_of_the_repository_runs_outside_of_the_sandbox(
    serve: Callable[..., None], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    for name, content in HOSTILE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content.replace("{marker!r}", repr(str(outside / "ran"))))

    async def act(session: ClientSession) -> None:
        result = await session.call_tool("check", {"kernel": "package/k.py", "checks": ["compile"]})
        assert "package/k.py" in text(result)
        assert data(result)["exit_code"] in (0, 1)
        none = await session.call_tool("check", {"kernel": "evil.py", "checks": ["compile"]})
        assert none.is_error
        assert "defines no custom_kernel" in text(none)

    serve(act)
    assert not list(outside.iterdir())
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    written = {name for name in files if not name.startswith(".nvfp4")}  # bundles of failures
    assert written == {*HOSTILE, "package"}, "the server wrote to the repository"
    # The control: pytest itself runs these files.
    subprocess.run(
        [sys.executable, "-m", "pytest", "package/k.py", "-k", "compile or test_here", "-q"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    found = {path.name for path in outside.iterdir()}
    assert {f"ran-{what}" for what in ("conftest", "plugin", "package", "import", "test")} <= found


@pytest.mark.slow
def test_a_program_is_bounded_in_output_time_and_reach(serve: Callable[..., None], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")

    async def act(session: ClientSession) -> None:
        flood = await session.call_tool("exec", {"code": "for _ in range(100): print('x' * 999_999)"})
        assert data(flood)["exit_code"] == 0, text(flood)
        assert data(flood)["dropped"] > 90_000_000
        assert len(text(flood)) < 210_000
        code = f"import os; print(sorted(os.environ)); open({str(secret)!r})"
        reach = await session.call_tool("exec", {"code": code})
        assert data(reach)["exit_code"] == 1
        assert "PermissionError" in text(reach)
        assert "NVFP4_CACHE_DIR" not in text(reach)
        late = await session.call_tool("exec", {"code": "while True: pass", "timeout_s": 5})
        assert data(late)["exit_code"] == 124

    serve(act)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancel", "leave", "kill"])
def test_a_kernel_that_never_ends_is_ended_with_its_call(tmp_path: Path, cache_folder: Path, end: str) -> None:
    kernel = tmp_path / "k.py"
    kernel.write_text(f"{SLEEPER}{KERNEL}")
    request = {"kernel": "k.py", "entry": "build"}

    async def main() -> None:
        async with (
            stdio_client(parameters(tmp_path, cache_folder)) as (read, write),
            ClientSession(read, write) as session,
            anyio.create_task_group() as group,
        ):
            await session.initialize()
            group.start_soon(session.call_tool, "layouts", request)
            assert await anyio.to_thread.run_sync(lambda: until(lambda: locked(kernel)))
            assert children()
            if end == "kill":
                for pid in servers():
                    os.kill(pid, signal.SIGKILL)
            group.cancel_scope.cancel()
            if end == "cancel":
                with anyio.CancelScope(shield=True):
                    assert await anyio.to_thread.run_sync(lambda: until(lambda: not locked(kernel)))
                    await session.send_ping()

    def servers() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if b"mcp" in line and str(tmp_path).encode() in line:
                found.append(int(entry.name))
        assert found
        return found

    anyio.run(main)
    assert until(lambda: not locked(kernel)), "the kernel's process still runs"
    assert until(lambda: not any(str(tmp_path) in line for line in children()))
