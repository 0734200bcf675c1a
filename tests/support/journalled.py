"""A controller with what its daemon writes down beside it: journal, regrets, and the log of decisions."""

from pathlib import Path
from typing import Any

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.tenancy import Tenancy
from controlplane.core.model.types import seconds
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.daemon.observe.decision_log import DecisionLog
from controlplane.daemon.observe.journal import Journal
from controlplane.daemon.observe.regrets import Regrets
from controlplane.daemon.pipeline import Recorder
from support.core_driver import Driver, fixed
from support.disks import PromptDisk


class Journalled:
    """It leads, and lets in ``slots`` programs; the engine idles before the first turn."""

    def __init__(
        self, slots: int = 1, *, most: int = 1000, path: Path | None = None, tenancy: Tenancy | None = None
    ) -> None:
        self.driver = Driver(fixed(slots), ControlRules(stall_s=60, tenancy=tenancy or Tenancy()))
        self.journal = Journal(lambda: self.driver.controller, most)
        self.path = path or Path()
        if path is not None:
            self.log = DecisionLog(path, 40_000, self.journal.controller, PromptDisk())
            self.journal.views.append(self.log)
        self.regrets = Regrets()
        self.regrets.on_verdict.append(self.journal.verdict)
        self.regrets.lead((), self.driver.now_ns)
        self.recorders: list[Recorder] = [self.journal, self.regrets]

    def send(self, event: ev.Event) -> None:
        self.driver.send(event)
        for recorder in self.recorders:
            recorder.event(event, self.driver.now_ns)

    def told(self, command: cmd.Command) -> None:
        for recorder in self.recorders:
            recorder.command(command, self.driver.now_ns)

    def tick(self, after_s: float = 0.0) -> None:
        for command in self.driver.tick(after_s):
            self.told(command)

    def engine(self, kind: type[ev.Event], **values: Any) -> None:
        self.send(self.driver.engine(kind, **values))

    def ask(self, name: str, turn: int = 1, **values: Any) -> None:
        self.send(self.driver.gate(ev.TurnQueued, program_id=name, turn_id=f"{name}.{turn}", **values))

    def end(self, name: str) -> None:
        self.send(self.driver.tools(ev.ProgramEnded, program_id=name))

    def turn(self, name: str, turn: int = 1, *, tokens: int = 1000, cached: int = 0) -> None:
        """One that takes three seconds."""
        ids = {"program_id": name, "turn_id": f"{name}.{turn}"}
        self.engine(ev.TurnSubmitted, **ids, projected_blocks=tokens)
        self.driver.wait(1)
        self.engine(ev.FirstToken, **ids, prompt_tokens=tokens, cached_tokens=cached, prefill_ns=seconds(1))
        self.driver.wait(2)
        self.engine(ev.TurnEnded, **ids, prompt_tokens=tokens, output_tokens=10, tool="bash")

    def retain(self, name: str, number: int, ttl_s: float) -> None:
        self.told(cmd.Retain(command_id=number, program_id=name, ttl_ns=seconds(ttl_s), reason="bash"))

    def pin_too_short(self) -> None:
        """``a`` waits for 2 s, and computes its context again after a pin that ended before it came back."""
        self.engine(ev.PoolSampled, total_blocks=10_000, free_blocks=0, evictable_blocks=10_000)
        self.ask("a", tenant="acme")
        self.tick(2.0)
        self.turn("a")
        self.retain("a", 1000, 1)
        tool = {"program_id": "a", "call_id": "1", "tool": "bash"}
        self.send(self.driver.tools(ev.ToolStarted, **tool))
        self.driver.wait(5)
        self.send(self.driver.tools(ev.ToolEnded, **tool, duration_ns=seconds(5)))
        self.turn("a", 2, tokens=1500, cached=10)
