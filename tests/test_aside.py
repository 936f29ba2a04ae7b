"""Halves of a mini-batch go through stacks of equal blocks side by side (`Aside` in engines/jax_cut.py)."""

import jax
import numpy as np
import pytest

import pellucid as pc
from pellucid.engines import choose, jax_cut, stack
from pellucid.training.loop import plan_of
from pellucid.training.step import Plan, State

from .test_stack import DENSE, PENALTY, RESIDUAL, ROWS, WIDTH, chain, engine, fitted, rows, same

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU shares rows out by itself")

GATED = pc.Product(pc.Linear(WIDTH) >> pc.Sigmoid(), pc.Linear(WIDTH))
LINEAR, SGD = pc.Linear(WIDTH), pc.SGD(0.1)
BLOCKS = [
    DENSE,
    RESIDUAL,
    (pc.Linear(WIDTH), pc.LayerNorm(), pc.ReLU(), pc.Dropout(0.3)),
    (PENALTY,),
    (GATED, pc.GELU()),
    (pc.Linear(1) | (pc.Linear(WIDTH - 1) >> pc.Tanh()),),
    (pc.Linear(WIDTH, bias=False), pc.Identity() + (pc.Frozen(LINEAR) >> pc.Tanh())),
    (pc.Sum(LINEAR >> pc.Sigmoid(), pc.Product(LINEAR >> pc.Tanh(), pc.Identity())),),
]


@pytest.fixture
def halves(monkeypatch):
    """Short runs of small blocks are stacked too, and mini-batches of any size go through them in halves; one entry for every call."""
    seen, train = [], jax_cut.train
    stack.with_stacks.cache_clear()
    monkeypatch.setattr(stack, "LEAST", 3)
    monkeypatch.setattr(choose, "HALF", 1)
    monkeypatch.setattr(choose, "STACKED", 0.0)
    monkeypatch.setattr(choose, "WORTH", (0.0, np.inf))
    monkeypatch.setattr(jax_cut, "train", lambda *args: seen.append(args) or train(*args))
    return seen


def stacked(net, size, units=WIDTH, optimizer=SGD):
    """The state that a fit with batches of so many rows begins with, and what else a chunk takes."""
    model = pc.Network(net, (units,), "softmax_cross_entropy", dtype="float32")
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    batch = model.as_batch(np.zeros((20_000, units)), np.arange(20_000) % 3)
    return engine.stack(net, model.loss, optimizer.kind(), state, batch, size), model, batch


def half(*args):
    """How many rows go through the stacks at once, beside others; 0 where all do, or nothing is stacked."""
    params = stacked(*args)[0].params
    return params.rows if stack.is_stacked(params) else 0


@pytest.mark.parametrize("block", BLOCKS, ids=repr)
def test_halves_that_go_through_a_stack_end_where_numpy_ends(block, halves, monkeypatch):
    """Batches of 7: the halves have 4 rows and 3, and of the last batch, of 3, all rows are in the first."""
    net = pc.Chain(*block * 5, pc.Tanh(), pc.Dropout(0.2), pc.Linear(3))
    optimizer = pc.Adam(0.002, clip_norm=0.5, weight_decay=0.01)
    weights = np.linspace(0, 2, ROWS)
    model = fitted(net, optimizer, sample_weight=weights)
    count = len(halves)
    assert count
    others = [fitted(net, optimizer, name="numpy", sample_weight=weights)]
    if block == DENSE:
        others.append(fitted(net, optimizer, monkeypatch, sample_weight=weights))
    for other in others:
        same(model, other, 1e-9)
        np.testing.assert_allclose(model.history["loss"], other.history["loss"], rtol=1e-9)
    assert len(halves) == count


def test_two_stacks_and_layers_between_them_go_in_halves(halves):
    net = pc.Chain(*DENSE * 4, pc.Linear(6), pc.ReLU(), *(pc.Linear(6), pc.Tanh()) * 5, pc.Linear(3))
    model = fitted(net, pc.SGD(0.05, momentum=0.9))
    assert len([layer for layer in halves[0][3].params.net.layers if type(layer) is stack.Stack]) == 2
    same(model, fitted(net, pc.SGD(0.05, momentum=0.9), name="numpy"), 1e-10)


def test_a_fit_in_halves_resumes_and_members_of_a_population_compute_its_bits(halves, tmp_path):
    net, file = chain(DENSE, 5), tmp_path / "run.ckpt"
    whole = fitted(net, pc.Adam(0.01), epochs=6)
    fitted(net, pc.Adam(0.01), epochs=3, checkpoint=file)
    same(fitted(net, pc.Adam(0.01), epochs=6, checkpoint=file, resume=True), whole, 0)
    population = pc.Population(net, (WIDTH,), "softmax_cross_entropy", seed=0, optimizer="adam", learning_rate=[0.01, 0.1], dtype="float64")
    population.fit(*rows(), how="threads", epochs=6, batch_size=7, engine="jax", progress=False)
    same(population[0], whole, 0)


def test_a_value_that_is_not_finite_is_found_in_its_layer(halves):
    model = pc.Network(chain(DENSE, 5), (WIDTH,), "softmax_cross_entropy")
    model.params[4]["W"][0, 0] = np.inf
    with pytest.raises(pc.NonFiniteError, match=r"net\.4"):
        model.fit(*rows(), epochs=1, engine="jax", progress=False)
    assert halves


