"""Optimizers against rules written down a second time, PyTorch and closed forms; schedules against their formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pellucid as pc
from pellucid.engines import numpy as numpy_engine
from pellucid.schedules import rates_of
from pellucid.tree import leaves

from .table import OPTIMIZERS, exported

CASES = [pytest.param(o, id=repr(o)) for options in OPTIMIZERS.values() for o in options]


def test_the_table_holds_every_exported_optimizer():
    assert exported(pc.Optimizer) == set(OPTIMIZERS)


class Power(pc.Optimizer):
    """A user's own, whose settings must fit together."""

    power: float = 2.0
    most: float = 4.0

    def check(self):
        super().check()
        self.require(1 <= self.power < self.most, "power", "at least 1, and less than most")

    def rule(self, ops, p, g, slots, n, rate, t):
        return (p - rate * ops.xp.sign(g) * ops.xp.abs(g) ** n.power,)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_settings_of_a_users_optimizer_are_checked_as_they_were_given(engine):
    X, Y = problem()
    model = pc.Network(pc.Linear(2), (3,), "squared_error", dtype="float64")
    p, (_, g) = model.parameters, model.gradients(X, Y)
    model.fit(X, Y, epochs=1, batch_size=len(X), optimizer=Power(0.1, power=3.0), engine=engine, progress=False)
    for name, value in p.items():
        np.testing.assert_allclose(model.parameters[name], value - 0.1 * g[name] ** 3, rtol=1e-12)
    with pytest.raises(ValueError, match="less than most, got 5"):
        Power(0.1, power=5.0)


def problem(seed=0, n=24):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=(n, 2))


def fit(optimizer, engine="numpy", epochs=4, batch_size=6, **options):
    X, y = problem()
    model = pc.Network(pc.Linear(5) >> pc.Tanh() >> pc.Linear(2), (3,), dtype="float64", **options)
    model.fit(X, y, epochs=epochs, batch_size=batch_size, optimizer=optimizer, engine=engine, order="given")
    return model


@pytest.mark.parametrize("optimizer", CASES)
def test_the_engines_walk_the_same_path(optimizer):
    a, b = fit(optimizer, "numpy"), fit(optimizer, "jax")
    for name, value in a.parameters.items():
        np.testing.assert_allclose(value, b.parameters[name], atol=1e-10)
    np.testing.assert_allclose(a.history["loss"], b.history["loss"], rtol=1e-10)


@pytest.mark.parametrize("optimizer", CASES)
def test_every_optimizer_lowers_the_loss(optimizer):
    assert fit(optimizer, epochs=20).history["loss"][-1] < 0.95 * fit(optimizer, epochs=1).history["loss"][0]


def torch_optimizers():
    return [
        (pc.SGD(0.05), "SGD", {"lr": 0.05}),
        (pc.SGD(0.05, momentum=0.9), "SGD", {"lr": 0.05, "momentum": 0.9}),
        (pc.SGD(0.05, momentum=0.9, nesterov=True), "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
        (pc.SGD(0.05, weight_decay=0.1), "SGD", {"lr": 0.05, "weight_decay": 0.1}),
        (pc.RMSProp(0.01, decay=0.9), "RMSprop", {"lr": 0.01, "alpha": 0.9}),
        (pc.Adam(0.01, weight_decay=0.1), "Adam", {"lr": 0.01, "weight_decay": 0.1}),
        (pc.AdamW(0.01, weight_decay=0.1), "AdamW", {"lr": 0.01, "weight_decay": 0.1}),
        (pc.Adam(0.01, clip_norm=0.3), "Adam", {"lr": 0.01}),
    ]


@pytest.mark.parametrize(("ours", "name", "options"), [pytest.param(*c, id=repr(c[0])) for c in torch_optimizers()])
def test_optimizers_agree_with_pytorch(ours, name, options):
    torch = pytest.importorskip("torch")
    start = fit(ours, epochs=1, batch_size=None)  # only for its initial weights
    start.build((3,))
    theirs = [torch.tensor(v, requires_grad=True) for v in start.parameters.values()]
    W1, b1, W2, b2 = theirs
    optimizer = getattr(torch.optim, name)(theirs, **options)
    X, y = (torch.tensor(a) for a in problem())
    for _ in range(4):
        for i in range(0, 24, 6):
            optimizer.zero_grad()
            loss = ((torch.tanh(X[i : i + 6] @ W1 + b1) @ W2 + b2 - y[i : i + 6]) ** 2).sum(1).mean()
            loss.backward()
            if ours.clip_norm:
                torch.nn.utils.clip_grad_norm_(theirs, ours.clip_norm, error_if_nonfinite=True)
            optimizer.step()
    for (key, mine), other in zip(fit(ours).parameters.items(), theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), atol=1e-6 if ours.clip_norm else 1e-12, err_msg=key)


