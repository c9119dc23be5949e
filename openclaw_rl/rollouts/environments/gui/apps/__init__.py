"""Small applications for tasks of type `gui`.

They run inside sandboxes, as scripts, with only Python's own library (tkinter), and import nothing of this package but
the files here. NAME.py is started by `setup: {app: NAME, args: [...]}`; `window.py` and `widgets.py` are shared.
"""
