"""What the plugin does in a scheduler that is one of several ranks, which must all decide alike.

Each rank decides for itself by what all have in common, and notes what it decided. Rank 0's word brings the rest.
"""

from typing import Any

from controlplane.core.model import commands as cmd
from engine_hooks.engine.settings import Settings
from engine_hooks.guard import Guard
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.lockstep import Lockstep, StepMessage
from engine_hooks.sglang.peers import Peers
from engine_hooks.sglang.verify import sglang_version


class Ranked(Attached):
    """``peers``: this scheduler's place among them. Contexts are not moved to host memory and back here.

    When a copy ends no rank can know of the others; SGLang asks them all, at its own moments.
    """

    _moves_contexts = False

    def __init__(self, scheduler: Any, settings: Settings, guard: Guard, peers: Peers) -> None:
        self._steps = 0
        self._lockstep = lockstep = Lockstep(peers, self._held_alike)
        super().__init__(scheduler, settings, guard, lockstep.now_ns, speaks=lockstep.leads)
        self._lease = lockstep.lease

    def begin(self) -> None:
        """Only rank 0 is heard by the daemon; but it says nothing to the others before all have come here."""
        if self._lockstep.leads:
            super().begin()
        own = self._settings
        self._lockstep.join(f"{sglang_version()}, {own.mode}, {own.pin_budget_ratio}")

    def passive_because(self) -> str:
        return self._lockstep.passive_because or super().passive_because()

    def account(self) -> dict[str, object]:
        return {"lockstep": self._lockstep.account()}

    # The word of rank 0

    def message(self, requests: Any) -> StepMessage | None:
        """What is to be broadcast before these requests; None on every rank but one, and mostly there too.

        It raises nothing.
        """
        try:
            steers = bool(self._pins.programs) or self._steering.steers
            return self._lockstep.next_message(
                has_news=bool(requests),
                steers=steers and any(self._view.turns()),
                until_ns=self._pins.next_deadline_ns(),
            )
        except Exception as error:
            return self._lockstep.fail(error)

    def receive(self, message: StepMessage) -> None:
        """Rank 0's word, on every rank in the same step, before anything else happens in it."""
        self._commands.extend(self._lockstep.receive(message))
        if self._lockstep.passive_because:
            self._let_go()

    def _let_go(self) -> None:
        """Nobody steers any more: all pins are given up, on every rank in this step."""
        for program_id in list(self._pins.programs):
            self._guard.run("let_go", self._pins.release, program_id)
        self._steering.follow("")

    def _take(self, command: cmd.Command) -> None:
        self._lockstep.inbox.append(command)

    def _take_up_policies(self) -> None:
        self._steering.follow(self._lockstep.policies)
        if self._lockstep.passive_because:
            self._commands.extend(self._lockstep.waiting())  # to be refused

    # What is compared

    def _held_alike(self) -> tuple[object, ...]:
        """What no two ranks may differ in, and what is read in no time; the rest was noted as it was decided."""
        pool, pins = self._view.pool(), self._pins
        failed = sum(self._guard.failures.values())
        held = (pool.free, pool.evictable, pins.tokens, len(pins.programs))
        return (self._steps, failed, *held, *self._view.turns())

    def step_begins(self, *args: Any) -> None:
        self._steps += 1
        super().step_begins(*args)

    def released(self, result: Any, saved: Any, request: Any, *args: Any) -> None:
        super().released(result, saved, request, *args)
        if saved is not None:
            self._lockstep.note("left", request.rid, saved[1])

    def queue_ordered(self, result: Any, saved: Any, policy: Any, waiting_queue: Any, *args: Any) -> None:
        super().queue_ordered(result, saved, policy, waiting_queue, *args)
        if self._steering.steers:
            self._lockstep.note("order", [request.rid for request in waiting_queue])

    def decode_ordered(self, order: list[int], saved: Any, requests: Any, *args: Any) -> None:
        super().decode_ordered(order, saved, requests, *args)
        self._lockstep.note("retract", order)

    def evict_first(self, tree: Any, params: Any) -> tuple[int, Any]:
        freed_tokens, rest = super().evict_first(tree, params)
        self._lockstep.note("evict", freed_tokens)
        return freed_tokens, rest

    def first_chunk(self, verdict: Any, adder: Any, request: Any, sizes: dict[str, Any]) -> Any:
        ours = super().first_chunk(verdict, adder, request, sizes)
        if ours is not verdict:
            self._lockstep.note("first_chunk", request.rid, ours)
        return ours

    def next_chunk(self, budget: Any, chunk_limit: int) -> int:
        tokens = super().next_chunk(budget, chunk_limit)
        if tokens >= 0:
            self._lockstep.note("next_chunk", tokens)
        return tokens

    def _obey(self, command: cmd.Command) -> None:
        self._lockstep.note(command)
        super()._obey(command)

    def _done(self, command: cmd.ProgramCommand, program_id: str) -> str | None:
        why = self._lockstep.passive_because
        if why and not isinstance(command, cmd.Release | cmd.Label):
            return f"nothing is steered any more: {why}"
        problem = super()._done(command, program_id)
        self._lockstep.note(program_id, problem)
        return problem
