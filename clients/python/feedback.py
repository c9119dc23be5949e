"""Say directly what you think of an answer; no next message is needed then.

    python clients/python/feedback.py [http://127.0.0.1:30000]
"""

import sys

from openclaw_rl import PolicyClient

with PolicyClient(sys.argv[1] if len(sys.argv) > 1 else None) as client:
    reply = client.chat("What is a heron?", max_tokens=60)
    print(reply)
    print("feedback", client.feedback(-1, "Answer in one short sentence."), "on", reply.turn_id)
