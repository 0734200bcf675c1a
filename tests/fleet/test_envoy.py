"""The real Envoy with what `penstock fleet envoy-config` writes, a double of a picker, real HTTP."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from support.daemon_process import eventually
from support.envoy import EnvoyProcess
from support.ports import free_port
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError
from controlplane.fleet._generated import ext_proc_pb2 as pb
from controlplane.fleet.envoy import DataPlane, binary, bootstrap, write_endpoints
from controlplane.fleet.messages import NOTHING, SERVICE
from controlplane.fleet.roster import Engine, Roster, Standing

CHAT = "/v1/chat/completions"


class PickerDouble:
    """Sends each turn to the engine that its client asks for in a header of the test's own; no policy, no gate."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[dict[str, str]] = []
        self.watched: list[str] = []  # what the watching filter told
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.silent_s = 0.0  # after a turn's headers, before it says that it holds the turn
        # As of a picker's own server: Envoy looks each second whether it lives.
        self._server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])

    async def start(self) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),)
        )
        answers = health.aio.HealthServicer()
        await answers.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(answers, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def die(self) -> None:
        """All its connections break."""
        await self._server.stop(None)

    async def _process(
        self, requests: AsyncIterator[pb.ProcessingRequest], context: "grpc.aio.ServicerContext[object, object]"
    ) -> AsyncIterator[pb.ProcessingResponse]:
        role = dict(context.invocation_metadata() or ())["x-penstock-role"]
        headers: dict[str, str] = {}
        async for request in requests:
            kind = request.WhichOneof("request")
            if role == "watching":
                self.watched.append(str(kind))
                continue
            if kind == "request_headers":
                found = request.request_headers.headers.headers
                headers = {each.key: (each.raw_value or each.value.encode()).decode() for each in found}
                self.asked.append(headers)
                await asyncio.sleep(self.silent_s)
                held = pb.ProcessingResponse()
                held.override_message_timeout.FromSeconds(60)
                yield held
                await self.may_answer.wait()
                if headers.get("upgrade"):  # there is no body to be kept, and no end of it
                    chosen = pb.HeadersResponse(response=self._to(headers))
                    yield pb.ProcessingResponse(request_headers=chosen, mode_override=NOTHING)
                    return
                if not request.request_headers.end_of_stream:
                    yield pb.ProcessingResponse(request_headers=pb.HeadersResponse())
                    continue
                yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=self._to(headers)))
            else:
                yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=self._to(headers)))
            return
        self.watched.append("end")

    def _to(self, headers: dict[str, str]) -> pb.CommonResponse:
        chosen = headers.get("x-test-engine", "")
        header = pb.HeaderValue(key="x-gateway-destination-endpoint", raw_value=chosen.encode())
        return pb.CommonResponse(
            header_mutation=pb.HeaderMutation(set_headers=[pb.HeaderValueOption(header=header)])
        )


class EngineDouble:
    """Answers with its own name; ``/slow`` in two pieces, the second when it is told."""

    def __init__(self) -> None:
        self.port = 0
        self.turns: list[dict[str, str]] = []
        self.go_on = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post(CHAT, self._chat)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/realtime", self._echo)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        async for message in answer:
            await answer.send_str(f"{self.address} {message.data}")
        return answer

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.turns.append({key.lower(): value for key, value in request.headers.items()})
        body = await request.json()
        if status := body.get("status"):
            return web.Response(status=status, headers={"x-penstock-again": "1"})
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(self.address.encode())
        if body.get("slow"):
            await self.go_on.wait()
            await answer.write(b" the end")
        return answer


class Plane:
    """An Envoy, a picker and two engines."""

    def __init__(self, folder: Path) -> None:
        self.picker, self.engines = PickerDouble(), (EngineDouble(), EngineDouble())
        self.endpoints = folder / "eds.json"
        self.roster = Roster()
        self._folder = folder

    async def start(self, ending: AsyncExitStack) -> None:
        """What was started before something fails ends too."""
        await self.picker.start()
        ending.push_async_callback(self.picker.die)
        for number, engine in enumerate(self.engines):
            await engine.start()
            ending.push_async_callback(engine.stop)
            self.roster.put(Engine(place=f"n{number}/engine-{engine.port}", address=engine.address))
        assert write_endpoints(self.endpoints, self.roster)
        plane = DataPlane(
            pickers=(f"127.0.0.1:{self.picker.port}",),
            endpoints=self.endpoints,
            listen=f"127.0.0.1:{free_port()}",
            admin=f"127.0.0.1:{free_port()}",
        )
        self.envoy = EnvoyProcess(self._folder, plane)
        ending.callback(self.envoy.stop)
        await asyncio.to_thread(self.envoy.start)
        await self.until("pickers", {plane.pickers[0]})
        await self.until("engines", {engine.address for engine in self.engines})
        self.session = await ending.enter_async_context(aiohttp.ClientSession())

    async def until(self, cluster: str, healthy: set[str]) -> None:
        async def look() -> bool:
            return await asyncio.to_thread(self.envoy.healthy, cluster) == healthy

        await eventually(look, what=f"{healthy} in Envoy's cluster {cluster}")

    async def ask(self, engine: EngineDouble | None = None, session: str = "", **body: object) -> tuple[int, str]:
        headers = {"x-session-id": session} if session else {}
        if engine is not None:
            headers["x-test-engine"] = engine.address
        async with self.session.post(self.envoy.url + CHAT, json=body, headers=headers) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Plane]:
    plane = Plane(folder)
    async with AsyncExitStack() as ending:
        await plane.start(ending)
        yield plane


