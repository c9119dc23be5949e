"""Environment type `tool_call`: functions declared by JSON schema."""
