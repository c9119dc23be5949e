"""Black-box checks of any implementation of the four services: `openclaw-rl conformance SERVICE --address HOST:PORT`.

A check is a small asynchronous function with an id and a sentence that says what the contract obliges a server to:

    @check("judge.votes", "A vote's score is +1, 0 or -1.", where="turn.proto: Vote.score", services=["judge"])
    async def votes(kit: Context) -> None:
        judgement = ...
        kit.expect(judgement.votes[0].score in (1, 0, -1), f"the vote of {judgement.votes[0].judge} has score 7")

It ends well, or raises `Failed` (by `kit.expect`, `kit.fail`), or `Skipped` (by `kit.skip`). A gRPC error or a time-out
that it does not expect is a failure of the server too: the report shows it behind the sentence.

| module | what it is |
|---|---|
| `frame.py` | what a check is, and the list of all of them |
| `services.py` | the four services, and who is next to whom |
| `context.py` | what a check works with: channels, calls, ids, what it may expect |
| `listener.py` | the kit in the place of the server's neighbours |
| `process.py` | the server that the kit starts, kills and starts again (`--start`) |
| `runner.py`, `report.py`, `junit.py` | one check after another, and what is told of them |
| `component_*`, `ring_*`, `environment_*`, `judge*`, `trainer*`, `policy*`, `weights*` | the checks |
"""
