"""The conformance kit on our own servers, and on those of other makes in this repository."""
