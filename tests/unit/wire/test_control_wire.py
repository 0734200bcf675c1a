"""The control API's messages: records in, plain fields out."""

from dataclasses import fields
from enum import StrEnum
from types import SimpleNamespace

import pytest

from controlplane.core.model.commands import Retain
from controlplane.core.model.errors import RemoteEventError
from controlplane.daemon.api.control_api import ControlApi
from controlplane.daemon.api.views import ProgramRow
from controlplane.daemon.process.reload import ConfigState
from controlplane.daemon.status.decisions import Decision
from controlplane.wire._generated import control_pb2
from controlplane.wire.control import METHODS, SERVICE, Fields


def test_every_method_of_the_service_is_served() -> None:
    assert SERVICE == "penstock.v1.Control"
    assert set(METHODS) >= {"GetStatus", "Hold", "Release", "Drain", "Reload", "WatchDecisions"}
    served = {name.replace("_", "") for name in vars(ControlApi) if not name.startswith("_")}
    assert {name.lower() for name in METHODS} == served
    assert METHODS["Hold"].path == "/penstock.v1.Control/Hold"
    assert [name for name, method in METHODS.items() if method.streams] == ["WatchDecisions"]


def test_records_have_the_fields_of_their_messages() -> None:
    for record, message in ((ProgramRow, control_pb2.ProgramRow), (ConfigState, control_pb2.ConfigState)):
        assert {field.name for field in fields(record)} == {field.name for field in message.DESCRIPTOR.fields}


def test_a_reply_is_made_of_a_record_and_read_as_fields() -> None:
    class Tier(StrEnum):
        HBM = "hbm"

    method = METHODS["ListPrograms"]
    row = SimpleNamespace(program_id="p", kv_tier=Tier.HBM, turns=3, idleness_ratio=0.5, held_by_operator=True)
    reply = method.decode_reply(method.encode_reply(SimpleNamespace(programs=[row, row])))
    assert [each.program_id for each in reply.programs] == ["p", "p"]
    assert (reply.programs[0].kv_tier, reply.programs[0].turns, reply.programs[0].status) == ("hbm", 3, "")


def test_a_decision_carries_its_command() -> None:
    method = METHODS["WatchDecisions"]
    command = Retain(command_id=7, program_id="p", ttl_ns=5, reason="soon back")
    reply = method.decode_reply(method.encode_reply(Decision(at_ns=9, command=command, missed=2)))
    assert (reply.at_ns, reply.command, reply.missed) == (9, command, 2)


def test_requests() -> None:
    method = METHODS["Hold"]
    assert method.decode_request(method.encode_request(Fields(program_id="p"))) == Fields(program_id="p")
    assert METHODS["Drain"].decode_request(b"") == Fields(undo=False)
    with pytest.raises(RemoteEventError, match="malformed ProgramRequest"):
        method.decode_request(b"\xff\xff")
