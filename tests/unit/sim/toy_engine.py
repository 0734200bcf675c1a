"""An engine whose times are worked out by hand, and what tests ask of it."""

from typing import Any

from engine_operations import TOY

from controlplane.core.model.events import Event, FirstToken, TurnEnded
from controlplane.lab.sim.engine_model import Call, EngineModel

US = 1000
MS = 1_000_000


def call(name: str, prompt: int, output: int = 1, program: str = "", **more: Any) -> Call:
    return Call(turn_id=name, program_id=program or name, prompt_tokens=prompt, output_tokens=output, **more)


def engine(pool_blocks: int = 1000, **options: Any) -> EngineModel:
    """TOY: a prefill step takes 10 us and 1 us a token, a decode step 1 us; a block has 16 tokens."""
    return EngineModel(TOY, pool_blocks=pool_blocks, **options)


def finish(model: EngineModel, until_ns: int | None = None) -> list[Event]:
    """Run until nothing has to be done, or until a time; what happened."""
    events: list[Event] = []
    while (wake_ns := model.next_wake_ns()) is not None and (until_ns is None or wake_ns <= until_ns):
        events += model.advance(wake_ns)
    if until_ns is not None:
        events += model.advance(until_ns)
    return events


def run(model: EngineModel, name: str, prompt: int, at_ns: int = 0, **more: Any) -> TurnEnded:
    """One call to its end."""
    model.submit(call(name, prompt, **more), at_ns)
    return ends(finish(model))[name]


def ends(events: list[Event]) -> dict[str, TurnEnded]:
    return {event.turn_id: event for event in events if isinstance(event, TurnEnded)}


def first(events: list[Event]) -> dict[str, FirstToken]:
    """In the order of their first tokens."""
    return {event.turn_id: event for event in events if isinstance(event, FirstToken)}
