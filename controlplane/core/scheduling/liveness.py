"""What silence means: who has ended, what a silent program's slot is still worth, which publisher is gone.

Silence is the normal case: most clients report no tools and say no goodbye. A gap without an event is a tool that
nobody reported, or the end, and how likely each is follows from the gaps that were seen (``gaps``). A program
keeps its slot while it is likely to come back; one that is not has ended, and is learned from at once. Should it
come back after all, it queues as it did before. Where the retention policy lends, the room of a program that is
likely to be away for long is others' meanwhile (``retention.overflow``). A reply that calls no tool ends its
program after a short silence. A publisher that holds work and stops talking is asked, and forgotten when it does
not answer; one that was never meant to stay, such as a hook of an agent, is not, and its tools run on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from controlplane.core.estimators.workload import as_seconds, silent_ns
from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Command, Pause, StateRequest
from controlplane.core.model.errors import require
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Program, Status, seconds
from controlplane.core.policies.retention.overflow import keep_ratio

_LONGEST_NS = seconds(3600)  # of a tool that nobody can be asked about; or so many times its longest:
_TIMES_LONGEST = 10
LOST_NS = seconds(60)  # what was said so long before a loss was noticed may be lost as well
_AT_ONCE = 256  # programs between two pauses
_MOST_WEIGHED = 64  # programs an interval, so that very many silent ones hold nothing up


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRules:
    """Limits in seconds."""

    end_after_reply_s: float = 5.0
    end_below: float = 0.03
    unused_slot_s: float = 10.0
    end_after_s: float = 900.0
    ask_publisher_after_s: float = 60.0
    ask_publisher_every_s: float = 10.0
    ask_publisher_times: int = 3

    def __post_init__(self) -> None:
        for name in ("end_after_reply_s", "unused_slot_s", "end_after_s", "ask_publisher_after_s"):
            require(name, getattr(self, name), low=0, high=86_400, ends="(]")
        require("end_below", self.end_below, low=0, high=1)
        require("ask_publisher_every_s", self.ask_publisher_every_s, low=0, high=86_400, ends="(]")
        require("ask_publisher_times", self.ask_publisher_times, low=1, high=1000)


def check_liveness(ledger: Ledger, rules: SilenceRules, now_ns: int, *, lends: bool) -> Iterator[Command | None]:
    """Once a control interval: end who is gone, weigh who is silent, ask silent publishers. None: a pause.

    ``lends``: whoever will be away for long leaves its room to others.
    """
    running, left = ledger.turns.running_blocks, _MOST_WEIGHED
    active, dormant, programs = ledger.programs.active, ledger.programs.dormant, ledger.programs.by_name
    pause_ns = len(active) * NANOSECONDS_PER_SECOND // _MOST_WEIGHED  # of very many each has its turn
    for number, name in enumerate(list(active)):
        if not number % _AT_ONCE:
            yield None
        program = programs[name]
        if program.status is not Status.ACTIVE:
            continue
        if not program.gap_since_ns:
            if program.idle_since_ns and _never_came(ledger, program, rules, now_ns):
                ledger.publishers.doubt(program.gate)
                yield Pause(program_id=name, reason="it was let in and its turn never came")
        elif program.may_end and now_ns - program.gap_since_ns >= seconds(rules.end_after_reply_s):
            if not (program.open_tools or program.queued_turns or ledger.runs.family_runs(program, now_ns)):
                ledger.runs.end(program, now_ns, "its last reply called no tool")
        elif left and now_ns - program.weighed_at_ns >= pause_ns:
            left -= 1
            _weigh(ledger, program, rules, running, now_ns, lends=lends)
    holding = {held.program_id for held in ledger.gates.held.values()}  # a child waits with its root
    for number, name in enumerate(list(dormant)):
        if not number % _AT_ONCE:
            yield None
        program = programs[name]
        if program.open_tools or program.open_turns or name in holding or ledger.runs.family_runs(program, now_ns):
            continue
        unseen_ns = now_ns - program.last_seen_ns
        chance = ledger.estimates.chance_of_return(program, now_ns)
        if unseen_ns >= seconds(rules.end_after_s) or chance < rules.end_below:
            ledger.runs.end_silent(program, now_ns, _why(unseen_ns, chance), chance)
    ledger.runs.leave(now_ns, seconds(rules.end_after_reply_s))
    _end_overlong(ledger, now_ns)
    yield from ledger.publisher_states.retire_replaced(now_ns)
    ledger.publisher_states.forget_silent(now_ns)
    yield from _ask_silent_publishers(ledger, rules, now_ns)


def weigh_begun(ledger: Ledger, rules: SilenceRules, now_ns: int) -> None:
    """What the slots of those are worth whose gaps began, or whose tools did, since the last decision.

    They lend at once: an interval is as long as many a turn, and somebody would wait beside their room.
    """
    programs, running = ledger.programs, ledger.turns.running_blocks
    for name in islice(programs.changed, _MOST_WEIGHED):
        program = programs.by_name.get(name)
        if program is None or program.weighed_at_ns == now_ns:  # at an interval's end, just now
            continue
        if program.status is Status.ACTIVE and program.gap_since_ns and not program.may_end:
            _weigh(ledger, program, rules, running, now_ns, lends=True)


def _weigh(
    ledger: Ledger, program: Program, rules: SilenceRules, running: int, now_ns: int, *, lends: bool
) -> None:
    """Is a program between two turns still there, and what is its slot worth?"""
    program.weighed_at_ns = now_ns
    if lends and program.delegating and program.back_at_ns:  # its children's ends say when it comes back
        program.keep_ratio = keep_ratio(program, ledger.estimates, running, now_ns)
        ledger.programs.lend(program, program.keep_ratio < 1)
        return
    if ledger.runs.family_runs(program, now_ns):
        return
    chance = ledger.estimates.chance_of_return(program, now_ns)
    if chance < rules.end_below:
        ledger.runs.end_silent(program, now_ns, _why(silent_ns(program, now_ns), chance), chance)
        return
    if not program.parent_id:  # a child holds no slot
        program.keep_ratio = keep_ratio(program, ledger.estimates, running, now_ns)
        waits = program.delegating > 0 and not ledger.programs.slots_for_children
        ledger.programs.lend(program, waits or (lends and program.keep_ratio < 1), now_ns)


def _never_came(ledger: Ledger, program: Program, rules: SilenceRules, now_ns: int) -> bool:
    """Whether a program was let in and has shown no turn since: this is a message's way, no gap of the
    program's."""
    if program.parent_id or program.queued_turns or ledger.runs.family_runs(program, now_ns):
        return False
    return now_ns - program.idle_since_ns >= seconds(rules.unused_slot_s)


