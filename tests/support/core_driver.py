"""Drives a controller by hand: publishers that number their events, and a clock that the test turns."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from controlplane.core.ledger import Ledger
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Program, seconds
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.presets import PRESETS, Preset
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.rules_and_state import ControlRules

C = TypeVar("C", bound=cmd.Command)
E = TypeVar("E", bound=ev.Event)


def fixed(window: int) -> Preset:
    """Admission with ``window`` slots in order of arrival, and no retention."""
    return replace(PRESETS["fcfs"], admission=Fixed(window=window))


class Publisher:
    """Numbers its events from 1. ``skip`` loses events."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0

    def __call__(self, make: Callable[..., E], **fields: object) -> E:
        self.sent += 1
        return make(publisher=self.name, sequence=self.sent, **fields)

    def skip(self, count: int = 1) -> None:
        self.sent += count


class Driver:
    """One controller with a gate, an engine, an agent's hooks and a host probe around it."""

    def __init__(self, preset: Preset | None = None, rules: ControlRules | None = None) -> None:
        self.controller = Controller(preset or fixed(0), rules)
        self.now_ns = seconds(1000)
        self.gate = Publisher("node/gate/1")
        self.engine = Publisher("node/engine/1")
        self.tools = Publisher("node/tool/1")
        self.host = Publisher("node/host/1")

    @property
    def ledger(self):  # type: ignore[no-untyped-def]
        return self.controller.ledger

    @property
    def counts(self):  # type: ignore[no-untyped-def]
        return self.controller.ledger.publishers.counts

    def program(self, name: str) -> Program:
        return self.controller.ledger.programs.by_name[name]

    def send(self, *events: ev.Event) -> None:
        for event in events:
            self.controller.receive(event, self.now_ns)

    def wait(self, duration_s: float) -> None:
        self.now_ns += seconds(duration_s)

    def tick(self, after_s: float = 0.0) -> list[cmd.Command]:
        self.wait(after_s)
        return self.controller.tick(self.now_ns)

    def admitted(self, after_s: float = 0.0) -> list[str]:
        """The programs that one tick grants a slot, in order."""
        return [command.program_id for command in of(cmd.Admit, self.tick(after_s))]

    # What happens

    def pool(self, total: int = 1000, free: int = 1000, block_tokens: int = 1, retractions: int = 0) -> None:
        self.send(
            self.engine(
                ev.PoolSampled,
                total_blocks=total,
                free_blocks=free,
                block_tokens=block_tokens,
                retractions=retractions,
            )
        )

    def cpus(self, count: float) -> None:
        self.send(self.host(ev.HostSampled, cpus=count))

    def ask(self, name: str, turn: str = "", tokens: int = 10, parent: str = "", at_ns: int = 0) -> None:
        """The gate holds a turn."""
        ids = {"program_id": name, "turn_id": turn or f"{name}.1", "parent_id": parent}
        self.send(self.gate(ev.TurnQueued, prompt_tokens=tokens, at_ns=at_ns, **ids))

    def submit(self, name: str, turn: str = "", blocks: int = 10) -> None:
        turn = turn or f"{name}.1"
        self.send(self.engine(ev.TurnSubmitted, program_id=name, turn_id=turn, projected_blocks=blocks))

    def finish(
        self, name: str, turn: str = "", prompt: int = 10, output: int = 0, calls: int = -1, tool: str = ""
    ) -> None:
        self.send(
            self.engine(
                ev.TurnEnded,
                program_id=name,
                turn_id=turn or f"{name}.1",
                prompt_tokens=prompt,
                output_tokens=output,
                tool_calls=calls,
                tool=tool,
            )
        )

    def run_turn(self, name: str, turn: str = "", **ended: object) -> None:
        """Submitted and ended at once."""
        self.submit(name, turn)
        self.finish(name, turn, **ended)  # type: ignore[arg-type]

    def start_tool(self, name: str, call: str = "", tool: str = "bash") -> None:
        self.send(self.tools(ev.ToolStarted, program_id=name, call_id=call or f"{name}.call", tool=tool))

    def end_tool(self, name: str, call: str = "", tool: str = "bash", duration_s: float = 1.0) -> None:
        self.send(
            self.tools(
                ev.ToolEnded,
                program_id=name,
                call_id=call or f"{name}.call",
                tool=tool,
                duration_ns=seconds(duration_s),
            )
        )

    def end(self, name: str) -> None:
        self.send(self.tools(ev.ProgramEnded, program_id=name))


def sums(ledger: Ledger) -> tuple[object, ...]:
    """What the ledger counts as it changes."""
    return ledger.programs.charges, ledger.turns.load, ledger.tools.active, ledger.tools.waiting


def recounted(ledger: Ledger) -> Ledger:
    """Another one of the same records, with indices and sums made anew."""
    return Ledger(snapshot=ledger.records())


def of(kind: type[C], commands: list[cmd.Command]) -> list[C]:
    """The commands of that kind, in order."""
    return [command for command in commands if isinstance(command, kind)]
