"""models: list the models that are here."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import out, print_json
from openclaw_rl.runtime.home import Home


@app.command(epilog="Example: openclaw-rl models; openclaw-rl models --json | jq '.[] | .model'")
def models(as_json: Json = False) -> None:
    """List the models that are here, and the memory that each takes at least, to serve and to train (lora).

    `local-start --model ID` downloads another one from the Hugging Face hub.
    """
    from openclaw_rl.launch.model_listing import local_models
    from openclaw_rl.runtime.running_config import running_config
    from openclaw_rl.training.backends.megatron import hardware

    home = Home.default()
    found = local_models(home, running_config(home))
    if as_json:
        print_json([model.json() for model in found])
        return
    free = hardware.find().free_memory
    table = Table(box=None, pad_edge=False)
    for column in ("model", "weights", "disk", "serve", "train", ""):
        table.add_column(column, no_wrap=column != "", overflow="fold")
    for model in found:
        fits = (model.serving or 0) + (model.training or 0) <= free
        note = model.problem or ("configured" if model.configured else "" if fits else "too large for here now")
        table.add_row(Text(model.model), *(Text(_size(figure)) for figure in (
            model.weights, model.disk, model.serving, model.training)), Text(note, "dim"))
    out.print(table)
    out.print(f"{_size(free)}B of memory are free now", highlight=False, style="dim")


def _size(number: int | None) -> str:
    """Return a number with one of the usual letters: 135 M, 1.5 G."""
    if not number:
        return ""
    return f"{number / 1e9:.1f} G" if number >= 1e9 else f"{number / 1e6:.0f} M"
