"""The import graph of the project's Python code: its layers, its picture, and the tests that a change can reach."""
