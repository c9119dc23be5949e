"""A file manager. files.py FOLDER"""

from __future__ import annotations

import os
import shutil
import sys
import tkinter
from functools import partial
from tkinter import messagebox, ttk

from window import window

top = os.path.abspath(sys.argv[1])
here = top
root = window("Files", 680, 480)
where = ttk.Label(root, text="")
where.pack(fill="x", padx=12, pady=(12, 4))
table = ttk.Treeview(root, columns=("size",), selectmode="browse")
table.heading("#0", text="Name", anchor="w")
table.heading("size", text="Size", anchor="w")
table.pack(fill="both", expand=True, padx=12)
line = ttk.Frame(root)
line.pack(fill="x", padx=12, pady=8)
ttk.Label(line, text="Name:").pack(side="left")
name = tkinter.StringVar()
ttk.Entry(line, textvariable=name).pack(side="left", fill="x", expand=True, padx=8)
told = ttk.Label(root, text="")


def show(folder: str) -> None:
    global here
    here = folder
    where.configure(text="/" + os.path.relpath(here, top).removeprefix("."))
    table.delete(*table.get_children())
    for entry in sorted(os.scandir(here), key=lambda entry: (entry.is_file(), entry.name)):
        table.insert("", "end", text=entry.name, values=(f"{entry.stat().st_size} bytes" if entry.is_file()
                                                         else "folder",))


def chosen() -> str:
    return str(table.item(table.selection()[0], "text")) if table.selection() else ""


def enter(event: object = None) -> None:
    if chosen() and os.path.isdir(os.path.join(here, chosen())):
        show(os.path.join(here, chosen()))


def up() -> None:
    if here != top:
        show(os.path.dirname(here))


def act(what: str) -> None:
    old, new = chosen(), name.get().strip()
    try:
        if what == "New folder" and new:
            os.mkdir(os.path.join(here, new))
        elif what == "Rename" and old and new:
            os.rename(os.path.join(here, old), os.path.join(here, new))
        elif what == "Move to" and old and new:
            shutil.move(os.path.join(here, old), os.path.join(here, new))
        elif what == "Delete" and old and messagebox.askyesno("Delete", f"Delete {old}?", parent=root):
            full = os.path.join(here, old)
            shutil.rmtree(full) if os.path.isdir(full) else os.remove(full)
        else:
            told.configure(text="Choose a file, and write a name where one is needed.")
            return
        told.configure(text=f"{what}: done.")
    except (OSError, shutil.Error) as error:
        told.configure(text=str(error))
    show(here)


buttons = ttk.Frame(root)
buttons.pack(fill="x", padx=12)
ttk.Button(buttons, text="Open", command=enter).pack(side="left", padx=(0, 6))
ttk.Button(buttons, text="Up", command=up).pack(side="left", padx=(0, 6))
for text in ("New folder", "Rename", "Move to", "Delete"):
    ttk.Button(buttons, text=text, command=partial(act, text)).pack(side="left", padx=(0, 6))
told.pack(fill="x", padx=12, pady=8)
table.bind("<Double-1>", enter)
table.bind("<<TreeviewSelect>>", lambda event: name.set(chosen()))
show(top)
root.mainloop()
