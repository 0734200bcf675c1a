"""Files that prove who one is to NATS."""

import ssl
from pathlib import Path

import pytest
import trustme

from controlplane.core.model.errors import ConfigError
from controlplane.transport.nats_options import nats_options


@pytest.fixture
def pem(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    own = authority.issue_cert("localhost")
    blobs = {"ca": authority.cert_pem, "chain": own.cert_chain_pems[0], "key": own.private_key_pem}
    for name, blob in blobs.items():
        blob.write_to_path(tmp_path / name)
    return {name: str(tmp_path / name) for name in blobs}


def test_nothing_is_set() -> None:
    assert nats_options("one", {"PENSTOCK_NATS_CA": ""}) == {"servers": ["nats://one"]}


def test_keys_are_passed_on_as_files(pem: dict[str, str]) -> None:
    found = nats_options("one", {"PENSTOCK_NATS_CREDENTIALS": pem["ca"], "PENSTOCK_NATS_NKEY": pem["key"]})
    assert found == {"servers": ["nats://one"], "user_credentials": pem["ca"], "nkeys_seed": pem["key"]}


def test_certificates(pem: dict[str, str]) -> None:
    both = {"PENSTOCK_NATS_CERTIFICATE": pem["chain"], "PENSTOCK_NATS_PRIVATE_KEY": pem["key"]}
    context = nats_options("one", {"PENSTOCK_NATS_CA": pem["ca"], **both})["tls"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PENSTOCK_NATS_CREDENTIALS": "/nowhere"}, "PENSTOCK_NATS_CREDENTIALS: /nowhere: No such file"),
        ({"PENSTOCK_NATS_CERTIFICATE": "chain"}, "PENSTOCK_NATS_PRIVATE_KEY: a certificate and its private key"),
        ({"PENSTOCK_NATS_CA": "key"}, "PENSTOCK_NATS_CA, "),
    ],
)
def test_what_is_wrong_is_told(environment: dict[str, str], said: str, pem: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=said):
        nats_options("one", {name: pem.get(path, path) for name, path in environment.items()})
