"""On which of the engines behind one gate a program's next turn runs: a placement policy, asked with what was told.

It is asked when a program is let in, and at the end of each of its turns for the next one: turns of a program that
holds a slot pass their gate without a message to the controller, so that what the gate does then must be said
before. Daemon and simulator place by the same answers.
"""

from dataclasses import replace
from typing import Any

from controlplane.core.estimators.workload import as_seconds
from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Place
from controlplane.core.model.places import stands_before
from controlplane.core.model.types import Program, Replica, Status
from controlplane.core.policies.protocols import Choice, NextTurn, Placed, PlacementPolicy
from controlplane.core.scheduling.demand import engines
from controlplane.core.scheduling.groups import beside_its_group


def ended_a_turn(program: Program) -> bool:
    """Whether it is to be placed for its next turn. Once a turn, and while it holds its slot."""
    if program.status is not Status.ACTIVE or program.placed_turn == program.turn_index:
        return False
    program.placed_turn = program.turn_index
    return True


def behind_its_gate(ledger: Ledger, program: Program) -> list[Replica]:
    """The engines that its gate can send the program's turns to, by name; none where no gate is known.

    Its gate is the one that holds a turn of it; else the one that held the last, unless it went to another server.
    """
    root = ledger.programs.by_name.get(program.root_id, program)
    gate, home = program.gate or root.gate, program.replica
    if not gate or (home and not stands_before(gate, home) and not ledger.gates.of(program)):
        gate = home
    standing = engines(ledger)
    found = [standing[name] for name in ledger.engines.behind(gate)] if gate else []
    if program.status is Status.ACTIVE or home not in standing:
        return found
    # A policy takes it that who has a home is charged there: so it will be, once it is let in.
    charged = standing[home].demand_blocks + program.kv_blocks
    return [each if each.name != home else replace(each, demand_blocks=charged) for each in found]


def next_turn(ledger: Ledger, program: Program) -> NextTurn:
    """What is known of the turn: its gate's estimate where it is held, else it goes on where the last one ended."""
    held = [each.blocks for _, each in ledger.gates.of(program)]
    estimates = ledger.estimates
    return NextTurn(
        program=program,
        blocks=max(held, default=estimates.blocks(program.context_tokens + estimates.output.value)),
        reusable_tokens=program.context_tokens,
        held=bool(held),
    )


def place(
    policy: PlacementPolicy[Any], state: Any, ledger: Ledger, program: Program, now_ns: int, *, groups: bool = False
) -> tuple[Any, Place | None]:
    """The policy's next state, and what its gate is to be told.

    Nothing where there is nothing to choose, where the gate was told the same last, and while a turn of the program
    runs: what that holds stays where it is. ``groups``: a rollout's first turn goes where its group's prompt is.
    """
    if not ledger.programs.charges.several or program.open_turns:
        return state, None
    found = behind_its_gate(ledger, program)
    if len(found) < (2 if ledger.engines.listed is None else 1):
        return state, None
    turn = next_turn(ledger, program)
    if groups:
        turn = beside_its_group(turn, ledger.groups.of(program))
    state, placed = policy.place(state, turn, found, ledger.estimates, now_ns)
    if program.placed == placed.replica == program.replica:
        return state, None
    return state, Place(
        program_id=program.program_id,
        replica=placed.replica,
        moves=placed.choice is Choice.MIGRATE,
        leaves=program.replica if program.replica != placed.replica else "",
        reason=_why(placed),
    )


def _why(placed: Placed) -> str:
    """The choice with its cost, and what else was weighed."""
    others = [f"{choice} {_ms(cost_ns)}" for choice, cost_ns in placed.costs_ns.items() if choice != placed.choice]
    instead = f"; weighed: {', '.join(others)}" if others else ""
    return f"{placed.choice}: expected to cost {_ms(placed.cost_ns)}{instead}"


def _ms(cost_ns: int) -> str:
    return f"{as_seconds(cost_ns) * 1e3:.0f} ms"
