"""Certificates, tables, pictures, the command line, and the rows on information and order."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys

import numpy as np
import pytest

import pellucid as pc
from pellucid import theory
from pellucid.theory import cli


def run(*arguments):
    parser = argparse.ArgumentParser(prog="pellucid")
    cli.add_commands(parser.add_subparsers(required=True))
    args = parser.parse_args(list(map(str, arguments)))
    return args.run(args)


# -------------------------------------------------------------------- certificates and networks
BUILT = [
    theory.boolean([0, 1, 1, 0]),
    theory.and_unit(3),
    theory.parity(4, "formula"),
    theory.tower(0, 1),
    theory.towers("x*x", 0, 1, 0.2),
    theory.towers("x*y", [0, 0], [1, 1], 0.3),
    theory.zigzag(3),
    theory.shallow([0, 1, 3], [1, 0, 2]),
    theory.folding(2, 3, 1),
]


@pytest.mark.parametrize("built", BUILT, ids=lambda b: b.certificate.what)
def test_a_construction_is_an_ordinary_network_with_a_certificate_that_prints(built):
    network, certificate = built
    assert type(network) is pc.Network
    assert certificate
    text = str(certificate)
    assert all(word in text for word in ("holds", "promised", "measured", "checked"))
    X = np.random.default_rng(0).normal(size=(5, *network.input_shape)).astype(network.dtype)
    assert eval(repr(network.net), vars(pc)) == network.net
    from pellucid.engines import get_engine

    jax = get_engine("jax")
    with jax.precision(network.dtype):
        assert np.allclose(network(X), jax.forward(network.net, network.params, X), atol=1e-6)


def test_a_construction_can_be_trained_further():
    network = theory.zigzag(3).network
    x = np.linspace(0, 2, 50)[:, None]
    network.fit(x, network(x) + 0.1, epochs=50, optimizer=pc.Adam(1e-3), engine="numpy")
    assert np.abs(network(x).mean() - theory.zigzag(3).network(x).mean() - 0.1) < 0.05


def test_a_certificate_that_does_not_hold_says_so():
    broken = theory.Certificate("thing", "a", "b", "c", False, {"units": 1000})
    assert not broken
    assert "DOES NOT HOLD" in str(broken)
    assert "1,000" in str(broken)


def test_a_table_prints_rows_and_gives_columns():
    table = theory.Table("title", [{"n": 1, "units": 1000}, {"n": 2, "units": None}])
    assert str(table).splitlines() == ["title", "n  units", "────────", "1  1,000", "2      –"]
    assert table["n"] == [1, 2]


def test_sympy_and_matplotlib_are_not_imported_before_they_are_needed():
    code = "import sys, pellucid.theory, pellucid.theory.cli; print({'sympy', 'mpmath', 'matplotlib', 'jax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


# -------------------------------------------------------------------- N26, N27
def test_the_note_s_example_in_bits():
    expected, prediction, truth, cross = theory.information()["value"]
    assert math.isclose(expected, 6.0)
    assert round(prediction, 3) == 1.846
    assert truth == 0
    assert round(cross, 3) == 3.322


def test_squared_error_does_not_learn_where_the_sigmoid_is_saturated():
    x, y = 2.0, 1.0
    for row in theory.saturation([-30, -8, -1, 0.5, 8], y, x):
        p = 1 / (1 + math.exp(-row["z"]))
        assert math.isclose(row["squared error"], 2 * (p - y) * p * (1 - p) * x, rel_tol=1e-6, abs_tol=1e-15)
        assert math.isclose(row["cross-entropy"], (p - y) * x, rel_tol=1e-6, abs_tol=1e-12)
    wrong = theory.saturation([-8]).rows[0]
    assert abs(wrong["squared error"]) < 1e-3 < 0.99 < abs(wrong["cross-entropy"])


@pytest.mark.parametrize("call", [lambda: theory.expected_value([0.5, 0.6], [1, 2]), lambda: theory.expected_value([0.5, 0.5], [1])])
def test_what_is_no_distribution_is_refused(call):
    with pytest.raises(ValueError, match="probabilities"):
        call()


# -------------------------------------------------------------------- N57
@pytest.mark.parametrize(
    "net",
    [
        pc.Linear(8) >> pc.Tanh() >> pc.Linear(1),
        (pc.Linear(4) | (pc.Linear(4) >> pc.ReLU())) >> pc.Linear(1),
        (pc.Linear(4) * (pc.Linear(4) >> pc.Sigmoid())) >> pc.Linear(1),
    ],
)
def test_a_dense_network_does_not_know_the_order_of_its_inputs(net):
    rng = np.random.default_rng(0)
    X, order = rng.normal(size=(60, 5)), [3, 0, 4, 1, 2]
    y = np.sin(X[:, :1]) + X[:, 1:2]
    first = pc.Network(net, (5,), dtype="float64")
    second, certificate = theory.permuted(first, order)
    assert certificate
    one = first.fit(X, y, epochs=15, engine="numpy")
    two = second.fit(X[:, order], y, epochs=15, engine="numpy")
    assert np.allclose(one["loss"], two["loss"], rtol=1e-9)


def test_an_order_must_name_every_input_once():
    with pytest.raises(ValueError, match="once"):
        theory.permuted(theory.random_network(3, 2), [0, 0, 1])


# -------------------------------------------------------------------- the command line
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parity", "8"], ["parity of 8 bits as tree: holds", "129", "Håstad"]),
        (["towers", "sin(3*x)", "--epsilon", "0.05"], ["error at most 0.05 everywhere", "holds"]),
        (["towers", "x*y", "--low", "0", "0", "--high", "1", "1", "--epsilon", "0.3"], ["[0, 1] × [0, 1]", "holds"]),
        (["zigzag", "5"], ["32 linear pieces on [0, 2] with 10 units"]),
        (["boolean", "0110"], ["exact on all 4 inputs"]),
        (["growth", "4"], ["minimised"]),
        (["depth", "5"], ["deep: pieces"]),
        (["cost", "--epsilon", "0.5"], ["bits, at least"]),
        (["information"], ["1.846", "3.322"]),
        (["saturation"], ["cross-entropy"]),
    ],
)
def test_commands_print_what_they_found(arguments, words, capsys):
    assert run("theory", *arguments) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["parity", "5"],
        ["towers", "sin(3*x)", "--epsilon", "0.05"],
        ["towers", "x*y", "--low", "0", "0", "--high", "1", "1", "--epsilon", "0.3"],
        ["zigzag", "5"],
        ["growth", "4"],
        ["depth", "5"],
        ["saturation"],
    ],
)
def test_pictures_are_written(arguments, tmp_path, capsys):
    assert run("theory", *arguments, "--plot", tmp_path / "out.png") == 0
    assert (tmp_path / "out.png").read_bytes()[:4] == b"\x89PNG"
    assert "picture:" in capsys.readouterr().out


def test_the_picture_of_regions_has_a_polygon_for_each():
    found = theory.regions(theory.random_network(2, 6, 6), ((-2, 2), (-2, 2)))
    figure = theory.plot_regions(found)
    assert len(figure.axes[0].collections[0].get_paths()) == found.count


@pytest.mark.parametrize(
    ("network", "box", "words"),
    [
        (theory.random_network(2, 5), ["-2", "2", "-2", "2"], "activation regions on [-2, 2] × [-2, 2]"),
        (theory.zigzag(4).network, ["0", "2"], "16 linear pieces"),
    ],
)
def test_regions_of_a_network_and_of_its_file(network, box, words, tmp_path, capsys):
    cli.report_regions(network, argparse.Namespace(box=list(map(float, box)), plot=tmp_path / "out.png"))
    assert words in capsys.readouterr().out
    assert (tmp_path / "out.png").exists()
    path = tmp_path / "model.pellucid"
    if hasattr(pc, "load"):
        network.save(path)
        assert run("theory", "regions", path, "--box", *box) == 0
        assert words in capsys.readouterr().out
    else:
        path.touch()
        assert run("theory", "regions", path) == 2
        assert "cannot read model files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["parity", "99"], "between 2 and 16"),
        (["towers", "sin(3*x)", "--epsilon", "0"], "epsilon must be greater than 0"),
        (["towers", "__import__('os')"], "unknown function"),
        (["towers", "1/x"], "no finite bound"),
        (["towers", "x", "--low", "2"], "low must be less than high"),
        (["towers", "x", "--plot", "no/such/folder/out.png"], "No such file"),
        (["towers", "x", "--plot", "out.nonsense"], "not supported"),
        (["zigzag", "0"], "between 1 and"),
        (["boolean", "012"], "written with 0 and 1"),
        (["boolean", "011"], "2ⁿ values"),
        (["regions", "no-such-file"], "No such file"),
        (["regions", __file__], "read"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(arguments, message, capsys):
    assert run("theory", *arguments) == 2
    captured = capsys.readouterr().err
    assert len(captured.splitlines()) == 1
    assert captured.startswith(f"pellucid theory {arguments[0]}: ")
    assert message in captured


def test_constructions_trace_explain_draw_and_save_like_any_other_network(tmp_path):
    built = [
        (theory.boolean(lambda a, b, c: (a and b) or c, 3)[0], [[1.0, 1.0, 0.0]]),
        (theory.parity(4, "tree")[0], [[1.0, 0.0, 0.0, 0.0]]),
        (theory.zigzag(3)[0], [[0.3]]),
        (theory.towers(math.sin, 0.0, 1.0, 0.2, lipschitz=1.0)[0], [[0.3]]),
    ]
    for i, (network, x) in enumerate(built):
        y = network(x)
        trace = network.trace(x, y)
        np.testing.assert_array_equal(trace.output, y)
        assert "Forward" in str(network.explain(x, y))
        assert "Linear" in network.net.draw()
        network.save(tmp_path / f"{i}.pellucid")
        np.testing.assert_array_equal(pc.load(tmp_path / f"{i}.pellucid")(x), y)
