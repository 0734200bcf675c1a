"""What a command of ours means for the ledger, as soon as it is sent and after a restart."""

from dataclasses import replace

from controlplane.core.ledger import Ledger
from controlplane.core.ledger.tools import tool_key
from controlplane.core.model import commands as cmd
from controlplane.core.model.lifecycle import Trigger
from controlplane.core.model.types import Status


def apply_command(ledger: Ledger, command: cmd.Command, now_ns: int) -> None:
    """Believe that it takes effect; where it cannot, the engine's answer corrects it."""
    if not isinstance(command, cmd.ProgramCommand):
        return
    program = ledger.programs.by_name.get(command.program_id)
    if program is None:
        return  # what is told of a program that was forgotten is for gates alone
    if isinstance(command, cmd.Admit):
        ledger.runs.grant(program, now_ns)
    elif isinstance(command, cmd.Place):
        ledger.programs.place(program, command.replica, moves=command.moves)
    elif isinstance(command, cmd.Refuse):
        ledger.runs.refuse(program, now_ns, command.reason, for_good=not command.ttl_ns)
        if command.code == "expected_wait":
            # Its place is gone: those who were taken meanwhile were told when it is their turn.
            program.queued_at_ns = program.urgent_at_ns = 0
    elif isinstance(command, cmd.Adopt):
        ledger.runs.untold.pop(command.program_id, None)
    elif isinstance(command, cmd.Pause) and program.status is Status.ACTIVE:
        ledger.programs.move(program, Trigger.PAUSE, now_ns)
        if program.queued_turns:
            ledger.programs.move(program, Trigger.QUEUE, now_ns)
    elif isinstance(command, cmd.Retain):
        program.retained_until_ns = now_ns + command.ttl_ns
    elif isinstance(command, cmd.Release | cmd.Demote | cmd.Discard):
        program.retained_until_ns = 0
    elif isinstance(command, cmd.PrepareEnvironment | cmd.CancelEnvironment):
        environment = ledger.tools.environments.get(command.program_id)
        if environment is not None:
            environment.asked = isinstance(command, cmd.PrepareEnvironment)
    elif isinstance(command, cmd.Freeze | cmd.Thaw):
        ledger.sandboxes.asked(command.program_id, isinstance(command, cmd.Freeze), now_ns)
    elif isinstance(command, cmd.StartTool):
        ledger.tools.let_start(tool_key(command.program_id, command.call_id))
    tier = cmd.MOVES.get(type(command))
    if tier is not None:
        if program.asked is not None:
            program.asked = replace(program.asked, move="", move_by="")  # it is done once
        ledger.engines.expect_move(command.command_id, tier)
