"""An address book. contacts.py FILE: keeps a JSON list of {name, email, phone, city, favourite} there."""

from __future__ import annotations

import json
import os
import sys
import tkinter
from tkinter import messagebox, ttk

from window import window

path = sys.argv[1]
people: list[dict[str, object]] = []
if os.path.exists(path):
    with open(path) as file:
        people = json.load(file)

root = window("Contacts", 720, 420)
chooser = tkinter.Listbox(root, exportselection=False, width=26, borderwidth=0, highlightthickness=1)
chooser.pack(side="left", fill="y", padx=12, pady=12)
form = ttk.Frame(root)
form.pack(side="left", fill="both", expand=True, padx=(0, 12), pady=12)
form.columnconfigure(1, weight=1)

texts = {name: tkinter.StringVar() for name in ("name", "email", "phone", "city")}
favourite = tkinter.BooleanVar()
for row, (name, variable) in enumerate(texts.items()):
    ttk.Label(form, text=name.capitalize() + ":").grid(row=row, column=0, sticky="w", pady=6)
    field = ttk.Entry(form, textvariable=variable) if name != "city" else ttk.Combobox(
        form, textvariable=variable, state="readonly", values=["Amsterdam", "Beijing", "Cairo", "Lima", "Oslo"])
    field.grid(row=row, column=1, sticky="ew", padx=8)
ttk.Checkbutton(form, text="Favourite", variable=favourite).grid(row=4, column=1, sticky="w", padx=8, pady=6)
told = ttk.Label(form, text="")
told.grid(row=6, column=0, columnspan=2, sticky="w", pady=10)


def chosen() -> int | None:
    rows = chooser.curselection()  # type: ignore[no-untyped-call]
    return int(rows[0]) if rows else None


def show(event: object = None) -> None:
    at = chosen()
    person = people[at] if at is not None else {}
    for name, variable in texts.items():
        variable.set(str(person.get(name, "")))
    favourite.set(bool(person.get("favourite", False)))


def new() -> None:
    chooser.selection_clear(0, "end")
    show()


def keep(select: int | None = None) -> None:
    with open(path, "w") as file:
        json.dump(people, file, indent=1)
    chooser.delete(0, "end")
    for person in people:
        chooser.insert("end", ("* " if person.get("favourite") else "") + str(person["name"]))
    if select is not None:
        chooser.selection_set(select)


def save() -> None:
    person: dict[str, object] = {name: variable.get().strip() for name, variable in texts.items()}
    person["favourite"] = favourite.get()
    if not person["name"]:
        told.configure(text="A contact needs a name.")
        return
    at = chosen()
    if at is None:
        people.append(person)
        at = len(people) - 1
    else:
        people[at] = person
    keep(at)
    told.configure(text=f"Saved {person['name']}.")


def delete() -> None:
    at = chosen()
    if at is not None and messagebox.askyesno("Delete", f"Delete {people[at]['name']}?", parent=root):
        told.configure(text=f"Deleted {people.pop(at)['name']}.")
        keep()
        show()


buttons = ttk.Frame(form)
buttons.grid(row=5, column=0, columnspan=2, sticky="w", pady=10)
for text, command in (("New", new), ("Save", save), ("Delete", delete)):
    ttk.Button(buttons, text=text, command=command).pack(side="left", padx=(0, 8))
chooser.bind("<<ListboxSelect>>", show)
for person in people:
    chooser.insert("end", ("* " if person.get("favourite") else "") + str(person["name"]))
root.mainloop()
