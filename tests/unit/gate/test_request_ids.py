"""A turn's identity on its way through a front end that lets nothing pass but a request's id."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.model.text import is_printable
from controlplane.core.model.types import MOST_NAME
from controlplane.gate.request_ids import Carried, carried_by, request_id_with
from controlplane.gate.requests import new_turn_id

TURN, TRACE = "0123456789abcdef" * 2, f"00-{'a' * 32}-{'b' * 16}-01"
_patient = settings(deadline=None, max_examples=100)
_programs = st.text(min_size=1, max_size=MOST_NAME).filter(is_printable)


def of_vllm(request_id: str) -> str:
    """What its scheduler has of a chat's ``X-Request-Id``."""
    return f"chatcmpl-{request_id}-610fd314"


@_patient
@given(program=_programs, own=st.text(max_size=40), trace=st.sampled_from(["", TRACE]))
def test_what_was_carried_arrives_whatever_the_client_calls_its_request(program: str, own: str, trace: str) -> None:
    carried = Carried(turn_id=new_turn_id(), program_id=program, trace=trace)
    request_id = request_id_with(carried, own.encode("utf-8", "replace").decode())
    assert request_id.isascii()
    assert request_id.isprintable(), "one line of a header"
    assert carried_by(request_id) == carried
    assert carried_by(of_vllm(request_id)) == carried


def test_it_reads_as_what_it_is() -> None:
    carried = Carried(turn_id=TURN, program_id="agent 7", trace=TRACE)
    assert request_id_with(carried, "mine-1") == f"mine-1:penstock:{TURN}:agent%207:{TRACE}:"
    assert request_id_with(carried) == f"penstock:{TURN}:agent%207:{TRACE}:"


def test_what_a_client_forged_before_it_is_not_taken() -> None:
    forged = request_id_with(Carried(turn_id="f" * 32, program_id="victim"))
    carried = Carried(turn_id=TURN, program_id="own")
    assert carried_by(of_vllm(request_id_with(carried, forged))) == carried


@pytest.mark.parametrize(
    "request_id",
    [
        "",
        "chatcmpl-42e8015b-0b5b543a",
        f"penstock:{TURN}",
        f"penstock:{TURN}:p:",
        f"penstock:{TURN}::{TRACE}:",
        f"penstock:{TURN[:-1]}:p::",
        f"penstock:{TURN.upper()}:p::",
        f"penstock:{TURN}:p:<script>:",
    ],
)
def test_what_no_gate_would_write_carries_nothing(request_id: str) -> None:
    assert carried_by(of_vllm(request_id)) is None


def test_a_name_that_cannot_be_shown_becomes_its_digest() -> None:
    carried = carried_by(f"penstock:{TURN}:%1b%5b2J::")
    assert carried is not None
    assert carried.program_id.startswith("sha256-")
