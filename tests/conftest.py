import atexit
import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "PELLUCID_CACHE" not in os.environ:  # all processes of a run share its programs; nothing of an earlier one is there
    programs = tempfile.TemporaryDirectory(prefix="pellucid-tests-")
    os.environ["PELLUCID_CACHE"] = programs.name
    atexit.register(programs.cleanup)

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("suite", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def programs_are_traced():
    """In this process nobody finds programs by their names: tests change constants that names do not tell."""
    from pellucid.engines import has_jax

    if has_jax():
        from pellucid.engines import programs

        programs.FOLDER = None


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def in_float32(monkeypatch):
    """Products of float32 are computed in float32: a GPU would take TF32, which has three digits."""
    import jax

    from pellucid.engines import jax as engine

    plain = engine.precision
    monkeypatch.setattr(engine, "precision", lambda dtype, products=None: plain(dtype, products or "float32"))
    with jax.default_matmul_precision("float32"):
        yield


@pytest.fixture(scope="session")
def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y
