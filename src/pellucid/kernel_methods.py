"""What can be had without gradient descent: the output layer in closed form (N12), and a density (N13)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from .engines.numpy import NumpyOps
from .layers.combine import Chain
from .layers.kernels import RBF
from .layers.linear import Linear
from .network import Network
from .settings import friendly
from .training.data import as_inputs, row_weights, select
from .training.prime import prime
from .training.step import weights

__all__ = ["kernel_density", "ridge_output"]


@friendly
def ridge_output(model: Network, X: Any, y: Any, alpha: float = 1.0, *, sample_weight: Any = None) -> Network:
    """Set the last layer's weights to those that are best for the present layers before it (N12).

    W, b = argmin Σ ‖h W + b − y‖² + alpha ‖W‖²,   h the inputs of the last layer

    (scikit-learn's Ridge). Class targets are taken as one-hot rows. Centres that start from the data do so here,
    if they have not yet; `fit` then goes on from this start.

    Parameters
    ----------
    model : Network
        A network that ends with a Linear layer.
    X, y : array, list or frame
        Rows and targets, as for `fit`.
    alpha : float
        Strength of the charge for large weights.
    sample_weight : array, optional
        A weight per row.

    Returns
    -------
    Network
        The same model.

    Examples
    --------
    >>> import pellucid as pc
    >>> x = np.linspace(0, 1, 50)[:, None]
    >>> model = ridge_output(pc.Network(pc.RBF(12) >> pc.Linear(1), (1,)), x, np.sin(6 * x), alpha=1e-6)
    >>> bool(np.abs(model(x) - np.sin(6 * x)).max() < 0.01)
    True
    """
    from sklearn.linear_model import Ridge

    net = model.net if isinstance(model.net, Chain) else Chain(model.net)
    last = net.layers[-1]
    if not isinstance(last, Linear) or last.mask is not None:
        raise ValueError(f"ridge_output needs a network that ends with a Linear layer without a mask, got {last!r} at its end.")
    if not alpha >= 0:
        raise ValueError(f"alpha must be at least 0, got {alpha!r}.")
    data = model.as_batch(X, y, sample_weight, build=True)
    data = select(data, np.flatnonzero(data.weight))
    model.params = prime(model.net, model.params, data, model.seed)
    params = model.params if isinstance(model.net, Chain) else (model.params,)
    ops = NumpyOps(weight=data.weight, lengths=data.lengths)
    h = ops.forward(Chain(*net.layers[:-1]), params[:-1], data.x, "net")[0] if len(net.layers) > 1 else data.x
    target = np.eye(last.units)[data.target] if data.target.ndim < h.ndim else data.target
    ridge = Ridge(alpha=alpha, fit_intercept=last.bias)
    rows = h.reshape(-1, h.shape[-1]).astype(np.float64)
    ridge.fit(rows, target.reshape(-1, last.units), sample_weight=weights(ops, h[..., 0], data).ravel())
    new = {"W": ridge.coef_.reshape(last.units, -1).T, **({"b": np.reshape(ridge.intercept_, last.units)} if last.bias else {})}
    new = {key: np.ascontiguousarray(value, model.dtype) for key, value in new.items()}
    model.params = (*params[:-1], new) if isinstance(model.net, Chain) else new
    return model


@friendly
def kernel_density(samples: Any, width: Any, *, weights: Any = None, kernel: Literal["gaussian"] = "gaussian") -> Network:
    """A density that integrates to one, as a network: a kernel around every sample (N13).

    p̂(x) = Σ αᵢ exp(−‖x − xᵢ‖²/2hᵢ²) / (√(2π) hᵢ)ⁿ,   αᵢ ≥ 0,   Σ αᵢ = 1

    Parameters
    ----------
    samples : array of shape (L, n)
        The points xᵢ.
    width : float or array of shape (L,)
        h, for all or each.
    weights : array of shape (L,), optional
        The αᵢ, up to a common factor; by default all the same.
    kernel : "gaussian"
        The multiquadrics have no finite integral, so no density can be made of them.

    Returns
    -------
    Network
        Called with rows x it gives p̂(x), shape (batch, 1).

    Examples
    --------
    >>> round(float(kernel_density([[0.0]], 1.0)([[0.0]])[0, 0]), 6)
    0.398942
    """
    if kernel != "gaussian":
        raise ValueError(
            f"kernel must be 'gaussian', got {kernel!r}: √(s + h²) grows and 1/√(s + h²) falls off too slowly, so the "
            "integral of a multiquadric over the whole space is infinite and cannot be brought to one."
        )
    samples, h = as_inputs(samples, None, np.float64), np.asarray(width, np.float64)
    if samples.ndim != 2:
        raise ValueError(f"samples must be an array (L, n), got shape {samples.shape}. For single numbers pass samples[:, None].")
    count, n = samples.shape
    if h.shape not in ((), (count,)) or not (np.isfinite(h).all() and (h > 0).all()):
        raise ValueError(f"width must be a positive number, or {count} of them, one per sample; got {width!r}.")
    alpha = np.ones(count) if weights is None else row_weights(weights, count, np.float64)
    model = Network(RBF(count, width="per_unit" if h.ndim else "scalar", start="random") >> Linear(1, bias=False), n, dtype="float64")
    heights = alpha / alpha.sum() / (math.sqrt(2 * math.pi) * h) ** n
    model.set_parameters({"0.centres": samples, "0.widths": h, "1.W": heights[:, None]})
    return model
