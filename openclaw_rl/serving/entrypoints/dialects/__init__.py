"""Other APIs in front of the same pipeline: Anthropic's Messages, OpenAI's Responses, vLLM's tokenizer endpoints.

A request becomes the body of a chat completion, so sessions, limits and checks are the same on each; a reply writes the
same events in another shape.
"""
