"""Turns that two engines serve: one prefills what another decodes (disaggregated prefill).

Each tells its own end, by a name that both know. Whichever comes first waits for the other, and the two make the
turn's ``TurnEnded``: what was prompted and cached is the prefill engine's to say, the output the decode engine's.
"""

from collections import deque
from dataclasses import dataclass, field

from controlplane.core.ledger.persisted import persisted
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds

_MOST = 4096
_LONGEST_NS = seconds(600)  # of a decode: its end is lost, or it went to an engine that tells nothing


@dataclass(slots=True, kw_only=True)
class Prefilled:
    """A turn that is being decoded, as far as anybody knows."""

    end: ev.TurnPrefilled
    since_ns: int


@dataclass(slots=True, kw_only=True, eq=False)
class Handoffs:
    """The ends that wait, by handoff. ``decoders``: by place, the latest samples of engines that decode.

    Where there are none, a turn is over when it is prefilled. ``over``: ends that are complete and not applied yet.
    """

    decoders: dict[str, ev.PoolSampled] = persisted(dict)
    prefilled: dict[str, Prefilled] = persisted(dict)
    decoded: dict[str, ev.TurnDecoded] = persisted(dict)
    over: deque[ev.TurnEnded] = field(default_factory=lambda: deque(maxlen=_MOST))

    def prefill_ended(self, event: ev.TurnPrefilled, now_ns: int, *, runs: bool) -> None:
        """``runs``: its beginning is known, and its end is not."""
        decoded = self.decoded.pop(event.handoff, None)
        if decoded is not None or not runs or not self.decoders:
            self.over.append(_whole(event, decoded))
        else:
            if (
                older := self.prefilled.pop(event.handoff, None)
            ) is not None:  # two by one name: clients choose some
                self.over.append(_whole(older.end, None))
            self.prefilled[event.handoff] = Prefilled(end=event, since_ns=now_ns)
        self.give_up(now_ns)

    def decode_ended(self, event: ev.TurnDecoded, now_ns: int) -> None:
        prefilled = self.prefilled.pop(event.handoff, None)
        if prefilled is not None:
            self.over.append(_whole(prefilled.end, event))
            return
        self.decoded[event.handoff] = event
        if len(self.decoded) > _MOST:  # of a turn whose prefill failed, or that nobody tells of
            del self.decoded[next(iter(self.decoded))]

    def give_up(self, now_ns: int) -> None:
        """Whose decode is not told of any more has ended."""
        while self.prefilled:
            handoff, longest = next(iter(self.prefilled.items()))
            is_late = now_ns - longest.since_ns > _LONGEST_NS
            if self.decoders and not is_late and len(self.prefilled) <= _MOST:
                return
            del self.prefilled[handoff]
            self.over.append(_whole(longest.end, None))

    def take_over(self) -> list[ev.TurnEnded]:
        """The ends that what was applied has completed: they are to be applied next, and told as events are."""
        over = list(self.over)
        self.over.clear()
        return over


def _whole(prefilled: ev.TurnPrefilled, decoded: ev.TurnDecoded | None) -> ev.TurnEnded:
    """The turn's end, which nobody has sent: it has no number. A decode that is not told of has no output."""
    return ev.TurnEnded(
        publisher=prefilled.publisher,
        program_id=prefilled.program_id,
        turn_id=prefilled.turn_id,
        prompt_tokens=prefilled.prompt_tokens,
        output_tokens=decoded.output_tokens if decoded is not None else 0,
        cached_tokens=prefilled.cached_tokens,
        service_ns=prefilled.service_ns + (decoded.service_ns if decoded is not None else 0),
        ok=decoded is None or decoded.ok,
        recomputed_tokens=prefilled.recomputed_tokens,
    )
