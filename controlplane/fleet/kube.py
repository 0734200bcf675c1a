"""The roster as Kubernetes tells it: the ready endpoints of one Service, watched through its EndpointSlices.

The Service is headless, and selects the pods that the InferencePool selects. Its slices say of each pod what a
roster needs, whether it is ready, serves, or terminates, as kubelet and endpoint controller have judged it, and
nothing else: no pod's specification has to be readable (docs/adr/0050). An engine's place is ``POD/engine-PORT``,
as the pod's daemon and plugin name it, whose node is the pod's name.

Whatever happens to the API, the roster stays as it was told last: no engine is less for an API that is away.
"""

import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import anyio
import msgspec

from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.daemon.process.logs import logger
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.wire.files import MOST_SECRET_BYTES, read_text

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_WATCH_S = 240  # asked of a watch, which the API ends then; it is begun again where it was
_SILENCE_S = _WATCH_S + 30  # without a byte: the connection is dead
_ANSWER_S = 30  # for a list
_LEAST_DELAY_S, _MOST_DELAY_S = 1.0, 30.0  # between attempts, twice as long each time
_BREATH_S = 0.1  # between a watch that ended in good order and the next
_LINE_BYTES = 4 << 20  # of one event: a slice has at most 1,000 endpoints
_GONE = 410
_BEST_FIRST = (Standing.SERVING, Standing.DRAINING, Standing.GONE)
_log = logger("kubernetes")


class ApiFailed(ControlPlaneError):
    """The Kubernetes API refused, with its status and its words."""


class Gone(ApiFailed):
    """What the watch was to go on from is no longer remembered: everything is listed again."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the API's JSON; what is not named here is skipped."""


class Meta(_Struct, frozen=True):
    """Of an object, or of a list."""

    name: str = ""
    resource_version: str = ""


class Conditions(_Struct, frozen=True):
    """Of one endpoint; None: not known, which the API's rules take for ready and serving."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Reference(_Struct, frozen=True):
    """The object behind an endpoint."""

    kind: str = ""
    name: str = ""


class Endpoint(_Struct, frozen=True):
    """One pod, by the addresses of the slice's type; the API says that the first one counts."""

    addresses: list[str] = []
    conditions: Conditions = Conditions()
    target_ref: Reference | None = None


class Port(_Struct, frozen=True):
    """One port that all endpoints of the slice have; no number: any."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class Slice(_Struct, frozen=True):
    """A part of the endpoints of a Service."""

    metadata: Meta
    address_type: str = "IPv4"
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(_Struct, frozen=True):
    """All of them, and where a watch goes on from."""

    metadata: Meta
    items: list[Slice] | None  # an answer without them is no list of none


class WatchEvent(_Struct, frozen=True):
    """``object`` is a slice, or of ``ERROR`` a status."""

    type: str
    object: msgspec.Raw


class Status(_Struct, frozen=True):
    """Why the API refuses."""

    code: int = 0
    message: str = ""


def engines_of(slices: Iterable[Slice], *, port: str = "", has_plugin: bool = True) -> dict[str, Engine]:
    """The engines that the slices tell of, by place: each TCP port of each pod, or the one port of that name.

    A pod that terminates drains while it serves; one that is not ready is gone. One that stands in several slices,
    while it moves between them or with addresses of two families, counts by the best word and by its IPv4 address.
    """
    found: dict[str, Engine] = {}
    for each in sorted(slices, key=lambda it: (it.address_type, it.metadata.name)):
        for endpoint in each.endpoints or ():
            if not endpoint.addresses:
                continue
            host = endpoint.addresses[0]
            pod = endpoint.target_ref.name if endpoint.target_ref and endpoint.target_ref.name else host
            for number in _numbers(each, port):
                engine = Engine(
                    place=f"{pod}/engine-{number}",
                    address=f"[{host}]:{number}" if ":" in host else f"{host}:{number}",
                    has_plugin=has_plugin,
                    standing=_standing(endpoint.conditions),
                )
                known = found.setdefault(engine.place, engine)
                best = min(known.standing, engine.standing, key=_BEST_FIRST.index)
                found[engine.place] = replace(known, standing=best)
    return found


def _standing(reported: Conditions) -> Standing:
    if reported.terminating:
        return Standing.GONE if reported.serving is False else Standing.DRAINING
    return Standing.GONE if reported.ready is False else Standing.SERVING


def _numbers(reported: Slice, name: str) -> list[int]:
    return [
        each.port
        for each in reported.ports or ()
        if each.port is not None and each.protocol in (None, "TCP") and (not name or each.name == name)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """How the Kubernetes API is reached, and as whom. The token's file is read for each request: it rotates."""

    url: str
    namespace: str
    token: Path | None = None
    authority: Path | None = None

    @classmethod
    def around(cls, environment: Mapping[str, str] = os.environ, account: Path = _ACCOUNT) -> "Cluster":
        """The cluster that this pod runs in, as the pod's service account; ``ConfigError`` outside of one."""
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        if not host or not (account / "token").exists():
            raise ConfigError(
                "this is no pod with a service account (no KUBERNETES_SERVICE_HOST, or no token): "
                "name the engines in the configuration, or set automountServiceAccountToken for the pod"
            )
        port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
        return cls(
            url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=read_text(account / "namespace", MOST_SECRET_BYTES).strip(),
            token=account / "token",
            authority=account / "ca.crt",
        )

    @property
    def slices(self) -> str:
        """Where the namespace's EndpointSlices are."""
        return f"{self.url}/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"

    def headers(self) -> dict[str, str]:
        """Who asks."""
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {read_text(self.token, MOST_SECRET_BYTES).strip()}"
        return headers

    def tls(self) -> ssl.SSLContext | bool:
        """Whom to believe: the cluster's own authority."""
        return ssl.create_default_context(cafile=self.authority) if self.authority else True


