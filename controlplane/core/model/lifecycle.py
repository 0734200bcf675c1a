"""The one transition table: how a program's status changes, and by what.

A program's other dimension, whether it reasons (a turn is open) or acts (none is), is counted, not tabled:
turns may overlap and a paused program's tool may still run.

Rows that a peer can cause (QUEUE, SUBMIT, END) exist for every status, so no peer can bring the table down.
Rows that only we cause are missing where they would be a bug of ours, and then raise ``LocalEventError``.
"""

from enum import StrEnum

from controlplane.core.model.errors import LocalEventError
from controlplane.core.model.types import Status


class Trigger(StrEnum):
    """What moves a program."""

    QUEUE = "queue"  # the gate holds a turn of it
    SUBMIT = "submit"  # the engine has a turn of it
    ADMIT = "admit"  # we grant a slot, or give it again
    PAUSE = "pause"  # we take the slot back
    END = "end"  # the run is over, or we conclude so from silence


TRANSITIONS: dict[tuple[Status, Trigger], Status] = {
    (Status.WAITING, Trigger.QUEUE): Status.WAITING,
    # The gate failed open, or there is none: what runs in the engine holds a slot, whoever let it in.
    (Status.WAITING, Trigger.SUBMIT): Status.ACTIVE,
    (Status.WAITING, Trigger.ADMIT): Status.ACTIVE,
    (Status.WAITING, Trigger.END): Status.ENDED,
    # A gate that restarted asks again for a program that we granted: it keeps its slot.
    (Status.ACTIVE, Trigger.QUEUE): Status.ACTIVE,
    (Status.ACTIVE, Trigger.SUBMIT): Status.ACTIVE,
    (Status.ACTIVE, Trigger.ADMIT): Status.ACTIVE,
    (Status.ACTIVE, Trigger.PAUSE): Status.PAUSED,
    (Status.ACTIVE, Trigger.END): Status.ENDED,
    (Status.PAUSED, Trigger.QUEUE): Status.WAITING,
    (Status.PAUSED, Trigger.SUBMIT): Status.ACTIVE,
    (Status.PAUSED, Trigger.ADMIT): Status.ACTIVE,
    (Status.PAUSED, Trigger.END): Status.ENDED,
    # We concluded from silence that it had ended, and were wrong: it queues as it did before.
    (Status.ENDED, Trigger.QUEUE): Status.WAITING,
    (Status.ENDED, Trigger.SUBMIT): Status.ACTIVE,
    (Status.ENDED, Trigger.END): Status.ENDED,
}


def next_status(status: Status, trigger: Trigger) -> Status:
    """The status after ``trigger``. Raises ``LocalEventError`` for a move that we must not make."""
    try:
        return TRANSITIONS[status, trigger]
    except KeyError:
        raise LocalEventError(f"a {status} program cannot {trigger}") from None
