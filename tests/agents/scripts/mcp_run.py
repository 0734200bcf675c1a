"""A real MCP client with the proxy before its server; JSON on the last line."""

import asyncio
import json
import os
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

told = json.loads(sys.argv[1])
proxied = ["-m", "engine_hooks.tools.mcp_proxy", *told["options"], "--", sys.executable]
server = StdioServerParameters(
    command=sys.executable,
    args=[*proxied, str(Path(__file__).parent / "mcp_server.py")],
    env={**os.environ, "CLOCK": told["clock"]},
)


async def main() -> None:
    errors = []
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        for seconds in (0.2, 0.3):
            result = await session.call_tool("look", {"seconds": seconds})
            errors.append(bool(result.is_error))
    tools = [json.loads(line) for line in Path(told["clock"]).read_text().splitlines()]
    print(json.dumps({"errors": errors, "tools": tools}))


asyncio.run(main())
