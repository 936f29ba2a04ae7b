"""One file per library that is measured: each runs in a process of its own, see `serve.py`."""
