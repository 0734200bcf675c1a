"""Whom the load generator watches on a real nats-server."""

from support.daemon_process import eventually
from support.nats import NatsServer

from controlplane.lab.load.watch import StatusWatch


async def test_a_watch_that_ends_while_it_connects_leaves_nothing_open(nats_server: NatsServer) -> None:
    nats_server.suspend()  # its port still accepts: the kernel does that
    try:
        with StatusWatch(nats_server.url, "node"):
            await eventually(lambda: nats_server.connections_from_here > 0, what="a connection")
        assert nats_server.connections_from_here == 0
    finally:
        nats_server.resume()
