"""What publishers hold: restated by themselves, replaced by a later boot, or gone with them.

An engine and a gate exist once at their place, ``node/role``. A new boot there is a restart, but only silence tells
that the old one is gone: whoever still speaks is alive, and holds what it held (docs/adr/0009). Engines that serve
together differ in their role, as ``engine-30000`` and ``engine-30001`` by their ports, and so do the gates before
them, ``gate-30000`` and ``gate-30001`` (docs/adr/0018). Agents' hooks are many at a place.
"""

from collections.abc import Container
from dataclasses import dataclass

from controlplane.core import events as ev
from controlplane.core.commands import Numbering
from controlplane.core.events import joined, place_of, server_of, serves
from controlplane.core.ledger.engines import Engines
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.kept import kept
from controlplane.core.ledger.programs import Programs
from controlplane.core.ledger.publishers import Publishers, Sequence
from controlplane.core.ledger.runs import Runs
from controlplane.core.ledger.tools import Tools, tool_key
from controlplane.core.ledger.turns import Turns
from controlplane.core.lifecycle import Trigger
from controlplane.core.types import Status, seconds

_SILENT_NS, _LOOK_NS = seconds(3600), seconds(60)
_LEASE_NS = seconds(5)  # a boot that was heard within it lives, whoever else speaks from its place


