"""The kernel layer: units that respond to how near the input is (N11, N12)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from .base import Array, Layer, Params, ShapeError

__all__ = ["RBF"]


class RBF(Layer):
    """Radial units around centres μ, s = ‖x − μ‖² (N11).

    Forward   gaussian               y = exp(−s/2h²)
              multiquadric           y = √(s + h²)
              inverse_multiquadric   y = 1/√(s + h²)
    Backward  gaussian               ∂y/∂s = −y/2h²,   ∂y/∂h = y s/h³
              multiquadric           ∂y/∂s = 1/2y,     ∂y/∂h = h/y
              inverse_multiquadric   ∂y/∂s = −y³/2,    ∂y/∂h = −h y³
              ∂s/∂μ = 2(μ − x),   ∂s/∂x = 2(x − μ)

    Ellipsoids measure distance in their own units, s = Σ (xₐ − μₐ)²/hₐ² along the axes or s = ‖(x − μ)L‖² in
    any direction (L lower triangular), and have h = 1 above. Widths enter as squares: their sign means nothing.

    Parameters
    ----------
    units : int
        Number of centres, N_E.
    kernel : "gaussian", "multiquadric" or "inverse_multiquadric"
    width : "scalar", "per_unit", "per_axis" or "full"
        One h for all (N_E n + 1 parameters), one each (N_E (n + 1)), one per unit and axis (2 N_E n), or rotated
        ellipsoids (N_E (n + n(n+1)/2)).
    trainable : "all", "centres", "widths" or "none"
        What back-propagation changes; the rest stays where it began.
    start : "kmeans", "sample" or "random"
        Before the first fit the centres are put at the k-means centres of this layer's inputs, or at randomly
        chosen rows, and h = d_max/√(2 N_E), d_max the greatest distance between centres (N12; for N_E = 1,
        where there is none, h is the root mean square distance of the rows from their mean). "random" draws
        normal centres and takes h = √n when the network is built, and looks at no data: choose it to give centres
        of your own by `set_parameters`. (At most 20,000 rows are looked at, and each counts once.)
    width_factor : float
        Multiplies h at the start. With many features rows lie far from every centre compared to d_max/√(2 N_E),
        and Gaussian units stay silent: 5 to 10 wakes them.

    Input (batch, …, n), output (batch, …, units). Distances are ‖x‖² − 2xμᵀ + ‖μ‖²: only "full" makes an array
    of batch × units × n.

    Examples
    --------
    >>> [RBF(10, width=w).count((4,)) for w in ("scalar", "per_unit", "per_axis", "full")]
    [41, 50, 80, 140]
    """

    units: int
    kernel: Literal["gaussian", "multiquadric", "inverse_multiquadric"] = "gaussian"
    width: Literal["scalar", "per_unit", "per_axis", "full"] = "per_unit"
    trainable: Literal["all", "centres", "widths", "none"] = "all"
    start: Literal["kmeans", "sample", "random"] = "kmeans"
    width_factor: float = 1.0

    def check(self):
        self.require(self.units >= 1, "units", "at least 1")
        self.require(0 < self.width_factor < math.inf, "width_factor", "a positive number")

    def build(self, rng, shape):
        if not shape:
            raise ShapeError(self, "at least one feature axis", "(batch,)", "Give input_shape=(1,) for single numbers.")
        *lead, n = shape
        p = self.place(rng.normal(size=(self.units, n)), math.sqrt(n))  # normal points are about √(2n) apart
        if self.start != "random":
            p["_primed"] = np.zeros(())
        return p, (*lead, self.units)

    def prime(self, rng, p, x):
        if self.start == "random" or p["_primed"]:
            return p
        from scipy.spatial.distance import pdist
        from sklearn.cluster import KMeans

        rows = x.reshape(-1, x.shape[-1])
        if len(rows) < self.units:
            raise ValueError(f"{self!r} takes its {self.units} centres from the data, but there are {len(rows)} rows. Use fewer units.")
        if self.start == "kmeans":
            centres = KMeans(self.units, random_state=int(rng.integers(2**31))).fit(rows).cluster_centers_
        else:
            centres = rows[rng.choice(len(rows), self.units, replace=False)]
        h = pdist(centres).max() / math.sqrt(2 * self.units) if self.units > 1 else 0.0
        spread = math.sqrt(np.square(rows - rows.mean(0)).sum(1).mean())
        return {**self.place(np.asarray(centres, np.float64), h or spread or 1.0), "_primed": np.ones(())}

    def place(self, centres: np.ndarray, h: float) -> Params:
        """Parameters for units at these centres, all of width h times the factor."""
        h, n = h * self.width_factor, centres.shape[1]
        shape = {"scalar": (), "per_unit": (self.units,), "per_axis": (self.units, n)}.get(self.width)
        widths = np.full(shape, h) if shape is not None else np.tile(np.eye(n)[np.tril_indices(n)] / h, (self.units, 1))
        learned = {"all": ("centres", "widths"), "none": ()}.get(self.trainable, (self.trainable,))
        return {key if key in learned else f"_{key}": v for key, v in (("centres", centres), ("widths", widths))}

    def forward(self, ops, p, x):
        mu, h = self.parts(p)
        rows = x.reshape(-1, x.shape[-1]) - mu.mean(0)  # moving everything changes no distance, and rounding is
        mu = mu - mu.mean(0)  # least around the origin
        s, v = self.distances(ops.xp, rows, mu, h)
        r = h if self.spherical else 1.0
        if self.kernel == "gaussian":
            y = ops.xp.exp(-0.5 * s / (r * r))
        elif self.kernel == "multiquadric":
            y = ops.xp.sqrt(s + r * r)
        else:
            y = 1 / ops.xp.sqrt(s + r * r)
        return y.reshape(*x.shape[:-1], self.units), (rows, mu, s, v, y)

    def backward(self, ops, p, cache, dy, wrt_input=True):
        x, mu, s, v, y = cache
        h = self.parts(p)[1]
        flow = dy.reshape(-1, self.units)
        r = h if self.spherical else 1.0
        if self.kernel == "gaussian":
            by_s, by_h = -0.5 * y / (r * r), y * s / (r * r * r)
        elif self.kernel == "multiquadric":
            by_s, by_h = 0.5 / y, r / y
        else:
            by_s, by_h = -0.5 * y * y * y, -r * y * y * y
        dx, dmu, dh = self.distances_backward(ops.xp, x, mu, h, v, flow * by_s, wrt_input)
        if self.spherical:
            dh = (flow * by_h).sum(0 if self.width == "per_unit" else None)
        grads = {key: g for key, g in (("centres", dmu), ("widths", dh)) if key in p}
        return (dx.reshape(*dy.shape[:-1], x.shape[-1]) if wrt_input else None), grads

    def formulas(self):  # unit by unit: k is one of them
        r = {"scalar": "h", "per_unit": "h_k"}.get(self.width, "1")
        rr, r2 = ("1", "2") if r == "1" else (f"{r}²", f"(2 {r}²)")
        s = {"per_axis": "‖(x − μ_k) / h_k‖²", "full": "‖v_k‖²"}.get(self.width, "‖x − μ_k‖²")
        y, by_s, by_h = {
            "gaussian": (f"exp(−s_k / {r2})", f"−dy_k ⊙ y_k / {r2}", f"y_k ⊙ s_k / {r}³"),
            "multiquadric": (f"√(s_k + {rr})", "dy_k / (2 y_k)", f"{r} / y_k"),
            "inverse_multiquadric": (f"1 / √(s_k + {rr})", "−dy_k ⊙ y_k³ / 2", f"(−{r} y_k³)"),
        }[self.kernel]
        mu, h, x = {
            "per_axis": ("2 Σ ds_k ⊙ (μ_k − x) / h_k²", "−2 Σ ds_k ⊙ (x − μ_k)² / h_k³", "Σ_k 2 ds_k ⊙ (x − μ_k) / h_k²"),
            "full": ("−2 Λ_k Σ ds_k ⊙ v_k", "tril(2 (x − μ_k) (ds_k ⊙ v_k)ᵀ)", "Σ_k 2 Λ_k (ds_k ⊙ v_k)"),
            "scalar": ("2 Σ ds_k ⊙ (μ_k − x)", f"Σ_k Σ dy_k ⊙ {by_h}", "Σ_k 2 ds_k ⊙ (x − μ_k)"),
        }.get(self.width, ("2 Σ ds_k ⊙ (μ_k − x)", f"Σ dy_k ⊙ {by_h}", "Σ_k 2 ds_k ⊙ (x − μ_k)"))
        width = {"scalar": "dh", "full": "dΛ_k"}.get(self.width, "dh_k")
        learned = {"centres": f"dμ_k = {mu}", "widths": f"{width} = {h}"}
        back = [line for name, line in learned.items() if self.trainable in ("all", name)]
        first = ["v_k = Λ_kᵀ (x − μ_k)"] if self.width == "full" else []
        return [*first, f"s_k = {s}", f"y_k = {y}"], [f"ds_k = {by_s}", *back, f"dx = {x}"]

    def quantities(self, call, inner):
        def units(a: Any, turn: bool = False) -> dict[int, Any]:
            """One matrix per unit, from an array whose first (or last) axis are the units."""
            rows = a.reshape(-1, self.units).T[:, None] if turn else a.reshape(self.units, -1, 1)
            return dict(enumerate(rows, 1))

        known: dict[str, Any] = {"k": range(1, self.units + 1), "y": units(call.y, True)}
        if call.dy is not None:
            known["dy"] = units(call.dy, True)
        values = dict(zip(("μ", "h"), self.parts(call.params), strict=True))
        values |= {sign: call.grads[key] for sign, key in (("dμ", "centres"), ("dh", "widths")) if key in call.grads}
        for sign, a in values.items():
            if self.width == "full" and sign.endswith("h"):
                known[sign.replace("h", "Λ")] = dict(enumerate(triangular(np, np.asarray(a), call.x.shape[-1]), 1))
            else:
                known[sign] = np.reshape(a, (1, 1)) if np.ndim(a) == 0 else units(np.asarray(a))
        return known

    @property
    def spherical(self) -> bool:
        return self.width in ("scalar", "per_unit")

    def parts(self, p: Params) -> tuple[Array, Array]:
        """Centres and widths, learned or not."""
        return tuple(p[key] if key in p else p[f"_{key}"] for key in ("centres", "widths"))

    def distances(self, xp: Any, x: Array, mu: Array, h: Array) -> tuple[Array, Array]:
        """Squared distances s (N, units), and what their backward pass needs."""
        if self.width == "full":
            L = triangular(xp, h, x.shape[1])
            v = x @ L - mu[:, None] @ L  # (N, n) @ (units, n, n) = (units, N, n)
            return (v * v).sum(-1).T, v
        if self.width == "per_axis":
            a = 1 / (h * h)
            s = (x * x) @ a.T - 2 * (x @ (mu * a).T) + (mu * mu * a).sum(1)  # (N, n) @ (n, units)
            return xp.maximum(s, 0), None  # rounding may leave a little less than nothing
        s = (x * x).sum(1, keepdims=True) - 2 * (x @ mu.T) + (mu * mu).sum(1)  # (N, n) @ (n, units)
        return xp.maximum(s, 0), None

    def distances_backward(self, xp: Any, x: Array, mu: Array, h: Array, v: Any, ds: Array, wrt_input: bool) -> tuple[Any, Array, Any]:
        """From the flow ds (N, units): dx, dμ, and dh where the distance depends on h."""
        if self.width == "full":
            L = triangular(xp, h, x.shape[1])
            dv = 2 * ds.T[:, :, None] * v  # (units, N, n)
            d = dv @ L.transpose(0, 2, 1)  # (units, N, n) @ (units, n, n): the flow into x − μ
            dL = x.T @ dv - mu[:, :, None] * dv.sum(1)[:, None]  # (n, N) @ (units, N, n)
            return d.sum(0), -d.sum(1), dL[:, *np.tril_indices(x.shape[1])]
        total, dsx = ds.sum(0)[:, None], ds.T @ x  # (units, N) @ (N, n)
        if self.width == "per_axis":
            a = 1 / (h * h)
            da = ds.T @ (x * x) - 2 * mu * dsx + total * mu * mu
            dx = 2 * (x * (ds @ a) - ds @ (mu * a)) if wrt_input else None  # (N, units) @ (units, n)
            return dx, 2 * a * (total * mu - dsx), -2 * da * a / h
        dx = 2 * (x * ds.sum(1, keepdims=True) - ds @ mu) if wrt_input else None  # (N, units) @ (units, n)
        return dx, 2 * (total * mu - dsx), None


def triangular(xp: Any, packed: Array, n: int) -> Array:
    """Lower triangular matrices (units, n, n) from their n(n+1)/2 entries."""
    place = np.full((n, n), packed.shape[1])
    place[np.tril_indices(n)] = np.arange(packed.shape[1])
    return xp.concatenate([packed, xp.zeros_like(packed[:, :1])], axis=1)[:, place]
