"""One program in the simulator: where it is in its trace, and what was measured of its turns."""

from dataclasses import replace

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.lab.sim.call import Call
from controlplane.lab.sim.kernel import Handle
from controlplane.lab.workload.records import ProgramRecord, Routed, TurnRecord
from controlplane.lab.workload.telemetry import Reporting, Telemetry, reply_calls, reported
from controlplane.lab.workload.trace import ProgramTrace, Turn, reusable_tokens

_BYTES_PER_TOKEN = 4  # of English text, roughly; the controller learns the ratio from what it is told


class Session:
    """A program's progress. The gate's grant is kept here: a lease that use renews."""

    def __init__(
        self,
        trace: ProgramTrace,
        *,
        shared_prefix_tokens: int = 0,
        ideal_ns: int = 0,
        telemetry: Telemetry = Telemetry.FULL,
        account: str = "",
        parent: "Session | None" = None,
    ) -> None:
        self.program_id = trace.program_id
        self.parent = parent
        self.children: dict[int, list[Session]] = {}  # by the turn that they begin behind
        self.waits_for = 0  # of those, until the next turn
        if parent is not None:
            parent.children.setdefault(trace.spawn_turn, []).append(self)
        self.account = account  # its tenant, by the word of its gate
        self.reported: Reporting = (
            parent.reported if parent is not None else reported(trace.telemetry or telemetry, trace.program_id)
        )
        self.group = trace.group
        self.agent = trace.source  # whatever its client tells: the gate knows it by its tools and instructions
        self.index = 0
        self.attempt = 0  # how often its turn was begun again: its engine had died
        self.lost_ns = 0  # that its turn was on engines that died, and until it was sent again
        self.arrived_ns = -1
        self.queued_ns = 0
        self.admitted_ns = 0
        self.first_token_ns = 0
        self.turn_ended_ns = -1  # the last one; -1 once the next one has begun
        self.refusals = 0  # of its turn
        self.held = False
        self.ask: Handle | None = None  # when the gate asks again
        self.ended = False
        self.refusal = ""  # why the gate refuses its turns: a budget is spent
        self.routed: Routed | None = None  # its last turn
        self.ideal_ns = ideal_ns
        self.call = Call(turn_id="", program_id="", prompt_tokens=1, output_tokens=1)
        self._trace = trace
        self._shared_prefix_tokens = shared_prefix_tokens if trace.shared_tokens is None else trace.shared_tokens
        self._prefix_tokens = 0
        self._previous_turn = ""
        self._granted_until_ns = -1
        self._lease_ns = 0

    @property
    def _prefix_group(self) -> str:
        """A tree of prefixes has two levels: sub-agents' common one has that of all programs in it."""
        return (
            f"children of {self._trace.parent_id}" if self._trace.family_tokens else self._trace.agent or "system"
        )

    @property
    def turn(self) -> Turn:
        """The turn it is at."""
        return self._trace.turns[self.index]

    @property
    def is_last(self) -> bool:
        return self.index == len(self._trace.turns) - 1

    @property
    def rewrites(self) -> bool:
        """Whether the prompt leaves out some of what the last turn ended with."""
        previous = self._trace.turns[self.index - 1] if self.index else None
        return previous is not None and self.call.reusable_tokens < previous.input_tokens + previous.output_tokens

    def prompt_size(self) -> PromptSize:
        """What a gate measures of the turn's prompt: what it shares with the last one, and how much is new."""
        call, previous = self.call, self._trace.turns[self.index - 1] if self.index else None
        shared = min(call.reusable_tokens, previous.input_tokens) if previous is not None else 0
        return PromptSize(
            prompt_bytes=call.prompt_tokens * _BYTES_PER_TOKEN,
            agent=self.agent,
            continues=self._previous_turn if shared else "",
            shared_ratio=shared / previous.input_tokens if previous is not None and shared else 0.0,
            new_bytes=(call.prompt_tokens - shared) * _BYTES_PER_TOKEN,
        )

    def begin_turn(self, now_ns: int) -> None:
        """Make the call of the turn it is at."""
        turn = self.turn
        tool, calls = reply_calls(turn, is_last=self.is_last) if self.reported.replies else ("", -1)
        previous = self._trace.turns[self.index - 1] if self.index else None
        reusable = reusable_tokens(previous, turn)
        if not reusable:
            prefix_tokens = self._shared_prefix_tokens + self._trace.family_tokens
            self._prefix_tokens = min(prefix_tokens, turn.input_tokens)
        self.queued_ns = now_ns
        self.first_token_ns, self.turn_ended_ns = 0, -1
        self.attempt = self.lost_ns = self.refusals = 0
        self._previous_turn = self.call.turn_id
        self.call = Call(
            turn_id=f"{self.program_id}/{self.index}",
            program_id=self.program_id,
            prompt_tokens=turn.input_tokens,
            output_tokens=turn.output_tokens,
            reusable_tokens=reusable,
            prefix_group=self._prefix_group if self._prefix_tokens else "",
            prefix_tokens=self._prefix_tokens,
            arrived_at_ns=self.arrived_ns,
            tool=tool,
            tool_calls=calls,
        )

    def begin_again(self, now_ns: int) -> None:
        """The engine died that had its turn: the client sends it again, as a call of its own."""
        self.attempt += 1
        self.lost_ns += now_ns - self.admitted_ns
        self.first_token_ns = 0
        self.call = replace(self.call, turn_id=f"{self.program_id}/{self.index}+{self.attempt}")

    def refuse(self, reason: str) -> bool:
        """From now on its gate refuses its turns: a budget is spent. True if one is held."""
        self.revoke()
        self.refusal = reason
        return self.held

    def refused(self, now_ns: int, why: str) -> TurnRecord:
        """Its turn, which never ran."""
        self.admitted_ns = now_ns
        return self.turn_record(now_ns, error=why)

    # -- the gate's grant -------------------------------------------------------------------------------------

    def grant(self, now_ns: int, ttl_ns: int) -> None:
        """Let it pass; for ``ttl_ns`` after each use, 0: for good."""
        self._lease_ns = ttl_ns or 1 << 62
        self._granted_until_ns = now_ns + self._lease_ns

    def revoke(self) -> None:
        """Hold its next turn."""
        self._granted_until_ns = -1

    def is_granted(self, now_ns: int) -> bool:
        """Whether a turn may pass now; passing renews the lease."""
        if now_ns > self._granted_until_ns:
            return False
        self._granted_until_ns = now_ns + self._lease_ns
        return True

    # -- records ----------------------------------------------------------------------------------------------

    def turn_record(
        self, now_ns: int, *, output_tokens: int = 0, cached_tokens: int = 0, error: str = ""
    ) -> TurnRecord:
        """The turn it is at, which ends now."""
        return TurnRecord(
            program_id=self.program_id,
            index=self.index,
            queued_ns=self.queued_ns,
            admitted_ns=self.admitted_ns,
            first_token_ns=self.first_token_ns,
            ended_ns=now_ns,
            prompt_tokens=self.call.prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            hold_ns=self.admitted_ns - self.queued_ns - self.lost_ns,
            error=error,
            routed=self.routed,
            attempts=1 + self.attempt,
            refusals=self.refusals,
        )

    def program_record(self, now_ns: int, error: str = "") -> ProgramRecord:
        """The program, which ends now."""
        return ProgramRecord(
            program_id=self.program_id,
            arrived_ns=self.arrived_ns,
            ended_ns=now_ns,
            turns=self.index + (not error),
            ideal_ns=self.ideal_ns,
            failed=bool(error),
            error=error,
            tenant=self.account,
            parent_id=self._trace.parent_id,
        )
