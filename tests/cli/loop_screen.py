"""Drive the terminal view of a loop without a terminal, and read what it shows."""

import asyncio
from collections.abc import Awaitable, Callable

from textual.pilot import Pilot

from pytest_nvfp4.cli.loop.screen import LoopApp
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.loop.view.view import LoopReader
from tests.loop.samples import FixedClock

SMALL, LARGE = (80, 24), (200, 60)


def shown(app: LoopApp) -> str:
    """Return what the terminal shows."""
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in app.screen._compositor.render_strips())


def drive(
    folder: StateFolder, script: Callable[[LoopApp, Pilot[int]], Awaitable[None]], *, size: tuple[int, int] = SMALL
) -> int | None:
    """Run the view without a terminal, and return its exit code."""

    async def run() -> int | None:
        app = LoopApp(LoopReader(folder, FixedClock()), refresh_s=3600)
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await script(app, pilot)
        return app.return_value

    return asyncio.run(run())


async def settle(app: LoopApp, pilot: Pilot[int]) -> None:
    """Wait until what was begun to be read is drawn."""
    await app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.pause()


async def press(app: LoopApp, pilot: Pilot[int], *keys: str) -> str:
    """Press keys, and return what is shown then."""
    for key in keys:
        await pilot.press(key)
        await settle(app, pilot)
    return shown(app)
