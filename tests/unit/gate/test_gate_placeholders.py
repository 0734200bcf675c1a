"""What clients send where an id should be, in every place where one is looked for."""

import json
from typing import Any

import pytest

from controlplane.core.estimators.prompt_size import ANONYMOUS
from controlplane.gate.carriers import FIELDS, HEADERS, STANDS_FOR, Names
from controlplane.gate.identity import _NATIVE_FIELDS, PROGRAM_HEADER, identify
from controlplane.gate.placeholders import is_placeholder
from controlplane.gate.tenants import Tenants

PLACEHOLDERS = (
    *("undefined", "null", "None", "nil", "NaN", "true", "'null'", '"undefined"', "undefined-undefined"),
    *("session-undefined", "user_null_session_None", "{{session_id}}", "{{ .SessionID }}", "agent-${SESSION_ID}"),
    *("$SESSION_ID", "$(SESSION_ID)", "%SESSION_ID%", "%s", "%(session)s", "{session_id}", "<session-id>", "<nil>"),
    *("%!s(<nil>)", "[object Object]", "[object Promise]", "<%= session.id %>", ":session_id", "__SESSION_ID__"),
    *(
        "YOUR_SESSION_ID",
        "your-session-id-here",
        "insert session id",
        "[SESSION]",
        "xxx",
        "xxxx-xxxx",
        "---",
        "...",
    ),
    *("00000000-0000-0000-0000-000000000000", "0" * 32, "ffffffff-ffff-ffff-ffff-ffffffffffff"),
)
LOOSE = ("default", "unknown", "string", "anonymous", "session_id", "Session-Id", "default-session")
IDS = (
    *("p", "s", "0", "17", "00000000", "none-such", "nullable-7", "default-7", "conv_1", "ef-01", "abcd/ef", "a b"),
    *("0b5a3c52-93b5-4f0e-9d6c-000000000000", "sess_undefined_42", "replay-ab12cd-00000", "x", "xx", "user@host"),
    *("insert-rows-by-key", "replace-api-key", "enter-the-dungeon", "[agent-1]", "(run 7)"),
    *("{7}", "sha256-" + "0" * 31 + "1", "session-1", "<a@b.c>", "anonymous-" + "0" * 31 + "1"),
)


def sent(where: str, value: str) -> tuple[list[tuple[bytes, bytes]], dict[str, Any]]:
    """A request with that value in a header, or in a field of its body."""
    kind, _, name = where.partition(" ")
    if kind == "header":
        return [(name.encode(), value.encode())], {}
    body: Any = value
    for key in reversed(name.split(".")):
        body = {key: body}
    return [], body


OWN = (f"header {PROGRAM_HEADER}", *(f"body {path}" for path in _NATIVE_FIELDS))
BORROWED = (*(f"header {name}" for name in HEADERS), *(f"body {path}" for path in FIELDS))


@pytest.mark.parametrize("where", [*OWN, *BORROWED, "body metadata.user_id"])
def test_no_placeholder_is_an_id_anywhere(where: str) -> None:
    for text in (*PLACEHOLDERS, *(LOOSE if where not in OWN else ())):
        value = json.dumps({"session_id": text}) if where.endswith("user_id") else text
        headers, body = sent(where, value)
        identity = identify(headers, body)
        assert identity.anonymous, text
        assert identity.placeholder == where, text
    for text in ("", "  "):
        assert identify(*sent(where, text)).anonymous
        assert not identify(*sent(where, text)).placeholder


@pytest.mark.parametrize("where", [*OWN, *BORROWED])
def test_what_may_be_an_id_is_one(where: str) -> None:
    for text in IDS:
        for written in (text, f" {text} "):
            identity = identify(*sent(where, written))
            is_hint = STANDS_FOR.get(where, Names.SESSION) is not Names.SESSION
            if is_hint and text.startswith(ANONYMOUS):  # it says itself that nobody is named
                assert not identity.hint
            else:
                assert (identity.hint or identity.program_id) == text


def test_words_that_a_person_may_mean_are_ids_in_what_is_ours() -> None:
    assert {identify(*sent(where, text)).program_id for where in OWN for text in LOOSE} == set(LOOSE)


def test_the_next_carrier_names_the_program_then() -> None:
    headers, _ = sent("header x-session-id", "undefined")
    assert identify(headers, {"session_id": "s", "parent_id": "null", "tenant": "{{team}}"}).program_id == "s"


@pytest.mark.parametrize("field", ["parent_id", "parent_turn", "tenant", "agent"])
def test_no_placeholder_is_a_parent_or_a_tenant(field: str) -> None:
    header = f"x-penstock-{field.replace('_', '-')}".encode()
    for identity in (
        identify([(header, b"undefined")], {"program_id": "p"}),
        *([] if field == "agent" else [identify([], {"program_id": "p", field: "undefined"})]),
    ):
        assert (getattr(identity, field), identity.program_id) == ("", "p")
        assert identity.placeholder


def test_the_gate_counts_requests_with_placeholders() -> None:
    tenants = Tenants(8, header="x-team")
    for team in (b"{{team}}", b"blue"):
        tenants.identify([(b"x-session-id", b"null"), (b"x-team", team)], {"session_id": "undefined"})
    assert tenants.placeholders == 2
    assert tenants.identify([(b"x-team", b"null"), (b"api-key", b"k")], {"session_id": "s"}).account != "null"


def test_a_long_text_is_looked_at_no_further() -> None:
    assert not is_placeholder("<%" * 1_000_000)
