"""Ray Serve on this machine, with doubles of engines as replicas, whose requests Penstock's policies place."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_MISSING = [name for name in ("ray", "fastapi", "aiohttp_cors", "smart_open") if find_spec(name) is None]
pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own are not ours to mend, hence it is not imported before
    pytest.mark.skipif(
        bool(_MISSING) and not os.environ.get("CI"), reason=f"ray[serve] is not installed: no {', '.join(_MISSING)}"
    ),
]
REPLICAS = 2


class EngineDouble:
    """Says which replica it is."""

    def __init__(self) -> None:
        from ray import serve

        self.name = serve.get_replica_context().replica_id.unique_id

    async def __call__(self, body: dict[str, Any]) -> str:
        return self.name


@pytest.fixture(scope="module")
def engines() -> Iterator[Any]:
    """A handle to the replicas behind the router."""
    import ray
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    patched = pytest.MonkeyPatch()  # what replicas run is imported there by its name
    patched.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    patched.setenv("RAY_SERVE_LOG_TO_STDERR", "0")
    ray.init(num_cpus=REPLICAS, include_dashboard=False, log_to_driver=False, logging_level="WARNING")
    serve.start(proxy_location="Disabled")
    deployment = serve.deployment(
        EngineDouble,
        num_replicas=REPLICAS,
        max_ongoing_requests=8,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(
            request_router_class="controlplane.fleet.ray_router:PenstockRouter",
            request_router_kwargs={"pool_tokens": 100_000},
        ),
    )
    try:
        yield serve.run(deployment.bind(), name="engines", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()
        patched.undo()


def turn(engines: Any, session: str, size: int) -> str:
    """One turn of the session; the replica that ran it."""
    body = {"messages": [{"role": "user", "content": "x" * size}]}
    return str(engines.options(session_id=session).remote(body).result(timeout_s=150))


def test_sessions_are_spread_and_each_stays_on_its_replica(engines: Any) -> None:
    homes = {f"s{index}": turn(engines, f"s{index}", 4_000) for index in range(2 * REPLICAS)}
    assert sorted(list(homes.values()).count(home) for home in set(homes.values())) == [2] * REPLICAS
    for length in range(2, 6):
        assert {session: turn(engines, session, 4_000 * length) for session in reversed(homes)} == homes


def test_a_session_is_known_by_its_body_as_well_and_nobody_at_all_is_served(engines: Any) -> None:
    body = {"session_id": "named", "prompt": "x" * 1_000}
    found = {engines.remote(body).result(timeout_s=150) for _ in range(5)}
    assert len(found) == 1
    assert engines.remote({"prompt": "who am I"}).result(timeout_s=150)
    assert engines.remote({"program_id": {"no": "name"}}).result(timeout_s=150)