async def _turn_is_at(engine: EngineDouble, count: int) -> None:
    await _until(lambda: len(engine.turns) == count, f"{count} turns at the engine")


async def _until(holds: Callable[[], bool], what: str) -> None:
    async def look() -> bool:
        return holds()

    await eventually(look, what=what)


async def test_a_turn_goes_where_the_picker_says_and_what_a_client_claims_is_stripped(tmp_path: Path) -> None:
    async with started(tmp_path) as plane:
        first, second = plane.engines
        for engine in (first, second, second):
            assert await plane.ask(engine) == (200, engine.address)
        forged = {
            "x-gateway-destination-endpoint": second.address,
            "x-gateway-destination-endpoint-subset": second.address,
            "x-penstock-turn-id": "f" * 32,
            "x-penstock-arrived": "1",
            "x-penstock-asked": "1",
            "x-envoy-retry-on": "5xx",
            "x-test-engine": first.address,
            "authorization": "Bearer of-the-client",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }
        url = plane.envoy.url + CHAT
        async with plane.session.post(url, json={"status": 503}, headers=forged) as answer:
            assert answer.status == 503, "an engine's own answer is passed on"
            assert "x-penstock-again" not in answer.headers
        await _turn_is_at(first, 2)  # this one and no second time, whatever the engine and the client ask for
        asked, turn = plane.picker.asked[-1], first.turns[-1]
        assert not {"x-gateway-destination-endpoint-subset", "x-penstock-turn-id", "x-envoy-retry-on"} & set(asked)
        assert "x-gateway-destination-endpoint" not in asked
        assert 0 <= float(asked["x-penstock-asked"]) - float(asked["x-penstock-arrived"]) < 60, "by one clock"
        assert float(asked["x-penstock-arrived"]) > 1
        assert asked["x-envoy-attempt-count"] == "1"
        assert (turn["authorization"], turn["traceparent"]) == (forged["authorization"], forged["traceparent"])
        await _until(lambda: plane.picker.watched.count("end") == 4, "the end of each turn at the picker")
        for what in ("request_headers", "response_headers"):
            assert plane.picker.watched.count(what) == 4
        # With a thousand large turns at once, the last one is read after seconds: once all the same.
        plane.picker.silent_s = 8.0
        assert await plane.ask(first) == (200, first.address)
        assert len(plane.picker.asked) == 5


async def test_a_websocket_is_passed_on_and_http_1_0_answered(tmp_path: Path) -> None:
    async with started(tmp_path) as plane:
        engine, old = plane.engines[1], aiohttp.HttpVersion10
        headers = {"x-test-engine": engine.address}
        async with plane.session.ws_connect(plane.envoy.url + "/v1/realtime", headers=headers) as client:
            for text in ("one", "two"):
                await client.send_str(text)
                assert await client.receive_str() == f"{engine.address} {text}"
        async with (
            aiohttp.ClientSession(version=old) as session,
            session.post(plane.envoy.url + CHAT, json={}, headers=headers) as answer,
        ):
            assert (answer.status, answer.version, await answer.text()) == (200, old, engine.address)


