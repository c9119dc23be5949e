"""Learning: does the policy become what its user wants, does it still answer the question, and can it be proved?

    python -m tools.bench.learning [--user plain] [--seeds 5] [--interactions 36] [--in-process] [--prompts 24]

A simulated user asks four questions at a time, complains or says thanks in the next message, and waits for the version
that was trained on it. Before the first and after every 12 interactions, held-out questions of four kinds and some in
Chinese are asked as side turns, which nobody trains on, at the serving temperature and greedily, and scored:

- style: nothing in it that this user dislikes (`users`);
- on_topic: readable, about the question, and says something of its own (`scorers`);
- terms: has words of a right answer which the question does not have;
- kept: all three, the combined score. No cheat (`cheats`) may have more than .3;
- blind: wins against the base model's answer by a fixed set of rules that are not told which is which (`blind`);
- pairs, margin: right against wrong reference answers by log-probability, nats a token (`likelihood`);
- neutral_en, neutral_zh: perplexity on prose; distance: Jensen-Shannon to the teacher, the base model with the hint.

Beside the policy's rows stand those of the base model, the teacher, the cheats and a full fine-tune on hand-written
good answers. Each seed gets a mesh of its own, which is driven over HTTP; --in-process drives engine, judge and trainer
without the mesh. `python -m tools.bench.learning.recorded` trains on recorded samples without sampling anything.
"""
