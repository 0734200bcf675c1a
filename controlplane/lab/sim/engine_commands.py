"""What the engine model does about a command: the simulator's world and the engine double obey alike."""

from controlplane.core.commands import Command, Demote, Discard, Label, Prefetch, Release, Retain
from controlplane.lab.sim.engine_model import EngineModel


def obey(engine: EngineModel, command: Command, now_ns: int) -> str:
    """Carry it out. Returns why that cannot be done, or nothing."""
    match command:
        case Retain():
            return engine.retain(command.program_id, now_ns + command.ttl_ns, now_ns)
        case Release():
            engine.release(command.program_id, now_ns)
        case Demote() if engine.cache.below is None:
            engine.release(command.program_id, now_ns)
            return "there is no memory below the device, unpinned only: give the engine a tier"
        case Demote():
            if not engine.demote(command.program_id, now_ns):
                return "a turn of it runs, or nothing of it is here"
        case Prefetch():
            return engine.fetch(command.program_id, now_ns)
        case Discard():
            engine.discard(command.program_id, now_ns)
        case Label():
            engine.label(command.program_id, command.label, now_ns)
        case _:
            return f"the engine model does not support {type(command).__name__}"
    return ""