def test_another_learning_rate_and_a_second_fit_compile_nothing(halves):
    net, before = chain(DENSE, 6), jax_cut.chunk._cache_size()
    for rate in (0.01, 0.02):
        fitted(net, pc.SGD(rate))
    assert jax_cut.chunk._cache_size() == before + 1


def test_the_program_of_halves_does_not_grow_with_depth():
    counts = []
    for depth in (16, 64, 128):
        net, optimizer = chain((pc.Linear(64), pc.ReLU()), depth), pc.Adam(0.01)
        state, model, batch = stacked(net, 128, 64, optimizer)
        plan = Plan(*plan_of(np.arange(256), 128), np.full(2, 0.01, np.float32), np.int32(2))
        program = jax_cut.chunk.lower(net, model.loss, optimizer.kind(), state.params.rows, True, state, batch, plan)
        counts.append(program.as_text().count("\n"))
    assert counts[0] == counts[1] == counts[2]


def test_all_that_a_turn_makes_is_carried_through_its_loop(halves):
    """Or XLA gives the other half's loop the same memory, and one waits for the other."""
    net = chain((pc.Linear(WIDTH), pc.LayerNorm(), pc.Tanh()), 5)
    state, model, batch = stacked(net, 8)
    plan = Plan(*plan_of(np.arange(16), 8), np.full(2, 0.01, np.float32), np.int32(2))
    program = jax.make_jaxpr(jax_cut.chunk.function, static_argnums=(0, 1, 2, 3, 4))(
        net, model.loss, SGD.kind(), 4, True, state, batch, plan
    )
    loops = [equation for equation in every(program.jaxpr.eqns) if equation.primitive.name == "while"]
    inner = [loop for loop in loops if not any(e.primitive.name == "while" for e in every(loop.params["body_jaxpr"].jaxpr.eqns))]
    assert len(inner) == 4  # ahead and back, of both halves
    for loop in inner:
        body = loop.params["body_jaxpr"].jaxpr
        made = [v for e in every(body.eqns) if e.primitive.name in ("dot_general", "rsqrt", "reduce_sum", "tanh") for v in e.outvars]
        assert made
        assert {v for e in body.eqns for v in e.outvars if v in made} <= set(body.outvars)
        assert not loop.params["cond_jaxpr"].jaxpr.eqns  # whether to go on is carried, too


def test_xla_adds_up_a_long_row_in_one_step(halves):
    """In two, it would have a value in between whose place cannot be kept."""
    net = chain((pc.Linear(64), pc.LayerNorm()), 3)
    state, model, batch = stacked(net, 8, 64)
    plan = Plan(*plan_of(np.arange(16), 8), np.full(2, 0.01, np.float32), np.int32(2))
    args = net, model.loss, SGD.kind(), 4, True, state, batch, plan
    assert "reduce-window" not in jax_cut.chunk.lower(*args).compile().as_text()


def every(equations):
    for equation in equations:
        yield equation
        if equation.primitive.name in ("jit", "while"):
            yield from every(equation.params["body_jaxpr" if equation.primitive.name == "while" else "jaxpr"].jaxpr.eqns)


@pytest.mark.parametrize(
    ("units", "blocks", "size", "expected"),
    [
        (128, 16, 32, 16),
        (128, 16, 33, 17),
        (64, 32, 64, 32),
        (32, 64, 60, 30),
        (32, 96, 56, 0),  # for smaller products a turn's own work counts too much
        (256, 16, 31, 0),
        (128, 16, 30, 0),  # fewer than 16 rows in a half
        (64, 16, 32, 0),  # a step of 0.15 ms
        (64, 32, 32, 16),
        (256, 16, 64, 32),
        (256, 16, 512, 0),  # XLA shares such products out
        (512, 16, 64, 0),  # copies of 1 MB in every turn
    ],
)
def test_halves_go_aside_where_that_pays(units, blocks, size, expected):
    """By shapes alone."""
    stack.with_stacks.cache_clear()
    assert half(chain((pc.Linear(units), pc.ReLU()), blocks), size, units) == expected


@pytest.mark.parametrize(
    "block",
    [
        (pc.Linear(128), pc.BatchNorm(), pc.ReLU()),  # rows see each other
        (pc.Product(pc.Linear(128) >> pc.Softmax(), pc.Linear(128)),),  # XLA has values in between that cannot be kept
    ],
    ids=repr,
)
def test_blocks_that_would_wait_for_each_other_are_not_halved(block):
    assert half(chain(block, 16), 64, 128) == 0


def test_a_network_with_many_layers_beside_its_stacks_is_not_halved():
    several = [layer for n in range(129, 139) for layer in (pc.Linear(n), pc.ReLU())]
    assert half(pc.Chain(*(pc.Linear(128), pc.ReLU()) * 16, *several, pc.Linear(3)), 64, 128) == 0
    assert half(pc.Chain(*(pc.Linear(128), pc.ReLU()) * 16, *several[:8], pc.Linear(3)), 64, 128) == 32
