"""Pictures hold what they claim to show."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from sklearn.datasets import make_moons

import pellucid as pc
from pellucid.glass import GradientFlow, picture_histograms, picture_network, picture_surface

from ..table import LAYERS

X, Y = make_moons(60, noise=0.1, random_state=0)


def model():
    return pc.Network(pc.Linear(3) >> pc.Tanh() >> pc.Linear(2), 2, "softmax_cross_entropy")


def count(picture, tag):
    return len(ElementTree.fromstring(picture.svg()).findall(f"{{http://www.w3.org/2000/svg}}{tag}"))


def test_the_network_has_a_disc_per_unit_and_a_line_per_weight():
    picture = picture_network(model())
    assert (count(picture, "circle"), count(picture, "polyline")) == (2 + 3 + 2, 6 + 6)
    both = picture_network(model(), X, Y)
    assert (count(both, "circle"), count(both, "polyline")) == (14, 24)


def test_colours_show_sign_and_size():
    net = pc.Network(pc.Linear(2, bias=False), 1)
    net.set_parameters({"0.W" if "0.W" in net.parameters else "W": [[1.0, -1.0]]})
    positive, negative = (shape[2] for shape in picture_network(net).shapes if shape[0] == "line")
    assert (positive, negative) == ("#b22234", "#215caa")


@pytest.mark.parametrize("layer", [case[0] for cases in LAYERS.values() for case in cases], ids=repr)
def test_every_expression_is_drawn(layer):
    shape = next(shape for cases in LAYERS.values() for other, shape in cases if other is layer)
    net, rng = pc.Network(layer, shape, pc.SquaredError()), np.random.default_rng(0)
    picture = picture_network(net, rng.normal(size=(2, *shape)), rng.normal(size=(2, *net.output_shape)))
    places = [(x, y) for kind, *a in picture.shapes if kind == "line" for x, y in a[0]]
    assert all(0 <= x <= picture.width and 0 <= y <= picture.height for x, y in places)
    words = [shape[3] for shape in picture.shapes if shape[0] == "words"]
    assert {"weights", "gradients"} <= set(words)


def test_blocks_are_drawn_with_their_weights_and_their_join():
    net = pc.Network((pc.Linear(3).named("left") | (pc.Linear(2) >> pc.Tanh())) >> pc.Linear(2), 4)
    picture = picture_network(net)
    words = [shape[3] for shape in picture.shapes if shape[0] == "words"]
    assert words.count("⧺") == 1
    assert {"left: Linear 3", "Linear 2", "Tanh", "x", "y"} <= set(words)
    cells = [shape[5] for shape in picture.shapes if shape[0] == "box" and shape[3] == shape[4]]
    assert len(cells) == 3 * 4 + 2 * 4 + 2 * 5  # a box for every weight
    strongest = max((W for W in net.parameters.values() if W.ndim == 2), key=lambda W: np.abs(W).max())
    assert ("#b22234" if strongest.ravel()[np.abs(strongest).argmax()] > 0 else "#215caa") in cells


def test_kernels_of_a_convolution_are_images():
    net = pc.Network(pc.Conv2d(2, 3, bias=False) >> pc.Flatten() >> pc.Linear(1), (4, 4, 1))
    W = net.parameters["0.W"]
    cells = [shape[5] for shape in picture_network(net).shapes if shape[0] == "box" and shape[3] == shape[4]]
    signs = np.array([int(c[1:3], 16) > int(c[5:7], 16) for c in cells[:18]]).reshape(2, 3, 3)  # red or blue
    np.testing.assert_array_equal(signs, np.moveaxis(W[:, :, 0] > 0, -1, 0))


def test_gradient_flow_keeps_a_norm_per_epoch_and_draws_them():
    flow, net = GradientFlow(rows=60), model()
    before = np.linalg.norm(net.gradients(X, Y)[1]["0.W"])
    net.fit(X, Y, epochs=5, engine="numpy", progress=False, callbacks=flow)
    assert {name: len(values) for name, values in flow.norms.items()} == {"0.W": 6, "2.W": 6}
    assert flow.norms["0.W"][0] == pytest.approx(before, rel=1e-5)
    assert "0.W" in flow.picture().svg()
    with pytest.raises(ValueError, match="nothing recorded"):
        GradientFlow().picture()


def test_histograms_hold_every_value():
    trace = model().trace(X, Y)
    picture = picture_histograms(trace, bins=10)
    assert count(picture, "rect") == 3 * 10
    assert "1 Tanh" in picture.svg()


def test_surface_has_the_colours_of_the_outputs():
    net = pc.Network(pc.Linear(1, bias=False), 2)
    net.set_parameters({next(iter(net.parameters)): [[1.0], [0.0]]})
    points = np.array([[-1.0, -1.0], [1.0, 1.0]])
    boxes = [shape for shape in picture_surface(net, points, cells=4).shapes if shape[0] == "box"]
    left, right = min(boxes, key=lambda s: s[1])[5], max(boxes, key=lambda s: s[1])[5]
    assert (left, right) == ("#215caa", "#b22234")
    assert count(picture_surface(model(), X, Y, layer="1", cells=8), "rect") == 3 * 64
    with pytest.raises(ValueError, match="two inputs"):
        picture_surface(pc.Network(pc.Linear(1), 3), X)
    with pytest.raises(KeyError, match="nothing at"):
        picture_surface(model(), X, layer="9")


@pytest.mark.parametrize("suffix", ["svg", "html", "png"])
def test_pictures_are_saved_by_suffix(tmp_path, suffix):
    if suffix == "png":
        pytest.importorskip("matplotlib")
    path = picture_network(model(), X, Y).save(tmp_path / f"net.{suffix}")
    assert path.read_bytes()[:4] == {"svg": b"<svg", "html": b"<!do", "png": b"\x89PNG"}[suffix]
