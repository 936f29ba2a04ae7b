"""Compiled programs on disk: used again by the next process, kept from everybody else."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import pytest

import pellucid as pc
from pellucid.engines import again, jax_cut, jax_loop, programs
from pellucid.engines import jax as engine
from pellucid.engines.cache import cache_folder
from pellucid.layers import activations
from pellucid.losses import right_class

from .table import LAYERS, LOSSES, OPTIMIZERS

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owners here")

tried = pytest.mark.skipif(not programs.KNOWN, reason="of a JAX that has not been tried, programs are kept by JAX alone")

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


@tried
def test_a_new_process_takes_the_programs_of_the_one_before_traces_nothing_and_gets_the_same_weights(tmp_path):
    traced, hits, params = fit(tmp_path / "cache")
    files = sorted(tmp_path.rglob("*-program"))
    assert traced > 0
    assert (hits, len(files)) == (0, 2)  # training, validation
    assert all(file.parent.stat().st_mode & 0o077 == 0 for file in files)
    assert fit(tmp_path / "cache") == (0, 0, params)
    damaged = bytearray(files[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1  # one is damaged, one is gone: JAX's cache has both
    files[0].write_bytes(damaged)
    files[1].unlink()
    traced, hits, again = fit(tmp_path / "cache")
    assert traced > 0
    assert hits >= 2
    assert again == params
    assert not any(file.exists() for file in files)  # what comes from there is not whole when it is written again


def test_with_several_devices_programs_are_traced_and_kept_by_jax(tmp_path):
    several = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    traced, hits, params = fit(tmp_path / "cache", **several)
    assert not list(tmp_path.rglob("*-program"))
    traced, hits, again = fit(tmp_path / "cache", **several)
    assert traced > 0
    assert hits >= 2
    assert again == params


def test_of_a_jax_that_has_not_been_tried_programs_are_kept_by_jax_alone(monkeypatch):
    monkeypatch.setattr(programs, "KNOWN", False)
    assert name_of() is None


def test_all_that_is_ours_is_found_by_name_and_what_is_the_users_own_is_traced():
    class Own(pc.Tanh):
        pass

    things = [case[0] for cases in (*LAYERS.values(), *LOSSES.values()) for case in (cases if isinstance(cases, list) else [cases])]
    for thing in (*things, *(optimizer for some in OPTIMIZERS.values() for optimizer in some)):
        holds = any(name in repr(thing) for name in ("cube", "some_id", "psi="))
        assert programs.are_ours((thing,)) is not holds, thing
    assert not programs.are_ours((pc.Linear(3) >> Own(),))


NET = pc.Linear(3) >> pc.Tanh()


def name_of(net=NET, shape=(4, 3), double=False, precision=None, made_by=engine.chunk):
    return programs.digest(made_by, programs.Kind((net, pc.SquaredError()), jax.tree.structure({"W": 0}), (shape,), double, precision))


def of_the_users(*args, **options):
    raise AssertionError("nobody calls this")


CHANGES = [  # in what is changed, its name, what it becomes, and whether that is of the user's own
    (engine.JaxOps, "matmul", of_the_users, True),
    (pc.SquaredError, "__call__", of_the_users, True),
    (pc.SquaredError, "scores", {"accuracy": of_the_users}, True),
    (pc.Tanh, "g", functools.partialmethod(of_the_users), True),
    (activations, "logistic", of_the_users, True),
    (pc.Tanh, "g", pc.Sigmoid.g, False),
    (pc.Tanh, "g", pc.ELU.g, False),
    (pc.SquaredError, "scores", {"accuracy": right_class}, False),
    (pc.Linear, "half", False, False),
    (again, "CPU", (3, 1), False),
]


@tried
def test_a_program_has_another_name_for_all_that_it_depends_on(monkeypatch):
    names = [name_of(), name_of(pc.Linear(4)), name_of(shape=(5, 3)), name_of(double=True), name_of(precision="float32")]
    names += [name_of(made_by=one) for one in (engine.evaluate, jax_cut.chunk, jax_loop.chunk, jax_loop.wide_chunk)]
    with monkeypatch.context() as there:  # what the last three are traced from, too
        there.setattr(jax_loop, "PRODUCTS", set())
        assert name_of() == names[0]
        names += [name_of(made_by=one) for one in (jax_cut.chunk, jax_loop.chunk, jax_loop.wide_chunk)]
    for flags in ("--xla_cpu_enable_fast_math=true", "flags.txt"):
        with monkeypatch.context() as there:
            there.setitem(programs.FLAGS, "XLA_FLAGS", flags)
            names.append(name_of())
    assert names.pop() is None  # a file may change
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        names.append(name_of())
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    for owner, name, value, foreign in CHANGES:
        with monkeypatch.context() as there:
            there.setattr(owner, name, value)
            found = name_of()
        assert (found is None) is foreign, (owner, name)
        names += [found] * (not foreign)
    assert len(set(names)) == len(names)
    assert name_of() == names[0]


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
