"""Compiled programs on disk: used again by the next process, kept from everybody else."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import pytest

import pellucid as pc
from pellucid.engines import programs
from pellucid.engines.cache import cache_folder

from .table import LAYERS, LOSSES, OPTIMIZERS

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here")

PROGRAM = """
import numpy as np, jax
traced = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **more: traced.append(name) if "trace" in name else None)
import pellucid as pc
from pellucid.engines import programs
X = np.linspace(-1, 1, 40)[:, None]
model = pc.Network(pc.Linear(3) >> pc.Tanh() >> pc.Linear(1), (1,), "squared_error")
model.fit(X, X**2, epochs=3, engine="jax", progress=False, validation=(X, X))
print(len(traced), programs.HITS.count, repr(model.params), repr([row["val_loss"] for row in model.history.rows]))
"""


def fit(folder, **more):
    """How much was traced, how often JAX's cache had a program, and what was learned."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PELLUCID_CACHE": str(folder), **more}  # a GPU's are in JAX's cache alone
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    traced, hits, params = done.stdout.split(" ", 2)
    return int(traced), int(hits), params


def test_a_new_process_takes_the_programs_of_the_one_before_traces_nothing_and_gets_the_same_weights(tmp_path):
    traced, hits, params = fit(tmp_path / "cache")
    files = sorted(tmp_path.rglob("*-program"))
    assert traced > 0
    assert (hits, len(files)) == (0, 2)  # training, validation
    assert all(file.parent.stat().st_mode & 0o077 == 0 for file in files)
    assert fit(tmp_path / "cache") == (0, 0, params)
    files[0].write_bytes(files[0].read_bytes()[:1000])  # one cannot be read, one is gone: JAX's cache has both
    files[1].unlink()
    traced, hits, again = fit(tmp_path / "cache")
    assert traced > 0
    assert hits >= 2
    assert again == params
    assert not files[1].exists()  # what comes from there is not whole when it is written again


def test_all_that_is_ours_is_found_by_name_and_what_is_the_users_own_is_traced(monkeypatch):
    class Own(pc.Tanh):
        pass

    things = [case[0] for cases in (*LAYERS.values(), *LOSSES.values()) for case in (cases if isinstance(cases, list) else [cases])]
    for thing in (*things, *(optimizer for some in OPTIMIZERS.values() for optimizer in some)):
        holds = any(name in repr(thing) for name in ("cube", "some_id", "psi="))
        assert programs.are_ours((thing,)) is not holds, thing
    assert not programs.are_ours((pc.Linear(3) >> Own(),))
    monkeypatch.setattr(pc.Tanh, "g", lambda self, xp, z: xp.tanh(z))
    assert not programs.are_ours((pc.Linear(3) >> pc.Tanh(),))


def test_a_program_has_another_name_for_all_that_it_depends_on(monkeypatch, tmp_path):
    def name(net=pc.Linear(3), shape=(4, 3), double=False, precision=None, function=programs.write):  # noqa: B008
        return programs.digest(function, programs.Kind((net,), jax.tree.structure({"W": 0}), (shape,), double, precision))

    names = [name(), name(pc.Linear(4)), name(shape=(5, 3)), name(double=True), name(precision="float32"), name(function=jax.jit)]
    for change in (("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"), ("JAX_DEFAULT_MATMUL_PRECISION", "highest")):
        with monkeypatch.context() as there:
            there.setenv(*change)
            programs.of_process.cache_clear()
            names.append(name())
    (tmp_path / "layer.py").write_text("")
    monkeypatch.setattr(programs, "SOURCES", tmp_path)
    for text in ("x = 1", "x = 2"):
        (tmp_path / "layer.py").write_text(text)
        programs.of_process.cache_clear()
        names.append(name())
    monkeypatch.undo()
    programs.of_process.cache_clear()
    assert len(set(names)) == len(names)
    assert name() == names[0]


def test_off_keeps_nothing_and_a_place_that_jax_was_told_is_left(tmp_path):
    assert fit("off", JAX_COMPILATION_CACHE_DIR="")[1] == 0
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
