"""What of programs can be frozen on the tool host: processes and containers that their agents registered.

A sandbox holds memory and CPUs for as long as its program lives, and a program that waits for a slot uses neither.

**Paper**: ThunderAgent §4.4 reclaims sandboxes of programs that have ended; those of programs that wait stay there.
"""

from dataclasses import dataclass, field

from controlplane.core.ledger.index import Index
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs
from controlplane.core.model import events as ev

_MOST = 16_384  # those beyond are never frozen
_WAKES = 32  # that are remembered


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """One program's. ``frozen`` is what its host told last, ``asked`` what it was told to be."""

    publisher: str
    frozen: bool = False
    since_ns: int = 0  # when that was told
    asked: bool = False
    asked_ns: int = 0
    awake_bytes: int = 0  # 0: it was never frozen, so that nobody looked
    held_bytes: int = 0

    @property
    def asleep(self) -> bool:
        """Whether it is frozen or will be."""
        return self.frozen or self.asked

    def awake_ns(self, now_ns: int) -> int:
        """For how long it has been awake; one that is to be frozen was awake for long enough."""
        return now_ns if self.asleep else now_ns - max(self.since_ns, self.asked_ns)


@dataclass(slots=True, kw_only=True, eq=False)
class Sandboxes:
    """The sandboxes that are registered, by program."""

    programs: Programs
    known: dict[str, Sandbox] = persisted(dict, "sandboxes")
    wakes_ns: list[int] = persisted(list, "sandbox_wakes")  # what the latest took, with what tools waited for them
    woken: int = persisted(int, "sandboxes_woken")
    late: int = persisted(int, "sandboxes_late")  # of those: a tool waited
    latest_late_ns: int = persisted(int, "sandboxes_latest_late")
    of_publisher: Index = field(default_factory=Index)

    def __post_init__(self) -> None:
        for name, sandbox in self.known.items():
            self.of_publisher.add(sandbox.publisher, name)

    def sampled(self, event: ev.SandboxSampled, now_ns: int) -> None:
        sandbox = self.known.get(event.program_id)
        if event.gone or (sandbox is None and len(self.known) >= _MOST):
            self.drop(event.program_id)
            return
        self.programs.get_or_create(event.program_id, now_ns)
        if sandbox is None:
            sandbox = self.known[event.program_id] = Sandbox(publisher=event.publisher, since_ns=now_ns)
        self.of_publisher.drop(sandbox.publisher, event.program_id)
        self.of_publisher.add(event.publisher, event.program_id)
        if sandbox.frozen and not event.frozen and event.took_ns:
            self.woken += 1
            self.wakes_ns = [*self.wakes_ns[1 - _WAKES :], event.took_ns + event.late_ns]
            if event.late_ns:
                self.late += 1
                self.latest_late_ns = event.late_ns
        if sandbox.frozen != event.frozen:
            sandbox.frozen, sandbox.since_ns = event.frozen, now_ns
        sandbox.publisher = event.publisher
        sandbox.awake_bytes = event.awake_bytes or sandbox.awake_bytes
        sandbox.held_bytes = event.held_bytes

    def asked(self, program_id: str, frozen: bool, now_ns: int) -> None:
        """Its host is told to freeze or to thaw it."""
        if (sandbox := self.known.get(program_id)) is not None:
            sandbox.asked, sandbox.asked_ns = frozen, now_ns

    def drop(self, program_id: str) -> None:
        if (sandbox := self.known.pop(program_id, None)) is not None:
            self.of_publisher.drop(sandbox.publisher, program_id)

    def forget(self, publisher: str) -> None:
        """The publisher is gone: what it froze thaws by itself."""
        for name in list(self.of_publisher.of(publisher)):
            self.drop(name)

    @property
    def slowest_wake_ns(self) -> int:
        """Of the latest; 0: there was none."""
        return max(self.wakes_ns, default=0)

    # What they hold

    @property
    def usual_bytes(self) -> float:
        """The mean of those awake that were measured; 0: none was."""
        seen = [each.awake_bytes for each in self.known.values() if each.awake_bytes]
        return sum(seen) / len(seen) if seen else 0.0

    def held_bytes(self, usual: float) -> float:
        """By all of them: what is awake holds all of its memory, what is frozen what was not reclaimed.

        ``usual``: ``usual_bytes``, here and below, which looks at each of them.
        """
        return sum(each.held_bytes if each.frozen else each.awake_bytes or usual for each in self.known.values())

    def waking_bytes(self, program_id: str, usual: float) -> float:
        """By how much more they hold once the program is let in; one with no sandbox will have a usual one."""
        sandbox = self.known.get(program_id)
        if sandbox is None:
            return usual
        return max(0, sandbox.awake_bytes - sandbox.held_bytes) if sandbox.frozen else 0.0