def _why(for_ns: int, chance: float) -> str:
    return f"silent for {as_seconds(for_ns):.0f}s: {chance:.0%} of such come back"


def _end_overlong(ledger: Ledger, now_ns: int) -> None:
    """End calls of which nobody can be asked, and whose end must have been lost.

    They get an hour, or ten times the longest that their tool is known to take. Whoever waits for a child that
    runs is waited for.
    """
    tools, times = ledger.tools, ledger.estimates.tools
    for key in list(tools.detached):
        call = tools.calls[key]
        if now_ns - call.since_ns < _LONGEST_NS:
            break  # the others are younger
        known = times[call.tool].all.ascending if call.tool in times else ()
        program = ledger.programs.by_name[call.program_id]
        if known and now_ns - call.since_ns < _TIMES_LONGEST * known[-1]:
            continue
        if not (call.delegates and ledger.runs.family_runs(program, now_ns)):
            tools.drop(key, now_ns)


def ask_again(ledger: Ledger, rules: SilenceRules, resync_ns: int, now_ns: int) -> Iterator[Command]:
    """Ask publishers whose events have a gap until their states come, each at most once in ``resync_ns``."""
    resync, sequences = ledger.publishers.resync, ledger.publishers.sequences
    for publisher, times in list(resync.items()):
        sequence = sequences.get(publisher)
        if sequence is None or times >= rules.ask_publisher_times:
            del resync[publisher]  # it is gone, or has no state to tell
        elif now_ns - sequence.asked_at_ns >= (seconds(rules.ask_publisher_every_s) if times else resync_ns):
            resync[publisher] = times + 1
            sequence.asked_at_ns = now_ns
            sequence.unanswered += 1
            yield StateRequest(
                publisher=publisher, lost_ns=LOST_NS, reason="its events have a gap, or a turn never came"
            )


def _ask_silent_publishers(ledger: Ledger, rules: SilenceRules, now_ns: int) -> Iterator[Command | None]:
    for publisher in sorted(ledger.publisher_states.publishers_in_use()):
        sequence = ledger.publishers.sequences[publisher]
        if now_ns - sequence.heard_at_ns < seconds(rules.ask_publisher_after_s):
            continue
        if now_ns - sequence.asked_at_ns < seconds(rules.ask_publisher_every_s):
            continue
        if sequence.unanswered >= rules.ask_publisher_times:
            yield from ledger.publisher_states.handle_loss(publisher, now_ns)
            continue
        sequence.asked_at_ns = now_ns
        sequence.unanswered += 1
        yield StateRequest(publisher=publisher, reason="it holds work and went silent")
