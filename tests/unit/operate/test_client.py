"""A command that gRPC cuts short ends with a sentence, whatever the status: a real server gives each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.commands import penstock

from controlplane.core.model.errors import ControlPlaneError
from controlplane.operate.client import ControlClient, connect

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
SAID = {
    "CANCELLED": "has ended, or is ending; `penstock status --wait 60`",
    "UNKNOWN": "failed at this: details",
    "INVALID_ARGUMENT": "details",
    "DEADLINE_EXCEEDED": "does not answer within 10 s",
    "NOT_FOUND": "details",
    "ALREADY_EXISTS": "has this already: details",
    "PERMISSION_DENIED": "does not allow this: details",
    "RESOURCE_EXHAUSTED": "than one answer takes: details",
    "FAILED_PRECONDITION": "cannot do this now: details",
    "ABORTED": "details",
    "OUT_OF_RANGE": "does not take this value: details",
    "UNIMPLEMENTED": "is another version of the daemon, or another program",
    "INTERNAL": "failed at this: details",
    "UNAVAILABLE": "does not answer: details",
    "DATA_LOSS": "was damaged: details",
    "UNAUTHENTICATED": "Set PENSTOCK_API_CERTIFICATE and PENSTOCK_API_PRIVATE_KEY",
}


class Refusing(grpc.GenericRpcHandler):
    """Ends each call with the status that is set."""

    code = grpc.StatusCode.CANCELLED

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        if details.method.rpartition("/")[2].startswith("Watch"):
            return grpc.unary_stream_rpc_method_handler(self._abort)
        return grpc.unary_unary_rpc_method_handler(self._abort)

    def _abort(self, _: Any, context: grpc.ServicerContext) -> Any:
        context.abort(self.code, "details")


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Refusing, str]]:
    address = f"unix:{tmp_path_factory.mktemp('api')}/api.sock"
    handler, server = Refusing(), grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([handler])
    server.add_insecure_port(address)
    server.start()
    yield handler, address
    server.stop(None).wait()


def told(ask: Any, client: ControlClient) -> str:
    with pytest.raises(ControlPlaneError) as refused:
        ask(client)
    return str(refused.value)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_status_has_a_sentence(refusing: tuple[Refusing, str], code: grpc.StatusCode) -> None:
    handler, address = refusing
    handler.code = code
    with connect(address, "local") as client:
        for ask in (lambda c: c.call("GetStatus"), lambda c: list(c.watch("WatchStatus"))):
            said = told(ask, client)
            assert SAID[code.name] in said
            assert code.name not in said


def test_the_daemon_that_goes_while_one_watches_is_told(refusing: tuple[Refusing, str]) -> None:
    handler, address = refusing
    handler.code = grpc.StatusCode.CANCELLED
    done = penstock("decisions", "--api", address)
    assert done.returncode == 1
    assert done.stderr.startswith(f"penstock: the daemon at {address} has ended")


def test_a_watch_without_a_daemon_says_how_to_start_one(tmp_path: Path) -> None:
    done = penstock("top", "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert "no daemon serves node 'local' here" in done.stderr
    assert "`penstock up --node local`" in done.stderr
