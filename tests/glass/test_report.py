"""The gradient check as a report people can read."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import pellucid as pc

X, Y = np.random.default_rng(0).normal(size=(4, 3)), np.random.default_rng(1).normal(size=(4, 2))


class WrongTanh(pc.Layer):
    """Forward   y = tanh x.

    Backward  dx = dy ⊙ (1 − y), which is wrong
    """

    def forward(self, ops, p, x):
        y = ops.xp.tanh(x)
        return y, y

    def backward(self, ops, p, y, dy, wrt_input=True):
        return dy * (1 - y), {}


def checked(activation):
    return pc.Network(pc.Linear(3) >> activation >> pc.Linear(2), 3, dtype="float64").check_gradients(X, Y)


def coloured(check):
    console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system="standard")
    console.print(check)
    return console.file.getvalue()


def test_right_gradients_are_green_in_terminal_and_html():
    check = checked(pc.Tanh())
    assert check
    assert "\x1b[32m✓ ok" in coloured(check)
    assert "WRONG" not in coloured(check)
    assert check.html().count("✓ ok") == 4
    assert "all gradients agree" in check.html()


def test_wrong_gradients_are_red_and_the_worst_is_named():
    check = checked(WrongTanh())
    assert not check
    assert check.worst.name.startswith("0.")
    assert "\x1b[1;31m✗ WRONG" in coloured(check)
    assert check.html().count("✗ WRONG") == 2
    assert f"worst at {check.worst.name}" in check.html()


def test_the_three_values_at_the_worst_entry_are_shown():
    check = checked(WrongTanh())
    row = check.worst
    for value in (row.ours, row.differences, row.autodiff):
        assert f"{value:.9g}" in coloured(check)
        assert f"{value:.9g}" in check.html()
    assert row.differences == pytest.approx(row.autodiff, abs=1e-8)
    assert row.ours != pytest.approx(row.autodiff, abs=1e-3)


def test_kinks_are_skipped_and_said_so():
    model = pc.Network(pc.Linear(2, bias=False) >> pc.ReLU(), 1, dtype="float64")
    model.set_parameters({"0.W": [[0.0, 1.0]]})
    check = model.check_gradients([[1.0], [2.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert check
    for report in (str(check), coloured(check), check.html()):
        assert "1 (1 at kinks skipped)" in report


def test_show_prints(capsys):
    checked(pc.Tanh()).show()
    assert "all gradients agree" in capsys.readouterr().out.replace("\n", " ")
