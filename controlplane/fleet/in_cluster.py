"""What a fleet daemon does beside its work where it runs in Kubernetes."""

from collections.abc import Callable, Coroutine
from typing import Any

from anyio import move_on_after, sleep

from controlplane.config.model import KubernetesConfig
from controlplane.fleet.kube import Cluster, EndpointWatch
from controlplane.fleet.kube_leader import LeaderEndpoint
from controlplane.fleet.roster import Roster

_FIRST_S = 10.0  # that the first list of engines is waited for
_LOOK_S = 0.05


class InCluster:
    """The roster from the API, where ``config`` names a Service of engines, and the leader's endpoint.

    ``revision`` gives the lease's while this daemon leads, else None. Raises ``ConfigError`` where this is no pod
    whose service account may ask the API.
    """

    def __init__(self, config: KubernetesConfig, roster: Roster, revision: Callable[[], int | None]) -> None:
        self.works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}  # by task: run until the daemon ends
        self._watch: EndpointWatch | None = None
        if not (config.engines or config.leader):
            return
        cluster = Cluster.around()
        if config.engines:
            self._watch = EndpointWatch(
                cluster=cluster,
                service=config.engines,
                roster=roster,
                port=config.port,
                has_plugin=config.plugin,
            )
            self.works["Kubernetes engines"] = self._watch.run
        if config.leader:
            endpoint = LeaderEndpoint(
                cluster=cluster,
                slice_name=config.leader,
                pod=config.pod,
                address=config.pod_ip,
                revision=revision,
            )
            self.works["Kubernetes leader"] = endpoint.run

    @property
    def has_engines(self) -> bool:
        """Whether the roster is the API's affair, and not that of commands."""
        return self._watch is not None

    async def wait_synced(self) -> None:
        """Wait until the API has told its engines once, for ten seconds at most: till then the roster is empty."""
        if self._watch is None:
            return
        with move_on_after(_FIRST_S):
            while not self._watch.is_synced:  # noqa: ASYNC110  its time runs, too
                await sleep(_LOOK_S)
