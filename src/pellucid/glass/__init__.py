"""The glass box: see, prove and diagnose back-propagation."""

from __future__ import annotations

from .accumulate import ForwardAccumulation, forward_accumulation
from .doctor import Diagnosis, Doctor, Finding
from .exercise import Exercise, exercise
from .page import Page
from .recorder import Flight, FlightRecorder, replay
from .trace import LayerTrace, Trace

__all__ = [
    "Diagnosis",
    "Doctor",
    "Exercise",
    "Finding",
    "Flight",
    "FlightRecorder",
    "ForwardAccumulation",
    "LayerTrace",
    "Page",
    "Trace",
    "exercise",
    "forward_accumulation",
    "replay",
]
