"""One program's time line, as the page draws it: what is kept of the program, and its tree of sub-agents.

Nothing in it changes by itself as time passes, but for the critical path of a tree that still runs: who has it need
not fetch it again until something happened.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.core.ledger import Ledger
from controlplane.core.model.types import Program, Status
from controlplane.core.regret import Verdict
from controlplane.core.regret.descriptions import what_happened
from controlplane.daemon.observe.critical_path import Node, PathSegment, critical_path
from controlplane.daemon.observe.journal import Decided, History, Journal, ToolCall, Turn

MOST_ENTRIES = 600  # entries of one program; the page says how many it does not show
MOST_RELATIVES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict: what came of a decision, in words, tokens and seconds of an engine."""

    kind: str  # of what was judged: the hold that an admission ended, say
    happened: str
    opened_ns: int
    closed_ns: int
    hit_tokens: int  # of its own context, found
    again_tokens: int  # computed again
    held_token_s: float  # memory that was kept for it
    freed_token_s: float  # memory that others could have
    wait_s: float
    cost_s: float
    gain_s: float
    estimated: bool  # one of the sides was not measured

    @classmethod
    def of(cls, verdict: Verdict) -> "Judged":
        same = {name: getattr(verdict, name) for name in cls.__slots__ if name != "happened"}
        return cls(happened=what_happened(verdict), **same)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A command about the program, and its verdicts."""

    at_ns: int
    number: int  # of the command; 0: nobody decided, and the verdict is on what happened
    kind: str
    reason: str = ""
    until_ns: int = 0  # of a pin: when it ended, or will end by itself
    engine: str = ""  # of a placement: where
    rejected: str = ""  # why the engine would not
    verdicts: list[Judged] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """A program of the same tree, or the program itself."""

    program_id: str
    parent_id: str  # empty: it is the root
    depth: int
    began_ns: int
    ended_ns: int  # 0: it has not
    turns: int
    own_path_ns: int = 0  # of the critical path, as far as it is this program's own time


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The answer. Times are the daemon's, in nanoseconds; 0: that did not happen, or is not known."""

    program_id: str
    parent_id: str  # empty: it is a root
    began_ns: int
    seen_ns: int  # when anything was heard of it last
    ended_ns: int  # 0: it has not
    turn_count: int
    left_out: int  # turns, tool calls, decisions and verdicts that were, and are not here
    turns: list[Turn]
    tools: list[ToolCall]
    decisions: list[Decision]
    tree: list[Relative]  # the root in front, each behind its parent; empty: it has no relatives
    path: list[PathSegment]  # the tree's critical path: whose time the root's time is made of
    tree_left_out: int  # programs of the tree that are not here


def timeline(journal: Journal, program_id: str, now_ns: int) -> Timeline | None:
    """What is known of that program; None: nothing is."""
    ledger = journal.controller().ledger
    program = ledger.programs.by_name.get(program_id)
    history = journal.histories.get(program_id)
    if history is None:
        if program is None:
            return None
        history = History(program_id=program_id, began_ns=program.arrived_at_ns, seen_ns=program.last_seen_ns)
    entries = sorted(history.entries, key=_began_ns)
    shown = entries[-MOST_ENTRIES:]
    family = _Family(journal, ledger)
    tree, path, tree_left_out = family.tree(program_id, now_ns)
    return Timeline(
        program_id=program_id,
        parent_id=family.parent_of(program_id),
        began_ns=history.began_ns,
        seen_ns=history.seen_ns,
        ended_ns=history.ended_ns,
        turn_count=_turns(history, program),
        left_out=history.left_out + len(entries) - len(shown),
        turns=[each for each in shown if isinstance(each, Turn)],
        tools=[each for each in shown if isinstance(each, ToolCall)],
        decisions=list(_decisions(shown)),
        tree=tree,
        path=path,
        tree_left_out=tree_left_out,
    )


def _turns(history: History | None, program: Program | None) -> int:
    """The ledger remembers turns from before a restart, the other one programs that have ended."""
    counted = program.turn_index + program.open_turns if program is not None else 0
    return max(history.turns if history is not None else 0, counted)


def _began_ns(entry: Turn | ToolCall | Decided | Verdict) -> int:
    if isinstance(entry, Verdict):
        return entry.closed_ns
    return entry.at_ns if isinstance(entry, Decided) else entry.began_ns


