"""A model of a NATS server with JetStream: subjects, streams with ordered consumers, disks that fill up, restarts.

What it knows of NATS, beside the obvious: a message to a subject that a stream captures is acknowledged only where
it is a request; a server whose disk was full keeps nothing until it is started again, and says so to nobody who
did not ask; consumers of a connection end with it; and who connects to a machine that lost its power finds a stream
that lacks its latest messages.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from nats.js.errors import APIError, NotFoundError

from .threads import Scheduler

NO_ROOM = 10047


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream, with the server's wall clock."""

    subject: str
    data: bytes
    sequence: int
    wall_ns: int


@dataclass
class Stream:
    """``messages`` begins with the one numbered ``first``."""

    name: str
    created: str
    config: Any
    first: int = 1
    messages: list[Stored] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.first + len(self.messages) - 1

    def info(self) -> Any:
        state = SimpleNamespace(first_seq=self.first, last_seq=self.last)
        return SimpleNamespace(created=self.created, config=self.config, state=state)


@dataclass
class Consumer:
    """Delivers a stream's messages in order to one subscription of one connection."""

    stream: Stream
    next_sequence: int


def matches(pattern: str, subject: str) -> bool:
    if pattern.endswith(".>"):
        return subject.startswith(pattern[:-1])
    if "*" not in pattern:
        return pattern == subject
    parts, others = pattern.split("."), subject.split(".")
    return len(parts) == len(others) and all(a in ("*", b) for a, b in zip(parts, others, strict=True))


class Link:
    """A TCP connection: each direction keeps its order, and what is under way is lost with it."""

    def __init__(self, server: "Server", end: Any, base_s: float) -> None:
        self.server, self.end = server, end
        self.is_up = True
        self.slow_s = 0.0  # what is sent now takes so much longer
        self.subscriptions: dict[int, str] = {}
        self.consumers: dict[int, Consumer] = {}
        self._base_s = base_s
        self._arrives_ns = [0, 0]  # the latest in each direction

    def up(self, what: Callable[[], None]) -> None:
        """To the server."""
        self._send(0, lambda: self.server.take(self, what))

    def down(self, what: Callable[[], None]) -> None:
        """To the client's thread."""
        self._send(1, lambda: self._arrive(what))

    def _send(self, way: int, what: Callable[[], None]) -> None:
        if not self.is_up:
            return
        scheduler, random = self.server.scheduler, self.server.random
        delay_s = self._base_s * random.uniform(0.5, 2.0) + self.slow_s
        self._arrives_ns[way] = max(self._arrives_ns[way], scheduler.now_ns + round(delay_s * 1e9))
        scheduler.at(self._arrives_ns[way], lambda: what() if self.is_up else None)

    def _arrive(self, what: Callable[[], None]) -> None:
        self.end.thread.call_soon_threadsafe(what)

    def cut(self) -> None:
        """Both ends notice, the client in its own thread."""
        if not self.is_up:
            return
        self.is_up = False
        self.server.links.discard_link(self)
        if not self.end.thread.is_closed():
            self.end.thread.call_soon_threadsafe(self.end.lost, self)


class Links(list["Link"]):
    """Connections in the order in which they were made."""

    def discard_link(self, link: "Link") -> None:
        if link in self:
            self.remove(link)


