"""The MCP server of ``mcp_client.py``, which knows nothing of Penstock."""

from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("files")


@server.tool()
def list_files(folder: str) -> str:
    """The names of the files in a folder."""
    return "\n".join(sorted(path.name for path in Path(folder).iterdir()))


server.run()
