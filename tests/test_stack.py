"""Long runs of equal blocks compile as one, and learn what they learn one by one."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import again, choose, get_engine, jax_loop, late, stack
from pellucid.layers.base import Layer
from pellucid.training.loop import Plan, plan_of
from pellucid.training.step import Batch, State
from pellucid.tree import leaves

engine = get_engine("jax")
chunk = jax_loop.chunk if engine.on_cpu() else engine.chunk  # the program of a stacked network
WIDTH, ROWS = 4, 24
DENSE = (pc.Linear(WIDTH), pc.Tanh())
RESIDUAL = (pc.Identity() + (pc.LayerNorm() >> pc.Linear(6) >> pc.GELU() >> pc.Linear(WIDTH)),)


class Scaled(Layer):
    """A user's layer whose backward JAX derives."""

    def build(self, rng, shape):
        return {"s": np.ones(shape)}, shape

    def forward(self, ops, p, x):
        return p["s"] * x, None


class Shorter(Layer):
    """Says that every sequence ends one position earlier."""

    def forward(self, ops, p, x):
        ops.lengths = ops.lengths - 1
        return x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy, {}


class Whole(pc.SGD):
    """A user's rule that looks at a whole array."""

    def rule(self, ops, p, g, slots, n, rate, t):
        return (p - rate * g / (1 + (g * g).sum()),)


class Whim(Layer):
    """A user's layer whose cache is not made of arrays alone."""

    def forward(self, ops, p, x):
        return 0.9 * x, "0.9"

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return float(cache) * dy, {}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    stack.with_stacks.cache_clear()
    monkeypatch.setattr(stack, "LEAST", 3)
    monkeypatch.setattr(choose, "LONGEST", (1, 1))
    monkeypatch.setattr(again, "GPU", (16, 1))


def rows(*shape):
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, *(shape or (WIDTH,)))), rng.integers(0, 3, ROWS)


def chain(block, times):
    return pc.Chain(*block * times, pc.Linear(3))


def fitted(net, optimizer, monkeypatch=None, epochs=20, name="jax", dtype="float64", **options):
    """A network after a fit, stacked unless `monkeypatch` is there to forbid it."""
    X, y = rows()
    model = pc.Network(net, (WIDTH,), "softmax_cross_entropy", dtype=dtype)
    if monkeypatch:
        monkeypatch.setattr(stack, "LEAST", 10**6)
        stack.with_stacks.cache_clear()
    model.fit(X.astype(dtype), y, epochs=epochs, batch_size=7, optimizer=optimizer, engine=name, progress=False, **options)
    return model


def stacks(net, optimizer=None, X=None, lengths=None, precision=None):
    """The layers of the network a fit would compile."""
    X, optimizer = rows()[0] if X is None else X, optimizer or pc.SGD(0.1)
    model = pc.Network(net, X.shape[1:], "squared_error", dtype="float32")
    state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    data = Batch(X.astype(np.float32), np.zeros(len(X), np.float32), np.ones(len(X), np.float32), lengths)
    with engine.precision(np.float32, precision):
        state = engine.stack(net, model.loss, optimizer, engine.put(state), data, 7)
    return [layer for layer in state.params.net.layers if type(layer) is stack.Stack] if stack.is_stacked(state.params) else []


def same(a, b, tolerance):
    for (path, left), (_, right) in zip(leaves(a.params), leaves(b.params), strict=True):
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance, err_msg=str(path))


# Learning rates at which rounding is not amplified: with larger ones any two orders of summation drift apart
OPTIMIZERS = [
    pc.SGD(0.002, momentum=0.9),
    pc.SGD(0.01, momentum=0.5, nesterov=True, weight_decay=0.01),
    pc.Adam(0.01, clip_norm=0.1),
    pc.AdamW(0.01, weight_decay=0.1),
    pc.RMSProp(0.0005),
]


