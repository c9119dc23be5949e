"""A small spreadsheet. sheet.py FILE.csv: eight rows, A to D; a cell =SUM(B1:B4) adds up, and is saved as its value."""

from __future__ import annotations

import csv
import os
import re
import sys
import tkinter
from tkinter import ttk

import widgets
from window import window

COLUMNS, ROWS = "ABCD", 8
path = sys.argv[1]
cells: dict[tuple[int, int], str] = {}
if os.path.exists(path):
    with open(path, newline="") as file:
        for y, line in enumerate(csv.reader(file)):
            cells.update({(y, x): value for x, value in enumerate(line) if value})

root = window(f"Sheet - {os.path.basename(path)}", 680, 400)
grid = ttk.Frame(root)
grid.pack(padx=12, pady=12)
variables: dict[tuple[int, int], tkinter.StringVar] = {}


def value(y: int, x: int, deep: int = 0) -> str:
    text = variables[y, x].get().strip()
    match = re.fullmatch(r"=SUM\(([A-D])(\d+):([A-D])(\d+)\)", text, re.I)
    if not match or deep > 20:
        return text
    left, right = sorted((COLUMNS.index(match[1].upper()), COLUMNS.index(match[3].upper())))
    top, bottom = sorted((int(match[2]), int(match[4])))
    total = 0.0
    for row in range(max(top, 1), min(bottom, ROWS) + 1):
        for column in range(left, right + 1):
            try:
                total += float(value(row - 1, column, deep + 1))
            except ValueError:
                pass  # words add nothing
    return f"{total:g}"


def save(event: object = None) -> None:
    rows = [[value(y, x) for x in range(len(COLUMNS))] for y in range(ROWS)]
    while rows and not any(rows[-1]):
        rows.pop()
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    told.configure(text="Saved.")


for x, name in enumerate(COLUMNS):
    label = ttk.Label(grid, text=name)
    label.grid(row=0, column=x + 1)
    widgets.name(label, "")  # the cells have their names
for y in range(ROWS):
    label = ttk.Label(grid, text=str(y + 1))
    label.grid(row=y + 1, column=0, padx=(0, 6))
    widgets.name(label, "")
    for x in range(len(COLUMNS)):
        variables[y, x] = tkinter.StringVar(value=cells.get((y, x), ""))
        field = ttk.Entry(grid, textvariable=variables[y, x], width=15)
        field.grid(row=y + 1, column=x + 1)
        widgets.name(field, f"{COLUMNS[x]}{y + 1}")
        field.bind("<Return>", lambda event: event.widget.event_generate("<Tab>"))
bottom = ttk.Frame(root)
bottom.pack(fill="x", padx=12)
ttk.Button(bottom, text="Save", command=save).pack(side="left")
told = ttk.Label(bottom, text="")
told.pack(side="left", padx=12)
root.bind("<Control-s>", save)
root.mainloop()
