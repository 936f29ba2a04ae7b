"""With nothing watched, the glass box leaves no trace in what runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import pellucid as pc

PROGRAM = """
import gc, sys
with_glass = sys.argv[1] == "with"
if not with_glass:
    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("pellucid.glass"):
                raise ImportError(name)
    sys.meta_path.insert(0, Blocked())
import numpy as np, pellucid as pc
from pellucid.engines import get_engine
X, y = np.random.default_rng(0).normal(size=(64, 5)).astype("f4"), np.arange(64) % 3
net = pc.Linear(8) >> pc.ReLU() >> (pc.Linear(4) | (pc.Linear(4) >> pc.Tanh())) >> pc.Dropout(0.2) >> pc.Linear(3)
make = lambda: pc.Network(net, 5, "softmax_cross_entropy")
if with_glass:
    model = make()
    model.trace(X, y), model.explain(X[:2], y[:2], check=False), model.diagnose(X, y)
    model.fit(X, y, epochs=2, engine="jax", progress=False, callbacks=[pc.Doctor(report=False), pc.FlightRecorder()])
    model.fit(X, y, epochs=2, engine="numpy", progress=False, callbacks=[pc.Doctor(report=False), pc.FlightRecorder()])
make().fit(X, y, epochs=2, engine="numpy", progress=False)  # what is done once per process is done now
jax_engine, calls = get_engine("jax"), []
compiled = jax_engine.chunk
jax_engine.chunk = lambda *args: (calls.append(args), compiled(*args))[1]
make().fit(X, y, epochs=1, engine="jax", progress=False)
print(compiled.lower(*calls[0]).as_text())
count = 0
def profile(frame, event, arg):
    global count
    count += event in ("call", "c_call")
model = make()
gc.disable()  # jax listens to the collector: when it runs is not our doing
sys.setprofile(profile)
model.fit(X, y, epochs=2, engine="numpy", progress=False)
sys.setprofile(None)
print("calls", count, "glass" if any(m.startswith("pellucid.glass") for m in sys.modules) else "none")
"""


@pytest.fixture(scope="module")
def runs():
    def split(process):
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        *program, calls = output.strip().splitlines()
        return "\n".join(program), calls.split()

    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = {how: subprocess.Popen([sys.executable, "-c", PROGRAM, how], **pipe) for how in ("with", "without")}
    return {how: split(process) for how, process in started.items()}


def test_the_compiled_program_is_the_same_to_the_letter(runs):
    (seen, (*_, loaded)), (plain, (*_, missing)) = runs["with"], runs["without"]
    assert (loaded, missing) == ("glass", "none")
    assert "stablehlo" in plain
    assert len(plain) > 10_000
    assert seen == plain


def test_the_numpy_engine_makes_not_one_call_more(runs):
    assert runs["with"][1][1] == runs["without"][1][1]
    assert int(runs["with"][1][1]) > 1000


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_doctor_and_recorder_leave_the_weights_bit_for_bit(engine):
    X, y = np.random.default_rng(0).normal(size=(64, 5)), np.arange(64) % 3

    def weights(callbacks):
        model = pc.Network(pc.Linear(8) >> pc.ReLU() >> pc.Linear(3), 5, "softmax_cross_entropy")
        model.fit(X, y, epochs=3, engine=engine, progress=False, callbacks=callbacks)
        return model.parameters

    plain, seen = weights(None), weights([pc.Doctor(report=False), pc.FlightRecorder()])
    assert all(np.array_equal(plain[name], seen[name]) for name in plain)
