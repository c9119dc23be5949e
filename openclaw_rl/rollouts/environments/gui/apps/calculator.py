"""A pocket calculator with a tape. calculator.py FILE: Keep appends the calculation to the file, `12*34=408`."""

from __future__ import annotations

import re
import sys
import tkinter
from functools import partial
from tkinter import ttk

from window import window

root = window("Calculator", 420, 440)
shown = tkinter.StringVar(value="")
line = ""
field = ttk.Label(root, textvariable=shown, anchor="e", style="Heading.TLabel", background="white", padding=12)
field.grid(row=0, column=0, columnspan=4, sticky="ew", padx=10, pady=10)
told = ttk.Label(root, text="")
told.grid(row=7, column=0, columnspan=4, sticky="w", padx=10, pady=(0, 8))


def result(text: str) -> float:
    """Evaluate numbers joined by + - * /, with * and / first."""
    parts = re.findall(r"\d+\.?\d*|[-+*/]", text)
    terms, sign = [0.0], 1.0
    while parts:
        part = parts.pop(0)
        if part in "*/":
            other = float(parts.pop(0))
            terms[-1] = terms[-1] * other if part == "*" else terms[-1] / other
        elif part in "+-":
            sign = 1.0 if part == "+" else -1.0
        else:
            terms.append(sign * float(part))
            sign = 1.0
    return sum(terms)


def press(key: str) -> None:
    global line
    text = shown.get()
    told.configure(text="")
    if key == "C":
        line = ""
        shown.set("")
    elif key == "=":
        try:
            line = f"{text}={result(text):g}"
            shown.set(f"{result(text):g}")
        except (ArithmeticError, IndexError, ValueError):
            told.configure(text="That can't be calculated.")
    elif key == "Keep":
        if not line:
            told.configure(text="Press = first.")
            return
        with open(sys.argv[1], "a") as file:
            file.write(line + "\n")
        told.configure(text=f"Kept {line}")
    else:
        shown.set(text + key)


for at, key in enumerate(("7", "8", "9", "/", "4", "5", "6", "*", "1", "2", "3", "-", "0", ".", "=", "+", "C", "Keep")):
    ttk.Button(root, text=key, width=5, command=partial(press, key)).grid(
        row=1 + at // 4, column=at % 4, sticky="nsew", padx=4, pady=4)
for column in range(4):
    root.columnconfigure(column, weight=1)
for at in range(1, 6):
    root.rowconfigure(at, weight=1)
root.bind("<Key>", lambda event: press(event.char) if event.char and event.char in "0123456789.+-*/=" else None)
root.bind("<Return>", lambda event: press("="))
root.bind("<Escape>", lambda event: press("C"))
root.mainloop()
