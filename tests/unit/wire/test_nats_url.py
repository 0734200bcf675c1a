"""NATS URLs as the world writes them, read back by the client's own parser."""

import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.model.errors import ConfigError
from controlplane.transport.nats_url import connection_of, redact

WRITTEN: dict[str, dict[str, Any]] = {
    "nats://one:4222": {"servers": ["nats://one:4222"]},
    "one": {"servers": ["nats://one"]},
    "one,two:2,": {"servers": ["nats://one", "nats://two:2"]},
    " NATS://one:4222/ ": {"servers": ["nats://one:4222"]},
    "tls://[::1]:4222": {"servers": ["tls://[::1]:4222"]},
    "wss://one/nats": {"servers": ["wss://one/nats"]},
    "nats://t%2Fok@one": {"servers": ["nats://one"], "token": "t/ok"},
    "nats://ops:@one": {"servers": ["nats://one"], "user": "ops", "password": ""},
    "nats://ops:p%40ss%2Fw%23rd%251@[::1]:1": {
        "servers": ["nats://[::1]:1"],
        "user": "ops",
        "password": "p@ss/w#rd%1",
    },
    "nats://ops:p@ss/w#rd%1@one:1": {"servers": ["nats://one:1"], "user": "ops", "password": "p@ss/w#rd%1"},
    "nats://ops:pass,word@one:1,two:2": {
        "servers": ["nats://one:1", "nats://two:2"],
        "user": "ops",
        "password": "pass,word",
    },
    "nats://u%3A:w%2C@one:1,two:2": {"servers": ["nats://one:1", "nats://two:2"], "user": "u:", "password": "w,"},
    "tls://u:w@one:1, tls://u:w@two:2": {"servers": ["tls://one:1", "tls://two:2"], "user": "u", "password": "w"},
    "tls://one:1, tls://other:w%40rd@two:2": {"servers": ["tls://one:1", "tls://other:w@rd@two:2"]},
    "nats://u:w@a:1,b:2,other:x@c:3": {"servers": ["nats://u:w@a:1", "nats://u:w@b:2", "nats://other:x@c:3"]},
}
REFUSED = (
    "",
    "http://u:s3cret@one",
    "nats://",
    "nats://u:s3cret@one:70000",
    "nats://u:s3cret@one:port",
    "nats://u:s3cret@",
    "nats://u:12,s3cret@one",  # the comma parts two servers, or belongs to the password
    "nats://u:s3cret@one,nats://u:s3/cret@two",
)


@pytest.mark.parametrize("url", WRITTEN)
def test_how_urls_are_written(url: str) -> None:
    assert connection_of(url) == WRITTEN[url]


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_no_url_is_refused_with_how_to_write_it(url: str) -> None:
    with pytest.raises(ConfigError, match="NATS URL: ") as raised:
        connection_of(url)
    assert "s3" not in str(raised.value) + redact(url)


@given(st.text(string.printable, min_size=1), st.text(string.printable), st.integers(1, 3))
def test_any_login_comes_through_and_is_never_shown(user: str, password: str, servers: int) -> None:
    hosts = ",".join(f"host{number}:4222" for number in range(servers))
    url = f"nats://{quote(user, safe='')}:{quote(password, safe='')}@{hosts}"
    found = connection_of(url)
    assert (found["user"], found["password"]) == (user, password)
    assert len(found["servers"]) == servers
    assert redact(url) == ",".join(found["servers"])


@pytest.mark.parametrize("url", ["nats://one:1", "unix:/run/node.sock", "?"])
def test_what_has_no_login_is_shown_as_it_is(url: str) -> None:
    assert redact(url) == url
