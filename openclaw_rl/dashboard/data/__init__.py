"""Data of the pages, collected from the components. Independent of the browser."""
