"""One program from arrival to end: turn, tool, turn, each after the one before (the turn barrier)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.core.model.events import Event, ProgramArrived, ProgramEnded, ReplyRead
from controlplane.eventloop import task_group
from controlplane.lab.load.client import ChatClient
from controlplane.lab.load.clock import TraceClock
from controlplane.lab.load.measurements import CUT, Measurements
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.prompts import SYSTEM_SEED, Conversation
from controlplane.lab.load.tools import ToolRunner
from controlplane.lab.workload.families import by_parent
from controlplane.lab.workload.records import ProgramRecord
from controlplane.lab.workload.telemetry import Reporting, reply_calls, reported
from controlplane.lab.workload.trace import ProgramTrace, Turn, gap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A program that sends a sub-agent, and what the two tell."""

    program_id: str
    reporting: Reporting


class ProgramRunner:
    """Runs programs, any number at once. ``failed`` is called with the message of each that fails.

    ``unnamed_turns`` counts replies that were to be told of and of which no gate said what events call them.
    """

    def __init__(
        self,
        options: ReplayOptions,
        *,
        clock: TraceClock,
        client: ChatClient,
        tools: ToolRunner,
        measured: Measurements,
        send: Callable[[Event], None],
        failed: Callable[[str], None],
    ) -> None:
        self.running = 0
        self.unnamed_turns = 0
        self._options = options
        self._clock = clock
        self._client = client
        self._tools = tools
        self._measured = measured
        self._send = send
        self._failed = failed
        self._children = by_parent(options.trace.programs)

    async def run(
        self, program_id: str, trace: ProgramTrace, arrived_ns: int, number: int, parent: Parent | None = None
    ) -> None:
        """Run it and record it, whatever happens to it. Never raises but for its cancellation.

        ``number``: how many programs arrived before it. ``parent``: whose sub-agent it is.
        """
        self.running += 1
        reporting = parent.reporting if parent else reported(self._options.workload.telemetry, trace.program_id)
        parent_id = parent.program_id if parent else ""
        if reporting.run:
            self._send(ProgramArrived(program_id=program_id, parent_id=parent_id if reporting.parent else ""))
        turns_ended = 0
        error = CUT
        try:
            turns_ended, error = await self._turns(program_id, trace, reporting, number)
        finally:
            self.running -= 1
            if reporting.run:
                self._send(ProgramEnded(program_id=program_id, reason="failed" if error else "done"))
            self._measured.program(
                ProgramRecord(
                    program_id=program_id,
                    arrived_ns=arrived_ns,
                    ended_ns=self._clock.now_ns(),
                    turns=turns_ended,
                    ideal_ns=self._options.ideal_ns.get(trace.program_id, 0),
                    failed=bool(error),
                    error=error,
                    parent_id=parent_id,
                )
            )
            if error and error is not CUT:
                self._failed(error)

    async def _turns(
        self, program_id: str, trace: ProgramTrace, reporting: Reporting, number: int
    ) -> tuple[int, str]:
        """How many turns ended well, and the error of the one that did not."""
        children, options, own = self._children.get(trace.program_id, {}), self._options, trace.shared_tokens
        common = f"{options.label}-{options.run_id}-{trace.agent}"  # in this run
        conversation = Conversation(
            seed=f"{options.seed}/{program_id}",
            system=SYSTEM_SEED if own is None else common,
            family=f"{number}/{trace.parent_id}" if trace.family_tokens else "",
            family_tokens=trace.family_tokens,
            shared_prefix_tokens=options.workload.shared_prefix if own is None else own,
            tokens_per_word=options.tokens_per_word,
            tool_role=options.tool_role,
        )
        agent, priority = trace.source if reporting.run else "", number if options.first_come else None
        group = (common, trace.group[1]) if trace.group[1] else None
        for index, turn in enumerate(trace.turns):
            prompt = conversation.prompt(turn)
            outcome = await self._client.turn(
                program_id, prompt, turn.output_tokens, agent=agent, group=group, priority=priority
            )
            self._measured.turn(program_id, index, outcome, turn)
            if outcome.error:
                return index, outcome.error
            is_last = index + 1 == len(trace.turns)
            if reporting.replies:
                self._report_reply(program_id, outcome.turn_id, *reply_calls(turn, is_last=is_last))
            conversation.reply(
                outcome.text,
                # Who gives no usage is believed to have done what was asked.
                prompt_tokens=turn.input_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens,
                output_tokens=turn.output_tokens if outcome.output_tokens is None else outcome.output_tokens,
            )
            if not is_last and (sent := children.get(index)):
                await self._fork(Parent(program_id=program_id, reporting=reporting), index, turn, sent, number)
            elif not is_last:
                await self._gap(program_id, index, turn, reporting)
        return len(trace.turns), ""

    def _report_reply(self, program_id: str, turn_id: str, tool: str, calls: int) -> None:
        """Tell what the gate would have read: the engine's words are not the agent's, and call no tool."""
        if not turn_id:
            self.unnamed_turns += 1
        elif calls >= 0:
            self._send(ReplyRead(program_id=program_id, turn_id=turn_id, tool=tool, tool_calls=calls))

    async def _fork(
        self, parent: Parent, index: int, turn: Turn, children: Sequence[ProgramTrace], number: int
    ) -> None:
        """Sub-agents run, all at once, in a tool of the parent's that ends when the last of them has."""
        program_id, call_id = parent.program_id, f"{parent.program_id}/{index}"
        async with self._tools.waiting_for_others(program_id, call_id, turn.tool, reported=parent.reporting.run):
            now_ns = self._clock.now_ns()
            async with task_group() as group:
                for place, child in enumerate(children):
                    name = f"{program_id}.{index}.{place}"
                    group.start_soon(self.run, name, child, now_ns, number, parent)
                await self._clock.sleep_ns(gap_ns(turn))

    async def _gap(self, program_id: str, index: int, turn: Turn, reporting: Reporting) -> None:
        """A tool runs, and is reported by a program that reports; a person only takes time."""
        if turn.calls_tool:
            call_id = f"{program_id}/{index}"
            await self._tools.run(program_id, call_id, turn.tool, gap_ns(turn), reported=reporting.run)
        else:
            await self._clock.sleep_ns(gap_ns(turn))
