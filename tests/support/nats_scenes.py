"""Buses that are wrong in one way each, on the real nats-server."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from support.daemon_process import until
from support.nats import nats_server_binary
from support.ports import free_port, is_listening

LOGIN = 'authorization { user: "ops", password: "secret" }\njetstream { store_dir: "STORE" }'
NO_JETSTREAM_HERE = """
accounts { A: { users: [{ user: "ops", password: "secret" }] }, B: { jetstream: enabled } }
jetstream { store_dir: "STORE" }
"""


@contextmanager
def server(folder: Path, config: str) -> Iterator[int]:
    """A nats-server with that configuration; yields its port."""
    folder.mkdir(parents=True, exist_ok=True)
    port, file = free_port(), folder / "server.conf"
    file.write_text(config.replace("STORE", str(folder / "store")))
    command = [nats_server_binary(), "-a", "127.0.0.1", "-p", str(port), "-c", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: is_listening(port), "a server")
        yield port
    finally:
        process.kill()
        process.wait()


def tls(folder: Path, host: str, *, verify: bool = False) -> str:
    """A configuration with a certificate for that host; its authority is in ``folder/ca.pem``."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert(host)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(folder / "chain.pem", append=bool(number))
    files = [f'cert_file: "{folder}/chain.pem"', f'key_file: "{folder}/key.pem"']
    if verify:
        files += [f'ca_file: "{folder}/ca.pem"', "verify: true"]
    return f"tls {{ {', '.join(files)} }}"


@contextmanager
def other_program(says: bytes) -> Iterator[int]:
    """Something on a port that is no nats-server; it says that to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                held.append(connection)
                connection.sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for each in held:
            each.close()
