"""The benchmark compares like with like, and goes on when a peer fails."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.mark.parametrize("name", ["tiny", "conv", "rnn", "lstm"])
def test_all_peers_train_networks_of_the_same_size(load, name):
    import jax

    import pellucid as pc

    torch = pytest.importorskip("torch")
    work = load("work").WORKS[name]
    ours = pc.Network(load("peers.ours").network(work), work.shape, "softmax_cross_entropy")
    theirs = load("peers.pytorch").network(work)
    by_hand = load("peers.autodiff").parameters(work)
    weights = [
        sum(math.prod(a.shape) for a in arrays if a.ndim > 1)
        for arrays in (jax.tree.leaves(ours.params), theirs.parameters(), jax.tree.leaves(by_hand))
    ]
    assert weights[0] == weights[1] == weights[2]
    x = np.zeros((2, *work.shape), np.float32)
    image = torch.from_numpy(np.moveaxis(x, -1, 1) if name == "conv" else x)
    assert ours.predict_proba(x).shape == tuple(theirs(image).shape) == (2, work.classes)


def test_a_peer_that_fails_is_left_out_and_the_others_are_measured(load):
    bench, work = load("bench"), load("work")
    peers = {"numpy": bench.PEERS["numpy"], "floor": bench.PEERS["floor"], "gone": bench.Peer("numpy", ("peers.gone",))}
    times = bench.rounds_of("one", work.WORKS["one"], peers, 2)
    assert len(times["numpy"]["us"]) == 2
    assert times["numpy"]["low"] <= times["numpy"]["median"] <= times["numpy"]["high"]
    assert 0 < times["numpy"]["fit"] < times["numpy"]["first"]
    assert "too small" in times["floor"]["skipped"]
    assert not times["floor"]["failed"]
    assert "No module named peers.gone" in times["gone"]["skipped"]
    assert times["gone"]["failed"]


def test_ratios_are_taken_round_by_round_and_the_words_follow_them(load):
    report = load("report")
    times = {
        name: {"us": us, "median": sorted(us)[1], "low": min(us), "high": max(us), "note": "", "first": 2.0, "fit": 1.0, "peak_mb": 100.0}
        for name, us in {"auto": [10.0, 20.0, 40.0], "torch": [20.0, 60.0, 200.0], "scikit": [5.0, 15.0, 20.0]}.items()
    }
    assert report.ratios(times, "torch") == (2.0, 3.0, 5.0)
    machine = {"date": "today", "gpu": None, "cores used": 2, "load at the start": 0.1, "load at the end": 1.0}
    row = {"label": "2-2", "group": "cpu", "at": 0, "times": times}
    result = {"machine": machine, "missing": [], "imports": {"jax": 0.5}, "works": {"tiny": row}}
    assert "PyTorch eager takes 3.00 times as long as pellucid (1 network); quicker in every round on none." in report.markdown(result)
    assert "scikit-learn takes 0.50 times as long as pellucid (1 network); quicker in every round on tiny." in report.markdown(result)
    assert "| tiny: 2-2 | 3.00× (2.00 – 5.00) | **0.50× (0.50 – 0.75)** |" in report.markdown(result)


def test_a_page_tells_how_new_processes_start_with_and_without_programs_on_disk(load):
    start, report = load("start"), load("report")
    machine = {"date": "today", "gpu": None, "cores used": 2, "load at the start": 0.1, "load at the end": 1.0}
    result = {"machine": machine, "missing": [], "imports": {"jax": 0.5}, "works": {}}
    rows = {"tiny: 2-2": {"cold": [0.7, 0.8, 1.0], "warm": [0.3, 0.35, 0.4], "wanted": start.AIMS["tiny"]}}
    page = report.markdown({**result, "start": rows})
    assert "| tiny: 2-2 | 0.80 (0.70 – 1.00) | 0.35 (0.30 – 0.40) | ≤ 0.40 |" in page
    assert "the first epoch of tiny: 2-2 takes 0.80 s longer than a later one, 0.35 s with its program on disk." in page
    assert "benchmarks/start.py failed: no room" in report.markdown({**result, "start": {"failed": "no room"}})
    work, kind = start.works()["16 × 64 units, Adam"]
    assert (work.sizes, kind) == ((30, *[64] * 16, 4), "Adam")


def test_rows_of_a_gpu_measured_elsewhere_join_the_report(tmp_path):
    names = ("auto", "torch-graph")
    times = {
        p: {"us": [8.0], "median": 8.0, "low": 8.0, "high": 8.0, "note": "", "first": 2.0, "fit": 1.0, "device_mb": 5.0} for p in names
    }
    machine = {"date": "then", "gpu": "a card", "cores used": 2, "load at the start": 0.1, "load at the end": 1.0}
    empty = {"machine": {**machine, "gpu": None}, "missing": [], "imports": {"jax": 0.5}, "works": {}}
    work = {"label": "2-2", "group": "gpu", "at": 0, "times": times}
    (tmp_path / "here.json").write_text(json.dumps(empty))
    (tmp_path / "there.json").write_text(json.dumps({**empty, "machine": machine, "works": {"gpu-tiny": work}}))
    command = [sys.executable, BENCHMARKS / "bench.py", "--reuse", "--json", tmp_path / "here.json", "--gpu-json", tmp_path / "there.json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "On the GPU, PyTorch CUDA graph takes 1.00 times as long as pellucid" in out
    assert "GPU rows: date then, gpu a card" in out


def test_the_choice_of_an_engine_is_held_against_times_that_are_measured(load, monkeypatch, capsys):
    calibrate = load("calibrate")
    monkeypatch.setattr(calibrate, "SECONDS", 0.0)
    cell = calibrate.measure(16, 1, 1)
    assert cell["numpy"] > 0
    assert cell["compile"] > 0
    right = []
    for numpy, jax in ((1e-9, 1.0), (1.0, 1e-9)):  # where one is always faster, each number of steps is right with one of the two
        calibrate.judge([{**cell, "numpy": numpy, "jax": jax, "compile": 0.0}])
        right.append(int(capsys.readouterr().out.split()[2]))
    assert min(right) > 0
    assert sum(right) == len(calibrate.STEPS)
