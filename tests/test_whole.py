"""Training steps of a small network as one kernel: the same numbers as step by step.

Without a GPU the kernel is interpreted, and translated for one, which refuses what a GPU cannot do.
"""

import functools

import numpy as np
import pytest

import pellucid as pc
from pellucid import Linear, Network
from pellucid.engines import get_engine
from pellucid.training.step import Batch, Plan, State
from pellucid.tree import leaves

jax = pytest.importorskip("jax")

from pellucid.engines import jax as engine  # noqa: E402
from pellucid.engines import jax_whole, pile  # noqa: E402

HERE = jax.default_backend() != "cpu"  # whether there is a GPU


class Steps:
    """A network, an optimizer and eight mini-batches, of which five are meant."""

    def __init__(self, net, loss="softmax_cross_entropy", optimizer=None, size=10, outputs=3, inputs=(6,), dtype="float32"):
        rng, optimizer = np.random.default_rng(0), optimizer or pc.SGD(0.1)
        model = Network(net, inputs, loss, seed=1, dtype=dtype)
        kind, classes = optimizer.kind(), model.loss.classes
        target = rng.integers(0, outputs if classes == "one" else 2, 40 if classes == "one" else (40, outputs))
        target = model.loss.prepare(target, (outputs,), model.dtype)
        self.static = model.net, model.loss, kind
        self.state = State(model.params, kind.slots(model.params), optimizer.numbers(model.dtype), np.int32(0), np.uint32(7))
        self.data = Batch(rng.normal(size=(40, *inputs)).astype(dtype), target, rng.random(40).astype(dtype))
        sizes, rates = np.full(8, max(1, size - 1), np.int32), rng.random(8).astype(dtype) / 10
        self.plan = Plan(rng.integers(0, 40, (8, size)).astype(np.int32), sizes, rates, np.int32(5))

    def args(self):
        return self.state, self.data, self.plan

    def all(self):
        return *self.static, *self.args()

    def expected(self):
        state, sums, finite = get_engine("numpy").train(*self.static, *self.args())
        return state, np.asarray(sums), finite


@pytest.fixture
def on_gpu(monkeypatch):
    """Programs as for a GPU, where there may be none; what is given is told whether each was made as one kernel."""
    made = []

    def run_steps(*args):
        made.append(found := jax_whole.run_steps(*args, interpret=not HERE))
        return found

    for module in (engine, engine.jax_conv):
        monkeypatch.setattr(module, "on_cpu", lambda: False)
    monkeypatch.setattr(engine, "run_steps", run_steps)
    with engine.precision(np.float32, "highest"):
        yield made


def program(steps):
    """A program of its own: nobody else's may be there already, or be left behind."""
    return jax.jit(functools.partial(engine.chunk.__wrapped__, *steps.static))


def assert_same(found, expected):
    (state, sums, finite), (wanted, rows, ok) = found, expected
    np.testing.assert_allclose(sums[: len(rows)], rows, rtol=2e-5, atol=2e-5)
    assert not np.asarray(sums)[len(rows) :].any()  # steps that are not meant
    assert bool(finite) == bool(ok)
    assert int(state.step) == int(wanted.step)
    for mine, other in ((state.params, wanted.params), (state.slots, wanted.slots)):
        for path, value in leaves(other):
            np.testing.assert_allclose(dict(leaves(mine))[path], value, rtol=2e-4, atol=2e-6, err_msg=str(path))