@dataclass(slots=True, kw_only=True, eq=False)
class Holdings:
    """The turns, tools, slots and pins of each publisher."""

    commands: Numbering
    publishers: Publishers
    programs: Programs
    tools: Tools
    gates: Gates
    runs: Runs
    turns: Turns
    engines: Engines
    parts: dict[str, list[ev.PublisherState]] = kept(dict)  # by publisher, of an unfinished state
    looked_at_ns: int = 0  # when silent publishers were last looked for

    def is_new(self, event: ev.Event, now_ns: int) -> bool:
        """Whether a numbered event is to be applied."""
        sequence = self.publishers.sequences.get(event.publisher)
        if sequence is None:
            sequence = self.publishers.sequences[event.publisher] = Sequence(heard_at_ns=now_ns)
            if serves(event.publisher):
                self.retire_replaced(now_ns)
        return self.publishers.note(sequence, event, now_ns)

    def publisher_state(self, event: ev.PublisherState, now_ns: int) -> None:
        """Replace the slice of state that this publisher owns; what it lists and we know stays as it is."""
        publisher = event.publisher
        sequence = self.publishers.sequences.get(publisher)
        if sequence is not None and sequence.is_past(event.sequence):
            self.publishers.counts.late += 1  # hooks say it again with all that they said: it was so then
            return
        if event.part or event.more:
            parts = self.parts.pop(publisher, [])[: event.part]
            if len(parts) < event.part:
                return  # one before it is lost: the gap is asked about, and the whole comes again
            parts.append(event)
            if event.more:
                self.parts[publisher] = parts
                return
            event = joined(parts)
        turn_ids = {turn.turn_id for turn in (*event.held_turns, *event.open_turns)}
        keys = {tool_key(call.program_id, call.call_id) for call in event.open_tools}
        self._drop(publisher, now_ns, keep=turn_ids | keys)
        for grant in event.grants:
            self._holds_slot(grant, now_ns)
        self._restate(event, now_ns)
        for pin in event.pins:
            self.programs.heard_of(pin.program_id, now_ns).retained_until_ns = now_ns + pin.ttl_ns
        if sequence is not None:
            sequence.resynced()
        self.publishers.resync.pop(publisher, None)

    def _restate(self, state: ev.PublisherState, now_ns: int) -> None:
        """Its turns and tools, as if each had been told by an event of its own."""
        publisher, at_ns = state.publisher, state.at_ns
        for turn in state.open_turns:
            name, turn_id = turn.program_id, turn.turn_id
            submitted = ev.TurnSubmitted(
                publisher=publisher, at_ns=at_ns, program_id=name, turn_id=turn_id, projected_blocks=turn.blocks
            )
            self.runs.introduced(name, now_ns, parent_id=turn.parent_id)
            self.turns.submitted(submitted, now_ns)
        for turn in state.held_turns:
            name, turn_id, parent_id = turn.program_id, turn.turn_id, turn.parent_id
            queued = ev.TurnQueued(
                publisher=publisher, at_ns=at_ns, program_id=name, turn_id=turn_id, parent_id=parent_id
            )
            self.turns.queued(queued, now_ns)
        for call in state.open_tools:
            name, call_id, tool = call.program_id, call.call_id, call.tool
            if call.started:
                started = ev.ToolStarted(
                    publisher=publisher, at_ns=at_ns, program_id=name, call_id=call_id, tool=tool
                )
                self.tools.started(started, now_ns)
            else:
                enqueued = ev.ToolEnqueued(
                    publisher=publisher, program_id=name, call_id=call_id, tool=tool, wants_slot=call.wants_slot
                )
                self.tools.enqueued(enqueued, now_ns)

    def _holds_slot(self, grant: ev.Grant, now_ns: int) -> None:
        """A gate holds the grant of a daemon: one that we forgot, or one whose end the gate has missed."""
        programs = self.programs
        known = programs.by_name.get(grant.program_id)
        root = programs.root_of(known, now_ns) if known is not None else None
        is_over = root is not None and root.status is Status.ENDED and root.ended_by_word
        is_active = root is not None and root.status is Status.ACTIVE
        if is_over or (not is_active and self.commands.remembers(grant.command_id)):
            self.runs.overheld[grant.program_id] = None
            return
        program = known if known is not None else programs.heard_of(grant.program_id, now_ns)
        root = programs.root_of(program, now_ns)
        programs.move(root, Trigger.SUBMIT, now_ns)
        programs.unasked.pop(root.program_id, None)
        programs.move(program, Trigger.SUBMIT, now_ns)
        if not program.open_turns and not program.queued_turns and not program.gap_since_ns:
            program.gap_since_ns = now_ns  # it is between two turns: since when, nobody knows

    def _drop(self, publisher: str, now_ns: int, *, keep: Container[str] = ()) -> None:
        """Forget the turns and tools that only ``publisher`` told of, but for the ids in ``keep``.

        What it contradicted itself about is forgotten too.
        """
        for key in [key for key, held in self.gates.held.items() if held.publisher == publisher]:
            if key not in keep:
                self.gates.let_go(key, now_ns)
        for key in [key for key, turn in self.turns.running.items() if turn.publisher == publisher]:
            if key not in keep:
                self.turns.left(key, now_ns)
        for key in [key for key, call in self.tools.calls.items() if call.publisher == publisher]:
            if key not in keep and not self.tools.calls[key].detached:
                self.tools.drop(key, now_ns)
        for program in self.programs.by_name.values():
            if program.quarantined and program.accused == publisher:
                program.quarantined, program.accused = False, ""

    # Publishers that are gone

    def forget(self, publisher: str, now_ns: int) -> None:
        """The publisher is gone, and with it what only it held."""
        self._drop(publisher, now_ns)
        self.tools.forget(publisher)
        self.engines.retractions.pop(publisher, None)
        self.parts.pop(publisher, None)
        self.publishers.forget(publisher)

    def lose(self, publisher: str, now_ns: int) -> None:
        """The publisher is gone. An engine's memory goes with it, unless it is the last that was known."""
        self.forget(publisher, now_ns)
        self.engines.lose(place_of(publisher))

    def engines_listed(self, event: ev.EnginesListed, now_ns: int) -> None:
        """Engines that left a fleet are lost at once, whatever their publishers would still say."""
        here = {*event.serving, *event.draining}
        told = [name for name in self.publishers.sequences if serves(name)]
        for place in [each for each in self.engines.pools if each not in here]:
            for publisher in [name for name in told if place_of(name) == place]:
                self.forget(publisher, now_ns)
            self.engines.lose(place)
        self.engines.list_all(event.serving, event.draining)

    def retire_replaced(self, now_ns: int) -> None:
        """Forget boots of an engine or a gate that went silent while a later one speaks.

        They hold nothing any more. One that speaks again was alive: it is a new publisher with a gap, and is asked
        for its state.
        """
        sequences = self.publishers.sequences
        singles = sorted(filter(serves, sequences), key=lambda name: sequences[name].heard_at_ns)
        latest = {place_of(name): name for name in singles}  # the last one of a place stays
        for old in singles:
            place = place_of(old)
            if latest[place] != old and now_ns - sequences[old].heard_at_ns >= _LEASE_NS:
                self.forget(old, now_ns)
                for engine in self._gone_with(place):  # their pools stay until they are told anew
                    self.engines.forget_contexts(engine)

    def _gone_with(self, place: str) -> set[str]:
        """The engines that a restart there restarts: that one, or those of the gate's own server."""
        node, _, role = place.rpartition("/")
        named = f"{node}/engine{''.join(role.partition('-')[1:])}"
        if place == named:
            return {named}
        return {named} | {each for each in self.engines.pools if server_of(each) == server_of(place)}

    def forget_silent(self, now_ns: int) -> None:
        """Forget agents' processes that hold nothing and have been silent for an hour, at most once a minute.

        One that speaks again is a new publisher with a gap, and is asked for its state.
        """
        if now_ns - self.looked_at_ns < _LOOK_NS:
            return
        self.looked_at_ns = now_ns
        holding = {call.publisher for call in self.tools.calls.values()}
        holding |= {wanted.publisher for wanted in self.tools.environments.values()}
        for name, sequence in list(self.publishers.sequences.items()):
            if now_ns - sequence.heard_at_ns >= _SILENT_NS and name not in holding and not serves(name):
                self.forget(name, now_ns)

    def worth_asking(self) -> set[str]:
        """Publishers that a held turn, a running turn or a tool call depends on, and each of several engines.

        Not those of detached calls, which live on without them.
        """
        named = {work.publisher for table in (self.gates.held, self.turns.running) for work in table.values()}
        named |= {call.publisher for call in self.tools.calls.values() if not call.detached}
        if len(self.engines.pools) > 1:
            named |= {sample.publisher for sample in self.engines.pools.values()}
        return named & self.publishers.sequences.keys()
