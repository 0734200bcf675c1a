"""What an event log holds, record by record."""

from dataclasses import dataclass

from controlplane.core.commands import Command
from controlplane.core.events import Event

FORMAT = "penstock-event-log"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line. ``created`` is a date and time for people (ISO 8601), ``config`` the configuration's text."""

    node: str
    preset: str
    created: str = ""
    config: str = ""
    format: str = FORMAT
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event, received at ``now_ns`` on the reader's clock."""

    now_ns: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """A decision was made at ``now_ns``; the commands that it gave follow."""

    now_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """A command that the tick before it gave."""

    now_ns: int
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A new configuration took effect."""

    now_ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """The controller's state before what follows (a snapshot's text): the run did not begin from nothing."""

    now_ns: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The last line was cut, as by a crash: ``message`` says where. Nothing follows; all before it is good."""

    message: str


Record = Header | EventRecord | TickRecord | CommandRecord | ConfigRecord | StateRecord | Truncated
