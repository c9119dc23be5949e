"""A conversation over gRPC, streamed, in a session, and what you think of its last answer.

    python clients/python/chat.py [127.0.0.1:50051]
"""

import sys

from openclaw_rl.client import MeshError, PolicyServiceClient
from openclaw_rl.v1.turn_pb2 import ChatMessage

with PolicyServiceClient(sys.argv[1] if len(sys.argv) > 1 else None) as policy:
    try:
        report = policy.check()  # the right component, of a contract that we understand?
        print(f"{report.status.name}, contract {report.contract_version}", *report.warnings, sep="\n")

        messages: list[ChatMessage] = []
        session = ""  # the mesh makes one, and finds it again by the messages; naming it is surer
        for question in ("What is a heron?", "Shorter, please: one sentence."):
            print(f"> {question}")
            messages.append(ChatMessage(role="user", content=question))
            with policy.ask(messages, session_id=session, max_tokens=48) as answer:
                for text in answer:
                    print(text, end="", flush=True)
            print(f"\n  turn {answer.turn_id} of {answer.session_id}, version {answer.policy_version}")
            messages.append(answer.message)
            session = answer.session_id

        print("feedback", policy.feedback(answer.turn_id, score=1, comment="Better."))
    except MeshError as error:
        # It says what is wrong and what to do; code, reason, violations and retry_after are for programs.
        print(f"{error.reason}: {error}", file=sys.stderr)
        for field, what in error.violations:
            print(f"  {field}: {what}", file=sys.stderr)
        sys.exit(1)
