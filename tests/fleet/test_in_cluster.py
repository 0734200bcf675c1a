"""A fleet daemon in a pod: over TLS, as its service account's folder says; against a double of the API."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest
import trustme
from support.daemon_process import eventually

from controlplane.config.model import KubernetesConfig
from controlplane.core.model.errors import ConfigError
from controlplane.fleet import kube, kube_leader
from controlplane.fleet.in_cluster import InCluster
from controlplane.fleet.roster import Roster
from fleet.kube_api_double import KubeApiDouble, endpoint, slice_of

LEADER = "fleet-leader"


def account(folder: Path) -> ssl.SSLContext:
    """A service account's files; the API's side of its TLS."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text("first")
    (folder / "namespace").write_text("llm")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    return tls


async def test_the_pod_learns_its_engines_and_says_that_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, roster = KubeApiDouble(), Roster()
    await api.start(tls=account(tmp_path))
    api.put(slice_of("engines-1", endpoint("gpu-0", "10.0.0.1")))
    told = slice_of(LEADER)
    told["metadata"]["labels"] = {"kubernetes.io/service-name": "fleet"}
    api.put(told)
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port)}
    around = kube.Cluster.around(environment, tmp_path)
    monkeypatch.setattr(kube.Cluster, "around", lambda: around)
    monkeypatch.setattr(kube_leader, "_LOOK_S", 0.01)
    config = KubernetesConfig(engines="engines", leader=LEADER, pod="fleet-0", pod_ip="10.0.0.7")
    in_cluster = InCluster(config, roster, lambda: 5)
    assert in_cluster.has_engines
    works = [asyncio.create_task(work()) for work in in_cluster.works.values()]
    await in_cluster.wait_synced()
    assert [engine.place for engine in roster] == ["gpu-0/engine-30000"]

    async def led() -> bool:
        return bool(api.get(LEADER)["endpoints"])

    await eventually(led, what="a leader")
    assert api.get(LEADER)["endpoints"][0]["addresses"] == ["10.0.0.7"]
    for work in works:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    await api.stop()


def test_outside_of_kubernetes_there_is_nothing_to_do_and_what_is_asked_all_the_same_is_refused() -> None:
    assert InCluster(KubernetesConfig(), Roster(), lambda: None).works == {}
    with pytest.raises(ConfigError, match="this is no pod"):
        InCluster(KubernetesConfig(engines="engines"), Roster(), lambda: None)
    with pytest.raises(ConfigError, match="PENSTOCK_POD"):
        KubernetesConfig(leader="fleet-leader")
    with pytest.raises(ConfigError, match="expected a name as Kubernetes has them"):
        KubernetesConfig(engines="No Name")
