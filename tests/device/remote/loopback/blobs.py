"""Large arguments and results: a small HTTP server that is told a name and takes or gives bytes."""

from __future__ import annotations

import hashlib

from aiohttp import web


class Blobs:
    """Bytes by name, over HTTP."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_put("/{name}", self._put)
        app.router.add_get("/{name}", self._get)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        place = web.TCPSite(self._runner, "127.0.0.1", 0)
        await place.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.data[request.match_info["name"]] = body
        return web.Response(headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    async def _get(self, request: web.Request) -> web.Response:
        return web.Response(body=self.data[request.match_info["name"]])