async def test_a_picker_that_dies_cuts_no_running_turn_and_a_held_one_goes_around(tmp_path: Path) -> None:
    async with started(tmp_path) as plane:
        first, _ = plane.engines
        running = asyncio.create_task(plane.ask(first, slow=True))
        await _turn_is_at(first, 1)
        plane.picker.may_answer.clear()
        held = asyncio.create_task(plane.ask(first, session="held"))
        await _until(lambda: len(plane.picker.asked) == 2, "a turn that the picker holds")
        await plane.picker.die()
        status, served_by = await held
        assert status == 200
        first.go_on.set()
        assert await running == (200, f"{first.address} the end")
        assert len(first.turns) + len(plane.engines[1].turns) == 2, "each turn ran once"
        # From now on the hash says where: a session stays on its engine, and not all are on one.
        sessions = ["held"] * 4 + [f"session-{number}" for number in range(24)]
        answers = await asyncio.gather(*(plane.ask(session=name) for name in sessions))
        assert set(answers[:4]) == {(200, served_by)}
        assert set(answers) == {(200, engine.address) for engine in plane.engines}


async def test_engines_join_drain_and_leave_while_turns_run(tmp_path: Path) -> None:
    async with started(tmp_path) as plane:
        first, second = plane.engines
        running = asyncio.create_task(plane.ask(first, slow=True))
        await _turn_is_at(first, 1)
        leaving = next(engine for engine in plane.roster if engine.address == first.address)
        plane.roster.put(Engine(place=leaving.place, address=first.address, standing=Standing.DRAINING))
        assert write_endpoints(plane.endpoints, plane.roster)
        assert not write_endpoints(plane.endpoints, plane.roster), "it says that already"

        async def only_the_second() -> bool:
            return {(await plane.ask(session=f"s{n}"))[1] for n in range(12)} == {second.address}

        await eventually(only_the_second, what="a hash that leaves out the engine that drains")
        assert await plane.ask(first) == (200, first.address), "a picker's choice is followed"
        plane.roster.put(Engine(place=leaving.place, address=first.address, standing=Standing.GONE))
        write_endpoints(plane.endpoints, plane.roster)
        await plane.until("engines", {second.address})
        assert await plane.ask(first) == (200, second.address)
        first.go_on.set()
        assert await running == (200, f"{first.address} the end"), "what runs on an engine that left goes on"
        plane.roster.put(leaving)
        write_endpoints(plane.endpoints, plane.roster)
        await plane.until("engines", {first.address, second.address})
        assert await plane.ask(first) == (200, first.address)


VARIANTS: tuple[Callable[[Path], DataPlane], ...] = (
    lambda path: DataPlane(pickers=("127.0.0.1:9101", "127.0.0.1:9102", "[::1]:9103"), endpoints=path),
    lambda path: DataPlane(
        pickers=("fleet-0.example:9101",),
        endpoints=path,
        name='site "a"',
        listen="0.0.0.0:80",
        largest_body_bytes=1 << 20,
        health_path="/healthz",
        watches_bodies=True,
    ),
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_envoy_accepts_the_configuration(variant: Callable[[Path], DataPlane], tmp_path: Path) -> None:
    endpoints = tmp_path / "eds.json"
    write_endpoints(endpoints, ())
    config = tmp_path / "envoy.yaml"
    config.write_text(bootstrap(variant(endpoints)))
    said = subprocess.run([str(binary()), "--mode", "validate", "-c", str(config)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(("pickers", "when"), [(("a:1",), '"6"'), (("a:1", "b:1"), '"soon"')])
def test_who_is_alone_is_awaited_and_who_is_not_is_asked_at_once(
    pickers: tuple[str, ...], when: str, tmp_path: Path
) -> None:
    config = bootstrap(DataPlane(pickers=pickers, endpoints=tmp_path / "eds.json"))
    lost, failed = re.findall(r"key: x-penstock-again, value: (\S+?)}", config)
    assert (lost, failed) == (when, "soon")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "eds.json"
    for wrong in (
        {"pickers": ()},
        {"pickers": ("host",)},
        {"pickers": ("host:0",)},
        {"pickers": ("a:1",), "health_path": "health"},
        {"pickers": ("a:1",), "largest_body_bytes": 0},
    ):
        with pytest.raises(ConfigError):
            DataPlane(endpoints=path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="IP address"):
        write_endpoints(path, (Engine(place="a/engine-1", address="engine.example:30000"),))
    assert not path.exists()


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    config, endpoints = tmp_path / "envoy.yaml", tmp_path / "eds.json"
    words = ["fleet", "envoy-config", "--picker", "127.0.0.1:9101", "--endpoints", str(endpoints)]
    words += ["--engine", "127.0.0.1:30000"]
    made = CliRunner().invoke(app, [*words, "--out", str(config)])
    assert made.exit_code == 0, made.output
    assert "127.0.0.1" in endpoints.read_text()
    assert CliRunner().invoke(app, words).output == config.read_text()
    nowhere = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "none" / "envoy.yaml")])
    assert isinstance(nowhere.exception, ConfigError)
