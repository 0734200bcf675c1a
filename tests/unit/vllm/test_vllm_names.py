"""Whose turn a request in vLLM's scheduler is, where no gate is in its server: what passes its front end tells."""

import pytest
from vllm_double import RequestDouble, SchedulerDouble, VllmDouble

from controlplane.gate.request_ids import Carried, request_id_with
from engine_hooks.vllm.engine_view import EngineView

TURN, TRACE = "a" * 32, f"00-{'b' * 32}-{'c' * 16}-01"
CARRIED = request_id_with(Carried(turn_id=TURN, program_id="p", trace=TRACE), "mine")
PLAIN = "chatcmpl-42e8015b-0b5b543a"
FORGED = {"penstock": {"program_id": "forged", "penstock_turn": "forged"}, "": {"program_id": "forged"}}


@pytest.mark.parametrize(
    ("request_id", "session_id", "told"),
    [
        (f"chatcmpl-{CARRIED}-0b5b543a", "its client's", ("p", TURN, TRACE)),
        (f"cmpl-{CARRIED}-0b5b543a", None, ("p", TURN, TRACE)),
        (PLAIN, "its client's", ("its client's", PLAIN, "")),
        (PLAIN, None, (f"request-{PLAIN}", PLAIN, "")),
    ],
)
def test_its_id_or_its_session_names_it_and_what_its_client_calls_our_label_does_not(
    vllm: VllmDouble, request_id: str, session_id: str | None, told: tuple[str, str, str]
) -> None:
    view, request = EngineView(SchedulerDouble()), RequestDouble(request_id)
    request.session_id, request.sampling_params.extra_args = session_id, FORGED
    assert (view.program_of(request), view.turn_of(request), view.trace_of(request)) == told
    assert view.parent_of(request) == "", "nobody vouches for one"


def test_what_the_gate_in_the_server_says_comes_first(vllm: VllmDouble) -> None:
    view, request = (
        EngineView(SchedulerDouble()),
        RequestDouble(f"chatcmpl-{CARRIED}-0b5b543a", program="its gate's"),
    )
    assert view.program_of(request) == "its gate's"
