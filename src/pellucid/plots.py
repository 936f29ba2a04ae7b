"""Pictures of training and of what was learned. They need matplotlib: ``pip install "pellucid[plot]"``."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["confusion_matrix", "decision_surface", "loss_curves", "predicted_against_true", "weights"]


def axes_or_new(ax: Any, **options: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError('plots need matplotlib: pip install "pellucid[plot]"') from None
    return plt.subplots(layout="constrained", **options)[1]


def loss_curves(model: Any, ax: Any = None) -> Any:
    """Training and validation loss over the epochs of a Network, a History or a fitted estimator."""
    ax = axes_or_new(ax)
    history = getattr(getattr(model, "network_", model), "history", model)
    curves: dict[str, Any] = {name: history[name] for name in ("loss", "val_loss") if name in history.columns}
    for name, label in (("loss", "training"), ("val_loss", "validation")):
        if name in curves:
            ax.plot(np.arange(1, len(curves[name]) + 1), curves[name], label=label)
    ax.set(xlabel="epoch", ylabel="loss", title="Loss")
    ax.legend()
    return ax


def confusion_matrix(y: Any, predicted: Any, ax: Any = None) -> Any:
    """How often each true class (rows) was predicted as each class (columns)."""
    from sklearn.metrics import ConfusionMatrixDisplay

    ax = axes_or_new(ax)
    ConfusionMatrixDisplay.from_predictions(y, predicted, ax=ax, colorbar=False, xticks_rotation="vertical")
    ax.set_title("Confusion matrix")
    return ax


def predicted_against_true(y: Any, predicted: Any, ax: Any = None) -> Any:
    """Predictions of a regression against the true values; a perfect model lies on the line."""
    ax = axes_or_new(ax)
    y, predicted = np.asarray(y).ravel(), np.asarray(predicted).ravel()
    ends = [min(y.min(), predicted.min()), max(y.max(), predicted.max())]
    ax.scatter(y, predicted, s=8, alpha=0.6)
    ax.plot(ends, ends, color="black", linewidth=0.8)
    ax.set(xlabel="true", ylabel="predicted", title="Predicted against true")
    return ax


def decision_surface(model: Any, X: Any, y: Any = None, ax: Any = None, points: int = 200) -> Any:
    """What a model of two features predicts everywhere around the rows X; `y` colours the rows."""
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"decision_surface needs two features, X has shape {X.shape}.")
    ax = axes_or_new(ax)
    low, high = X.min(0), X.max(0)
    margin = 0.1 * (high - low) + 1e-9
    u, v = (np.linspace(a, b, points) for a, b in zip(low - margin, high + margin, strict=True))
    grid = np.stack(np.meshgrid(u, v), axis=-1).reshape(-1, 2).astype(X.dtype if X.dtype.kind == "f" else float)
    z = np.asarray(model.predict(grid)).reshape(points, points, -1)[..., 0]
    classes = getattr(model, "classes_", None)
    if classes is not None:
        z = np.searchsorted(classes, z)
        ax.contourf(u, v, z, levels=np.arange(len(classes) + 1) - 0.5, cmap="tab10", vmin=0, vmax=9, alpha=0.35)
    else:
        ax.contourf(u, v, z, levels=20, cmap="viridis", alpha=0.8)
    if y is not None:
        if classes is not None:
            ax.scatter(*X.T, c=np.searchsorted(classes, y), cmap="tab10", vmin=0, vmax=9, s=12, edgecolor="black", linewidth=0.3)
        else:
            ax.scatter(*X.T, c=y, cmap="viridis", s=12, edgecolor="black", linewidth=0.3)
    ax.set(xlabel="feature 0", ylabel="feature 1")
    return ax


def weights(model: Any, layer: str | None = None, shape: tuple[int, int] | None = None, most: int = 64) -> Any:
    """The weights into each unit of a layer as small images.

    Parameters
    ----------
    layer : str, optional
        The parameter's name, such as "0.W"; by default the first matrix.
    shape : (height, width), optional
        How the inputs lie in the image; by default a square, or a row.
    """
    network = getattr(model, "network_", model)
    matrices = {name: W for name, W in network.parameters.items() if W.ndim == 2}
    name = layer if layer is not None else next(iter(matrices), None)
    if name not in matrices:
        raise ValueError(f"no weight matrix {layer!r}; there are {', '.join(matrices) or 'none'}.")
    W = matrices[name][:, :most]
    side = round(W.shape[0] ** 0.5)
    shape = shape or ((side, side) if side * side == W.shape[0] else (1, W.shape[0]))
    columns = int(np.ceil(np.sqrt(W.shape[1])))
    rows = int(np.ceil(W.shape[1] / columns))
    axes = axes_or_new(None, nrows=rows, ncols=columns, squeeze=False)
    limit = np.abs(W).max() or 1.0
    for i, ax in enumerate(axes.flat):
        ax.set_axis_off()
        if i < W.shape[1]:
            ax.imshow(W[:, i].reshape(shape), cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes[0, 0].figure.suptitle(f"{name}: weights into each unit (red +, blue −)")
    return axes
