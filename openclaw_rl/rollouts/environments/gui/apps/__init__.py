"""Small applications for tasks of the kind `gui`. They run inside sandboxes, as scripts, with nothing but Python's own
library (tkinter), and import nothing of this package but one another's files here. NAME.py is started by
`setup: {app: NAME, args: [...]}`; `window.py` and `widgets.py` are what they share."""
