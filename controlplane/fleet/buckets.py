"""The fleet's bucket in NATS: who leads, and which engines there are; replicated where the server is a cluster."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js.api import KeyValueConfig
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyDeletedError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
)
from nats.js.kv import KeyValue

from controlplane.core.model.errors import EngineUnavailable
from controlplane.transport.subjects import check_name

_REPLICAS = 3
LEADER = "leader"
ENGINES = "engines"
_NOT_CLUSTERED = 10074  # several replicas are asked of a server that stands alone
_TIMEOUT_S = 5.0
T = TypeVar("T")
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
            config = KeyValueConfig(bucket=name, history=1)
            return await replicated(lambda copies: jetstream.create_key_value(replace(config, replicas=copies)))
    except NoRespondersError:
        raise EngineUnavailable("JetStream is off there: start nats-server with -js") from None
    except (APIError, TimeoutError) as error:
        raise EngineUnavailable(f"bucket {name}: {error or 'no answer'}") from None


async def replicated(make: Callable[[int], Awaitable[T]]) -> T:
    """What ``make`` makes of so many copies: of three, or where the server stands alone of one."""
    try:
        return await make(_REPLICAS)
    except APIError as error:
        if error.err_code != _NOT_CLUSTERED:
            raise
    return await make(1)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the lease's key holds: whose lease it is, empty for nobody's, and its revision."""

    holder: bytes
    revision: int


class WriteConflict(Exception):
    """Somebody else wrote since that revision."""


class LeaderKey:
    """The lease's key. Other errors than ``WriteConflict`` mean: nobody knows."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def read(self) -> Entry | None:
        """What is there, as far as this server knows; None if nothing ever was."""
        try:
            found = await self._bucket.get(LEADER)
        except KeyDeletedError as error:  # by no contender: whoever has it may still lead
            return Entry(_DELETED, error.entry.revision or 0)
        except KeyNotFoundError:
            return None
        return Entry(found.value or b"", found.revision or 0)

    async def write(self, holder: bytes, last: int) -> int:
        """Replace what has the revision ``last`` (0: nothing), and return the new one. Raises ``WriteConflict``."""
        try:
            return await self._bucket.update(LEADER, holder, last=last)
        except KeyWrongLastSequenceError as error:
            raise WriteConflict from error
