"""A stretch of a log as a workload: programs that arrive when they did, with the times that are their own.

A program's own times are its tools' and its client's: they stay what they were under any decision. What it waited
for is no time of its own: at the gate, in the engine's queue, and for a slot of the tool host.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.lab.calibrate.observed import Served
from controlplane.lab.experiment import CONTROL_DELAY_NS
from controlplane.lab.whatif.recorded import Recorded, SeenProgram, SeenTool, SeenTurn
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import ProgramTrace, Turn
from controlplane.lab.workload.trace_lines import THINK_TIME

_TOGETHER_NS = seconds(0.2)  # a turn that begins so little before the last one's end was told of too early
_RETRACTED = 1.25  # times what it was scheduled for did the turn last: somebody took its place meanwhile
_NEARLY_ALL = 0.8  # of programs
_MOST = 0.5
_LEAST_HITS = 4  # first turns that found something, to say that an agent's programs begin alike
_QUIET_GAPS = 2.0  # of the longest usual gap: who told nothing for so long has ended, unless he says when he does
_DEFAULT_GAP = 0.95
_LEAST_QUIET_NS = seconds(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a stretch holds. Times count from its beginning.

    ``whole``: programs of which all was seen. ``warm``: those whose first turn here went on from one before it.
    """

    begin_ns: int  # of the daemon's clock
    end_ns: int
    programs: tuple[ProgramTrace, ...]
    arrivals_ns: tuple[int, ...]
    whole: frozenset[str]
    warm: frozenset[str]
    cut_at_start: int
    cut_at_end: int
    overlapping: int  # turns that began while another one of their program was open
    children: int
    unserved: int  # turns that were asked for and of whose end nothing was seen
    measured_programs: tuple[ProgramRecord, ...]
    measured_turns: tuple[TurnRecord, ...]
    served: tuple[Served, ...]
    control_ns: int  # from a decision until it takes effect
    overhead_ns: int  # from then, where it is a grant, to the engine's queue
    retracted: int = 0


