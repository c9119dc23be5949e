"""Main window shared by the applications."""

from __future__ import annotations

import tkinter
from tkinter import ttk

import widgets  # beside this file, where the scripts run


def window(title: str, width: int, height: int) -> tkinter.Tk:
    """A window with a plain, quiet look, whose widgets are published."""
    root = tkinter.Tk()
    root.title(title)
    root.geometry(f"{width}x{height}+60+40")
    root.configure(background="#eef1f5")
    for name in ("*Font", "*Listbox.font", "*Text.font", "*Menu.font"):
        root.option_add(name, ("DejaVu Sans", 10))
    root.option_add("*insertOffTime", 0)  # a blinking cursor makes screenshots of the same state differ
    root.option_add("*tearOff", False)
    style = ttk.Style(root)
    style.theme_use("clam")
    style.configure(".", background="#eef1f5", font=("DejaVu Sans", 10))
    style.configure("TButton", padding=(10, 5), width=0)
    style.configure("TEntry", padding=4)
    style.configure("Treeview", rowheight=24)
    style.configure("TNotebook.Tab", padding=(14, 6))
    style.configure("Heading.TLabel", font=("DejaVu Sans", 14, "bold"))
    style.map("TButton", background=[("active", "#d5e4f7")])
    style.map("TCombobox", fieldbackground=[("readonly", "white")], foreground=[("readonly", "black")],
              selectbackground=[("readonly", "white")], selectforeground=[("readonly", "black")])
    style.map("TNotebook.Tab", background=[("selected", "#eef1f5"), ("!selected", "#d3dae3")])
    widgets.publish(root)
    return root