# one scalar parameter, L = (p − 3)²: rules written down a second time, step by step
def by_hand(rule, steps=5, start=0.0):
    p, memory, path = start, {}, []
    for t in range(1, steps + 1):
        p = rule(p, 2 * (p - 3), memory, t)
        path.append(p)
    return path


def ours(optimizer, steps=5):
    model = pc.Network(pc.Linear(1, bias=False, init=pc.Zeros()), (1,), dtype="float64")
    path = []
    model.fit(
        [[1.0]], [[3.0]], epochs=steps, optimizer=optimizer, engine="numpy", callbacks=lambda run: path.append(run.params["W"].item())
    )
    return path


def momentum(p, g, m, t):
    m["v"] = 0.9 * m.get("v", 0) - 0.1 * g
    return p + m["v"]


def nesterov(p, g, m, t):
    m["v"] = 0.9 * m.get("v", 0) - 0.1 * g
    return p + 0.9 * m["v"] - 0.1 * g


def rmsprop(p, g, m, t):
    m["v"] = 0.99 * m.get("v", 0) + 0.01 * g * g
    return p - 0.1 * g / (m["v"] ** 0.5 + 1e-8)


def adam(p, g, m, t):
    m["m"] = 0.9 * m.get("m", 0) + 0.1 * g
    m["v"] = 0.999 * m.get("v", 0) + 0.001 * g * g
    return p - 0.1 * (m["m"] / (1 - 0.9**t)) / ((m["v"] / (1 - 0.999**t)) ** 0.5 + 1e-8)


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (pc.SGD(0.1), lambda p, g, m, t: p - 0.1 * g),
        (pc.GradientDescent(0.1), lambda p, g, m, t: p - 0.1 * g),
        (pc.SGD(pc.InverseTime(0.1, 0.5)), lambda p, g, m, t: p - 0.1 / (1 + 0.5 * (t - 1)) * g),
        (pc.SGD(0.1, weight_decay=0.3), lambda p, g, m, t: p - 0.1 * (g + 0.3 * p)),
        (pc.SGD(0.1, clip_norm=1.5), lambda p, g, m, t: p - 0.1 * g * min(1, 1.5 / abs(g))),
        (pc.SGD(0.1, momentum=0.9), momentum),
        (pc.SGD(0.1, momentum=0.9, nesterov=True), nesterov),
        (pc.RMSProp(0.1), rmsprop),
        (pc.Adam(0.1), adam),
        (pc.AdamW(0.1, weight_decay=0.2), lambda p, g, m, t: adam(p - 0.1 * 0.2 * p, g, m, t)),
    ],
    ids=lambda v: repr(v) if isinstance(v, pc.Optimizer) else "",
)
def test_each_rule_is_its_formula(optimizer, rule):
    np.testing.assert_allclose(ours(optimizer), by_hand(rule), rtol=1e-12)


def test_the_strength_of_weight_decay_does_not_depend_on_the_batch_size():
    """With zero data only the decay acts: after k steps p = (1 − ηλ)ᵏ p₀, whatever the batch size."""
    for batch_size in (1, 4, 8):
        model = pc.Network(pc.Linear(1, bias=False, init=pc.Constant(2.0)), (1,), dtype="float64")
        steps = 8 // batch_size
        model.fit(np.zeros((8, 1)), np.zeros((8, 1)), epochs=6 // min(steps, 6) if steps < 6 else 1, batch_size=batch_size,
                  optimizer=pc.SGD(0.1, weight_decay=0.5), engine="numpy")  # fmt: skip
        k = int(steps * len(model.history))
        np.testing.assert_allclose(model.parameters["W"], 2 * 0.95**k, rtol=1e-12)


