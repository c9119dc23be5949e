"""MCP servers as providers of tools."""