CASES = {
    "plain": lambda: Steps(Linear(5) >> pc.ReLU() >> Linear(3)),
    "powers of two": lambda: Steps(Linear(32) >> pc.Tanh() >> Linear(16), size=16, outputs=16, inputs=(64,)),
    "normalised": lambda: Steps(
        Linear(20, bias=False) >> pc.BatchNorm() >> pc.Tanh() >> pc.Dropout(0.3) >> Linear(3), optimizer=pc.Adam(0.01)
    ),
    "one output": lambda: Steps(Linear(5) >> pc.LayerNorm() >> pc.SiLU() >> Linear(1), "huber", pc.RMSProp(0.01), outputs=1),
    "narrow": lambda: Steps(
        Linear(1) >> pc.Sigmoid() >> Linear(4) >> pc.ELU() >> Linear(3) >> pc.Softmax(),
        "cross_entropy",
        pc.SGD(0.1, momentum=0.9, nesterov=True, clip_norm=0.1),
    ),
    "many rows": lambda: Steps(Linear(7) >> pc.LeakyReLU() >> Linear(2), "sigmoid_cross_entropy", pc.AdamW(0.01), 33, 2),
    "one row": lambda: Steps(Linear(9) >> pc.Softplus() >> Linear(3), "log_cosh", pc.SGD(0.1, weight_decay=0.1), 1),
    "skip": lambda: Steps(Linear(6) >> pc.ReLU() >> (pc.Identity() + Linear(6)) >> pc.LogSoftmax() >> Linear(3), "brier"),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_in_one_kernel_are_the_training_steps(name, on_gpu, monkeypatch):
    steps = CASES[name]()
    found = program(steps)(*steps.args())
    assert on_gpu.pop()
    assert_same(found, steps.expected())
    if not HERE and jax.__version_info__ < (0, 11):  # which translates for a GPU only where there is one
        monkeypatch.setattr(jax_whole, "fits", lambda *_: True)
        monkeypatch.setattr(engine, "run_steps", jax_whole.run_steps)
        assert "triton" in program(steps).trace(*steps.args()).lower(lowering_platforms=("cuda",)).as_text()


def test_each_network_of_a_batch_has_its_own_number_of_steps(on_gpu):
    steps, counts = CASES["plain"](), (5, 2, 8)
    states = jax.tree.map(lambda a: np.stack([a] * 3), steps.state)
    plan = Plan(*(np.stack([a] * 3) for a in steps.plan[:3]), np.array(counts, np.int32))
    pile.program.cache_clear()
    try:
        found = pile.program()(*steps.static, states, steps.data, plan)
    finally:
        pile.program.cache_clear()
    assert on_gpu.pop()
    for k, count in enumerate(counts):
        steps.plan = steps.plan._replace(count=np.int32(count))
        assert_same(jax.tree.map(lambda a, k=k: a[k], found), steps.expected())


class Own(pc.Layer):
    """A user's layer: some of it in operations that a kernel does not have."""

    what: str

    def forward(self, ops, p, x):
        xp, a, b = ops.xp, x > 0, x < -1
        if self.what == "print":
            jax.debug.print("{}", x[0, 0])
        found = {
            "largest whole number": lambda: x * a.astype(xp.int32).max(1, keepdims=True),
            "whole numbers": lambda: x * xp.minimum(a.astype(xp.int32), 2),
            "largest truth": lambda: x * a.max(1, keepdims=True),
            "truths": lambda: x * xp.maximum(a, b),
            "three cases": lambda: jax.lax.select_n(a.astype(xp.int32) + b, x, 2 * x, x * x),
            "product of whole numbers": lambda: x * (a.astype(xp.int32).T @ b.astype(xp.int32)).sum(),
            "print": lambda: x,
        }
        return found[self.what](), None


class Wrong(pc.Layer):
    def forward(self, ops, p, x):
        raise KeyError("mistake")


class Penalised(pc.SGD):
    """A user's optimizer with a penalty of its own; nothing that is wrong with it may come from shapes filled up."""

    what: str = "vdot"

    def penalise(self, ops, params, value, grads, numbers):
        a, b = params[0]["W"], params[2]["W"]
        more = {"vdot": lambda: ops.xp.vdot(a, b), "tensordot": lambda: ops.xp.tensordot(a, a), "rows": lambda: (a.reshape(-1) ** 2).sum()}
        return value + 0.1 * more[self.what](), grads


OTHERS = {
    "an operation that no kernel has": lambda: Steps(Linear(5) >> pc.GELU() >> Linear(3)),
    "images": lambda: Steps(pc.Conv2d(2, 3) >> pc.Flatten() >> Linear(3), inputs=(5, 5, 1)),
    "double precision": lambda: Steps(Linear(5) >> pc.ReLU() >> Linear(3), dtype="float64"),
    "many weights": lambda: Steps(Linear(160) >> pc.ReLU() >> Linear(160) >> pc.ReLU() >> Linear(3)),
    **{f"penalty by {what}": lambda what=what: Steps(Linear(4) >> pc.Tanh() >> Linear(6), outputs=6, optimizer=Penalised(0.1, what=what))
       for what in ("vdot", "tensordot", "rows")},
    **{what: lambda what=what: Steps(Linear(5) >> Own(what) >> Linear(3)) for what in
       ("largest whole number", "whole numbers", "largest truth", "truths", "three cases", "product of whole numbers", "print")},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_no_kernel_is_made_of_what_a_gpu_refuses_or_understands_otherwise(name, on_gpu):
    steps = OTHERS[name]()
    with engine.precision(steps.data.x.dtype, "highest"):
        jax.eval_shape(program(steps), *steps.args())
    assert on_gpu == [None]


def test_what_no_kernel_is_made_of_is_compiled_step_by_step(on_gpu):
    steps = OTHERS["penalty by vdot"]()
    assert_same(program(steps)(*steps.args()), steps.expected())
    assert on_gpu == [None]


def test_a_kernel_is_made_only_where_the_gpu_has_room_for_the_factors():
    step = jax.make_jaxpr(lambda x, w: (x @ w, w.T @ x.T))(np.ones((100, 64), np.float32), np.ones((64, 100), np.float32)).jaxpr
    assert jax_whole.fits(step, "8.6")  # 65,536 bytes, as each is a factor twice
    assert not jax_whole.fits(step, "")  # nobody knows
    large = jax.make_jaxpr(jax.jit(lambda x, w: x @ w))(np.ones((300, 64), np.float32), np.ones((64, 100), np.float32)).jaxpr
    assert not jax_whole.fits(large, "8.0")  # 163,840 of them, and it has 163,000
    assert jax_whole.fits(large, "9.0")


def test_no_kernel_is_made_of_arrays_that_are_too_large_or_without_products():
    squares = jax.make_jaxpr(lambda x: x @ (x.T * x.T).sum(0))(np.ones((300, 300), np.float32)).jaxpr
    assert not jax_whole.fits(squares, "9.0")  # 512 · 512 numbers
    assert not jax_whole.fits(jax.make_jaxpr(lambda x: 2 * x)(1.0).jaxpr, "9.0")


def test_what_is_not_a_number_stays_so(on_gpu):
    steps = CASES["plain"]()
    steps.state.params[0]["W"][:] = np.resize([3e38, -3e38], steps.state.params[0]["W"].shape)
    steps.data.x[:] = 1.0 + np.arange(6)
    (_, sums, finite), made = program(steps)(*steps.args()), on_gpu.pop()
    assert made
    assert np.isnan(sums[0, 1])
    assert not finite


@pytest.mark.parametrize("both", [False, True])
def test_a_compiler_that_refuses_a_kernel_is_not_asked_again(both, monkeypatch, on_gpu):
    """If it was the kernel: a program that fails without one, too, says why."""
    steps, tries = CASES["plain"](), []

    def run_steps(*args):
        jax_whole.LOCAL.kernels += 1
        tries.append(1)
        raise NotImplementedError(f"no {len(tries)}")

    monkeypatch.setattr(engine, "run_steps", run_steps)
    monkeypatch.setattr(engine, "refused", set() if both else jax_whole.refused)
    chunk = jax.jit(lambda *args: engine.chunk.__wrapped__(*args), static_argnums=(0, 1, 2))
    train = functools.partial(jax_whole.with_kernels, chunk, *steps.static)
    try:
        if both:
            with pytest.raises(NotImplementedError, match="no 2"):
                train(*steps.args())
            assert not jax_whole.refused
        else:
            with pytest.warns(UserWarning, match="compiler refused the kernel for it: no 1"):
                assert_same(train(*steps.args()), steps.expected())
            train(*steps.args())
            assert jax_whole.refused == {steps.static}
        assert len(tries) == 1 + both
    finally:
        jax_whole.refused.clear()


def test_a_mistake_in_a_users_layer_is_told_once(on_gpu):
    steps = Steps(Linear(5) >> Wrong() >> Linear(3))
    with pytest.raises(KeyError, match="mistake") as error:
        jax_whole.with_kernels(jax.jit(lambda *args: engine.chunk.__wrapped__(*args), static_argnums=(0, 1, 2)), *steps.all())
    assert error.value.__context__ is None
