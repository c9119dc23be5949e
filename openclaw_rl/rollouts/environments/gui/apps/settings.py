"""Settings of an imaginary device. settings.py FILE: a JSON object, written by Apply."""

from __future__ import annotations

import json
import os
import sys
import tkinter
from tkinter import ttk

from window import window

path = sys.argv[1]
values: dict[str, object] = {"name": "device", "language": "English", "updates": True, "theme": "light",
                             "brightness": 50, "volume": 30, "proxy": "", "port": 8080, "wifi": True}
if os.path.exists(path):
    with open(path) as file:
        values.update(json.load(file))

root = window("Settings", 560, 400)
tabs = ttk.Notebook(root)
tabs.pack(fill="both", expand=True, padx=12, pady=12)
variables: dict[str, tkinter.Variable] = {}
for key, value in values.items():
    make = tkinter.BooleanVar if isinstance(value, bool) else tkinter.IntVar if isinstance(value, int) \
        else tkinter.StringVar
    variables[key] = make(value=value)  # type: ignore[arg-type]


def page(title: str) -> ttk.Frame:
    frame = ttk.Frame(tabs, padding=16)
    frame.columnconfigure(1, weight=1)
    tabs.add(frame, text=title)
    return frame


def row(frame: ttk.Frame, label: str, field: tkinter.Widget) -> None:
    at = frame.grid_size()[1]
    if label:
        ttk.Label(frame, text=label + ":").grid(row=at, column=0, sticky="w", pady=8, padx=(0, 12))
    field.grid(row=at, column=1, sticky="ew" if label else "w", pady=8)


general = page("General")
row(general, "Device name", ttk.Entry(general, textvariable=variables["name"]))
row(general, "Language", ttk.Combobox(general, textvariable=variables["language"], state="readonly",
                                      values=["English", "Deutsch", "Español", "Français", "中文"]))
row(general, "", ttk.Checkbutton(general, text="Install updates by itself", variable=variables["updates"]))
display = page("Display")
for theme in ("light", "dark", "high contrast"):
    row(display, "", ttk.Radiobutton(display, text=theme.capitalize(), value=theme, variable=variables["theme"]))
for name in ("brightness", "volume"):
    slider = tkinter.Scale(display, from_=0, to=100, orient="horizontal", background="#eef1f5", highlightthickness=1)
    slider.configure(variable=variables[name])  # type: ignore[call-overload]  # it is one of whole numbers
    row(display, name.capitalize(), slider)
network = page("Network")
row(network, "", ttk.Checkbutton(network, text="Wi-Fi", variable=variables["wifi"]))
row(network, "Proxy", ttk.Entry(network, textvariable=variables["proxy"]))
row(network, "Port", ttk.Spinbox(network, from_=1, to=65535, textvariable=variables["port"]))
bottom = ttk.Frame(root)
bottom.pack(fill="x", padx=12, pady=(0, 12))
told = ttk.Label(bottom, text="")
told.pack(side="left")


def apply() -> None:
    try:
        found = {key: variable.get()  # type: ignore[no-untyped-call]
                 for key, variable in variables.items()}
    except tkinter.TclError:
        told.configure(text="The port must be a number.")
        return
    with open(path, "w") as file:
        json.dump(found, file, indent=1)
    told.configure(text="Applied.")


ttk.Button(bottom, text="Apply", command=apply).pack(side="right")
root.mainloop()
