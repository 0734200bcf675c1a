"""What publishers hold: restated by themselves, replaced by a later boot, or gone with them.

An engine and a gate exist once at their place, ``node/role``. A new boot there is a restart, but only silence tells
that the old one is gone: whoever still speaks is alive, and holds what it held (docs/adr/0009). Engines that serve
together differ in their role, as ``engine-30000`` and ``engine-30001`` by their ports, and so do the gates before
them, ``gate-30000`` and ``gate-30001`` (docs/adr/0018). Agents' hooks are many at a place.
"""

from collections.abc import Container
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from controlplane.core.ledger.engines import Engines
from controlplane.core.ledger.gates import Gates
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs
from controlplane.core.ledger.publishers import Publishers, SequenceTracker
from controlplane.core.ledger.runs import Runs
from controlplane.core.ledger.sandboxes import Sandboxes
from controlplane.core.ledger.tools import Tools, tool_key
from controlplane.core.ledger.turns import Turns
from controlplane.core.model import events as ev
from controlplane.core.model.commands import Numbering
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.places import place_of, server_of, serves
from controlplane.core.model.state_parts import joined
from controlplane.core.model.steps import Steps, in_chunks
from controlplane.core.model.types import Status, seconds

_SILENT_NS, _LOOK_NS = seconds(900), seconds(60)
_MOST_PUBLISHERS = 16_384  # of those that hold nothing the longest silent is forgotten
_MOST_LOOKED_AT = 64  # of the longest silent, until one is found that holds nothing
_LEASE_NS = seconds(5)  # a boot that was heard within it lives, whoever else speaks from its place


