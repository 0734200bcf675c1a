"""Rollouts of one prompt begin together: one computes the prompt, and the others find it.

The first member that is let in opens its group: its siblings wait for its first token, as the engine can share no
prompt before. Then they go first, to the same engine unless its crowding costs more than the prompt, whose blocks
stay pinned until the last of them has begun. What waits for a member ends by a deadline.

A batch of rollouts is over when its last one is. So what has begun goes before what has not, and first whoever is
expected to take longest (longest processing time first, Graham 1969).

**Paper**: ThunderAgent §5.3 rolls out with its serving policy; it knows no groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.groups import Group
from controlplane.core.model.commands import ProgramCommand, Release, Retain
from controlplane.core.model.types import Program, QueuedProgram, Status, Tier, seconds
from controlplane.core.policies.protocols import NextTurn

_OPENING_NS = seconds(30)  # for a first token: an engine that tells none, or is stuck, holds no siblings for longer
_LINGERS_NS = seconds(60)  # for which a prompt stays pinned without news of a member


def in_groups(order: Sequence[QueuedProgram], ledger: Ledger, now_ns: int) -> tuple[list[QueuedProgram], set[str]]:
    """The order, with rollouts among themselves as groups and a batch's end want it; others keep their places.

    Without those that wait for a sibling to compute their prompt, who are the second answer.
    """
    groups = ledger.groups.by_name
    rollouts = _arranged([each for each in order if each.group], groups)
    behind, opening = set[str](), set[str]()
    for each in rollouts:
        group = groups.get(each.group) if not each.turn_index else None
        if group is None or group.home:
            continue
        if each.group in opening or (group.opener and now_ns - group.opened_ns < _OPENING_NS):
            behind.add(each.program_id)
        opening.add(each.group)
    in_turn = iter(rollouts)
    merged = (next(in_turn) if each.group else each for each in order)
    return [each for each in merged if each.program_id not in behind], behind


def _arranged(rollouts: Sequence[QueuedProgram], groups: Mapping[str, Group]) -> list[QueuedProgram]:
    first_of: dict[str, int] = {}
    for place, each in enumerate(rollouts):
        first_of.setdefault(each.group, place)

    def key(each: QueuedProgram) -> tuple[int, float]:
        if each.turn_index:
            return 0, -each.lifetimes
        group = groups.get(each.group)
        return (1 if group is not None and group.home else 2), first_of[each.group]

    return sorted(rollouts, key=key)


def beside_its_group(turn: NextTurn, group: Group | None) -> NextTurn:
    """A rollout's first turn, as one whose context is its group's prompt: it stays there, or computes it anew."""
    program = turn.program
    if group is None or not group.home or program.turn_index:
        return turn
    there = replace(program, replica=group.home, kv_tier=Tier.HBM, warm=True, retained_until_ns=0)
    return replace(turn, program=there, reusable_tokens=group.prompt_tokens, may_move=False)


def prompt_pins(ledger: Ledger, now_ns: int) -> Iterator[ProgramCommand]:
    """Keep the prompts of groups that have not all begun, and let go of the others'.

    Not in a fleet, whose contexts are its nodes' (docs/adr/0049).
    """
    groups, programs = ledger.groups.by_name, ledger.programs
    for name, group in list(groups.items()):
        until_ns = group.seen_ns + _LINGERS_NS
        if not group.is_complete and now_ns < until_ns:
            pins = group.home and ledger.engines.listed is None
            carrier = _carrier(group, programs.by_name, now_ns) if pins else None
            if carrier is not None and group.pin != (carrier.program_id, carrier.turn_index):
                group.pin = (carrier.program_id, carrier.turn_index)
                why = f"its group's prompt: {len(group.begun)} of {group.size} have begun"
                yield Retain(program_id=carrier.program_id, ttl_ns=until_ns - now_ns, reason=why)
            continue
        pinned = programs.by_name.get(group.pin[0])
        if pinned is not None and pinned.retained_until_ns > now_ns and pinned.turn_index == group.pin[1]:
            yield Release(program_id=pinned.program_id, reason="its group has begun, or nobody of it came for long")
        if group.is_complete or not any(each in programs.queue for each in group.members):
            del groups[name]
        else:
            group.forget_prompt()


def _carrier(group: Group, programs: dict[str, Program], now_ns: int) -> Program | None:
    """The member whose context is to be pinned for the prompt in it; None while one holds it, or none can."""
    there = [each for name in group.begun if (each := programs.get(name)) and each.replica == group.home]
    if any(each.open_turns or each.retained_until_ns > now_ns for each in there):
        return None
    at_rest = [each for each in there if each.kv_tier is Tier.HBM and each.status is Status.ACTIVE]
    return at_rest[-1] if at_rest else None
