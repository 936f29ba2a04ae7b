"""The glass box: see, prove and diagnose back-propagation."""

from __future__ import annotations

from .doctor import Diagnosis, Doctor, Finding
from .explain import explain
from .page import Page
from .trace import LayerTrace, Trace

__all__ = ["Diagnosis", "Doctor", "Finding", "LayerTrace", "Page", "Trace", "explain"]
