"""Compiled programs on disk: used again by the next process, kept from everybody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pellucid.engines.cache import cache_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here")

PROGRAM = """
import numpy as np, jax
hits = []
jax.monitoring.register_event_listener(lambda name, **more: hits.append(name) if name.endswith("cache_hits") else None)
import pellucid as pc
X = np.linspace(-1, 1, 40)[:, None]
model = pc.Network(pc.Linear(3) >> pc.Tanh() >> pc.Linear(1), (1,), "squared_error")
model.fit(X, X**2, epochs=3, engine="jax", progress=False)
print(len(hits), repr(model.params))
"""


def fit(folder, **more):
    environment = {**os.environ, "PELLUCID_CACHE": str(folder), **more}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    hits, params = done.stdout.split(" ", 1)
    return int(hits), params


def test_a_new_process_takes_the_program_of_the_one_before_and_gets_the_same_weights(tmp_path):
    hits, params = fit(tmp_path / "cache")
    files = sorted(tmp_path.rglob("*-cache"))
    assert (hits, len(files) > 0) == (0, True)
    assert all(file.parent.stat().st_mode & 0o077 == 0 for file in files)
    hits, again = fit(tmp_path / "cache")
    assert hits > 0
    assert again == params
    assert sorted(tmp_path.rglob("*-cache")) == files


def test_off_keeps_nothing_and_a_place_that_jax_was_told_is_left(tmp_path):
    assert fit("off", JAX_COMPILATION_CACHE_DIR="")[0] == 0
    mine = tmp_path / "mine"
    fit(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(mine), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0")
    assert list(mine.iterdir())
    assert not list(tmp_path.rglob("programs-*/*"))


def test_a_folder_others_can_write_into_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("PELLUCID_CACHE", str(folder))
    programs = cache_folder()
    assert programs is not None
    assert programs.parent == folder
    for place in (folder, programs):
        place.chmod(0o770)
        assert cache_folder() is None
        place.chmod(0o700)
    assert cache_folder() == programs
    programs.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    programs.symlink_to(tmp_path / "elsewhere")
    assert cache_folder() is None


def test_no_folder_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "file"))
    assert cache_folder() is None
    monkeypatch.setenv("PELLUCID_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.delenv("PELLUCID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert cache_folder().parent == tmp_path / "home" / "pellucid"
