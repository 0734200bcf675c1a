"""A double of the Kubernetes API: EndpointSlices of one namespace, listed and watched over real HTTP."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

Slice = dict[str, Any]
_SERVICE = "kubernetes.io/service-name"


def endpoint(pod: str, ip: str, *, ready: bool | None = True, **conditions: bool) -> Slice:
    return {
        "addresses": [ip],
        "conditions": {"ready": ready, **conditions},
        "targetRef": {"kind": "Pod", "namespace": "llm", "name": pod, "uid": "of no interest"},
        "nodeName": "machine",
    }


def slice_of(name: str, *endpoints: Slice, family: str = "IPv4", ports: Iterable[Slice] | None = None) -> Slice:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "llm", "labels": {_SERVICE: "engines"}},
        "addressType": family,
        "endpoints": list(endpoints) or None,
        "ports": list(ports or [{"name": "http", "port": 30000, "protocol": "TCP"}]),
    }


class KubeApiDouble:
    """Keeps slices by name and streams their changes; ``hang_up`` ends all watches, ``forget`` the past."""

    def __init__(self) -> None:
        self.token = "first"
        self.lists = 0
        self.watches = 0
        self.refuses = 0  # so many requests yet, with a 500
        self.port = 0
        self.before_write: Callable[[], None] = lambda: None
        self._slices: dict[str, Slice] = {}
        self._version = 100
        self._kept: list[tuple[int, str, bytes]] = []  # version, service, line
        self._forgotten = 0
        self._open: dict[asyncio.Queue[bytes | None], str] = {}  # watches, by the service that each is of
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices", self._asked)
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices/{name}", self._read)
        app.router.add_put("/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices/{name}", self._written)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.hang_up()
        if self._runner is not None:
            await self._runner.cleanup()

    def put(self, told: Slice) -> None:
        kind = "MODIFIED" if told["metadata"]["name"] in self._slices else "ADDED"
        self._slices[told["metadata"]["name"]] = told
        self._say(kind, told)

    def delete(self, name: str) -> None:
        self._say("DELETED", self._slices.pop(name))

    def bookmark(self) -> None:
        self._say("BOOKMARK", {"kind": "EndpointSlice", "metadata": {}})

    def error(self, code: int) -> None:
        """An error within the watch, as the API tells that a version is too old."""
        self._send(
            json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "x"}}).encode()
        )

    def garbage(self) -> None:
        self._send(b'{"type": "ADDED", "obj')

    def hang_up(self) -> None:
        for queue in self._open:
            queue.put_nowait(None)

    def forget(self) -> None:
        """Versions up to now are too old to go on from; the watches end."""
        self._forgotten = self._version
        self._kept.clear()
        self.hang_up()

    def change_unseen(self, told: Slice) -> None:
        """While nobody can watch."""
        self._version += 1
        told["metadata"]["resourceVersion"] = str(self._version)
        self._slices[told["metadata"]["name"]] = told
        self._forgotten = self._version

    def drop_unseen(self, name: str) -> None:
        self._version += 1
        del self._slices[name]
        self._forgotten = self._version

    def _say(self, kind: str, told: Slice) -> None:
        self._version += 1
        told["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": kind, "object": told}).encode()
        service = told["metadata"].get("labels", {}).get(_SERVICE, "")
        self._kept.append((self._version, service, line))
        self._send(line, service)

    def _send(self, line: bytes, service: str = "") -> None:
        """To who watches that service; to all, where it is nobody's."""
        for queue, watched in self._open.items():
            if service in ("", watched):
                queue.put_nowait(line + b"\n")

    def get(self, name: str) -> Slice:
        return self._slices[name]

    async def _read(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        told = self._slices.get(request.match_info["name"])
        if told is None:
            return web.json_response({"kind": "Status", "code": 404, "message": "not found"}, status=404)
        return web.json_response(told)

    async def _written(self, request: web.Request) -> web.Response:
        told = await request.json()
        self.before_write()
        if (
            told["metadata"]["resourceVersion"]
            != self._slices[request.match_info["name"]]["metadata"]["resourceVersion"]
        ):
            return web.json_response({"kind": "Status", "code": 409, "message": "was modified"}, status=409)
        self.put(told)
        return web.json_response(told)

    def _of(self, service: str) -> list[Slice]:
        return [each for each in self._slices.values() if each["metadata"]["labels"][_SERVICE] == service]

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        if "watch" in request.query:
            return await self._watched(request)
        self.lists += 1
        version = {"resourceVersion": str(self._version)}
        return web.json_response(
            {"kind": "EndpointSliceList", "metadata": version, "items": self._of(_service(request))}
        )

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.refuses:
            self.refuses -= 1
            return web.json_response({"kind": "Status", "code": 500, "message": "not now"}, status=500)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        return None

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        since = int(request.query["resourceVersion"])
        if since < self._forgotten:
            return web.json_response({"kind": "Status", "code": 410, "message": "too old"}, status=410)
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        service = _service(request)
        for version, of, line in self._kept:
            if version > since and of in ("", service):
                queue.put_nowait(line + b"\n")
        self._open[queue] = service
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            del self._open[queue]
        return response


def _service(request: web.Request) -> str:
    return request.query["labelSelector"].removeprefix(f"{_SERVICE}=")
