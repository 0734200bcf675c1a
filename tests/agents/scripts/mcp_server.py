"""A real MCP server over its standard input and output, or HTTP where it is given a port; it notes the clock."""

import json
import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("looker")


@server.tool()
def look(seconds: float) -> str:
    """Look around for so many seconds."""
    began_ns = time.monotonic_ns()
    time.sleep(seconds)
    with Path(os.environ["CLOCK"]).open("a") as clock:
        noted = {"tool": "look", "began_ns": began_ns, "ended_ns": time.monotonic_ns()}
        clock.write(json.dumps(noted) + "\n")
    if seconds > 0.25:
        raise ValueError("too long")
    return "nothing"


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), json_response=sys.argv[2:] == ["json"])
else:
    server.run()