@dataclass(slots=True, kw_only=True, eq=False)
class PublisherStates:
    """The turns, tools, slots and pins of each publisher."""

    commands: Numbering
    publishers: Publishers
    programs: Programs
    tools: Tools
    gates: Gates
    sandboxes: Sandboxes
    runs: Runs
    turns: Turns
    engines: Engines
    parts: dict[str, list[ev.PublisherState]] = persisted(dict)  # by publisher, of an unfinished state
    looked_at_ns: int = 0  # when silent publishers were last looked for

    def is_new(self, event: ev.Event, now_ns: int) -> Steps[bool]:
        publisher = event.publisher
        if publisher not in self.publishers.sequences:
            self._make_room()
            self.publishers.sequences[publisher] = SequenceTracker(heard_at_ns=now_ns)
            if serves(publisher):
                self.publishers.serving[publisher] = None
                yield from self.retire_replaced(now_ns)
        return self.publishers.note(event, now_ns)

    def _make_room(self) -> None:
        sequences = self.publishers.sequences
        if len(sequences) >= _MOST_PUBLISHERS:
            oldest = islice(sequences, _MOST_LOOKED_AT)
            if (idle := next((name for name in oldest if not self._is_needed(name)), None)) is not None:
                self._forget_name(idle)

    def publisher_state(self, event: ev.PublisherState, now_ns: int) -> Steps[None]:
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
        yield from self._drop(publisher, now_ns, keep=turn_ids | keys)
        for grants in in_chunks(event.grants):
            for grant in grants:
                self._holds_slot(grant, now_ns)
            yield
        yield from self._restate(event, now_ns)
        for pin in event.pins:
            self.programs.get_or_create(pin.program_id, now_ns).retained_until_ns = now_ns + pin.ttl_ns
        if sequence is not None:
            sequence.resynced()
        self.publishers.resync.pop(publisher, None)

    def _restate(self, state: ev.PublisherState, now_ns: int) -> Steps[None]:
        """Its turns and tools, as if each had been told by an event of its own."""
        for turns in in_chunks(state.open_turns):
            for turn in turns:
                submitted = ev.TurnSubmitted(
                    publisher=state.publisher,
                    at_ns=state.at_ns,
                    program_id=turn.program_id,
                    turn_id=turn.turn_id,
                    projected_blocks=turn.blocks,
                )
                self.runs.get_or_create_child(turn.program_id, now_ns, parent_id=turn.parent_id)
                self.turns.submitted(submitted, now_ns)
            yield
        for turns in in_chunks(state.held_turns):
            for turn in turns:
                queued = ev.TurnQueued(
                    publisher=state.publisher,
                    at_ns=state.at_ns,
                    program_id=turn.program_id,
                    turn_id=turn.turn_id,
                    parent_id=turn.parent_id,
                )
                self.turns.queued(queued, now_ns)
            yield
        for calls in in_chunks(state.open_tools):
            for call in calls:
                self._restate_call(state, call, now_ns)
            yield

    def _restate_call(self, state: ev.PublisherState, call: ev.OpenTool, now_ns: int) -> None:
        ids: dict[str, Any] = {"program_id": call.program_id, "call_id": call.call_id, "tool": call.tool}
        if call.started:
            self.tools.started(ev.ToolStarted(publisher=state.publisher, at_ns=state.at_ns, **ids), now_ns)
        else:
            asked = ev.ToolEnqueued(publisher=state.publisher, wants_slot=call.wants_slot, **ids)
            self.tools.enqueued(asked, now_ns)

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
        program = known if known is not None else programs.get_or_create(grant.program_id, now_ns)
        root = programs.root_of(program, now_ns)
        programs.move(root, Trigger.SUBMIT, now_ns)
        programs.unasked.pop(root.program_id, None)
        programs.move(program, Trigger.SUBMIT, now_ns)
        if not program.open_turns and not program.queued_turns and not program.gap_since_ns:
            program.gap_since_ns = now_ns  # it is between two turns: since when, nobody knows

    def _drop(self, publisher: str, now_ns: int, *, keep: Container[str] = ()) -> Steps[None]:
        """Forget the turns and tools that only ``publisher`` told of, but for the ids in ``keep``.

        What it contradicted itself about is forgotten too.
        """
        for keys, drop in (
            (self.gates.by_publisher.of(publisher), self.gates.let_go),
            (self.turns.by_publisher.of(publisher), self.turns.left),
            (self.tools.of_publisher.of(publisher), self.tools.drop),
        ):
            for some in in_chunks(keys):
                for key in some:
                    if key not in keep:
                        drop(key, now_ns)
                yield
        self.programs.acquit_all_of(publisher)

    # Publishers that are gone

    def forget(self, publisher: str, now_ns: int) -> Steps[None]:
        yield from self._drop(publisher, now_ns)
        self._forget_name(publisher)

    def _forget_name(self, publisher: str) -> None:
        self.programs.acquit_all_of(publisher)
        self.tools.forget(publisher)
        self.sandboxes.forget(publisher)
        self.engines.retractions.pop(publisher, None)
        self.parts.pop(publisher, None)
        self.publishers.forget(publisher)

    def handle_loss(self, publisher: str, now_ns: int) -> Steps[None]:
        """The publisher is gone. An engine's memory goes with it, unless it is the last that was known."""
        yield from self.forget(publisher, now_ns)
        self.engines.handle_loss(place_of(publisher))

    def engines_listed(self, event: ev.EnginesListed, now_ns: int) -> Steps[None]:
        """Engines that left a fleet are lost at once, whatever their publishers would still say."""
        here = {*event.serving, *event.draining}
        serving = list(self.publishers.serving)
        for place in [each for each in self.engines.pools if each not in here]:
            for publisher in [name for name in serving if place_of(name) == place]:
                yield from self.forget(publisher, now_ns)
            self.engines.handle_loss(place)
            yield
        self.engines.list_all(event.serving, event.draining)

    def retire_replaced(self, now_ns: int) -> Steps[None]:
        """Forget boots of an engine or a gate that went silent while a later one speaks.

        They hold nothing any more. One that speaks again was alive: it is a new publisher with a gap, and is asked
        for its state.
        """
        sequences = self.publishers.sequences
        singles = sorted(self.publishers.serving, key=lambda name: sequences[name].heard_at_ns)
        latest = {place_of(name): name for name in singles}  # the last one of a place stays
        for old in singles:
            place = place_of(old)
            if latest[place] != old and now_ns - sequences[old].heard_at_ns >= _LEASE_NS:
                yield from self.forget(old, now_ns)
                for engine in self._engines_of(place):  # their pools stay until they are told anew
                    self.engines.forget_contexts(engine)

    def _engines_of(self, place: str) -> set[str]:
        """The engines that a restart there restarts: that one, or those of the gate's own server."""
        node, _, role = place.rpartition("/")
        named = f"{node}/engine{''.join(role.partition('-')[1:])}"
        if place == named:
            return {named}
        return {named} | {each for each in self.engines.pools if server_of(each) == server_of(place)}

    def forget_silent(self, now_ns: int) -> None:
        """Forget who holds nothing and has been silent for a quarter of an hour, at most once a minute.

        One that speaks again is a new publisher with a gap, and is asked for its state.
        """
        if now_ns - self.looked_at_ns < _LOOK_NS:
            return
        self.looked_at_ns = now_ns
        silent = takewhile(
            lambda known: now_ns - known[1].heard_at_ns >= _SILENT_NS, self.publishers.sequences.items()
        )
        for name in [name for name, _ in silent if not self._is_needed(name)]:
            self._forget_name(name)

    def _is_needed(self, publisher: str) -> bool:
        """Whether anything hangs on its word: its work, or an engine that is known."""
        pool = self.engines.sample_of(place_of(publisher)) if publisher in self.publishers.serving else None
        tools, turns = self.tools, self.turns.by_publisher
        own = (tools.of_publisher, tools.wanted_by, self.sandboxes.of_publisher)
        tables = (self.gates.by_publisher, turns, *own)
        return any(publisher in table for table in tables) or (pool is not None and pool.publisher == publisher)

    def publishers_in_use(self) -> set[str]:
        """Publishers that a held turn, a running turn, a tool call or a sandbox depends on, and each engine.

        Not those of detached calls, which live on without them.
        """
        named = {*self.gates.by_publisher, *self.turns.by_publisher, *self.tools.of_publisher}
        named |= {*self.sandboxes.of_publisher}
        named |= {sample.publisher for sample in self.engines.samples.values()}
        return named & self.publishers.sequences.keys()
