"""The fleet's bucket in NATS: who leads, and which engines there are; replicated where the server is a cluster."""

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyDeletedError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
)
from nats.js.kv import KeyValue

from controlplane.core.errors import EngineUnavailable
from controlplane.fleet.lease import Entry, Outrun
from controlplane.wire.subjects import check_name

REPLICAS = 3
LEADER = "leader"
ENGINES = "engines"
NOT_CLUSTERED = 10074  # several replicas are asked of a server that stands alone
_TIMEOUT_S = 5.0
_DELETED = b"deleted"


def bucket_name(fleet: str) -> str:
    """Of a fleet: a name that its stream does not have."""
    return f"PENSTOCK-FLEET-{check_name(fleet, field='fleet')}"


async def fleet_bucket(client: Client, fleet: str) -> KeyValue:
    """Make the fleet's bucket, or find it. Raises ``EngineUnavailable`` where the server keeps none, or not yet."""
    jetstream = client.jetstream(timeout=_TIMEOUT_S)
    name = bucket_name(fleet)
    try:
        try:
            return await jetstream.key_value(name)
        except BucketNotFoundError:
            return await _made(jetstream, name)
    except NoRespondersError:
        raise EngineUnavailable("JetStream is off there: start nats-server with -js") from None
    except (APIError, TimeoutError) as error:
        raise EngineUnavailable(f"bucket {name}: {error or 'no answer'}") from None


async def _made(jetstream: JetStreamContext, name: str) -> KeyValue:
    for replicas in (REPLICAS, 1):
        try:
            return await jetstream.create_key_value(KeyValueConfig(bucket=name, history=1, replicas=replicas))
        except APIError as error:
            if error.err_code != NOT_CLUSTERED or replicas == 1:
                raise
    raise AssertionError("unreachable")


class LeaderKey:
    """The lease's key: a ``Bucket`` as ``Lease`` wants it."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def read(self) -> Entry | None:
        try:
            found = await self._bucket.get(LEADER)
        except KeyDeletedError as error:  # by no contender: whoever has it may still lead
            return Entry(_DELETED, error.entry.revision or 0)
        except KeyNotFoundError:
            return None
        return Entry(found.value or b"", found.revision or 0)

    async def write(self, holder: bytes, last: int) -> int:
        try:
            return await self._bucket.update(LEADER, holder, last=last)
        except KeyWrongLastSequenceError as error:
            raise Outrun from error
