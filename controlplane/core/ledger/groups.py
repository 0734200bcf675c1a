"""Groups of rollouts: programs that begin with the same prompt, which one of them computes for all.

**Paper**: GRPO (DeepSeekMath, arXiv 2402.03300, §4.1) compares some samples of each prompt. What is made of them is
in ``scheduling.groups``.
"""

from dataclasses import dataclass, field

from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs
from controlplane.core.model.events import TurnQueued
from controlplane.core.model.types import Program

_MOST_GROUPS = 4096


@dataclass(slots=True, kw_only=True)
class Group:
    """``size`` programs that begin alike, as far as they have come. ``begun``: those whose first prefill is over.

    ``opener``: the member that computes the prompt now, since ``opened_ns``. ``home``: the engine that has the
    prompt, of ``prompt_tokens``; empty: none does.
    """

    size: int
    members: dict[str, None] = field(default_factory=dict)
    begun: dict[str, None] = field(default_factory=dict)
    opener: str = ""
    opened_ns: int = 0
    home: str = ""
    prompt_tokens: int = 0
    seen_ns: int = 0  # when a member came or began last
    pin: tuple[str, int] = ("", 0)  # the member that was pinned last for the prompt's sake, after so many turns

    @property
    def is_complete(self) -> bool:
        return len(self.begun) >= self.size

    def forget_prompt(self) -> None:
        """No engine has it any more: whoever comes next computes it."""
        self.home = self.opener = ""
        self.pin = ("", 0)


@dataclass(slots=True, kw_only=True, eq=False)
class Groups:
    """Those that have not all begun, by name."""

    programs: Programs
    by_name: dict[str, Group] = persisted(dict, "groups")

    def of(self, program: Program) -> Group | None:
        """The program's group, while it matters."""
        return self.by_name.get(program.group) if program.group else None

    def join(self, program: Program, event: TurnQueued, now_ns: int) -> None:
        """A program that is new says whose rollout it is. A name whose members have all come may be used again."""
        if event.group_size < 2 or program.turn_index or program.group or program.parent_id:
            return
        owner = event.account or event.tenant  # two owners may use the same name
        name = program.group = f"{event.group_id}@{owner}" if owner else event.group_id
        group = self.by_name.get(name)
        if group is None or len(group.members) >= group.size:
            group = self.by_name[name] = Group(size=event.group_size)
            if len(self.by_name) > _MOST_GROUPS:
                del self.by_name[next(iter(self.by_name))]
        group.members[program.program_id] = None
        group.seen_ns = now_ns
        if group.home:
            self._share(group, program)

    def granted(self, program: Program, now_ns: int) -> None:
        """It gets a slot: where no engine has the prompt, and nobody computes it, it does that."""
        group = self.of(program)
        if group is not None and not (group.home or group.opener or program.turn_index):
            group.opener, group.opened_ns = program.program_id, now_ns

    def begins(self, program: Program, place: str, prompt_tokens: int, now_ns: int) -> bool:
        """Its first prompt was computed, on the engine there. True if others wait for that. 0 tokens: unknown."""
        group = self.of(program)
        if group is None or program.turn_index or program.program_id in group.begun:
            return False
        group.begun[program.program_id] = None
        group.seen_ns = now_ns
        if group.home:
            return False
        group.home, group.opener = place, ""
        group.prompt_tokens = prompt_tokens or program.kv_blocks * self.programs.estimates.block_tokens
        for name in group.members:
            if (member := self.programs.by_name.get(name)) is not None:
                self._share(group, member)
        return True

    def _share(self, group: Group, member: Program) -> None:
        self.programs.share_prompt(member, group.prompt_tokens // self.programs.estimates.block_tokens)

    def leaves(self, program: Program) -> None:
        """Its turn failed or was left, or its run is over: nobody waits for what it has not computed."""
        group = self.of(program)
        if group is not None and group.opener == program.program_id and program.program_id not in group.begun:
            group.opener = ""

    def flushed(self, place: str) -> None:
        """The engine there holds nothing any more."""
        for group in self.by_name.values():
            if group.home and group.home == place:
                group.forget_prompt()