@pytest.mark.parametrize("block", [DENSE, RESIDUAL], ids=["dense", "residual"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_a_stacked_run_ends_where_the_unstacked_and_numpy_end(block, optimizer, monkeypatch):
    ends_where_others_end(chain(block, 5), optimizer, monkeypatch)


def ends_where_others_end(net, optimizer, monkeypatch):
    assert [s.times for s in stacks(net, optimizer)] == [5]
    model, on_numpy = fitted(net, optimizer), fitted(net, optimizer, name="numpy")
    same(model, on_numpy, 1e-10)
    plain = fitted(net, optimizer, monkeypatch)
    same(model, plain, 1e-12)
    np.testing.assert_allclose(model.history["loss"], plain.history["loss"], rtol=1e-12)


@given(st.lists(st.sampled_from([(pc.Linear(WIDTH), {"W": 16}), (pc.Tanh(), {})]), min_size=1, max_size=24))
def test_the_run_from_each_layer_is_the_one_that_goes_furthest(layers):
    net, p = pc.Chain(*(layer for layer, _ in layers)), [{k: np.zeros(n) for k, n in sizes.items()} for _, sizes in layers]
    kinds = stack.kinds_of(net, p)
    for i, (width, times) in enumerate(stack.runs_of(kinds, 1)):
        runs = [0]
        for w in range(1, len(kinds) - i + 1):
            n = next(n for n in range(1, len(kinds) + 1) if kinds[i + n * w : i + (n + 1) * w] != kinds[i : i + w])
            runs += [n * w] if n >= stack.LEAST and any(kind.shapes for kind in kinds[i : i + w]) else []
        assert width * times == max(runs)
        assert all(kinds[i : i + width] == kinds[i + k * width : i + (k + 1) * width] for k in range(times))


LAYERS = st.sampled_from(
    [
        pc.Linear(WIDTH),
        pc.Linear(WIDTH, bias=False),
        pc.Tanh(),
        pc.LayerNorm(),
        pc.Dropout(0.3),
        pc.BatchNorm(),
        pc.Penalty(pc.Linear(WIDTH), l2=0.1),
        pc.Frozen(pc.Linear(WIDTH)),
        pc.Identity() + pc.Linear(WIDTH),
        pc.Linear(WIDTH) * pc.Sigmoid(),
        pc.Linear(2) | pc.Linear(2),
        (pc.Linear(WIDTH) >> pc.Tanh()).named("part"),
    ]
)
RUNS = st.lists(st.tuples(st.lists(LAYERS, min_size=1, max_size=2), st.integers(1, 5)), min_size=1, max_size=3)


@given(RUNS, st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_any_chain_with_repeated_blocks_learns_what_it_learns_on_numpy(runs, optimizer):
    layers = [layer for block, times in runs for _ in range(times) for layer in block]
    layers = [layer.named(f"{layer.name}{i}") if layer.name else layer for i, layer in enumerate(layers)]
    net = (pc.Identity() + pc.Chain(*layers, pc.Identity())) >> pc.Linear(3)
    X, y = rows()
    ends = []
    for name in ("jax", "numpy"):
        model = pc.Network(net, (WIDTH,), "softmax_cross_entropy", dtype="float64")
        model.fit(X, y, epochs=2, batch_size=7, optimizer=OPTIMIZERS[optimizer], engine=name, progress=False, validation=(X, y))
        ends.append(model)
    same(*ends, 1e-9)
    np.testing.assert_allclose(ends[0].history["val_loss"], ends[1].history["val_loss"], rtol=1e-9)


class Scale(Scaled):
    """The same with a backward of its own."""

    def forward(self, ops, p, x):
        return p["s"] * x, x

    def backward(self, ops, p, x, dy, wrt_input=True):
        return dy * p["s"], {"s": (dy * x).sum(0)}


class ChargesOneNumber(Scale):
    """L ← L + (Σs)²/2, whose gradient is the same for every entry."""

    def forward(self, ops, p, x):
        if ops.training:
            ops.charge(("s",), 0.5 * p["s"].sum() ** 2, p["s"].sum())
        return p["s"] * x, x


class OneGradient(Scale):
    """One number as the gradient of all entries."""

    def backward(self, ops, p, x, dy, wrt_input=True):
        return dy * p["s"], {"s": (dy * x).sum()}


class ChargesLate(Scale):
    """A penalty that is charged on the way back."""

    def backward(self, ops, p, x, dy, wrt_input=True):
        ops.charge(("s",), 0.01 * (p["s"] ** 2).sum(), 0.02 * p["s"])
        return super().backward(ops, p, x, dy, wrt_input)


class DrawsLate(Scale):
    """Draws on the way back."""

    def backward(self, ops, p, x, dy, wrt_input=True):
        return super().backward(ops, p, x, dy * (ops.uniform(dy.shape) < 0.5), wrt_input)


class CachesANumber(Layer):
    """Its cache is a number of Python's, which has no precision of its own."""

    def forward(self, ops, p, x):
        return 0.9 * x, 0.9

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return cache * dy, {}


class CachesInTraining(Scale):
    """Keeps nothing that a scan could hand on where nobody goes back."""

    def forward(self, ops, p, x):
        return p["s"] * x, x if ops.training else "nothing"


class RoundsLater(Scale):
    """Computes in another precision after the training."""

    def forward(self, ops, p, x):
        return p["s"] * x if ops.training else (p["s"] * x).astype("float32"), x


class Doubled(pc.Chain, init=False):
    """A user's chain with a setting of its own."""

    factor: float

    def __init__(self, *layers, factor=1.0, name=None):
        object.__setattr__(self, "factor", factor)
        super().__init__(*layers, name=name)

    def forward(self, ops, p, x):
        y, cache = super().forward(ops, p, x)
        return y * self.factor, cache

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return super().backward(ops, p, cache, dy * self.factor, wrt_input)


class Pair(pc.Chain, init=False):
    """A user's chain with a constructor of its own."""

    def __init__(self, units, name):
        super().__init__(pc.Linear(units), pc.Tanh(), name=name)


DOUBLED = [Doubled(*DENSE, factor=2.0, name=f"part{i}") for i in range(4)]


@pytest.mark.parametrize(
    ("layers", "times"),
    [
        ([*DENSE, Scale()] * 4, 4),
        ([*DENSE, ChargesOneNumber()] * 4, 0),
        ([*DENSE, OneGradient()] * 4, 0),
        ([*DENSE, ChargesLate()] * 4, 0),
        ([*DENSE, DrawsLate()] * 4, 0),
        ([*DENSE, CachesInTraining()] * 4, 4),
        ([*DENSE, RoundsLater()] * 4, 0),
        (DOUBLED, 0),
        ([Pair(WIDTH, f"part{i}") for i in range(4)], 0),
    ],
    ids=["plain", "one number", "one gradient", "late", "draws", "caches", "rounds", "doubled", "pair"],
)
def test_layers_of_users_learn_in_a_deep_network_what_they_learn_on_numpy(layers, times):
    """Of as many blocks as units, so that a number for each block could be taken for one for each unit."""
    net, (X, y), ends = pc.Chain(*layers, pc.Linear(3)), rows(), []
    if times:
        assert [s.times for s in stacks(net)] == [times]
    for name in ("jax", "numpy"):
        model = pc.Network(net, (WIDTH,), "softmax_cross_entropy", dtype="float64")
        model.fit(X, y, epochs=4, batch_size=8, optimizer=pc.SGD(0.01), engine=name, progress=False, validation=(X, y))
        ends.append(model)
    same(*ends, 1e-10)
    np.testing.assert_allclose(ends[0].history["val_loss"], ends[1].history["val_loss"], rtol=1e-6 if RoundsLater() in layers else 1e-10)


@pytest.mark.parametrize("layer", [Scaled(), pc.Identity() + Scaled()], ids=repr)
def test_a_block_whose_backward_is_derived_is_not_stacked(layer):
    assert not stacks(chain((*DENSE, layer), 6))
    assert [s.times for s in stacks(pc.Chain(layer, *DENSE * 6, layer))] == [6]  # around a stack it does no harm


PENALTY = pc.Penalty(pc.Linear(WIDTH) >> pc.Tanh(), l1=0.01, l2=0.02)


@pytest.mark.parametrize("layer", [pc.Dropout(0.3), pc.BatchNorm(), PENALTY], ids=repr)
def test_blocks_in_a_stack_draw_keep_and_charge_what_they_do_one_by_one(layer, monkeypatch):
    residual = pc.Identity() + (pc.Linear(WIDTH) >> layer >> pc.Tanh())
    net = pc.Chain(*(residual, layer) * 5, pc.Tanh(), layer, pc.Linear(3))
    ends_where_others_end(net, pc.SGD(0.01), monkeypatch)


def test_random_numbers_after_a_stack_are_those_without_it():
    net = pc.Chain(*DENSE * 4, pc.Dropout(0.5), pc.BatchNorm(), pc.Penalty(pc.Linear(3), l1=0.01))
    assert stacks(net)
    same(fitted(net, pc.SGD(0.1)), fitted(net, pc.SGD(0.1), name="numpy"), 1e-10)


def test_a_layer_that_shortens_sequences_is_not_stacked_and_others_are():
    X, lengths = rows(9, WIDTH)[0], np.arange(ROWS, dtype=np.int32) % 9 + 1
    attention = pc.Identity() + pc.MultiHeadAttention(WIDTH, heads=2)
    assert [s.times for s in stacks(chain((attention,), 4), X=X, lengths=lengths)] == [4]
    assert not stacks(chain((attention, Shorter()), 4), X=X, lengths=lengths)
    assert not stacks(chain(((Shorter() >> pc.Tanh()) + attention,), 4), X=X, lengths=lengths)


def test_a_rule_that_looks_at_whole_arrays_sees_them_unstacked():
    net = chain(DENSE, 5)
    assert not stacks(net, Whole(0.1))
    same(fitted(net, Whole(0.1)), fitted(net, Whole(0.1), name="numpy"), 1e-10)


def test_in_bfloat16_a_stack_begins_where_precision_no_longer_changes(monkeypatch):
    assert [s.times for s in stacks(chain(DENSE, 6))] == [6]
    (found,) = stacks(chain(DENSE, 6), precision="bfloat16")
    assert (found.times, found.layers[0]) == (5, pc.Tanh())
    (found,) = stacks(pc.Chain(*(CachesANumber(), pc.Linear(WIDTH)) * 5, pc.Linear(3)), precision="bfloat16")
    assert found.times == 4
    options = {"epochs": 3, "dtype": "float32"}
    nets = [chain(DENSE, 6), pc.Chain(*DENSE * 6, pc.LayerNorm(), pc.Linear(3))]  # LayerNorm sends its flow back in full precision
    stacked = [fitted(net, pc.SGD(0.01), **options, precision="bfloat16") for net in nets]
    for net, model in zip(nets, stacked, strict=True):  # bfloat16 has 8 bits: written out in it, they end up to 5.5e-3 from here
        same(model, fitted(net, pc.SGD(0.01), monkeypatch, **options, precision="float32"), 8e-3)


def test_a_watched_stack_is_one_program_and_members_of_a_population_learn_the_same():
    class Listener(pc.Callback):
        looks_at_weights = False

        def epoch_end(self, run):
            heard.append(run.epoch)

    heard, before, net, optimizer = [], chunk._cache_size(), chain(DENSE, 7), pc.Adam(0.01)
    watched = fitted(net, optimizer, epochs=5, callbacks=[Listener()])
    assert heard == [1, 2, 3, 4, 5]
    assert chunk._cache_size() == before + 1
    X, y = rows()
    for how in ("batched", "threads"):
        population = pc.Population(net, (WIDTH,), "softmax_cross_entropy", seed=range(2), optimizer=optimizer, dtype="float64")
        population.fit(X, y, how=how, epochs=5, batch_size=7, engine="jax", progress=False)
        same(population[0], watched, 1e-12)


def test_a_stack_resumes_and_a_value_that_is_not_finite_is_found_in_its_layer(tmp_path):
    net, file = chain(DENSE, 5), tmp_path / "run.ckpt"
    whole = fitted(net, pc.Adam(0.01), epochs=6)
    fitted(net, pc.Adam(0.01), epochs=3, checkpoint=file)
    same(fitted(net, pc.Adam(0.01), epochs=6, checkpoint=file, resume=True), whole, 0)
    X, y = rows()
    model = pc.Network(net, (WIDTH,), "softmax_cross_entropy")
    model.params[4]["W"][0, 0] = np.inf
    with pytest.raises(pc.NonFiniteError, match=r"net\.4"):
        model.fit(X, y, epochs=1, engine="jax", progress=False)


BLOCK = pc.Chain(*DENSE)
REPEATED = [
    BLOCK,
    RESIDUAL[0],
    pc.Identity() + (pc.Linear(WIDTH) >> pc.Dropout(0.3) >> pc.Tanh()),
    pc.Identity() + (pc.BatchNorm() >> pc.Linear(WIDTH) >> pc.Tanh()),
    PENALTY,
    pc.Frozen(pc.Linear(WIDTH)) >> pc.Tanh(),
    pc.Tanh(),
    pc.Repeat(BLOCK, 2),
    pc.Chain(*DENSE * 3),
    Whim(),
]


@pytest.mark.parametrize(("layer", "times"), [*((layer, 17) for layer in REPEATED), (BLOCK, 18), (BLOCK, 20)], ids=repr)
def test_a_layer_repeated_in_turns_learns_what_it_learns_on_numpy(layer, times):
    net = pc.Linear(WIDTH) >> pc.Repeat(layer, times) >> pc.Linear(3)
    model, on_numpy = (fitted(net, pc.SGD(0.001), epochs=5, name=name) for name in ("jax", "numpy"))
    same(model, on_numpy, 1e-10)
    np.testing.assert_allclose(model.history["loss"], on_numpy.history["loss"], rtol=1e-10)
    np.testing.assert_allclose(model.predict(rows()[0]), on_numpy.predict(rows()[0]))


def test_a_repeated_layer_in_a_stack_and_one_for_images_or_sequences_learn_what_they_learn_on_numpy():
    many = pc.Repeat(pc.Linear(WIDTH) >> pc.Tanh(), 18)
    same(*(fitted(chain((many, pc.Dropout(0.1)), 4), pc.Adam(0.01), epochs=5, name=name) for name in ("jax", "numpy")), 1e-10)
    image = pc.Repeat(pc.Conv2d(2, 3, padding="same") >> pc.Tanh(), 18) >> pc.Flatten() >> pc.Linear(3)
    sequence = pc.Repeat(pc.RNN(WIDTH, outputs="every"), 18) >> pc.GlobalAvgPool() >> pc.Linear(3)
    (X, y), (S, _) = rows(6, 6, 2), rows(9, WIDTH)
    lengths = np.arange(ROWS) % 9 + 1
    shorter = pc.Repeat(pc.Identity() + Shorter(), 18) >> sequence
    for net, x, options in ((image, X, {}), *((net, S, {"lengths": lengths}) for net in (sequence, shorter))):
        models = [pc.Network(net, x.shape[1:], "softmax_cross_entropy", dtype="float64") for _ in range(2)]
        for model, name in zip(models, ("jax", "numpy"), strict=True):
            model.fit(x, y, epochs=3, batch_size=12, optimizer=pc.SGD(0.01), engine=name, progress=False, **options)
        same(*models, 1e-10)


@pytest.mark.parametrize(("layer", "precision"), [(BLOCK, "bfloat16"), (BLOCK, None), (Scaled(), None)])
def test_a_layer_repeated_in_turns_learns_what_it_learns_written_out(layer, precision, monkeypatch, in_float32):
    net = pc.Repeat(layer, 18) >> pc.LayerNorm() >> pc.Linear(3)
    options = {"epochs": 3, "dtype": "float32", "precision": precision}
    in_turns = fitted(net, pc.SGD(0.01), **options)
    for device in ("CPU", "GPU"):
        monkeypatch.setattr(again, device, (18, 1))
    engine.chunk.clear_cache()
    same(in_turns, fitted(net, pc.SGD(0.01), **options), 8e-3 if precision else 1e-4)


def test_the_program_of_a_repeated_layer_does_not_grow_with_its_times():
    x, counts = np.ones((5, WIDTH), np.float32), []
    for times in (16, 17, 21, 321):
        model = pc.Network(pc.Repeat(BLOCK, times), (WIDTH,), "squared_error", dtype="float32")
        batch, seed = model.as_batch(x, x), np.uint32(0)
        counts.append(engine.value_and_gradients.lower(model.net, model.loss, model.params, batch, seed).as_text().count("\n"))
    if engine.on_cpu():  # a GPU takes more turns at once
        assert counts[1] == counts[2] == counts[3] < counts[0]


@pytest.mark.parametrize("name", ["jax", "numpy"])
def test_a_value_that_is_not_finite_is_found_in_its_layer_before_one_that_draws(name):
    model = pc.Network(pc.Chain(*(pc.Linear(WIDTH), pc.Dropout(0.2)) * 5, pc.Linear(3)), (WIDTH,), "softmax_cross_entropy")
    model.params[2]["W"][0, 0] = np.inf
    with pytest.raises(pc.NonFiniteError, match=r"net\.2"):
        model.fit(*rows(), epochs=1, engine=name, progress=False)


def descend(carry, x):
    """A block on the way back: a gradient that leads nowhere, one that does, a number that is the same for all."""
    flow, count = carry
    dz = flow * (1 - x["y"] ** 2)
    return (dz @ x["W"].T, count + 1), {"W": x["y"].T @ dz, "b": dz.sum(0), "first": flow, "place": count, "same": 2.0}


def keep_what_is_given(carry, x):
    return carry, {"y": x["y"], "sum": x["y"].sum()}


def order(carry, x):
    """What is sorted stays in the loop, and so does what is sorted by."""
    return (carry[0] + x["y"], carry[1]), jax.numpy.sort(carry[0] @ x["W"], axis=0) + 1


def lead_nowhere(carry, x):
    """A gradient that nobody asks for."""
    _ = x["y"].T @ carry[0]
    return (carry[0] @ x["W"].T, carry[1]), {"none": ()}


@pytest.mark.parametrize("function", [descend, keep_what_is_given, order, lead_nowhere])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("room", [0, 2**21])
def test_a_scan_taken_apart_gives_what_turns_in_python_give(function, reverse, room, monkeypatch, rng):
    monkeypatch.setattr(late, "CPU", room)
    monkeypatch.setattr(late, "GPU", room)
    xs = {"W": rng.normal(size=(5, 4, 4)), "y": rng.normal(size=(5, 7, 4))}
    with engine.precision(np.float64):
        start = jax.numpy.asarray(rng.normal(size=(7, 4))), jax.numpy.int32(3)
        end, found = jax.jit(lambda start, xs: late.scan_apart(engine.JaxOps(), function, start, xs, reverse))(start, xs)
        carry, ys = start, [None] * 5
        for i in range(5)[:: -1 if reverse else 1]:
            carry, ys[i] = function(carry, {name: a[i] for name, a in xs.items()})
        expected = jax.tree.map(lambda *a: np.stack(a), *ys)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), (end, found), (carry, expected))


def test_nothing_large_is_made_for_all_blocks_at_once(monkeypatch):
    def clipped(flow, x):
        """Gradients of single rows, in an array that is larger than what it is made of and what comes of it."""
        return flow @ x["W"], jax.numpy.minimum(x["y"][:, :, None] * flow[:, None, :], 0.1).sum(0)

    def products(room):
        monkeypatch.setattr(late, "CPU", room)
        monkeypatch.setattr(late, "GPU", room)
        xs = {"W": np.ones((5, 4, 4), np.float32), "y": np.ones((5, 7, 4), np.float32)}
        run = jax.make_jaxpr(lambda flow, xs: late.scan_apart(engine.JaxOps(), clipped, flow, xs))
        return sum(equation.primitive.name == "mul" for equation in run(np.ones((7, 4), np.float32), xs).eqns)

    assert (products(5 * 7 * 4 * 4 * 4 - 1), products(5 * 7 * 4 * 4 * 4)) == (0, 1)


def products_in_loops(program, inside=False):
    for equation in program.eqns:
        parts = [part.jaxpr for part in equation.params.values() if hasattr(part, "jaxpr")]
        yield from [1] if inside and equation.primitive.name == "dot_general" else []
        for part in parts:
            yield from products_in_loops(part, inside or equation.primitive.name in ("scan", "while"))


def test_weight_gradients_of_a_stack_are_one_product_after_the_loop(rng):
    net = stack.Stack(*DENSE, times=9)
    p = ({"W": rng.normal(size=(9, WIDTH, WIDTH)), "b": np.zeros((9, WIDTH))}, {})

    def run(p, x):
        ops = engine.JaxOps(training=True)
        y, cache = ops.forward(net, p, x, 0)
        return ops.backward(net, p, cache, y, 0)

    with engine.precision(np.float64):
        program = jax.make_jaxpr(run)(p, rows()[0]).jaxpr
    assert sum(products_in_loops(program)) == 2  # one ahead, one back
    assert sum(e.primitive.name == "dot_general" and len(e.outvars[0].aval.shape) == 3 for e in program.eqns) == 1


def test_the_program_does_not_grow_with_depth(monkeypatch):
    monkeypatch.undo()  # the real limits
    stack.with_stacks.cache_clear()
    counts = []
    for depth in (15, 16, 64, 320):
        net, optimizer = chain(DENSE, depth), pc.Adam(0.01)
        model = pc.Network(net, (WIDTH,), "softmax_cross_entropy", dtype="float32")
        state = State(model.params, optimizer.slots(model.params), optimizer.numbers("float32"), np.int32(0), np.uint32(0))
        batch = model.as_batch(*rows())
        plan = Plan(*plan_of(np.arange(ROWS), 8), np.full(3, 0.01, np.float32), np.int32(3))
        state = engine.stack(net, model.loss, optimizer, engine.put(state), batch, 8)
        made_by = chunk if stack.is_stacked(state.params) else engine.chunk
        counts.append(made_by.lower(net, model.loss, optimizer.kind(), state, batch, plan).as_text().count("\n"))
        assert jax.tree.structure(engine.get(state).params) == jax.tree.structure(model.params)
    unstacked, *stacked = counts
    assert stacked[1] == stacked[2]
    if engine.on_cpu():  # a GPU takes up to 16 blocks in one turn of a scan
        assert stacked[0] == stacked[1] < unstacked / 1.5


@pytest.mark.parametrize(
    ("device", "units", "times", "expected"),
    [
        ("cpu", 64, 15, False),
        ("cpu", 64, 16, True),
        ("cpu", 512, 31, False),  # of large matrices, which a loop copies
        ("cpu", 512, 32, True),
        ("gpu", 64, 23, False),
        ("gpu", 64, 24, True),
        ("gpu", 1024, 64, True),
    ],
)
@pytest.mark.parametrize("optimizer", [pc.SGD(), pc.Adam()], ids=repr)
def test_blocks_are_stacked_where_they_are_many(device, units, times, optimizer, expected, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(stack, "on_cpu", lambda: device == "cpu")
    block, leaf = (pc.Linear(units), pc.ReLU()), jax.ShapeDtypeStruct
    W = {"W": leaf((units, units), np.float32), "b": leaf((units,), np.float32)}
    params = (W, {}) * times
    slots = optimizer.slots(params)
    batch = Batch(leaf((64, units), np.float32), None, leaf((64,), np.float32))
    state = State(params, slots, optimizer.numbers("float32"), np.int32(0), np.uint32(0))
    monkeypatch.setattr(stack, "join", lambda net, tree, half: net)
    found = stack.stack(engine.JaxOps, pc.Chain(*block * times), optimizer, state, batch)
    assert isinstance(found.params, pc.Chain) is expected
