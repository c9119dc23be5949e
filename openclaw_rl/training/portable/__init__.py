"""Versions as folders that others can use: Hugging Face weights, a peft adapter, a model card; and their import."""