def _decisions(entries: Sequence[Turn | ToolCall | Decided | Verdict]) -> Iterator[Decision]:
    """Each with its verdicts, and what nobody decided as one without a number, in the order in which they came."""
    of: defaultdict[int, list[Judged]] = defaultdict(list)
    known = {entry.number for entry in entries if isinstance(entry, Decided)}
    for entry in entries:
        if isinstance(entry, Verdict) and entry.number in known:
            of[entry.number].append(Judged.of(entry))
    for entry in entries:
        if isinstance(entry, Decided):
            verdicts = of.get(entry.number, [])
            same = {name: getattr(entry, name) for name in Decided.__slots__}
            yield Decision(**same, verdicts=verdicts)
        elif isinstance(entry, Verdict) and entry.number not in known:
            yield Decision(at_ns=entry.closed_ns, number=0, kind=entry.kind, verdicts=[Judged.of(entry)])


class _Family:
    """Whose child is whose: as the ledger has it, and behind it as it was."""

    def __init__(self, journal: Journal, ledger: Ledger) -> None:
        self._journal, self._programs = journal, ledger.programs

    def parent_of(self, name: str) -> str:
        """Empty: it is a root, or nothing is known of it."""
        program, history = self._programs.by_name.get(name), self._journal.histories.get(name)
        if program is not None and program.parent_id:
            return program.parent_id
        return history.parent_id if history is not None else ""

    def tree(self, name: str, now_ns: int) -> tuple[list[Relative], list[PathSegment], int]:
        """All that belong together, the critical path, and how many are too many to tell."""
        root = self._root_of(name)
        below = self._below(root)
        if not below:
            return [], [], 0
        found: dict[str, Relative] = {}
        node, left_out = self._node(root, "", below, found, now_ns)
        path = critical_path(node)
        own_ns: defaultdict[str, int] = defaultdict(int)
        for segment in path:
            own_ns[segment.program_id] += segment.ended_ns - segment.began_ns
        relatives = [replace(each, own_path_ns=own_ns[each.program_id]) for each in found.values()]
        return relatives, path, left_out

    def _root_of(self, name: str) -> str:
        climbed = {name}
        while (parent := self.parent_of(name)) and parent not in climbed and self._is_known(parent):
            climbed.add(parent)
            name = parent
        return name

    def _is_known(self, name: str) -> bool:
        return name in self._journal.histories or name in self._programs.by_name

    def _below(self, root: str) -> Mapping[str, list[str]]:
        """The children of each program of the tree, in the order in which they began."""
        found: dict[str, set[str]] = defaultdict(set)
        program = self._programs.by_name.get(root)
        for child in self._programs.children_of(program.root_id) if program is not None else ():
            found[self._programs.by_name[child].parent_id].add(child)
        todo, done = [root], set[str]()
        while todo:
            if (name := todo.pop()) in done:
                continue
            done.add(name)
            found[name].update(self._journal.children.get(name, ()))
            todo += found[name]
        return {name: sorted(names, key=self._began_ns) for name, names in found.items() if names}

    def _node(
        self, name: str, parent: str, below: Mapping[str, list[str]], found: dict[str, Relative], now_ns: int
    ) -> tuple[Node["_Run"], int]:
        """The tree from here on; whom it finds is added to ``found``."""
        program, history = self._programs.by_name.get(name), self._journal.histories.get(name)
        ended_ns = history.ended_ns if history is not None else 0
        if not ended_ns and (program is None or program.status is Status.ENDED):
            ended_ns = history.seen_ns if history is not None else 0
        depth = found[parent].depth + 1 if parent else 0
        began_ns = self._began_ns(name)
        found[name] = Relative(
            program_id=name,
            parent_id=parent,
            depth=depth,
            began_ns=began_ns,
            ended_ns=ended_ns,
            turns=_turns(history, program),
        )
        node, left_out = Node(_Run(name, began_ns, ended_ns or now_ns)), 0
        for child in below.get(name, ()):
            if len(found) >= MOST_RELATIVES:
                left_out += 1
            elif child not in found:
                made, more = self._node(child, name, below, found, now_ns)
                node.children.append(made)
                left_out += more
        return node, left_out

    def _began_ns(self, name: str) -> int:
        history, program = self._journal.histories.get(name), self._programs.by_name.get(name)
        if history is not None:
            return history.began_ns
        return program.arrived_at_ns if program is not None else 0


@dataclass(frozen=True, slots=True)
class _Run:
    """Who runs still has run until now."""

    program_id: str
    began_ns: int
    ended_ns: int
