"""A text editor. editor.py [FILE]"""

from __future__ import annotations

import os
import sys
import tkinter
from collections.abc import Callable
from tkinter import ttk

from window import window

root = window("Editor", 760, 520)
path = ""
status = ttk.Label(root, text="")
status.pack(side="bottom", fill="x", padx=8, pady=4)
area = tkinter.Text(root, undo=True, wrap="word", borderwidth=0, padx=10, pady=8, font=("DejaVu Sans Mono", 11))
area.pack(fill="both", expand=True)
area.focus_set()


def load(name: str) -> None:
    global path
    path = name
    area.delete("1.0", "end")
    if os.path.exists(name):
        with open(name) as file:
            area.insert("1.0", file.read().removesuffix("\n"))
    area.mark_set("insert", "1.0")
    area.edit_reset()
    root.title(f"Editor - {os.path.basename(name)}" if name else "Editor - new file")


def write(name: str) -> None:
    global path
    path = name
    with open(name, "w") as file:
        file.write(area.get("1.0", "end-1c") + "\n")
    root.title(f"Editor - {os.path.basename(name)}")
    status.configure(text=f"Saved {os.path.basename(name)}.")


def ask(title: str, names: list[str], button: str, done: Callable[..., None]) -> None:
    """A dialog with a field for each name; `done` gets the values."""
    dialog = tkinter.Toplevel(root, background="#eef1f5", padx=14, pady=12)
    dialog.title(title)
    dialog.geometry("+220+180")
    dialog.transient(root)
    fields = []
    for row, name in enumerate(names):
        ttk.Label(dialog, text=name + ":").grid(row=row, column=0, sticky="w", pady=4)
        fields.append(ttk.Entry(dialog, width=34))
        fields[-1].grid(row=row, column=1, padx=8)
    fields[0].focus_set()

    def press(event: object = None) -> None:
        values = [field.get() for field in fields]
        if values[0]:
            dialog.destroy()
            area.focus_set()
            done(*values)

    ttk.Button(dialog, text=button, command=press).grid(row=9, column=1, sticky="e", pady=(10, 0))
    dialog.bind("<Return>", press)
    dialog.bind("<Escape>", lambda event: dialog.destroy())


def open_file(event: object = None) -> None:
    ask("Open", ["File name"], "Open", load)


def save_as(event: object = None) -> None:
    ask("Save as", ["File name"], "Save", write)


def save(event: object = None) -> None:
    if path:
        write(path)
    else:
        save_as()


def replace(event: object = None) -> None:
    def everywhere(old: str, new: str) -> None:
        text = area.get("1.0", "end-1c")
        area.replace("1.0", "end-1c", text.replace(old, new))
        status.configure(text=f"Replaced {text.count(old)}.")

    ask("Replace", ["Find", "Replace with"], "Replace all", everywhere)


bar = tkinter.Menu(root)
menu = tkinter.Menu(bar)
for label, keys, command in (("New", "", lambda: load("")), ("Open...", "Ctrl+O", open_file),
                             ("Save", "Ctrl+S", save), ("Save as...", "", save_as)):
    menu.add_command(label=label, accelerator=keys, command=command)
bar.add_cascade(label="File", menu=menu)
menu = tkinter.Menu(bar)
menu.add_command(label="Undo", accelerator="Ctrl+Z", command=area.edit_undo)
menu.add_command(label="Replace...", accelerator="Ctrl+H", command=replace)
bar.add_cascade(label="Edit", menu=menu)
root.configure(menu=bar)


def shortcut(keys: str, action: Callable[[], None]) -> None:
    def act(event: object) -> str:
        action()
        return "break"  # instead of the default bindings of Tk's text

    area.bind(keys, act)


shortcut("<Control-o>", open_file)
shortcut("<Control-s>", save)
shortcut("<Control-h>", replace)
load(sys.argv[1] if len(sys.argv) > 1 else "")
root.mainloop()
