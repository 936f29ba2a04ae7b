"""Nothing that one half of a mini-batch makes lies in memory where the other half's lies (engines/jax_cut.py)."""

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import jax as engine
from pellucid.engines import jax_cut
from pellucid.engines.stack import is_stacked
from pellucid.training.loop import plan_of
from pellucid.training.step import Plan, State

from .memory import shared

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU shares rows out by itself")


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (pc.Chain(pc.Linear(128), pc.ReLU(), pc.Linear(128), pc.ReLU(), pc.Linear(10)), (100,)),
        (pc.Chain(pc.Linear(128), pc.GELU(), pc.Linear(128), pc.Sigmoid(), pc.Linear(10)), (100,)),
        (pc.Chain(*(pc.Linear(64), pc.ReLU()) * 40, pc.Linear(10)), (64,)),
        (pc.Chain(*(pc.Identity() + (pc.Linear(64) >> pc.Tanh()),) * 40, pc.Linear(10)), (64,)),
        (pc.RNN(64) >> pc.Linear(10), (40, 32)),
        (pc.GRU(64) >> pc.Linear(10), (40, 32)),
        (pc.LSTM(64) >> pc.Linear(10), (40, 32)),
    ],
    ids=["dense", "smooth", "deep", "residual", "rnn", "gru", "lstm"],
)
def test_halves_share_no_memory(net, shape, tmp_path):
    size, optimizer = 64, pc.SGD(0.1)
    model = pc.Network(net, shape, "softmax_cross_entropy")
    data = model.as_batch(np.zeros((640, *shape), "f4"), np.arange(640) % 10)
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    state = engine.stack(net, model.loss, optimizer.kind(), state, data, size)
    assert is_stacked(state.params) == (len(net.layers) > 32)
    plan = Plan(*plan_of(np.arange(640), size), np.full(10, 0.01, np.float32), np.int32(10))
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    chunk = jax.jit(jax_cut.chunk.function, static_argnums=range(5))
    chunk.lower(net, model.loss, optimizer.kind(), 32, True, state, data, plan).compile((jax_cut.OPTIONS or {}) | options)
    assert not shared(tmp_path)
