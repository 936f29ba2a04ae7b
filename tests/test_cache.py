"""Compiled programs on disk: used again by the next process, kept from everybody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
CHANGE
X = np.linspace(-1, 1, 40)[:, None]
model = pc.Network(pc.Linear(3) >> Own() >> pc.Linear(1), (1,), "squared_error")
model.fit(X, X**2, epochs=3, engine="jax", progress=False, validation=(X, X))
print(len(traced), programs.HITS.count, repr(model.params), repr([row["val_loss"] for row in model.history.rows]))
"""
PLAIN = "Own = pc.Tanh"
SUBCLASS = "class Own(pc.Tanh): pass"
PATCHED = "Own, pc.Tanh.g = pc.Tanh, lambda self, xp, z: xp.tanh(z)"


def fit(folder, change=PLAIN, **more):
    environment = {**os.environ, "PELLUCID_CACHE": str(folder), **more}
    command = [sys.executable, "-c", PROGRAM.replace("CHANGE", change)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    traced, hits, params = done.stdout.split(" ", 2)
    return int(traced), int(hits), params


def test_all_that_is_ours_can_be_found_by_name_and_what_holds_a_users_function_is_traced():
    things = [case[0] for cases in (*LAYERS.values(), *LOSSES.values()) for case in (cases if isinstance(cases, list) else [cases])]
    for thing in (*things, *(optimizer for some in OPTIMIZERS.values() for optimizer in some)):
        holds = any(name in repr(thing) for name in ("cube", "some_id", "psi="))
        assert programs.are_ours((thing,)) is not holds, thing


def programs_in(folder):
    return sorted(folder.rglob("*-program"))


def test_a_new_process_takes_the_programs_of_the_one_before_traces_nothing_and_gets_the_same_weights(tmp_path):
    traced, hits, params = fit(tmp_path / "cache")
    files = programs_in(tmp_path)
    assert traced > 0
    assert (hits, len(files)) == (0, 2)  # training, validation
    assert all(file.parent.stat().st_mode & 0o077 == 0 for file in files)
    assert fit(tmp_path / "cache") == (0, 0, params)
    assert programs_in(tmp_path) == files
    for file in files:  # then JAX's cache has them; what comes from there is not written again
        file.unlink()
    traced, hits, again = fit(tmp_path / "cache")
    assert traced > 0
    assert hits >= 2
    assert again == params
    assert not programs_in(tmp_path)


@pytest.mark.parametrize("change", [SUBCLASS, PATCHED])
def test_layers_of_the_users_own_are_traced_in_every_process_and_found_in_jax_cache(tmp_path, change):
    fit(tmp_path / "cache")
    files = programs_in(tmp_path)
    for _ in range(2):
        traced, hits, _ = fit(tmp_path / "cache", change)
        assert traced > 0
    assert hits > 0
    assert programs_in(tmp_path) == files


@pytest.mark.parametrize("spoil", [lambda file: file.write_bytes(file.read_bytes()[:1000]), lambda file: file.write_bytes(b"")])
def test_a_program_that_cannot_be_read_is_made_again(tmp_path, spoil):
    _, _, params = fit(tmp_path / "cache", JAX_ENABLE_COMPILATION_CACHE="1")
    for file in programs_in(tmp_path):
        spoil(file)
    assert fit(tmp_path / "cache", JAX_ENABLE_COMPILATION_CACHE="1")[2] == params


def test_other_settings_of_jax_make_other_programs(tmp_path):
    fit(tmp_path / "cache")
    files = programs_in(tmp_path)
    assert fit(tmp_path / "cache", XLA_FLAGS="--xla_cpu_enable_fast_math=true")[0] > 0
    assert fit(tmp_path / "cache", JAX_DEFAULT_MATMUL_PRECISION="highest")[0] > 0
    assert len(programs_in(tmp_path)) == 3 * len(files)


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
