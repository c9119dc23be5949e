"""The mesh as its operators see it: state and figures of all components, and their history.

`recorder` keeps the history while the mesh runs; the dashboard shows it.
"""
