"""The daemon's web page, its live data, and what Prometheus reads."""

import contextlib
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web
from anyio import CancelScope, Lock, move_on_after, sleep, to_thread

from controlplane.core.model.errors import ConfigError
from controlplane.daemon.api.views import listing
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.regrets import RegretView
from controlplane.daemon.observe.samples import Samples
from controlplane.daemon.observe.strips import strips
from controlplane.daemon.observe.telemetry import Telemetry
from controlplane.daemon.observe.timeline_view import timeline
from controlplane.daemon.process.logs import logger
from controlplane.daemon.status.engines import engine_listing
from controlplane.transport.bounds import Bounds
from controlplane.transport.http_listener import HttpListener
from controlplane.transport.loopback import is_loopback

_PAGE = Path(__file__).with_name("page")
_MOST_PROGRAMS = 60  # on the page
_STRIPS_S = 900  # of the wall clock
_MOST_PAGES = 100_000
_MOST_SEARCH = 128  # characters
_MOST_ENGINES = 64
_MOST_STREAMS = 64  # pages that are open
_LONGEST_STREAM_S = 3600.0  # a browser asks again
_SHARE = 0.125  # of the files that the daemon may open
BOUNDS = Bounds(connections=256, by_peer=192, send_buffer=1 << 15)
_LEAST_EVERY_S = 0.5  # however fast the daemon's clock runs: a browser draws all of it anew each time
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """Serves one daemon at ``listen``, HOST:PORT; ``off`` serves nothing."""

    def __init__(
        self,
        daemon: Daemon,
        listen: str,
        telemetry: Telemetry,
        regret: Callable[[], RegretView],
        journal: Journal,
        samples: Samples,
        *,
        is_default: bool,
    ) -> None:
        self.listen = listen
        self._daemon, self._telemetry, self._is_default = daemon, telemetry, is_default
        self._regret, self._journal, self._samples = regret, journal, samples
        self._one_scrape, self._scrapes, self._scraped = Lock(), 0, b""
        self._one_listing = Lock()
        self.listener: HttpListener | None = None
        self._streams: dict[CancelScope, None] = {}  # of pages that are open, the oldest first
        self._latest, self._latest_s = b"", 0.0
        self._log = logger("http")

    async def start(self) -> None:
        """Listen. Raises ``ConfigError`` where that cannot be; at the default address that is logged only."""
        if self.listen == "off":
            return
        host, _, port = self.listen.rpartition(":")
        without_slash = web.normalize_path_middleware(append_slash=False, remove_slash=True)
        middlewares = [_for_this_machine, without_slash] if is_loopback(host.strip("[]")) else [without_slash]
        app = web.Application(middlewares=middlewares)
        app.on_response_prepare.append(_ask_again)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/live", self._live),
                web.get("/samples", self._all_samples),
                web.get("/strips", self._strips),
                web.get("/program", self._program),
                web.get("/programs", self._programs),
                web.static("/page", _PAGE),
            ]
        )
        bounds, options = BOUNDS.within(_SHARE), {"shutdown_timeout": 0.5, "auto_decompress": False}
        listener = HttpListener("page", app, bounds, self._log.warning, **options)
        try:
            await listener.start(host.strip("[]"), int(port))
        except OSError as error:
            if not self._is_default:
                raise ConfigError(f"$.http.listen: cannot listen at {self.listen}: {error.strerror}") from None
            self._log.warning("no page", address=self.listen, reason=error.strerror)
            return
        self.listener = listener
        self._log.info("listening", url=self.url)

    @property
    def url(self) -> str:
        """Where the page is; empty while there is none."""
        return "" if self.listener is None else f"http://{self.listen}/"

    async def stop(self) -> None:
        if self.listener is not None:
            await self.listener.stop()

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGE / "index.html")

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        wanted = self._scrapes + 1  # one that begins after it was asked for; who waits together shares it
        async with self._one_scrape:
            if self._scrapes < wanted:
                self._scrapes += 1
                await self._telemetry.look()
                self._scraped = await to_thread.run_sync(self._telemetry.prometheus)
        return web.Response(body=self._scraped, headers={"Content-Type": _PROMETHEUS})

    async def _healthz(self, _: web.Request) -> web.StreamResponse:
        """200 while events reach the daemon over its bus, else 503: what a supervisor asks."""
        if self._daemon.bus.delivers:
            return web.Response(text="ok\n")
        return web.Response(text="nothing comes back from the bus\n", status=503)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: status and programs, once a control interval, but at most twice a second.

        Too many pages end the one that is open longest.
        """
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        with contextlib.suppress(ConnectionError), move_on_after(_LONGEST_STREAM_S) as scope:
            if len(self._streams) >= _MOST_STREAMS:
                oldest = next(iter(self._streams))
                del self._streams[oldest]
                oldest.cancel()
            self._streams[scope] = None
            try:
                await response.prepare(request)
                while True:
                    await response.write(b"data: " + self._payload() + b"\n\n")
                    await sleep(self._every_s)
            finally:
                self._streams.pop(scope, None)
        response.force_close()
        return response

    async def _all_samples(self, _: web.Request) -> web.StreamResponse:
        """An hour of the node's life, the oldest first."""
        return web.Response(body=msgspec.json.encode(self._samples.since()), content_type="application/json")

    async def _strips(self, _: web.Request) -> web.StreamResponse:
        """What the programs did that the page lists, and others lately: it goes on from there by itself."""
        clock, controller = self._daemon.clock, self._daemon.controller
        now_ns = clock.now_ns()
        async with self._one_listing:
            listed = listing(controller.ledger, now_ns, most=_MOST_PROGRAMS).programs
            found = strips(
                self._journal,
                [each.program_id for each in listed],
                since_ns=now_ns - clock.duration_ns(_STRIPS_S),
                now_ns=now_ns,
                most=_MOST_PROGRAMS,
            )
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def _program(self, request: web.Request) -> web.StreamResponse:
        """The time line of the program ``id``; 304 where whoever asks again has it as it is."""
        program_id = request.query.get("id", "")
        content = timeline(self._journal, program_id, self._daemon.clock.now_ns())
        if content is None:
            return web.json_response({"error": _unknown(program_id)}, status=404)
        body = msgspec.json.encode(content)
        mark = f"{zlib.crc32(body):08x}"
        has_it = any(tag.value == mark for tag in request.if_none_match or ())
        response = web.Response(status=304) if has_it else web.Response(body=body, content_type="application/json")
        response.etag = mark
        return response

    async def _programs(self, request: web.Request) -> web.StreamResponse:
        """That ``page`` (from 1) of those whose names contain ``contains``, in the order of the list."""
        asked, controller = request.query, self._daemon.controller
        try:
            page = int(asked.get("page", "1"))
        except ValueError:
            page = 0
        if not 1 <= page <= _MOST_PAGES:
            content = f"page: expected a number from 1 to {_MOST_PAGES}, got {asked['page'][:40]!r}"
            return web.json_response({"error": content}, status=400)
        async with self._one_listing:  # one in a turn of the loop: of very many programs each takes a while
            found = listing(
                controller.ledger,
                self._daemon.clock.now_ns(),
                contains=asked.get("contains", "")[:_MOST_SEARCH],
                most=_MOST_PROGRAMS,
                page=page,
                holds=controller.holds,
            )
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    @property
    def _every_s(self) -> float:
        """Seconds between two lines to each page."""
        return max(_LEAST_EVERY_S, self._daemon.status_every_s)

    def _payload(self) -> bytes:
        """What all open pages are told, put together once for all of them."""
        daemon, now_s = self._daemon, time.monotonic()
        if not self._latest or now_s - self._latest_s >= daemon.status_every_s / 2:
            controller = daemon.controller
            at_ms, every_s = round(time.time() * 1000), self._every_s
            content = {
                "every_s": every_s,
                "at_ms": at_ms,
                "time_scale": daemon.clock.scale,
                "status": daemon.status(),
                "listing": listing(
                    controller.ledger, daemon.clock.now_ns(), most=_MOST_PROGRAMS, holds=controller.holds
                ),
                "engines": engine_listing(list(daemon.engines()), daemon.moves, most=_MOST_ENGINES),
                "regret": self._regret(),
                "samples": self._samples.since(at_ms - round(1000 * (2 * every_s + 1))),
            }
            self._latest = msgspec.json.encode(content)
            self._latest_s = now_s
        return self._latest


def _unknown(program_id: str) -> str:
    if not program_id:
        return "which program? Ask for /program?id=NAME"
    return (
        f"nothing is kept of program {program_id!r}: it ended long ago, was never here, or the daemon has "
        "started since; the command `penstock explain` reads older decisions from the log"
    )


@web.middleware
async def _for_this_machine(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A page that is served to this machine alone answers to its names alone.

    Else a web site whose name is made to lead here could have a browser of this machine read the page for it. Every
    browser names a host; a health check in HTTP/1.0 may not.
    """
    with contextlib.suppress(ValueError):  # of a name that no URL can have
        if hdrs.HOST not in request.headers or is_loopback(urlsplit(f"//{request.host}").hostname or ""):
            return await handler(request)
    content = "this address serves this machine: ask for localhost, or set [http] listen to another address\n"
    return web.Response(text=content, status=421)


async def _ask_again(_: web.Request, response: web.StreamResponse) -> None:
    """A browser that keeps the page's parts would draw what a newer daemon tells with them."""
    response.headers.setdefault("Cache-Control", "no-cache")
