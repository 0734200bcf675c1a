"""All that comes and goes by the thousand: programs with children, publishers, tools, engines, gates, accounts.

One crowd lives through a daemon's controller with its recorders and through a gate, each of whose clients, tools,
models and tenants is seen once and never again.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from opentelemetry.metrics import NoOpMeter

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import preset
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.observe.engine_metrics import EngineTokens
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.metrics import Look, Metrics
from controlplane.daemon.observe.regrets import Regrets
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.status.decisions import Decisions
from controlplane.daemon.status.engines import MoveLog
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.gate.contexts import Contexts
from controlplane.gate.continuity import Continuity
from controlplane.gate.gate import Gate
from controlplane.gate.identity import Identity
from controlplane.gate.limits import GateLimits
from controlplane.gate.programs import Proofs
from controlplane.gate.sizing import measure
from controlplane.gate.tickets import Refused, Ticket
from controlplane.wire.codec import Heartbeat, encode_events

AT_ONCE = 20  # programs


class Crowd:
    """What they live through; ``roots`` are the objects that live as long as their process."""

    def __init__(self, preset_name: str) -> None:
        self.now_ns = seconds(1000)
        self.pipeline = DecisionPipeline(Controller(preset(preset_name)))
        self.tokens, self.regrets, self.decisions, self.moves = EngineTokens(), Regrets(), Decisions(), MoveLog()
        self.journal = Journal(lambda: self.pipeline.controller, most=64)
        metrics = Metrics(
            NoOpMeter("growth"), Look(lambda: None, lambda: ()), lambda: self.pipeline.controller, self.tokens
        )
        self.journal.views.append(metrics)
        self.pipeline.recorders += [self.journal, self.regrets]
        self.regrets.lead([], self.now_ns)
        self.sent: list[tuple[str, ev.Event]] = []  # by the gate, since the last step
        self.gate = Gate(
            send=lambda event, urgent: self.sent.append(("node/gate/1", event)),
            now_ns=lambda: self.now_ns,
            limits=GateLimits(max_programs=64),
        )
        self.gate._proofs = Proofs(64)
        self.contexts, self.continuity = Contexts(most_parts=1000), Continuity(most=32)
        self.reporter = ToolReporter(url="nats://127.0.0.1:1", node="node", enabled=False)
        self.numbers: dict[str, int] = {}  # of events, by the publishers of this step
        self.gate_number = 0
        self.came = 0

    @property
    def roots(self) -> Sequence[object]:
        """The objects that live as long as the process."""
        return (
            self.pipeline, self.regrets, self.decisions, self.moves, self.gate, self.contexts, self.continuity,
            self.reporter,
        )  # fmt: skip

    def record(self, publisher: str, *events: ev.Event) -> None:
        """As bytes over the bus."""
        first = self.gate_number if publisher == "node/gate/1" else self.numbers.get(publisher, 0)
        data = encode_events(publisher, first + 1, [(self.now_ns, event) for event in events])
        if publisher == "node/gate/1":
            self.gate_number += len(events)
        else:
            self.numbers[publisher] = first + len(events)
        self.pipeline.feed(data, self.now_ns)

    def step(self, by_s: float = 1.0) -> None:
        """Time passes: what the gate told arrives, the daemon decides, and the gate obeys."""
        self.now_ns += seconds(by_s)
        sent, self.sent[:] = list(self.sent), []
        for publisher, event in sent:
            self.record(publisher, event)
        self.record("node/host/1", ev.HostSampled(cpus=64))
        while self.pipeline.controller.next_deadline_ns() <= self.now_ns:
            commands = self.pipeline.decide(self.now_ns)
            self.pipeline.record()
            self.decisions.record(commands, self.now_ns)
            self.moves.record(commands, self.now_ns)
            for command in commands:
                self.gate.on_command(command)
        self.gate.on_heartbeat(
            Heartbeat(node="node", boot_id="b", lease_ttl_ns=seconds(5), limit=0, window=0.0, command_id=0)
        )

    def rest(self) -> None:
        """Two hours in which nothing comes."""
        for _ in range(130):
            self.step(60)

    async def live(self, programs: int) -> None:
        """So many come and go, some at once, and nobody comes twice."""
        for _ in range(0, programs, AT_ONCE):
            first, self.came = self.came, self.came + AT_ONCE
            await self._live([f"{n:x}" for n in range(first, first + AT_ONCE)])

    async def _live(self, names: Sequence[str]) -> None:
        engine = f"node/engine-{names[0]}/1"
        pool = ev.PoolSampled(total_blocks=10**6, free_blocks=10**6, block_tokens=16, retractions=1)
        self.record(engine, pool)
        self.record(f"node/gate-{names[0]}/1", ev.PublisherState(role=f"gate-{names[0]}"))
        asking = {
            asyncio.ensure_future(self.gate.enter(ticket)): ticket for name in names for ticket in self._ask(name)
        }
        for _ in range(3):
            await asyncio.sleep(0)
            self.step()
        for entering, ticket in asking.items():
            await asyncio.sleep(0)
            entering.cancel()  # whoever is not in has no patience
            with suppress(asyncio.CancelledError, Refused):
                await entering
                self._work(ticket, engine)
        self.step()
        for name in names:
            self._leave(name)
        self.step()
        self.record(engine, ev.PublisherState(role=f"engine-{names[0]}"))
        for publisher in list(self.numbers):
            if publisher != "node/host/1":
                del self.numbers[publisher]

    def _ask(self, name: str) -> Iterator[Ticket]:
        """A program with an account and a model of its own, its child, and a request that names nobody."""
        hook = f"node/tool/{name}"
        self.record(hook, ev.ProgramArrived(program_id=f"child-{name}", parent_id=f"p-{name}", tenant=f"t-{name}"))
        self.record(hook, ev.EnvironmentWanted(program_id=f"p-{name}"))
        body: dict[str, Any] = {
            "model": f"model-{name}",
            "messages": [{"role": "user", "content": f"{name} " * 50}, {"role": "user", "content": "go on"}],
        }
        prompt = measure(body)
        for program in (f"p-{name}", f"child-{name}"):
            identity = Identity(program_id=program, agent=f"agent-{name}")
            size = self.contexts.size(identity, prompt)
            self.contexts.remember(program, f"{program}/1", prompt)
            yield Ticket(
                turn_id=f"{program}/1",
                program_id=program,
                parent_id=f"p-{name}" if program != f"p-{name}" else "",
                tenant=f"t-{name}",
                account=f"t-{name}",
                agent=f"agent-{name}",
                prompt=size,
            )
        for identity in (
            Identity(program_id=f"a-{name}", anonymous=True),
            Identity(program_id=f"s-{name}", source="header x-session-id"),
            Identity(program_id=f"a-{name}", hint=f"h-{name}", source="header x-correlation-id", anonymous=True),
        ):
            self.continuity.name(identity, body, prompt)[1].over(f"resp-{name}")
        yield Ticket(turn_id=f"a-{name}/1", program_id=f"anonymous-{name}", anonymous=True)

    def _work(self, ticket: Ticket, engine: str) -> None:
        """A turn, the reply that calls a tool, and its run."""
        name, turn = ticket.program_id, ticket.turn_id
        ids = {"program_id": name, "turn_id": turn}
        self.record(
            engine,
            ev.TurnSubmitted(projected_blocks=10, prompt_bytes=900, **ids),
            ev.FirstToken(prompt_tokens=900, prefill_ns=10**6, **ids),
            ev.TurnEnded(
                prompt_tokens=900, output_tokens=9, service_ns=10**6, tool_calls=1, tool=f"x-{name}", **ids
            ),
            ev.CommandRejected(command_id=1, program_id=name, reason="no"),
        )
        self.gate.reply_read(ticket, (f"x-{name}",))
        self.gate.leave(ticket)
        hook = f"node/tool/{name}"
        call = {"program_id": name, "call_id": "1", "tool": f"tool-{name}"}
        self.record(hook, ev.ToolStarted(**call), ev.ToolEnded(duration_ns=10**6, **call))
        self.record(hook, ev.ToolStarted(**call | {"call_id": "2"}))  # its end is lost
        self.reporter.tool_started(name, "1", f"tool-{name}")
        if not self.came % 4 and name.endswith("0"):
            self.record(hook, ev.ToolEnded(duration_ns=1, **call | {"call_id": "3"}))  # it never began
        again = {"program_id": name, "turn_id": f"{name}/2"}
        self.record(
            engine,
            ev.TurnSubmitted(projected_blocks=10, **again),
            ev.TurnEnded(prompt_tokens=990, output_tokens=9, service_ns=10**6, tool_calls=1, tool="bash", **again),
        )

    def _leave(self, name: str) -> None:
        """One half says goodbye, the others are only silent."""
        if int(name, 16) % 2:
            self.record(f"node/tool/{name}", ev.ProgramEnded(program_id=f"p-{name}"))
            self.gate.end_program(f"p-{name}")
