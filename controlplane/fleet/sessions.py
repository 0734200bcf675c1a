"""Placement where nobody tells of events: by requests as they begin and end at a router, and what replicas say.

The fleet's daemon places by a ledger of every engine's events. A router inside somebody else's serving system sees
its own requests only. This keeps what a placement policy needs of them: where each session ran last and with how
long a prompt, what runs on each replica now, how long turns take. The policies are the daemon's own.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.estimate import Estimates
from controlplane.core.policies import Choice, NextTurn, PlacementPolicy
from controlplane.core.tally import Tally
from controlplane.core.types import NANOSECONDS_PER_SECOND, Program, Replica, Status, Tier, seconds

_MOST_SESSIONS = 100_000  # whoever ran longest ago is forgotten first
_SEEN_TOKENS = 1_000  # as which the given rate of prefill counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What is known of a replica's KV pool, in tokens; ``free_tokens`` -1: it does not say."""

    total_tokens: int
    free_tokens: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A request on its way."""

    session_id: str
    replica: str
    blocks: int
    since_ns: int
    last: bool  # of its session


class Sessions:
    """Sessions and their replicas. Times are an argument, on any monotonic clock.

    ``prefill_tokens_per_s``: how fast a replica computes a context that it lost, which is what leaving one costs.
    A session that was silent for ``forget_s`` is taken to have ended.
    """

    def __init__(
        self,
        policy: PlacementPolicy[Any],
        *,
        prefill_tokens_per_s: float = 10_000.0,
        block_tokens: int = 16,
        forget_s: float = 600.0,
    ) -> None:
        self._policy = policy
        self._state = policy.initial()
        self._estimates = Estimates(block_tokens=block_tokens)
        took_ns = round(_SEEN_TOKENS / prefill_tokens_per_s * NANOSECONDS_PER_SECOND)
        self._estimates.prefill.add(_SEEN_TOKENS, 0, took_ns)
        self._forget_ns = seconds(forget_s)
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._running: dict[str, Running] = {}
        self._charged = Tally()  # blocks of contexts, by replica
        self._turns = Tally()
        self._turn_blocks = Tally()

    def __len__(self) -> int:
        return len(self._programs)

    def home_of(self, session_id: str) -> str:
        """The replica that ran its last request; empty: it is not known."""
        program = self._programs.get(session_id)
        return program.replica if program is not None else ""

    def place(
        self, session_id: str, prompt_tokens: int, pools: Mapping[str, Pool], now_ns: int
    ) -> tuple[str, Choice]:
        """The replica, of those in ``pools``, for the session's next request, and what becomes of its context."""
        self._forget(now_ns)
        program = self._programs.get(session_id) or Program(program_id=session_id, root_id=session_id)
        turn = NextTurn(
            program=program,
            blocks=self._estimates.blocks(prompt_tokens),
            reusable_tokens=min(program.context_tokens, prompt_tokens),
            held=True,  # it is here now, and where there is no room it will wait
        )
        replicas = [self._replica(name, pools[name]) for name in sorted(pools)]
        self._state, placed = self._policy.place(self._state, turn, replicas, self._estimates, now_ns)
        return placed.replica, placed.choice

    def _replica(self, name: str, pool: Pool) -> Replica:
        total = self._estimates.blocks(pool.total_tokens)
        free = (
            self._estimates.blocks(pool.free_tokens) if pool.free_tokens >= 0 else total - self._turn_blocks[name]
        )
        return Replica(
            name=name,
            total_blocks=total,
            free_blocks=free,
            demand_blocks=self._charged[name],
            turns=self._turns[name],
            turn_blocks=self._turn_blocks[name],
        )

    def begin(
        self, request_id: str, session_id: str, replica: str, prompt_tokens: int, now_ns: int, *, last: bool = False
    ) -> None:
        """The request is on its way to ``replica``, whoever chose; ``last``: its session will not come back."""
        program = self._programs.get(session_id)
        if program is None:
            program = self._programs[session_id] = Program(program_id=session_id, root_id=session_id)
            program.status = Status.ACTIVE
        if program.replica != replica:
            self._charge(program, 0)
            program.replica, program.kv_tier, program.warm = replica, Tier.NONE, False
        blocks = self._estimates.blocks(prompt_tokens)
        self._charge(program, max(blocks, program.kv_blocks))
        program.open_turns += 1
        program.prompt_tokens = prompt_tokens
        self._touch(program, now_ns)
        self._running[request_id] = Running(
            session_id=session_id, replica=replica, blocks=blocks, since_ns=now_ns, last=last
        )
        self._turns.add(replica, 1)
        self._turn_blocks.add(replica, blocks)

    def end(self, request_id: str, now_ns: int) -> None:
        """The request is over, well or not."""
        run = self._running.pop(request_id, None)
        if run is None:
            return
        self._turns.add(run.replica, -1)
        self._turn_blocks.add(run.replica, -run.blocks)
        self._estimates.service.add(now_ns - run.since_ns)
        program = self._programs.get(run.session_id)
        if program is None:
            return
        program.open_turns -= 1
        program.turn_index += 1
        if run.last:
            self._drop(program)
            return
        program.context_tokens = program.prompt_tokens
        if program.replica == run.replica:
            program.kv_tier, program.warm = Tier.HBM, True
            self._charge(program, self._estimates.blocks(program.context_tokens))
        self._touch(program, now_ns)

    def lost(self, replica: str) -> None:
        """The replica has gone, and every context on it."""
        for program in self._programs.values():
            if program.replica == replica:
                self._charge(program, 0)
                program.replica, program.kv_tier, program.warm = "", Tier.NONE, False

    def _charge(self, program: Program, blocks: int) -> None:
        self._charged.add(program.replica, blocks - program.kv_blocks)
        program.kv_blocks = blocks

    def _touch(self, program: Program, now_ns: int) -> None:
        program.last_seen_ns = now_ns
        self._programs.move_to_end(program.program_id)
        if len(self._programs) > _MOST_SESSIONS:
            self._drop(next(iter(self._programs.values())))

    def _forget(self, now_ns: int) -> None:
        while self._programs:
            oldest = next(iter(self._programs.values()))
            if oldest.open_turns or now_ns - oldest.last_seen_ns < self._forget_ns:
                return
            self._drop(oldest)

    def _drop(self, program: Program) -> None:
        self._charge(program, 0)
        del self._programs[program.program_id]