def test_all_layers_are_updated_at_once_from_old_values():
    """N40: with L = (w₂w₁ − 1)², both slopes use the old weights."""
    net = pc.Linear(1, bias=False, init=pc.Constant(2.0)) >> pc.Linear(1, bias=False, init=pc.Constant(3.0))
    model = pc.Network(net, (1,), dtype="float64")
    model.fit([[1.0]], [[1.0]], epochs=1, optimizer=pc.GradientDescent(0.01), engine="numpy")
    np.testing.assert_allclose([v.item() for v in model.parameters.values()], [2 - 0.01 * 2 * 5 * 3, 3 - 0.01 * 2 * 5 * 2])


def test_gradient_descent_takes_the_whole_data_set_and_sgd_single_items(rng):
    """N40, N41: steps in an epoch are 1 and n."""
    X, y = problem()
    for optimizer, size, steps in [(pc.GradientDescent(0.1), None, 1), (pc.SGD(0.01), 1, 24), (pc.SGD(0.01), None, 1), (pc.Adam(), 10, 3)]:
        batches = []

        class Count(pc.Callback):
            def batch_end(self, run, batch, loss, batches=batches):
                batches.append(batch)

        pc.Network(pc.Linear(2), (3,)).fit(X, y, epochs=1, batch_size=size, optimizer=optimizer, engine="numpy", callbacks=Count())
        assert len(batches) == steps


def test_single_item_sgd_with_decaying_rate_converges_to_the_solution(rng):
    """N41: drawn with replacement, η → 0, on noisy linear regression: near the least-squares solution."""
    X = np.c_[np.ones(200), rng.normal(size=(200, 2))]
    y = X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=200)
    model = pc.Network(pc.Linear(1, bias=False), (3,), dtype="float64")
    model.fit(X, y, epochs=300, batch_size=1, order="drawn", optimizer=pc.SGD(pc.InverseTime(0.05, 1.0)), engine="jax")
    np.testing.assert_allclose(model.parameters["W"].ravel(), np.linalg.lstsq(X, y, rcond=None)[0], atol=0.01)


def test_minibatches_get_further_than_full_batches_in_equal_passes(digits):
    """N42: update sooner rather than later."""
    X, y = digits
    losses = []
    for size in (len(X), 32):
        model = pc.Network(pc.Linear(32) >> pc.ReLU() >> pc.Linear(10), (64,), "softmax_cross_entropy")
        losses.append(model.fit(X, y, epochs=5, batch_size=size, optimizer=pc.SGD(0.1), engine="numpy")["loss"][-1])
    assert losses[1] < 0.5 * losses[0]


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_lbfgs_finds_the_closed_form_of_ridge_regression(rng, engine):
    from sklearn.linear_model import Ridge

    X, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 2))
    decay = 0.3
    model = pc.Network(pc.Linear(2, bias=False), (4,), dtype="float64")
    history = model.fit(X, y, epochs=200, optimizer=pc.LBFGS(weight_decay=decay, tolerance=1e-10), engine=engine)
    ridge = Ridge(alpha=decay / 2 * 50, fit_intercept=False).fit(X, y)  # (1/n) Σε² + (λ/2)‖w‖²
    np.testing.assert_allclose(model.parameters["W"].T, ridge.coef_, atol=1e-7)
    assert "converged" in history.stopped
    assert len(history) < 200


# -------------------------------------------------------------------- schedules
T = np.linspace(0, 10, 101)


