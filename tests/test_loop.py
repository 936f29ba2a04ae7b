"""Loops over equal blocks in a CPU's training steps (engines/jax_loop.py)."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import choose, has_gpu, jax_conv, jax_cut, jax_loop, jax_parts, stack
from pellucid.training.loop import Plan, plan_of
from pellucid.training.step import State

from .test_stack import ROWS, WIDTH, chain, engine, fitted, rows, same

pytestmark = pytest.mark.skipif(has_gpu(), reason="a GPU scans")
SGD = pc.SGD(0.01)
IMAGES = (pc.Identity() + (pc.Conv2d(2, 3, padding="same") >> pc.Tanh() >> pc.Conv2d(2, 3, padding="same")),)
TILES = pc.Identity() + (pc.Conv2d(32) >> pc.Tanh() >> pc.Conv2d(32)), pc.Dropout(0.1)
NESTED = pc.Linear(WIDTH), pc.Identity() + pc.Repeat(pc.Linear(WIDTH, bias=False) >> pc.Tanh(), 17)  # a block with a loop in it


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    stack.with_stacks.cache_clear()
    monkeypatch.setattr(stack, "LEAST", 3)
    monkeypatch.setattr(choose, "LONGEST", (1, 1))


def steps(net, units=WIDTH, optimizer=SGD):
    """The program of two steps of 8 rows, as it is traced."""
    model = pc.Network(net, (units,), "softmax_cross_entropy", dtype="float32")
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    batch = model.as_batch(np.zeros((16, units)), np.arange(16) % 3)
    state = engine.stack(net, model.loss, optimizer.kind(), state, batch, 8)
    plan = Plan(*plan_of(np.arange(16), 8), np.full(2, 0.01, np.float32), np.int32(2))
    return jax.make_jaxpr(jax_loop.steps, static_argnums=(0, 1, 2))(net, model.loss, optimizer.kind(), state, batch, plan).jaxpr


def loops(program):
    return [equation for equation in program.eqns if equation.primitive.name == "while"]


def body(loop):
    return loop.params["body_jaxpr"].jaxpr


def ahead_and_back(program):
    (outer,) = loops(program)
    return body(outer), loops(body(outer))


def test_turns_write_over_what_those_of_the_step_before_have_left():
    step, both = ahead_and_back(steps(chain((pc.Linear(WIDTH), pc.ReLU()), 5)))
    assert len(both) == 2
    for loop in both:
        written = [v for v in loop.invars[len(loop.invars) - len(body(loop).outvars) :] if v.aval.shape == (5, 8, WIDTH)]
        assert written
        assert set(written) <= set(step.invars)
        assert {v for v in loop.outvars if v.aval.shape == (5, 8, WIDTH)} <= set(step.outvars)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(pc.ReLU(), 2), (pc.LeakyReLU(), 2), (pc.Identity(), 1)],  # what a block begins with, and y, z, or nothing
    ids=repr,
)
def test_what_nobody_reads_is_not_written(activation, expected):
    _, (ahead, _) = ahead_and_back(steps(chain((pc.Linear(WIDTH), activation), 5)))
    assert sum(v.aval.shape == (5, 8, WIDTH) for v in body(ahead).outvars) == expected


def test_matrices_for_products_are_cut_out_of_one_long_row():
    for loop in ahead_and_back(steps(chain((pc.Linear(WIDTH), pc.Tanh()), 5)))[1]:
        cut = [e for e in body(loop).eqns if e.primitive.name == "dynamic_slice" and e.invars[0].aval.size == 5 * WIDTH**2]
        assert [e.invars[0].aval.ndim for e in cut] == [1]


def test_a_loop_in_a_turn_of_another_learns_what_numpy_learns(monkeypatch):
    net = chain(NESTED, 3)
    in_turns, on_numpy = fitted(net, SGD, epochs=2), fitted(net, SGD, epochs=2, name="numpy")
    same(in_turns, on_numpy, 1e-10)
    seen, train = [], jax_cut.train
    for name, value in {"HALF": 1, "STACKED": 0.0, "WORTH": (0.0, np.inf)}.items():
        monkeypatch.setattr(choose, name, value)
    monkeypatch.setattr(jax_cut, "train", lambda *args: seen.append(args) or train(*args))
    stack.with_stacks.cache_clear()
    same(fitted(net, SGD, epochs=2), on_numpy, 1e-10)  # in halves
    assert seen


SEQUENCES = pc.RNN(WIDTH, outputs="every"), pc.Tanh()


@pytest.mark.parametrize(
    ("block", "shape", "cut"),
    [
        (IMAGES, (5, 5, 2), False),
        (IMAGES, (5, 5, 2), True),
        (TILES, (5, 5, 32), True),
        (SEQUENCES, (9, WIDTH), False),
        (SEQUENCES, (9, WIDTH), True),
    ],
    ids=["images", "images in parts", "images in tiles and parts", "sequences", "sequences in parts"],
)
def test_stacks_of_convolutions_and_recurrent_layers_learn_what_numpy_learns(block, shape, cut, monkeypatch):
    """Mini-batches of 7 go through all at once, or, which these small ones have to be made to, in parts of 4 and 3 rows."""
    monkeypatch.setattr(jax_conv, "WORK", 0)
    recurrent = len(shape) == 2
    parts, seen = jax_parts if recurrent else jax_cut, []
    monkeypatch.setattr(parts, "train", lambda *args, train=parts.train: seen.append(args) or train(*args))
    for module, name, value in (
        (choose, "ROWS", 4),
        (choose, "SCANNED", 1e-12),
        (choose, "CUT", {0.0: 2}),
        (choose, "LEAST_ROWS", 1),
        (choose, "SHARE", np.inf),
    ) * cut:
        monkeypatch.setattr(module, name, value)
    X, y = np.random.default_rng(0).normal(size=(ROWS, *shape)), rows()[1]
    net = pc.Chain(*block * 5, pc.GlobalAvgPool(), pc.Dropout(0.2), pc.Linear(3))
    models = [pc.Network(net, shape, "softmax_cross_entropy", dtype="float64") for _ in range(2)]
    for model, name in zip(models, ("jax", "numpy"), strict=True):
        lengths = {"lengths": np.arange(ROWS) % 9 + 1} if recurrent else {}
        model.fit(X, y, epochs=3, batch_size=7, optimizer=pc.Adam(0.001), engine=name, progress=False, **lengths)
    same(*models, 1e-10)
    assert bool(seen) is cut
    assert all(stack.is_stacked(state.params) and rows == 4 for _, _, _, state, _, _, rows in seen)


@pytest.mark.parametrize(("blocks", "expected"), [(2**15 - 1, True), (2**15, False)])
def test_a_row_too_long_for_its_places_is_not_made(blocks, expected):
    """A place is counted in 32 bits."""
    W, x = jax.ShapeDtypeStruct((256, 256), np.float32), jax.ShapeDtypeStruct((8, 256), np.float32)
    program = jax.make_jaxpr(lambda W, x: x @ W)(W, x).jaxpr
    stack = jax.ShapeDtypeStruct((blocks, *W.shape), W.dtype)
    read = jax.make_jaxpr(lambda stack, k: jax_loop.reader(program, program.invars[0], stack)(k))(stack, np.uint32(0))
    assert any(v.aval.shape == (stack.size,) for e in read.jaxpr.eqns for v in e.outvars) is expected


@pytest.mark.parametrize(("units", "expected"), [(4, "chunk"), (300, "wide_chunk")])
def test_operations_on_large_matrices_are_shared_out(units, expected, monkeypatch):
    used = []
    for name, made in (("chunk", jax_loop.chunk), ("wide_chunk", jax_loop.wide_chunk)):
        monkeypatch.setattr(jax_loop, name, lambda *args, name=name, made=made: used.append(name) or made(*args))
    model = pc.Network(chain((pc.Linear(units), pc.ReLU()), 3), (units,), "softmax_cross_entropy")
    model.fit(np.ones((8, units), np.float32), np.arange(8) % 3, epochs=1, engine="jax", progress=False)
    assert used == [expected]


def test_a_stack_learns_the_same_where_jax_is_told_not_to_compile():
    net = chain((pc.Linear(WIDTH), pc.Tanh()), 3)
    jax.config.update("jax_disable_jit", True)
    try:
        plain = fitted(net, SGD, epochs=1)
    finally:
        jax.config.update("jax_disable_jit", False)
    same(plain, fitted(net, SGD, epochs=1), 1e-12)