class EndpointWatch:
    """Keeps ``roster`` as the slices of ``service`` tell it, and leaves engines alone that came from elsewhere.

    An engine that was ready and is no more, but has not left, is ``GONE`` until it is ready again.
    """

    def __init__(
        self, *, cluster: Cluster, service: str, roster: Roster, port: str = "", has_plugin: bool = True
    ) -> None:
        self.is_synced = False  # the API has told everything once
        self._cluster = cluster
        self._service = service
        self._roster = roster
        self._port = port
        self._has_plugin = has_plugin
        self._slices: dict[str, Slice] = {}
        self._published: dict[str, Engine] = {}
        self._version = ""

    async def run(self) -> None:
        """List and watch until cancelled. What goes wrong is logged, and tried again after a while."""
        delay_s = _LEAST_DELAY_S
        connector = aiohttp.TCPConnector(ssl=self._cluster.tls())
        async with aiohttp.ClientSession(connector=connector, read_bufsize=_LINE_BYTES) as session:
            while True:
                try:
                    if not self._version:
                        await self._list(session)
                    async for event in self._watch(session):
                        self._on_event(event)
                        delay_s = _LEAST_DELAY_S
                    await anyio.sleep(_BREATH_S)  # the API ended it in good order
                    continue
                except (Gone, ValueError, msgspec.MsgspecError) as error:  # no JSON, or too long a line
                    self._version, why = "", str(error)
                except (aiohttp.ClientError, OSError, ApiFailed) as error:
                    why = f"{type(error).__name__}: {error}"
                _log.warning("the Kubernetes API failed; the roster stays", why=why, again_in_s=delay_s)
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MOST_DELAY_S)

    async def _list(self, session: aiohttp.ClientSession) -> None:
        async with self._get(session, aiohttp.ClientTimeout(total=_ANSWER_S)) as response:
            body = await response.read()
            if response.status != 200:
                raise refusal(self._cluster.slices, response.status, body)
        listed = msgspec.json.decode(body, type=SliceList)
        self._slices = {each.metadata.name: each for each in listed.items or ()}
        self._version = listed.metadata.resource_version
        self._publish()
        self.is_synced = True

    async def _watch(self, session: aiohttp.ClientSession) -> AsyncIterator[WatchEvent]:
        """The events from where the last one ended."""
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S, sock_read=_SILENCE_S)
        async with self._get(session, timeout, **asked) as response:
            if response.status != 200:
                raise refusal(self._cluster.slices, response.status, await response.read())
            async for line in response.content:
                if line.strip():
                    yield msgspec.json.decode(line, type=WatchEvent)

    def _get(
        self, session: aiohttp.ClientSession, timeout: aiohttp.ClientTimeout, **asked: str
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        selected = {"labelSelector": f"kubernetes.io/service-name={self._service}"}
        return session.get(
            self._cluster.slices, params={**selected, **asked}, headers=self._cluster.headers(), timeout=timeout
        )

    def _on_event(self, event: WatchEvent) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise refusal(self._cluster.slices, status.code, bytes(event.object))
        reported = msgspec.json.decode(event.object, type=Slice)
        self._version = reported.metadata.resource_version
        if event.type == "BOOKMARK":  # it says only how far one has heard
            return
        if event.type == "DELETED":
            self._slices.pop(reported.metadata.name, None)
        else:
            self._slices[reported.metadata.name] = reported
        self._publish()

    def _publish(self) -> None:
        """The roster, of what is new in what the slices say: others may know better of an engine meanwhile."""
        found = engines_of(self._slices.values(), port=self._port, has_plugin=self._has_plugin)
        # A pod that has yet to become ready for the first time is nothing to the fleet.
        engines = {
            place: engine
            for place, engine in found.items()
            if engine.standing is not Standing.GONE or place in self._published
        }
        for place in self._published.keys() - engines.keys():
            self._roster.remove(place)
        for place, engine in engines.items():
            if self._published.get(place) != engine:
                self._roster.put(engine)
        self._published = engines


def refusal(url: str, status: int, body: bytes) -> ApiFailed:
    """What the API's answer other than a 200 means, as an error to raise."""
    if status == _GONE:
        return Gone("what the watch went on from is forgotten")
    try:
        why = msgspec.json.decode(body, type=Status).message
    except msgspec.MsgspecError:
        why = body[:200].decode(errors="replace")
    return ApiFailed(f"{url}: {status} {why}")
