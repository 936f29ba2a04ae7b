"""The glass box: see, prove and diagnose back-propagation."""

from __future__ import annotations

from .accumulate import ForwardAccumulation, forward_accumulation
from .doctor import Diagnosis, Doctor, Finding
from .exercise import Exercise, exercise
from .page import Page
from .pictures import GradientFlow, Picture, picture_histograms, picture_network, picture_surface
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
    "GradientFlow",
    "LayerTrace",
    "Page",
    "Picture",
    "Trace",
    "exercise",
    "forward_accumulation",
    "picture_histograms",
    "picture_network",
    "picture_surface",
    "replay",
]
