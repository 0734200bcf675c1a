"""Where a gateway finds the picker that leads: the one endpoint of a Service, which the leader itself writes.

The Service has no selector; its only EndpointSlice names the leader's pod. So both pods of the fleet are ready all
the time, roll and are evicted one after the other like any others, and a gateway never asks the one that does not
lead (docs/adr/0050). The lease's revision stands beside the address: who was overtaken cannot write over a younger
leader, for it either sees a higher revision or, having looked before that was written, fails the API's own
compare-and-set. Who was overtaken knows it within the lease's time; who leads for longer below a higher revision
leads on a bus whose counting began anew, and writes.
"""

from collections.abc import Callable
from typing import Any

import aiohttp
import anyio

from controlplane import clocks
from controlplane.daemon.process.logs import logger
from controlplane.fleet.kube import ApiFailed, Cluster, refusal

REVISION = "penstock/lease-revision"
_LOOK_S = 0.25  # for who leads
_ASSERT_S = 2.0  # whoever leads makes sure that it is told so still
_NEW_COUNT_S = 30.0  # more than two times of the lease
_ANSWER_S = 5
_CONFLICT = 409
_log = logger("kubernetes")


class LeaderEndpoint:
    """Keeps the slice of that name pointing at ``pod``, at IP ``address``, while ``revision`` gives the lease's.

    The slice and its ports are made by whoever deploys (the chart), so that no right to make any is needed.
    """

    def __init__(
        self, *, cluster: Cluster, slice_name: str, pod: str, address: str, revision: Callable[[], int | None]
    ) -> None:
        self.published: int | None = None  # the revision that the slice has of us
        self._cluster = cluster
        self._name = slice_name
        self._pod, self._address = pod, address
        self._revision = revision
        self._outranked_since: float | None = None

    async def run(self) -> None:
        """Until cancelled. The API's failures are logged, and it is tried again."""
        connector = aiohttp.TCPConnector(ssl=self._cluster.tls())
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            sure_until = -1.0
            while True:
                revision = self._revision()
                if revision is None:
                    self.published = self._outranked_since = None
                elif revision != self.published or anyio.current_time() >= sure_until:
                    await self._try(session, revision)
                    sure_until = anyio.current_time() + _ASSERT_S
                await anyio.sleep(_LOOK_S)

    async def _try(self, session: aiohttp.ClientSession, revision: int) -> None:
        try:
            if await self._point_here(session, revision):
                self.published = revision
        except (aiohttp.ClientError, OSError, ApiFailed, ValueError) as error:
            _log.warning(
                "gateways may not find this leader", slice=self._name, why=f"{type(error).__name__}: {error}"
            )

    async def _point_here(self, session: aiohttp.ClientSession, revision: int) -> bool:
        """False: a younger leader is there already, or was written meanwhile."""
        async with session.get(self._url, headers=self._cluster.headers()) as response:
            if response.status != 200:
                raise refusal(self._url, response.status, await response.read())
            published: dict[str, Any] = await response.json()
        notes = published["metadata"].setdefault("annotations", {})
        if int(notes.get(REVISION, 0)) > revision and not self._counts_anew():
            return False
        endpoint = {
            "addresses": [self._address],
            "conditions": {"ready": True},
            "targetRef": {"kind": "Pod", "namespace": self._cluster.namespace, "name": self._pod},
        }
        if published.get("endpoints") == [endpoint] and notes.get(REVISION) == str(revision):
            return True
        notes[REVISION] = str(revision)
        published["endpoints"] = [endpoint]  # with the version that was read: the API refuses if it is not the last
        async with session.put(self._url, json=published, headers=self._cluster.headers()) as response:
            if response.status == _CONFLICT:
                return False
            if response.status != 200:
                raise refusal(self._url, response.status, await response.read())
        _log.info("gateways are told that this pod leads", slice=self._name, revision=revision)
        return True

    def _counts_anew(self) -> bool:
        if self._outranked_since is None:
            self._outranked_since = clocks.awake_s()
        return clocks.awake_s() - self._outranked_since >= _NEW_COUNT_S

    @property
    def _url(self) -> str:
        return f"{self._cluster.slices}/{self._name}"
