"""Back end `playbook`: an API model learns by instructions in its system prompt. See README.md."""