class Server:
    """``full``: its disk has no room. ``deaf``: it keeps nothing, though there may be room again."""

    def __init__(self, scheduler: Scheduler, random: Random, wall_ns: Callable[[], int]) -> None:
        self.scheduler, self.random, self.wall_ns = scheduler, random, wall_ns
        self.is_up = True
        self._frozen_until_ns = 0
        self._unread: deque[tuple[Link, Callable[[], None]]] = deque()  # what came while it was frozen
        self.full = self.deaf = False
        self.unreachable: Counter[str] = Counter()  # for connections of these names, by so many faults
        self.loss_ratio = 0.0  # of messages that are delivered to plain subscribers
        self.twice_ratio = 0.0  # of messages that a stream keeps twice, as a publisher's resent ones
        self.lost = 0
        self.streams: dict[str, Stream] = {}
        self.links = Links()
        self.on_stored: Callable[[Stored], None] = lambda _: None
        self._numbers = 0

    def new_number(self) -> int:
        """Another one each time."""
        self._numbers += 1
        return self._numbers

    # Its life

    def connect(self, end: Any, base_s: float) -> Link | None:
        """None where nobody listens."""
        if not self.is_up or self.unreachable[end.name] or end.is_closed:
            return None
        link = Link(self, end, base_s)
        self.links.append(link)
        return link

    def stop(self) -> None:
        """Connections break; what is kept is kept."""
        self.is_up = False
        for link in list(self.links):
            link.cut()

    def start(self) -> None:
        self.is_up, self.deaf = True, self.full
        self._frozen_until_ns = 0
        self._thaw()

    def freeze(self, for_s: float) -> None:
        """It reads nothing for so long; who froze it for longer before has the last word."""
        until_ns = self.scheduler.now_ns + round(for_s * 1e9)
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        self.scheduler.at(until_ns, self._thaw)

    def _thaw(self) -> None:
        """It reads on in the order in which things came."""
        while self._unread and self.scheduler.now_ns >= self._frozen_until_ns:
            link, what = self._unread.popleft()
            if link.is_up:
                what()

    def lose_tail(self, since_ns: int) -> None:
        """The machine lost its power: what was kept after that instant by the wall is gone."""
        for stream in self.streams.values():
            while stream.messages and stream.messages[-1].wall_ns >= since_ns:
                stream.messages.pop()

    def fill_up(self) -> None:
        self.full = self.deaf = True

    def free(self) -> None:
        """There is room again, which the server does not notice before it is started again."""
        self.full = False

    def delete_streams(self) -> None:
        """Somebody deletes all streams; nobody is told."""
        self.streams.clear()
        for link in self.links:
            link.consumers.clear()

    @property
    def keeps(self) -> bool:
        """Whether a stream takes what is published, unless its client leaves before the server has read it."""
        frozen = self.scheduler.now_ns < self._frozen_until_ns
        return self.is_up and not self.deaf and not frozen and bool(self.streams)

    def take(self, link: Link, what: Callable[[], None]) -> None:
        """What came over a link, once the server runs."""
        if self.scheduler.now_ns < self._frozen_until_ns or self._unread:
            self._unread.append((link, what))
        elif link.is_up:
            what()

    # Messages

    def publish(self, link: Link, subject: str, data: bytes, reply: str) -> None:
        heard = False
        for other in list(self.links):
            for number, pattern in list(other.subscriptions.items()):
                if matches(pattern, subject):
                    heard = True
                    self._deliver(other, number, subject, data, reply)
        for stream in list(self.streams.values()):
            if any(matches(pattern, subject) for pattern in stream.config.subjects) and not self.deaf:
                heard = True
                for _ in range(2 if self.random.random() < self.twice_ratio else 1):
                    self._store(stream, subject, data)
        if reply and not heard:
            link.down(lambda: link.end.answered(reply, None))

    def respond(self, inbox: str, data: bytes) -> None:
        for other in list(self.links):
            if inbox.startswith(other.end.inbox):
                other.down(partial(other.end.answered, inbox, data))

    def _deliver(self, link: Link, number: int, subject: str, data: bytes, reply: str) -> None:
        if self.loss_ratio and not reply and self.random.random() < self.loss_ratio:
            self.lost += 1
            return
        link.down(lambda: link.end.message(number, subject, data, reply, None))

    def _store(self, stream: Stream, subject: str, data: bytes) -> None:
        stored = Stored(subject, data, stream.last + 1, self.wall_ns())
        stream.messages.append(stored)
        self.on_stored(stored)
        for link in list(self.links):
            self.feed(link)

    def feed(self, link: Link) -> None:
        """Send each consumer of the link what it has not had."""
        for number, consumer in link.consumers.items():
            stream = consumer.stream
            while consumer.next_sequence <= stream.last:
                stored = stream.messages[max(0, consumer.next_sequence - stream.first)]
                consumer.next_sequence = stored.sequence + 1
                link.down(
                    lambda n=number, s=stored: link.end.message(n, s.subject, s.data, "", s)  # type: ignore[misc]
                )

    # JetStream's API

    def info(self, name: str) -> Any:
        if name not in self.streams:
            raise NotFoundError(code=404, err_code=10059, description="stream not found")
        return self.streams[name].info()

    def make(self, config: Any) -> Any:
        """A stream; one that is there is set right."""
        if config.name in self.streams:
            self.streams[config.name].config = config
            return self.info(config.name)
        if self.deaf:
            raise APIError(code=500, err_code=NO_ROOM, description="insufficient storage resources available")
        created = f"stream {self.new_number()} at {self.wall_ns()}"
        self.streams[config.name] = Stream(config.name, created, config)
        return self.info(config.name)

    def consume(self, link: Link, number: int, name: str, first: int) -> None:
        self.info(name)
        link.consumers[number] = Consumer(self.streams[name], max(first, self.streams[name].first))
        self.feed(link)
