"""Flaws that the product once had, to be put back: the simulator must find each of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from controlplane.core.ledger.publisher_states import PublisherStates
from controlplane.core.ledger.runs import Runs
from controlplane.core.ledger.turns import Turns
from controlplane.core.model.places import place_of, serves
from controlplane.core.model.steps import Steps
from controlplane.daemon import daemon as daemons
from controlplane.daemon.bus import snapshot as snapshots
from controlplane.daemon.bus.clock import Clock
from controlplane.daemon.bus.connection import Bus
from controlplane.daemon.daemon import Daemon
from controlplane.gate.gate import Gate

from . import processes
from .world import Plan, plan_of


def _time_runs_from_the_wall() -> AbstractContextManager[Any]:
    return patch.object(Clock, "go_on_from", lambda self, told_ns: 0.0)


@contextmanager
def _heartbeats_without_events() -> Iterator[None]:
    connected = property(lambda self: self._client.is_connected)
    silent = property(lambda self: 0.0)
    with patch.object(Bus, "delivers", connected), patch.object(Bus, "silent_s", silent):
        yield


class _Hasty(PublisherStates):
    """A newcomer at a place retires the first."""

    def is_new(self, event: Any, now_ns: int) -> Steps[bool]:
        publisher = event.publisher
        known, latest = (self.__dict__.setdefault(name, {}) for name in ("boots_seen", "latest_boots"))
        if serves(publisher) and publisher not in known:
            before, known[publisher] = latest.get(place_of(publisher)), None
            latest[place_of(publisher)] = publisher
            if before is not None:
                yield from self.forget(before, now_ns)
        if latest.get(place_of(publisher), publisher) != publisher:
            return False
        return (yield from super().is_new(event, now_ns))


def _a_newcomer_retires_the_first() -> AbstractContextManager[Any]:
    return patch.dict("controlplane.core.ledger._NOUNS", publisher_states=_Hasty)


def _a_full_disk_ends_the_decisions() -> AbstractContextManager[Any]:
    def saving(self: Daemon, now_ns: int) -> Steps[None]:
        path: Any = self._state_path
        path.disk.replace(path.name, b"".join(self._snapshot(now_ns)))
        self._saved_at_ns = now_ns
        yield

    return patch.object(Daemon, "_saving", saving)


def _a_second_daemon_is_let_in() -> AbstractContextManager[Any]:
    return patch.object(processes, "instance_lock", lambda node, folder: nullcontext())


def _keeping_counts_running_turns() -> AbstractContextManager[Any]:
    def slots(self: Gate, now_ns: int) -> float:
        limit = self._authority.local_limit(now_ns)
        return float("inf") if limit is None else limit - self._busy_programs

    return patch.object(Gate, "_local_slots", slots)


def _late_events_revive_the_ended() -> AbstractContextManager[Any]:
    return patch.object(Turns, "_is_late", lambda *which: False)


def _the_deaf_decide() -> AbstractContextManager[Any]:
    return patch.object(Daemon, "_is_current", property(lambda self: True))


def _an_early_child_is_a_root() -> AbstractContextManager[Any]:
    return patch.object(Runs, "adopt", lambda *which: None)


def _a_torn_snapshot_ends_the_daemon() -> AbstractContextManager[Any]:
    load = snapshots.load

    def trusting(*given: Any) -> Any:
        try:
            return load(*given)
        except snapshots.SnapshotError as error:
            raise RuntimeError("unread") from error

    return patch.object(daemons.snapshots, "load", trusting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """How it is put back, what is broken then, and the plans that show it soonest; all show it in the end."""

    put_back: Callable[[], AbstractContextManager[Any]]
    breaks: str  # a part of what the auditor says
    kinds: tuple[str, ...] = ()
    most_faults: int = 12
    children_ratio: float = 0.1
    soonest: int = 0  # a seed that showed it; where it does not any more, another will

    def plan(self, seed: int) -> Plan:
        """One of those plans."""
        return plan_of(seed, kinds=self.kinds, most_faults=self.most_faults, children_ratio=self.children_ratio)


_A_WAIT = "of them without any fault"
_FATAL = "nothing ends the daemon, but"

FLAWS: dict[str, Flaw] = {
    "D1: a wall clock that was set back stops the intervals": Flaw(
        put_back=_time_runs_from_the_wall, breaks=_A_WAIT, kinds=("clock is stepped at a restart",), soonest=1
    ),
    "D1: heartbeats go on where no event arrives": Flaw(
        put_back=_heartbeats_without_events, breaks=_A_WAIT, kinds=("disk is full", "stream is deleted"), soonest=1
    ),
    "D2: a newcomer at a place retires the first": Flaw(
        put_back=_a_newcomer_retires_the_first, breaks=_A_WAIT, kinds=("server is killed",), soonest=5
    ),
    "D4: a full disk ends the decisions": Flaw(
        put_back=_a_full_disk_ends_the_decisions,
        breaks="nothing raises in the daemon",
        kinds=("snapshots do not fit",),
    ),
    "D5: a second daemon is let in": Flaw(
        put_back=_a_second_daemon_is_let_in,
        breaks="a second daemon is refused",
        kinds=("second daemon", "daemon is frozen"),
        soonest=4,
    ),
    "D7: keeping counts running turns": Flaw(
        put_back=_keeping_counts_running_turns,
        breaks="a gate without a daemon admits up to the last limit",
        kinds=("daemon stays away",),
        soonest=2,
    ),
    "D10: late events revive ended programs": Flaw(
        put_back=_late_events_revive_the_ended, breaks="a goodbye holds", kinds=("connection is slow",), soonest=1
    ),
    "a daemon that hears nothing decides": Flaw(
        put_back=_the_deaf_decide, breaks="with a slot, and the limit is", kinds=("NATS is restarted",)
    ),
    "a child whose engine speaks first takes a slot": Flaw(
        put_back=_an_early_child_is_a_root, breaks=_A_WAIT, most_faults=0, children_ratio=0.7
    ),
    "a damaged snapshot ends the daemon": Flaw(
        put_back=_a_torn_snapshot_ends_the_daemon, breaks=_FATAL, kinds=("snapshot is damaged",)
    ),
}
"""By what was wrong; the numbers are those of the attack that found them."""