def observe(recorded: Recorded, since_s: float | None = None, until_s: float | None = None) -> Observed:
    """The stretch between two times in seconds after the log's first event; before its last, if negative.

    Raises ``ConfigError`` for a stretch without a turn.
    """
    begin_ns = _at(recorded, since_s, recorded.begin_ns)
    end_ns = _at(recorded, until_s, recorded.end_ns)
    control_ns = round(statistics.median(recorded.answers_ns)) if recorded.answers_ns else CONTROL_DELAY_NS
    overhead_ns = _overhead_ns(recorded, control_ns)
    quiet_ns = _quiet_ns(recorded, overhead_ns)
    seen = [_Seen(program, overhead_ns) for program in recorded.programs.values()]
    lives = [life for one in seen for life in one.lives(begin_ns, end_ns, recorded, quiet_ns)]
    if not lives:
        raise ConfigError(
            f"no turn was served between {(begin_ns - recorded.begin_ns) / 1e9:.0f} and "
            f"{(end_ns - recorded.begin_ns) / 1e9:.0f} s of the log: is an engine's plugin attached, and is the "
            "stretch within the log?"
        )
    lives.sort(key=lambda life: life.turns[0].queued_ns)
    turns = [record for life in lives for record in life.turns]
    served = [one for life in lives for one in life.served]
    return Observed(
        begin_ns=begin_ns,
        end_ns=end_ns,
        programs=tuple(_with_prefixes(lives, _block_tokens(recorded))),
        arrivals_ns=tuple(life.turns[0].queued_ns for life in lives),
        whole=frozenset(life.trace.program_id for life in lives if life.begins and life.ends),
        warm=frozenset(life.trace.program_id for life in lives if life.warm),
        cut_at_start=sum(1 for life in lives if not life.begins and not life.aside),
        cut_at_end=sum(1 for life in lives if life.begins and not life.ends and not life.aside),
        overlapping=sum(1 for life in lives if life.aside),
        children=sum(1 for life in lives if life.child),
        unserved=sum(one.unserved(begin_ns, end_ns) for one in seen),
        measured_programs=tuple(life.record for life in lives),
        measured_turns=tuple(turns),
        served=tuple(served),
        control_ns=control_ns,
        overhead_ns=overhead_ns,
        retracted=sum(1 for one in served if not one.steady),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """What of a program lies in the stretch. ``aside``: a turn beside the program's others."""

    trace: ProgramTrace
    turns: tuple[TurnRecord, ...]
    served: tuple[Served, ...]
    begins: bool
    ends: bool
    warm: bool = False
    aside: bool = False
    child: bool = False

    @property
    def record(self) -> ProgramRecord:
        first, last = self.turns[0], self.turns[-1]
        return ProgramRecord(
            program_id=self.trace.program_id,
            arrived_ns=first.queued_ns,
            ended_ns=last.ended_ns,
            turns=len(self.turns),
        )


class _Seen:
    """A program's turns one behind the other, and those that ran beside them."""

    def __init__(self, program: SeenProgram, overhead_ns: int) -> None:
        self.program = program
        self._overhead_ns = overhead_ns
        turns = sorted((turn for turn in program.turns.values() if turn.was_served), key=self._queued_ns)
        self.line: list[tuple[int, SeenTurn]] = []  # since when each waited
        self.overlapping: list[SeenTurn] = []
        for turn in turns:
            queued_ns, ended_ns = self._queued_ns(turn), self.line[-1][1].ended_ns if self.line else -1
            if turn.submitted_ns < ended_ns - _TOGETHER_NS:
                self.overlapping.append(turn)
            else:
                self.line.append((max(ended_ns, self._since_ns(turn, ended_ns, queued_ns)), turn))

    def lives(self, begin_ns: int, end_ns: int, recorded: Recorded, quiet_ns: int) -> "list[_Life]":
        """Its line of turns as far as it lies in the stretch, and each turn beside it as a program of its own."""
        found = [self._within(begin_ns, end_ns, recorded, quiet_ns)]
        for number, turn in enumerate(self.overlapping, start=1):
            at_ns, name = self._queued_ns(turn), f"{self.program.program_id}~{number}"
            if at_ns >= begin_ns and turn.ended_ns <= end_ns:
                single = ProgramTrace(
                    program_id=name, source="recorded", turns=(_sizes(turn),), telemetry=self._telemetry
                )
                record = _record(name, 0, at_ns - begin_ns, turn, begin_ns)
                found.append(
                    _Life(
                        trace=single,
                        turns=(record,),
                        served=(_served(turn),),
                        begins=False,
                        ends=False,
                        warm=True,
                        aside=True,
                    )
                )
        return [life for life in found if life is not None]

    def _within(self, begin_ns: int, end_ns: int, recorded: Recorded, quiet_ns: int) -> "_Life | None":
        inside = [
            index for index, (at_ns, turn) in enumerate(self.line) if at_ns >= begin_ns and turn.ended_ns <= end_ns
        ]
        if not inside:
            return None
        first, last = inside[0], inside[-1]
        program, chosen = self.program, self.line[first : last + 1]
        known = program.program_id in recorded.known_before
        trace = ProgramTrace(
            program_id=program.program_id,
            source=program.agent or "recorded",
            agent=program.agent,
            turns=tuple(self._traced(index, last) for index in range(first, last + 1)),
            telemetry=self._telemetry,
        )
        return _Life(
            trace=trace,
            turns=tuple(
                _record(program.program_id, number, at_ns - begin_ns, turn, begin_ns)
                for number, (at_ns, turn) in enumerate(chosen)
            ),
            served=tuple(_served(turn) for _, turn in chosen),
            begins=first == 0 and not known and program.first_ns >= begin_ns,
            ends=last == len(self.line) - 1 and self._has_ended(end_ns, recorded.end_ns, quiet_ns),
            warm=first > 0 or known,
            child=bool(program.parent_id),
        )

    def unserved(self, begin_ns: int, end_ns: int) -> int:
        """Turns of which no end was seen, though they were asked for."""
        times = (self._queued_ns(turn) for turn in self.program.turns.values() if not turn.was_served)
        return sum(1 for at_ns in times if begin_ns <= at_ns <= end_ns)

    @property
    def gaps_ns(self) -> list[int]:
        return [after - turn.ended_ns for (_, turn), (after, _) in zip(self.line, self.line[1:], strict=False)]

    @property
    def _telemetry(self) -> Telemetry:
        if self.program.reports:
            return Telemetry.FULL
        read = any(turn.tool_calls >= 0 for _, turn in self.line)
        return Telemetry.TURNS if read else Telemetry.NONE

    def _has_ended(self, end_ns: int, log_ends_ns: int, quiet_ns: int) -> bool:
        program, last = self.program, self.line[-1][1]
        waits = (turn for turn in program.turns.values() if not turn.was_served and not turn.abandoned)
        if any(turn.ended_ns < 0 for turn in waits):
            return False
        if program.ended_ns >= 0:
            return program.ended_ns <= end_ns + quiet_ns
        return last.is_last or (not program.reports and log_ends_ns - last.ended_ns >= quiet_ns)

    def _queued_ns(self, turn: SeenTurn) -> int:
        """Since when it waits. One that passed the gate was with the server for as long as others were."""
        return turn.asked_ns if turn.asked_ns >= 0 else turn.submitted_ns - self._overhead_ns

    def _since_ns(self, turn: SeenTurn, last_ended_ns: int, queued_ns: int) -> int:
        """The same, from the first attempt on: what went before it and never ran was refused or given up."""
        tries = (
            self._queued_ns(one)
            for one in self.program.turns.values()
            if one.abandoned and one is not turn and last_ended_ns <= self._queued_ns(one) < queued_ns
        )
        return min(tries, default=queued_ns)

    def _traced(self, index: int, last: int) -> Turn:
        turn = self.line[index][1]
        sizes = _sizes(turn)
        if index == last:
            return sizes
        begin_ns, end_ns = turn.ended_ns, self.line[index + 1][0]
        tools = [
            tool
            for tool in self.program.tools.values()
            if begin_ns - _TOGETHER_NS <= tool.asked_ns <= end_ns and tool.ended_ns >= 0
        ]
        own_ns = max(0, end_ns - begin_ns - _waited_ns(tools))
        name = tools[0].tool if tools else turn.tool
        if not tools and not self.program.reports and turn.tool_calls == 0:
            name = THINK_TIME
        elif not tools and self.program.reports:
            name = ""
        return replace(sizes, tool=name, tool_ms=own_ns / 1e6)


def _sizes(turn: SeenTurn) -> Turn:
    return Turn(input_tokens=max(1, turn.prompt_tokens), output_tokens=turn.output_tokens)


def _record(program_id: str, index: int, queued_ns: int, turn: SeenTurn, begin_ns: int) -> TurnRecord:
    return TurnRecord(
        program_id=program_id,
        index=index,
        queued_ns=queued_ns,
        admitted_ns=turn.submitted_ns - begin_ns,
        first_token_ns=turn.first_token_ns - begin_ns,
        ended_ns=max(turn.ended_ns, turn.first_token_ns) - begin_ns,
        prompt_tokens=turn.prompt_tokens,
        output_tokens=turn.output_tokens,
        cached_tokens=turn.cached_tokens,
        hold_ns=max(0, turn.submitted_ns - begin_ns - queued_ns),
    )


def _served(turn: SeenTurn) -> Served:
    scheduled_ns = turn.submitted_ns + turn.launch_ns
    ended_ns = scheduled_ns + turn.service_ns if turn.service_ns else turn.ended_ns
    lasted_ns = turn.ended_ns - scheduled_ns
    return Served(
        engine=turn.engine,
        scheduled_ns=scheduled_ns,
        first_token_ns=turn.first_token_ns,
        ended_ns=max(ended_ns, turn.first_token_ns),
        prompt_tokens=turn.prompt_tokens,
        cached_tokens=min(turn.cached_tokens, turn.prompt_tokens),
        output_tokens=turn.output_tokens,
        loaded_tokens=turn.loaded_tokens,
        steady=turn.ok and lasted_ns <= _RETRACTED * max(ended_ns - scheduled_ns, 1) + _TOGETHER_NS,
    )


def _block_tokens(recorded: Recorded) -> int:
    return max((engine.block_tokens for engine in recorded.engines.values()), default=1)


def _at(recorded: Recorded, asked_s: float | None, otherwise_ns: int) -> int:
    if asked_s is None:
        return otherwise_ns
    return (recorded.end_ns if asked_s < 0 else recorded.begin_ns) + seconds(asked_s)


def _overhead_ns(recorded: Recorded, control_ns: int) -> int:
    """From a grant's effect to the engine's queue, as a median: the server, its tokenizer.

    Turns that pass the gate take as long, unseen. So it is no more than what is between most turns of a program.
    """
    took, between = [], []
    for program in recorded.programs.values():
        ends_ns = -1
        for turn in sorted(program.turns.values(), key=lambda turn: turn.submitted_ns):
            if turn.submitted_ns < 0:
                continue
            if turn.admitted_ns >= 0:
                took.append(turn.submitted_ns - turn.admitted_ns - control_ns)
            elif 0 <= ends_ns <= turn.submitted_ns:
                between.append(turn.submitted_ns - ends_ns)
            ends_ns = turn.ended_ns
    if not took:
        return 0
    median_ns = round(statistics.median(took))
    most_ns = sorted(between)[len(between) // 10] if between else median_ns
    return max(0, min(median_ns, most_ns))


def _quiet_ns(recorded: Recorded, overhead_ns: int) -> int:
    """For how long a program that says no goodbye must be silent to have ended."""
    gaps = sorted(gap for program in recorded.programs.values() for gap in _Seen(program, overhead_ns).gaps_ns)
    usual = gaps[int(_DEFAULT_GAP * (len(gaps) - 1))] if gaps else 0
    return max(_LEAST_QUIET_NS, round(_QUIET_GAPS * usual))


def _with_prefixes(lives: Sequence[_Life], block_tokens: int) -> Iterator[ProgramTrace]:
    """The programs, with what each shares with others: what its first turn found in the cache, or could have found.

    Where programs of an agent found all that they could of one prefix, all of that agent begin with it: who found
    less came before somebody had brought the rest, or after it was evicted. Else each has what it found, and one
    that found nothing what is usual. Of a program that was under way before nothing is known.
    """
    firsts: dict[str, list[TurnRecord]] = defaultdict(list)
    for life in lives:
        if life.begins:
            firsts[life.trace.agent].append(life.turns[0])
    common = {agent: _common_tokens(found, block_tokens) for agent, found in firsts.items()}
    for life in lives:
        tokens, is_of_all = common.get(life.trace.agent, (0, False))
        own = life.turns[0].cached_tokens if life.begins else 0
        yield replace(life.trace, shared_tokens=tokens if is_of_all else own or tokens)


def _common_tokens(firsts: Sequence[TurnRecord], block_tokens: int) -> tuple[int, bool]:
    """The prefix of programs with these first turns, and whether all have it; else what is usual, 0 for nothing."""
    hits = [turn for turn in firsts if turn.cached_tokens]
    longest = max((turn.cached_tokens for turn in hits), default=0)

    def could_find(turn: TurnRecord) -> int:
        """A prompt's last token is always computed, and whole blocks are found."""
        return min(longest, (turn.prompt_tokens - 1) // block_tokens * block_tokens)

    whole = sum(turn.cached_tokens >= could_find(turn) for turn in hits)
    if len(hits) >= max(_LEAST_HITS, _MOST * len(firsts)) and whole >= _MOST * len(hits):
        return longest, True
    if hits and len(hits) >= _NEARLY_ALL * len(firsts):
        return round(statistics.median(turn.cached_tokens for turn in hits)), False
    return 0, False


def _waited_ns(tools: Sequence[SeenTool]) -> int:
    """While something waited for a slot of the host and nothing ran."""
    runs = [(tool.started_ns, tool.ended_ns) for tool in tools]
    waits = [(tool.asked_ns, tool.started_ns) for tool in tools if tool.waits and tool.asked_ns >= 0]
    return _covered_ns([*runs, *waits]) - _covered_ns(runs)


def _covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    covered = reached = 0
    for begin_ns, end_ns in sorted(spans):
        covered += max(0, end_ns - max(begin_ns, reached))
        reached = max(reached, end_ns)
    return covered
