"""What would the judge say? No server, no mesh:

    python servers/embedding/judge_script.py "What is a heron?" "A fish." "No, that is wrong. A heron is a bird."
"""

import asyncio
import sys

from openclaw_rl.config import PrmJudgeConfig
from openclaw_rl.reward.server import make_panel
from openclaw_rl.v1.turn_pb2 import ChatMessage, NextState, Transition, Turn


async def main(question: str, answer: str, *replies: str) -> None:
    # judge="llm" with model="..." asks a model; or the name of a plug-in of yours.
    panel = make_panel(PrmJudgeConfig(judge="rules"))
    outcome = await panel.decide(Transition(
        turn=Turn(turn_id="turn_1", messages=[ChatMessage(role="user", content=question)],
                  response=ChatMessage(role="assistant", content=answer)),
        next_state=NextState(messages=[ChatMessage(role="user", content=reply) for reply in replies])))
    for vote in outcome.judgement.votes:
        print(f"{vote.judge}: {vote.score:+d}, {vote.error or vote.rationale}")
    print(f"score {outcome.judgement.score:+d}, hint: {outcome.judgement.hint or 'none'}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
