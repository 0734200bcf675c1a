"""An MCP client whose server stands behind Penstock's proxy: nothing of either is changed.

python examples/agents/mcp_client.py
"""

import asyncio
import os
import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


async def main() -> None:
    proxied = ["-m", "engine_hooks.tools.mcp_proxy", "--", *SERVER]
    server = StdioServerParameters(command=sys.executable, args=proxied, env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("list_files", {"folder": "."})
        print(result.content[0].text)


asyncio.run(main())
