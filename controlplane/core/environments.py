"""For whom an environment of tools is made now, and for whom it is not needed after all.

**Paper**: ThunderAgent §4.4 (asynchronous environment preparation, when a program approaches the threshold).
"""

from collections.abc import Collection, Iterator

from controlplane.core.commands import CancelEnvironment, Command, PrepareEnvironment
from controlplane.core.ledger import Ledger
from controlplane.core.types import Status


def due(ledger: Ledger, near: Collection[str]) -> Iterator[Command]:
    """Made for who is let in and for the roots that are ``near``; not for who has left the queue."""
    environments = ledger.state.environments
    for name, environment in list(environments.items()):
        program = ledger.programs.get(name)
        if program is None or program.status is Status.ENDED:
            del environments[name]
            continue
        is_in = ledger.programs.get(program.root_id, program).status is Status.ACTIVE
        if (is_in or program.root_id in near) and not environment.asked:
            why = "it is let in" if is_in else f"one of the next {len(near)} in the queue"
            yield PrepareEnvironment(program_id=name, reason=why)
        elif environment.asked and not is_in and program.root_id not in ledger.queue:
            yield CancelEnvironment(program_id=name, reason="it left the queue")
        if is_in:
            del environments[name]
