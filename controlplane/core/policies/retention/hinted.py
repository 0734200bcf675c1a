"""What a retention policy decides, as far as clients ask for something else and the operator lets them.

A floor (``Hints.retain_least_ns``) makes a pin longer, up to ``HintRules.retain_most_s``; a cap
(``Hints.retain_most_ns``) makes one shorter. A context that its client gives up is freed, and one that it sends
below the device goes there. A hint gives no right to a slot: of a program whose slot is taken back nothing is
pinned, and the engine gives a pin up for a turn that needs the room, as any other.

**Paper**: Anthropic's ``cache_control.ttl`` and OpenAI's ``prompt_cache_retention`` bound the time as these do; the
actions are those of vLLM's ``kv_hints`` (vllm-project/vllm#53421).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from controlplane.core.model.commands import Command, Demote, Discard, Pause, Prefetch, Release, Retain
from controlplane.core.model.hints import HintRules
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Pressure, Program, Tier, seconds
from controlplane.core.policies.retention.ttl import beginning_to_act


def as_clients_ask(
    commands: Iterable[Command],
    programs: Mapping[str, Program],
    changed: Sequence[Program],
    rules: HintRules,
    pressure: Pressure,
    now_ns: int,
) -> list[Command]:
    """The policy's ``commands``, and what hints of those ``changed`` programs that begin to act make of them."""
    decided = [each for each in (_capped(command, programs, now_ns) for command in commands) if each is not None]
    asking = [program for program in beginning_to_act(changed, now_ns) if program.asked is not None]
    said: dict[str, list[Command]] = {program.program_id: [] for program in asking}
    for command in decided:
        if (name := getattr(command, "program_id", "")) in said:
            said[name].append(command)
    asked: dict[str, Command] = {}
    for program in asking:
        before = said[program.program_id]
        if any(isinstance(each, Pause | Demote | Discard) for each in before):
            continue  # the policy gives it up itself
        wish = _moved(program, pressure) or _kept(program, before, rules, now_ns)
        if wish is not None:
            asked[program.program_id] = wish
    replaced = (Retain, Release)
    kept = [each for each in decided if not isinstance(each, replaced) or each.program_id not in asked]
    return [*kept, *asked.values()]


def fetched_as_asked(
    names: Iterable[str], programs: Mapping[str, Program], pressure: Pressure
) -> Iterator[Prefetch]:
    """Contexts below the device whose clients ask for them while their turns are held, where there is room."""
    room = pressure.kv_total_blocks - pressure.kv_demand_blocks
    for program in (programs[name] for name in names if name in programs):
        if program.kv_tier is Tier.HOST and not program.open_turns and program.kv_blocks <= room:
            room -= program.kv_blocks
            yield Prefetch(program_id=program.program_id, reason=f"its client asks for it: {program.hints.move_by}")


def _capped(command: Command, programs: Mapping[str, Program], now_ns: int) -> Command | None:
    """A pin that ends when its client says that it may; None where that time is over."""
    if not isinstance(command, Retain) or command.program_id not in programs:
        return command
    program = programs[command.program_id]
    most_ns = program.hints.retain_most_ns
    left_ns = most_ns - _gone_ns(program, now_ns)
    if not most_ns or command.ttl_ns <= left_ns:
        return command
    why = f"{command.reason}; no longer than {_s(most_ns)} by {program.hints.retain_by}"
    return replace(command, ttl_ns=left_ns, reason=why) if left_ns > 0 else None


def _kept(program: Program, said: Iterable[Command], rules: HintRules, now_ns: int) -> Retain | None:
    """The pin that its client asks for, where it is longer than what is decided or holds already."""
    hints, most_ns = program.hints, seconds(rules.retain_most_s)
    least_ns = min(hints.retain_least_ns, most_ns)
    ttl_ns = least_ns - _gone_ns(program, now_ns)
    decided_ns = max((each.ttl_ns for each in said if isinstance(each, Retain)), default=0)
    released = any(isinstance(each, Release) for each in said)
    held_ns = 0 if released else program.retained_until_ns - now_ns
    if ttl_ns <= max(0, decided_ns, held_ns):
        return None
    why = f"its client asks for {_s(hints.retain_least_ns)} by {hints.retain_by}"
    if most_ns < hints.retain_least_ns:
        why += f", and control.hints.retain_most_s allows {_s(most_ns)}"
    return Retain(program_id=program.program_id, ttl_ns=ttl_ns, reason=why)


def _moved(program: Program, pressure: Pressure) -> Command | None:
    """What the client asks to become of the context once the turn has ended."""
    why = f"its client says so by {program.hints.move_by}"
    if program.hints.move == Tier.NONE:
        return Discard(program_id=program.program_id, reason=why)
    if program.hints.move == Tier.HOST and pressure.host_total_blocks:
        return Demote(program_id=program.program_id, reason=why)
    return None


def _gone_ns(program: Program, now_ns: int) -> int:
    return now_ns - program.gap_since_ns if program.gap_since_ns else 0


def _s(ns: int) -> str:
    return f"{ns / NANOSECONDS_PER_SECOND:,.0f}s"
