"""Programs and their clients: turns with gaps, some with tools that are told, some silent, some that vanish."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.model import events as ev
from controlplane.emit.emitter import Emitter
from controlplane.gate import Ticket

from .engine import Request
from .faults import AGENTS
from .processes import NODE, URL, Process

if TYPE_CHECKING:
    from .world import World

_RETRY_S = 0.5
_NETWORK_S = 0.001
MANNERS = ("tells", "tells", "replies", "leaves while held")
_MOST_VANISH = 1  # who vanishes may keep a slot for as long as its gaps seemed to last, as silence.py says
"""How a program ends: its hook says goodbye; its last reply calls no tool; its client may leave its last turn, and
the hook says goodbye; never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a program will do. Seconds; ``parent`` is the number of the program whose child it is, or -1."""

    number: int
    begins_s: float
    manner: str
    turns: tuple[tuple[float, float, int], ...]  # (service_s, gap_s, tokens)
    has_tools: bool
    patience_s: float
    parent: int = -1

    @property
    def name(self) -> str:
        return f"p{self.number}"


def scripts(
    random: Random, count: int, children_ratio: float, within_s: float, longest_gap_s: float
) -> list[Script]:
    """So many programs that begin within that time, and of which so large a share are children of earlier ones."""
    made: list[Script] = []
    for number in range(count):
        roots = [one.number for one in made if one.parent < 0 and len(one.turns) > 1]
        parent = random.choice(roots) if roots and random.random() < children_ratio else -1
        begins_s = random.uniform(0.5, within_s)
        tokens, turns = random.randrange(100, 1500), []
        for _ in range(random.choice((1, 2, 3, 4, 6))):
            turns.append((random.uniform(0.1, 2.0), random.uniform(0.1, longest_gap_s), tokens))
            tokens += random.randrange(50, 500)
        manner = "tells" if parent >= 0 else random.choice(MANNERS)
        if number < _MOST_VANISH:
            manner = "vanishes"
        made.append(
            Script(
                number=number,
                begins_s=begins_s,
                manner=manner,
                turns=tuple(turns),
                has_tools=random.random() < 0.5,
                patience_s=random.uniform(0.5, 5.0),
                parent=parent,
            )
        )
    return made


class Agents(Process):
    """The machine of the agents, which no fault freezes or kills; their hooks share one emitter."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "agents")
        self.main = self.thread("main")
        self.tools: dict[tuple[str, str], int] = {}  # since when they run
        self.emitter = Emitter(url=URL, node=NODE, role="tool", state=self._state, runtime=self.runtime(AGENTS))
        self.emitter.publisher = f"{NODE}/tool/agents"
        self.emitter.start()
        self.unfinished: dict[str, None] = {}
        self.calls = 0
        self.answered: dict[str, str] = {}  # a program's latest turn that was, which proves its children

    def begin(self, script: Script, children: Sequence[Script] = ()) -> None:
        self.unfinished |= {one.name: None for one in (script, *children)}
        begins = self.world.scheduler.now_ns + round(script.begins_s * 1e9)
        self.world.scheduler.at(begins, lambda: self.main.call_soon_threadsafe(self._spawn, script, children))

    def _spawn(self, script: Script, children: Sequence[Script]) -> None:
        self.main.create_task(self._live(script, children))

    def _state(self) -> ev.PublisherState:
        calls = [
            ev.OpenTool(program_id=program, call_id=call, tool="bash", started=True) for program, call in self.tools
        ]
        return ev.PublisherState(role="tool", open_tools=calls)

    async def _live(self, script: Script, children: Sequence[Script] = ()) -> None:
        auditor, name = self.world.auditor, script.name
        parent = f"p{script.parent}" if script.parent >= 0 else ""
        auditor.begins(name, parent)
        if parent:
            self.emitter.emit(ev.ProgramArrived(program_id=name, parent_id=parent))
        last, delegated = len(script.turns) - 1, []
        for number, (service_s, gap_s, tokens) in enumerate(script.turns):
            if number == 1:  # a first turn's reply asks for all of its children
                delegated = [self.main.create_task(self._live(child)) for child in children]
            if number == last:
                for child in delegated:
                    await child
            leaves = number == last and script.manner == "leaves while held"
            is_final = number == last and script.manner == "replies"
            tools = () if is_final else ("bash",) if script.manner != "vanishes" else None
            await self._turn(script, number, parent, service_s, tokens, tools, leaves)
            if number < last:
                await self._gap(script, gap_s)
        if script.manner in ("tells", "leaves while held"):
            self.emitter.emit(ev.ProgramEnded(program_id=name, reason="its run ended"), True)
        auditor.over(name, "tells" if script.manner == "leaves while held" else script.manner)
        del self.unfinished[name]

    async def _gap(self, script: Script, gap_s: float) -> None:
        if not script.has_tools:
            await asyncio.sleep(gap_s)
            return
        self.calls += 1
        call_id = f"call{self.calls}"
        self.tools[(script.name, call_id)] = self.world.scheduler.now_ns
        self.emitter.emit(ev.ToolStarted(program_id=script.name, call_id=call_id, tool="bash"))
        await asyncio.sleep(gap_s)
        del self.tools[(script.name, call_id)]
        self.emitter.emit(
            ev.ToolEnded(program_id=script.name, call_id=call_id, tool="bash", duration_ns=round(gap_s * 1e9))
        )

    async def _turn(
        self,
        script: Script,
        number: int,
        parent: str,
        service_s: float,
        tokens: int,
        tools: tuple[str, ...] | None,
        leaves: bool,
    ) -> None:
        """Send it until it is answered; ``leaves``: hang up when it takes too long to begin."""
        for attempt in range(10_000):
            server = self.world.server_of(script.number)
            done = self.main.create_future()

            def answer(problem: str, done: "asyncio.Future[str]" = done) -> None:
                self.main.call_soon_threadsafe(lambda: None if done.done() else done.set_result(problem))

            ticket = Ticket(
                turn_id=f"{script.name}.{number}.{attempt}",
                program_id=script.name,
                parent_id=parent,
                parent_turn=self.answered.get(parent, ""),
                prompt=PromptSize(prompt_tokens=tokens, prompt_bytes=4 * tokens),
            )
            request = Request(ticket=ticket, service_s=service_s, tokens=tokens, tools=tools, answer=answer)
            self.world.scheduler.after(_NETWORK_S, lambda s=server, r=request: s.take(r))  # type: ignore[misc]
            try:
                async with asyncio.timeout(script.patience_s if leaves else None):
                    problem = await done
            except TimeoutError:
                server.hang_up(ticket.turn_id)
                self.world.count("client leaves")
                return
            if not problem:
                self.answered[script.name] = ticket.turn_id
                return
            self.world.auditor.failed(server, ticket, problem)
            await asyncio.sleep(_RETRY_S)
