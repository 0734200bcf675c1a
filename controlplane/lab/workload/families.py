"""Programs with their sub-agents: what is counted, drawn and named anew as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controlplane.lab.workload.trace import ProgramTrace

Family = tuple[ProgramTrace, ...]
"""A root first, then all below it, each behind its parent."""


def families(programs: Iterable[ProgramTrace]) -> list[Family]:
    """Each root with all below it, in the order of the roots; a parent precedes its children in ``programs``."""
    found: dict[str, list[ProgramTrace]] = {}
    root_of: dict[str, str] = {}
    for program in programs:
        root = root_of[program.program_id] = root_of.get(program.parent_id, program.program_id)
        found.setdefault(root, []).append(program)
    return [tuple(family) for family in found.values()]


def all_of(found: Iterable[Family]) -> tuple[ProgramTrace, ...]:
    """The programs of these families."""
    return tuple(program for family in found for program in family)


def renamed(family: Family, pattern: str) -> Family:
    """The family under other names; ``pattern`` has a ``{}`` where the name was."""
    return tuple(
        replace(
            program,
            program_id=pattern.format(program.program_id),
            parent_id=pattern.format(program.parent_id) if program.parent_id else "",
        )
        for program in family
    )


def by_parent(programs: Iterable[ProgramTrace]) -> Mapping[str, Mapping[int, Sequence[ProgramTrace]]]:
    """Children by their parent and by the turn that they begin behind; nothing of programs that have none."""
    found: dict[str, dict[int, list[ProgramTrace]]] = {}
    for program in programs:
        if program.parent_id:
            found.setdefault(program.parent_id, {}).setdefault(program.spawn_turn, []).append(program)
    return found
