"""A real engine on this machine's CPU with Penstock's plugin and a small model without weights, to try on.

It is an engine in everything but what it says: random words, each one token. Prompts are best made of the load
generator's words (`penstock replay`). Ctrl-C ends it.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from ab.engine import find_environment
from ab.kinds import CPU, KINDS, SGLANG
from ab.model import write_model

from controlplane.transport.endpoint import default_state_dir

# Many CPUs have no instructions for the model's bfloat16, and SGLang takes much longer with it there.
SGLANG_ARGUMENTS = ("--context-length", "16384", "--chunked-prefill-size", "1024", "--dtype", "float32")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter, prog="make engine ENGINE_ARGS="
    )
    parser.add_argument("--engine", choices=sorted(KINDS), default=SGLANG, help="as of make engine ENGINE=")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--node", default="local", help="that of the daemon")
    parser.add_argument("--state-dir", type=Path, default=default_state_dir(), help="that of the daemon")
    parser.add_argument("--pool-tokens", type=int, default=16_000, help="of the KV cache")
    parser.add_argument("--model", choices=("20m", "tiny"), default="20m", help="its size")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    kind = KINDS[options.engine]
    try:
        environment = find_environment(kind.version)
    except subprocess.CalledProcessError:  # it has said what it lacks
        return 1
    with tempfile.TemporaryDirectory(prefix="penstock-engine-") as folder:
        server = kind.servers[CPU](
            Path(folder),
            environment=environment,
            model=write_model(Path(folder) / "model", options.model),
            pool_tokens=options.pool_tokens,
            port=options.port,
            plugins=("penstock",),
            variables={"PENSTOCK_NODE": options.node, "PENSTOCK_STATE_DIR": str(options.state_dir.absolute())},
            arguments=SGLANG_ARGUMENTS if kind.name == SGLANG else (),
        )
        print(f"starting {options.engine}, log {server.log_path}", flush=True)  # noqa: T201
        try:
            server.start().wait_ready()
            print(f"ready at {server.url}, health at {server.url}/penstock/health", flush=True)  # noqa: T201
            while server.is_running():
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        finally:
            server.stop()
    return 1


if __name__ == "__main__":
    sys.exit(main())
