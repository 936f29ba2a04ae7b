"""Learn to read handwritten digits, and see how well it went: `make demo`.

The data, 1797 pictures of 8 × 8 pixels, comes with scikit-learn. PELLUCID_SHORT=1 trains for a moment only.
"""

from __future__ import annotations

import os

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

import pellucid as pc

SHORT = os.environ.get("PELLUCID_SHORT") == "1"
NET = pc.Linear(256) >> pc.ReLU() >> pc.Dropout(0.3) >> pc.Linear(128) >> pc.ReLU() >> pc.Linear(10)


def main() -> None:
    console = Console(highlight=False)
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, y, test_size=0.25, stratify=y, random_state=0)
    model = pc.Network(NET, input_shape=(64,), loss="softmax_cross_entropy", seed=0)
    console.print(f"{len(X)} handwritten digits to learn from, {len(X_test)} others for the test.\n")
    console.print(model.summary(), "\n", sep="", style="dim")

    optimizer = pc.Adam(pc.OneCycle(5e-3))
    history = model.fit(X, y, epochs=2 if SHORT else 100, optimizer=optimizer, engine="jax", validation=(X_test, y_test))

    console.print(f"{len(history)} epochs in {sum(history['seconds']):.1f} s on the {history.engine} engine\n", style="dim")
    learned, tested = confusion_matrix(y, model.predict(X)), confusion_matrix(y_test, model.predict(X_test))
    side_by_side = Table.grid(padding=(0, 5))
    side_by_side.add_row(accuracy_table(learned, tested), confusion_picture(tested))
    console.print(side_by_side)
    console.print(surest_mistakes(X_test, y_test, model.predict_proba(X_test)))


def accuracy_table(learned: np.ndarray, tested: np.ndarray) -> Table:
    """How many of each digit are read rightly, in training and in the test."""
    table = Table(title="accuracy", title_style="bold", box=None, header_style="dim", padding=(0, 1))
    for column in ("digit", "train", "test"):
        table.add_column(column, justify="right")
    for digit in range(10):
        table.add_row(str(digit), *(f"{m[digit, digit] / m[digit].sum():.1%}" for m in (learned, tested)))
    table.add_row("all", *(f"{m.trace() / m.sum():.1%}" for m in (learned, tested)), style="bold green")
    return table


def confusion_picture(counts: np.ndarray) -> Group:
    """Truth down, reading across: what is right lies on the green diagonal, mistakes are red."""
    lines = [Text("what the test's digits were read as", "bold", justify="center")]
    lines.append(Text("     " + "".join(f"{digit:^4}" for digit in range(10)), "dim"))
    for truth, row in enumerate(counts):
        line = Text.assemble((f"{truth:>3}  ", "dim"))
        for guess, count in enumerate(row):
            share = count / row.sum()
            right, wrong = f"bold white on rgb(0,{50 + int(90 * share)},60)", f"bold white on rgb({120 + int(130 * share)},30,50)"
            line.append(f"{count or '·':^4}", right if truth == guess else wrong if count else "dim")
        lines.append(line)
    return Group(*lines)


def surest_mistakes(X: np.ndarray, y: np.ndarray, p: np.ndarray, most: int = 4) -> Group:
    """The pictures it was most sure about and wrong, drawn with shades."""
    wrong = np.flatnonzero(p.argmax(1) != y)
    if not len(wrong):
        return Group(Text("\nAll of the test was read rightly."))
    wrong = wrong[np.argsort(-p[wrong].max(1))][:most]
    row = Table.grid(padding=(0, 3))
    row.add_row(*(Text("\n".join("".join(" ░▒▓█"[round(4 * v)] * 2 for v in line) for line in X[i].reshape(8, 8)), "cyan") for i in wrong))
    row.add_row(*(Text(f"{y[i]} read as {p[i].argmax()}, {p[i].max():.0%}", justify="center") for i in wrong))
    return Group(Text("\nthe surest mistakes\n", "bold"), row)


if __name__ == "__main__":
    main()
