"""Ask the judge what it thinks of some answers, all at once, with asyncio. Nothing is kept.

    python clients/python/judge.py [127.0.0.1:50053]
"""

import asyncio
import sys

from openclaw_rl.client import AsyncJudgeServiceClient
from openclaw_rl.v1.turn_pb2 import NEXT_STATE_KIND_CONTINUED, ChatMessage, NextState, Transition, Turn

ANSWER = Turn(turn_id="by-hand", messages=[ChatMessage(role="user", content="What is a heron?")],
              response=ChatMessage(role="assistant", content="A fish."))
REPLIES = ("No, that is wrong. A heron is a bird.", "Thank you, perfect!", "And what is a stork?")


async def main() -> None:
    async with AsyncJudgeServiceClient(sys.argv[1] if len(sys.argv) > 1 else None) as judge:
        judged = await asyncio.gather(*(
            judge.judge(transition=Transition(turn=ANSWER, next_state=NextState(
                kind=NEXT_STATE_KIND_CONTINUED, messages=[ChatMessage(role="user", content=reply)])))
            for reply in REPLIES))
    for reply, judgement in zip(REPLIES, (answer.judgement for answer in judged), strict=True):
        print(f"{judgement.score:+d}  {reply}" + (f"  (hint: {judgement.hint})" if judgement.hint else ""))


asyncio.run(main())
