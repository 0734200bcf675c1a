"""A real MCP client with the proxy before its server, or that at a ``url``; JSON on the last line."""

import asyncio
import json
import os
import sys
from pathlib import Path

from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

told = json.loads(sys.argv[1])


def connection():  # type: ignore[no-untyped-def]
    if "url" in told:
        return streamable_http_client(told["url"])
    proxied = ["-m", "engine_hooks.tools.mcp_proxy", *told["options"], "--", sys.executable]
    return stdio_client(
        StdioServerParameters(
            command=sys.executable,
            args=[*proxied, str(Path(__file__).parent / "mcp_server.py")],
            env={**os.environ, "CLOCK": told["clock"]},
        )
    )


async def main() -> None:
    async with connection() as (read, write), ClientSession(read, write) as session:
        await session.initialize()

        async def look(seconds: float) -> str:
            try:
                return "tool" if (await session.call_tool("look", {"seconds": seconds})).is_error else ""
            except MCPError as error:
                return str(error)

        errors = [await look(seconds) for seconds in told.get("seconds", (0.2, 0.3))]
        errors += await asyncio.gather(*map(look, told.get("together", ())))
    tools = [json.loads(line) for line in Path(told["clock"]).read_text().splitlines()]
    print(json.dumps({"errors": errors, "tools": tools}))


asyncio.run(main())