def test_schedules_follow_their_formulas():
    def r(s, losses=()):
        return rates_of(s, T, 10.0, list(losses))

    np.testing.assert_allclose(r(0.3), 0.3)
    np.testing.assert_allclose(r(pc.InverseTime(0.5, 2.0)), 0.5 / (1 + 2 * T))
    np.testing.assert_allclose(r(pc.Exponential(0.5, 0.9)), 0.5 * 0.9**T)
    np.testing.assert_allclose(r(pc.StepDecay(0.5, every=3, factor=0.1)), 0.5 * 0.1 ** (T // 3))
    np.testing.assert_allclose(r(pc.Cosine(0.5, floor=0.1)), 0.1 + 0.4 * (1 + np.cos(np.pi * T / 10)) / 2)
    np.testing.assert_allclose(r(pc.Cosine(0.5, epochs=5))[60:], 0, atol=1e-12)
    warm = r(pc.WarmUp(pc.Exponential(0.5, 0.9), epochs=2))
    np.testing.assert_allclose(warm[:20], 0.5 * T[:20] / 2)
    np.testing.assert_allclose(warm[20:], 0.5 * 0.9 ** (T[20:] - 2))
    cycle = r(pc.OneCycle(0.8, rise=0.3, start=0.05, end=0.001))
    np.testing.assert_allclose([cycle[0], cycle.max(), cycle[-1]], [0.04, 0.8, 0.0008], rtol=1e-6)
    assert T[cycle.argmax()] == 3
    assert (np.diff(cycle[:31]) > 0).all()
    assert (np.diff(cycle[30:]) < 0).all()


def test_one_cycle_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.8, total_steps=101, pct_start=0.3, cycle_momentum=False, final_div_factor=4000)
    theirs = []
    for _ in range(100):
        theirs.append(cycle.get_last_lr()[0])
        optimizer.step()
        cycle.step()
    mine = pc.OneCycle(0.8).rates(np.arange(100) / 100, 1.0, [])
    assert np.abs(mine - theirs).max() < 0.02  # they count the peak one step earlier


def test_reduce_on_plateau_waits_and_cuts():
    s = pc.ReduceOnPlateau(1.0, factor=0.5, patience=2)
    rates = [s.rates(np.zeros(1), 10, losses)[0] for losses in ([], [3], [3, 3], [3, 3, 3], [3, 3, 3, 3, 3], [3, 3, 3, 1, 1, 1])]
    assert rates == [1, 1, 1, 0.5, 0.25, 0.25]


@given(st.lists(st.floats(0, 10), max_size=30), st.integers(1, 5), st.floats(0.1, 0.9))
def test_reduce_on_plateau_agrees_with_pytorch(losses, patience, factor):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=factor, patience=patience - 1, threshold=1e-4, threshold_mode="abs", eps=0
    )
    for loss in losses:
        theirs.step(loss)
    mine = pc.ReduceOnPlateau(1.0, factor=factor, patience=patience).rates(np.zeros(1), 10, losses)[0]
    assert mine == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_schedule_is_used_step_by_step():
    """Full-batch steps on L = (p − 3)²/…: the path with rates by epoch equals the path by hand."""
    model = pc.Network(pc.Linear(1, bias=False, init=pc.Zeros()), (1,), dtype="float64")
    model.fit(
        np.ones((4, 1)),
        np.full((4, 1), 3.0),
        epochs=3,
        batch_size=2,
        optimizer=pc.SGD(pc.StepDecay(0.1, every=0.5, factor=0.5)),
        engine="numpy",
    )
    p = 0.0
    for k in range(6):  # two steps an epoch, the rate halves every half epoch
        p -= 0.1 * 0.5**k * 2 * (p - 3)
    np.testing.assert_allclose(model.parameters["W"], p)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pc.Adam(-1.0), "learning_rate must be a positive number"),
        (lambda: pc.Adam("fast"), "learning_rate must be a number"),
        (lambda: pc.SGD(0.1, momentum=1.0), "momentum must be at least 0 and less than 1"),
        (lambda: pc.Adam(0.1, beta_1=0.9), "Did you mean 'beta1'"),
        (lambda: pc.SGD(0.1, weight_decay=-1), "weight_decay"),
        (lambda: pc.Cosine(0.1, epochs=0), "epochs"),
        (lambda: pc.ReduceOnPlateau(factor=2.0), "factor"),
        (lambda: pc.LBFGS(clip_norm=1.0), "true gradient"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def steps(net, optimizer, joined, monkeypatch, X, y):
    """Weights and the optimizer's memory after a fit in two parts, by the NumPy engine."""
    seen = []

    class Watched(numpy_engine.Joined):
        def __init__(self, *args):
            seen.append(True)
            super().__init__(*args)

    monkeypatch.setattr(numpy_engine, "Joined", Watched)
    if not joined:
        monkeypatch.setattr(numpy_engine, "is_joined", lambda *args: False)
    model = pc.Network(net, X.shape[1:], seed=2, dtype="float64")
    memory = []
    look = pc.Callback()
    look.fit_end = lambda run: memory.append(run.state)
    for _ in range(2):
        model.fit(X, y, epochs=3, batch_size=8, optimizer=optimizer, engine="numpy", callbacks=[look], progress=False)
    return model.parameters, memory[-1], bool(seen)


class Idle(pc.Layer):
    """A layer with a parameter that gets no gradient."""

    def build(self, rng, shape):
        return {"a": rng.normal(size=2), "b": rng.normal(size=3)}, shape

    def forward(self, ops, p, x):
        return x, None

    def backward(self, ops, p, cache, dy, wrt_input=True):
        return dy, {}


@pytest.mark.parametrize("optimizer", [pc.Adam(0.01), pc.AdamW(0.01), pc.Adam(0.01, weight_decay=0.1)], ids=["adam", "adamw", "decay"])
@pytest.mark.parametrize(
    "net",
    [
        pc.Linear(6) >> pc.Tanh() >> pc.Linear(2),
        pc.Linear(6) >> pc.BatchNorm() >> pc.ReLU() >> pc.Linear(2),
        pc.Frozen(pc.Linear(6)) >> pc.ReLU() >> pc.Linear(2),
        Idle() >> pc.Linear(2),
        Idle(),
        pc.Linear(4) >> (pc.Linear(4) | pc.Linear(3) >> pc.Tanh()) >> pc.Linear(2),
    ],
    ids=["plain", "buffers", "frozen", "partly learned", "nothing learned", "branches"],
)
def test_parameters_joined_to_one_vector_are_updated_bit_for_bit_as_one_by_one(net, optimizer, rng):
    X = rng.normal(size=(30, 3))
    y = rng.normal(size=(30, pc.Network(net, (3,)).output_shape[0]))
    results = []
    for joined in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            results.append(steps(net, optimizer, joined, patch, X, y))
    (weights, state, seen), (weights1, state1, seen1) = results
    assert seen
    assert not seen1
    for name, value in weights1.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    for (path, a), (path1, b) in zip(leaves(state.slots), leaves(state1.slots), strict=True):
        assert path == path1
        np.testing.assert_array_equal(a, b)


class ByArray(pc.Adam):
    """A user's rule that looks at a whole array."""

    def rule(self, ops, p, g, slots, n, rate, t):
        return (p - rate * g / (1e-8 + ops.xp.abs(g).max()), *slots)


@pytest.mark.parametrize(
    ("optimizer", "joined"),
    [(pc.Adam(), True), (pc.Adam(clip_norm=1.0), False), (pc.SGD(momentum=0.9), False), (ByArray(), False)],
    ids=["adam", "clipped", "few operations", "a user's"],
)
def test_which_parameters_are_joined(optimizer, joined):
    params = pc.Network(pc.Linear(6) >> pc.Tanh() >> pc.Linear(2), (3,)).params
    assert numpy_engine.is_joined(optimizer, params) == joined
    assert not numpy_engine.is_joined(optimizer, pc.Network(pc.Linear(300) >> pc.Linear(300), (3,)).params)


def test_a_rule_says_itself_that_it_treats_every_entry_alone():
    class Inherits(pc.Adam):
        pass

    class Says(pc.Adam):
        entrywise = True

        def rule(self, ops, p, g, slots, n, rate, t):
            return super().rule(ops, p, g, slots, n, rate, t)

    class Updates(pc.Adam):
        def update(self, ops, params, grads, slots, numbers, rate, step):
            return super().update(ops, params, grads, slots, numbers, rate, step)

    assert all(kind.entrywise for kind in (pc.SGD, pc.AdamW, Inherits, Says))
    assert not any(kind.entrywise for kind in (ByArray, Updates, pc.Optimizer))
