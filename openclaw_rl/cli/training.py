"""pause, resume, train-now: control training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client import TrainerServiceClient


@app.command(epilog="Example: openclaw-rl pause --reason 'a demonstration'")
def pause(reason: Annotated[str, typer.Option("--reason", help="Reason, for the log and `status`.",
                                              show_default=False)] = "") -> None:
    """Pause training, also across restarts. Serving, judging and the collection of samples continue."""
    with _trainer() as trainer:
        trainer.pause(reason=reason)
    out.print("training is paused; `openclaw-rl resume` resumes it", highlight=False)


@app.command(epilog="Example: openclaw-rl resume")
def resume() -> None:
    """Resume training."""
    with _trainer() as trainer:
        trainer.resume()
    out.print("training resumed")


@app.command(epilog="Example: openclaw-rl train-now")
def train_now(as_json: Json = False) -> None:
    """Train on the samples collected so far, without waiting for `min_samples` or the interval."""
    with _trainer() as trainer:
        begun = trainer.train_now()
    if as_json:
        print_json({"samples": begun.samples, "message": begun.message})
    else:
        out.print(begun.message, highlight=False, markup=False)


def _trainer() -> TrainerServiceClient:
    from openclaw_rl.client import TrainerServiceClient

    return TrainerServiceClient(home=Home.default())
