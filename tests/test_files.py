"""Model files: what is read is what was written, and nothing a file says can do harm."""

import inspect
import json
import resource
import struct
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save as as_bytes
from safetensors.numpy import save_file
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import pellucid as pc
from pellucid.files import FORMAT, describe, digest, parse, read, save

from . import table
from .table import LAYERS, LOSSES, OPTIMIZERS, cube, cube_slope

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)
SEVERAL = np.c_[Y > 0, Y > 1].astype(int)
NAMES = np.array(["no", "perhaps", "yes"])[Y]


# ---------------------------------------------------------------- what was written is read
def models():
    fit = {"random_state": 0, "engine": "numpy"}
    yield pc.MLPClassifier(5, max_iter=2, **fit), NAMES
    yield pc.MLPClassifier(5, max_iter=3, early_stopping=True, n_iter_no_change=1, **fit), NAMES
    yield pc.MLPClassifier(5, max_iter=2, solver="lbfgs", **fit), SEVERAL
    yield pc.MLPRegressor(hidden_layer_sizes=5, max_iter=2, **fit), X[:, 0]
    yield pc.NetworkClassifier(pc.Linear(3) | pc.Tanh(), optimizer=pc.SGD(pc.Cosine(0.1)), epochs=2, **fit), NAMES
    yield pc.NetworkClassifier(epochs=2, loss=pc.Brier(), early_stopping=pc.EarlyStopping(5), **fit), Y > 0
    yield pc.RBFClassifier(6, width="per_axis", trainable="widths", epochs=2, **fit), NAMES
    yield pc.NetworkRegressor(epochs=2, dtype="float32", loss="huber", random_state=np.random.RandomState(4)), X[:, :2]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("model", "y"), list(models()), ids=lambda v: type(v).__name__)
def test_a_loaded_estimator_predicts_the_same_bits_and_goes_on(model, y, tmp_path):
    model.fit(X, y).save(tmp_path / "m.pellucid")
    back = pc.load(tmp_path / "m.pellucid")
    assert type(back) is type(model)
    assert {k: v for k, v in back.get_params().items() if k != "random_state"} == {
        k: v for k, v in model.get_params().items() if k != "random_state"
    }
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    if hasattr(model, "partial_fit") and not model.early_stopping and model.solver != "lbfgs":
        np.testing.assert_array_equal(back.partial_fit(X, y).predict(X), model.partial_fit(X, y).predict(X))
    else:
        back.fit(X, y)


def test_a_loaded_network_is_the_same_network(tmp_path):
    model = pc.Network(pc.Linear(6).named("in") >> pc.Dropout(0.5) >> pc.Linear(3), (4,), "softmax_cross_entropy", seed=7)
    model.fit(X, Y, epochs=2, engine="numpy")
    model.save(tmp_path / "m.pellucid")
    back = pc.load(tmp_path / "m.pellucid")
    assert repr(back) == repr(model)
    np.testing.assert_array_equal(back(X), model(X))
    assert back.history.rows == model.history.rows
    assert back.fit(X, Y, epochs=1, engine="numpy").rows[0]["loss"] == model.fit(X, Y, epochs=1, engine="numpy").rows[0]["loss"]
    facts = describe(tmp_path / "m.pellucid")
    assert facts["network"] == repr(model.net)
    assert facts["seed"] == 7
    assert facts["epochs"] == 2
    assert len(facts["data"]) == 16
    assert facts["arrays"]["params.0.W"] == "float32 4×6"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_preprocessing_travels_with_the_model(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(word=np.where(X[:, 0] > 0, "left", "right"))
    frame.loc[3, "a"], frame.loc[4, "word"] = np.nan, None
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    pre = make_column_transformer((numbers, list("abcd")), (OneHotEncoder(handle_unknown="ignore"), ["word"]))
    model = make_pipeline(pre, pc.MLPClassifier(4, max_iter=3, random_state=0)).fit(frame, NAMES)
    save(model, tmp_path / "m.pellucid", notes={"target": "answer"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = pc.load(tmp_path / "m.pellucid")
    frame.loc[5, "word"] = "unheard of"
    np.testing.assert_array_equal(back.predict_proba(frame), model.predict_proba(frame))
    assert describe(tmp_path / "m.pellucid")["notes"] == {"target": "answer"}


def test_code_is_refused_when_saving(tmp_path):
    model = make_pipeline(FunctionTransformer(np.log1p), pc.MLPClassifier())
    with pytest.raises(TypeError, match=r"FunctionTransformer cannot be stored in a model file, which holds data, never code"):
        save(model, tmp_path / "m.pellucid")
    with pytest.raises(FileNotFoundError, match="folder"):
        save(pc.Network(pc.Linear(2), (3,)), tmp_path / "nowhere" / "m.pellucid")
    assert list(tmp_path.iterdir()) == []


def test_layers_and_functions_of_ones_own_are_named_when_loading(tmp_path):
    model = pc.Network(pc.Elementwise(cube, cube_slope) >> pc.Linear(2), (3,))
    model.save(tmp_path / "m.pellucid")
    with pytest.raises(ValueError, match=r"'cube' is not known.*also=\[cube\]"):
        pc.load(tmp_path / "m.pellucid")
    np.testing.assert_array_equal(pc.load(tmp_path / "m.pellucid", also=[cube, cube_slope])(X[:, :3]), model(X[:, :3]))


# ---------------------------------------------------------------- the parser
def test_the_parser_rebuilds_everything_in_the_table():
    cases = [case[0] for part in (LAYERS, LOSSES) for cases in part.values() for case in cases]
    functions = [value for value in vars(table).values() if inspect.isfunction(value)]
    for settings in [*cases, *(optimizer for cases in OPTIMIZERS.values() for optimizer in cases)]:
        assert parse(repr(settings), also=functions) == settings
    deep = pc.Chain(*[pc.Linear(2) for _ in range(300)])
    assert parse(repr(deep)) == deep
    gate = (pc.Linear(2) >> pc.Sigmoid()) * pc.Linear(2)
    nested = (pc.Linear(2).named("a") + (pc.Linear(2) >> pc.Tanh())).named("sum") >> (gate | pc.Linear(1))
    assert parse(repr(nested)) == nested


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Linear.__init__",
        "Linear(8).build(1, 2)",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "Linear(units=9**9**9)",
        "Linear(*[8])",
        "Linear(**{'units': 8})",
        "open('x')",
        "Layer",
        "f'{Linear}'",
        "Linear(8) @ Linear(8)",
        "Linear(8) >> 3",
        "1 + 1",
        "8 >> Linear(8)",
        "Linear(8).named(name)",
        "Linear(True)",
        "Linear(8",
        "",
        "(" * 5000 + ")" * 5000,
        "-" * 100000 + "1",
        "Linear(" + "9" * 10000 + ")",
        "Linear(8) if 1 else Linear(9)",
        "x := Linear(8)",
        "Linear(8); Linear(9)",
        "Linear('8')",
        "Lnear(8)",
    ],
)
def test_the_parser_refuses_everything_else(text):
    began = time.perf_counter()
    with pytest.raises((ValueError, TypeError)):
        parse(text)
    assert time.perf_counter() - began < 5


# ---------------------------------------------------------------- damage and malice
@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "m.pellucid"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(StandardScaler(), pc.MLPClassifier(4, max_iter=2, random_state=0, engine="numpy")).fit(X, NAMES)
    save(model, path)
    return path.read_bytes()


def test_thousands_of_damaged_files_are_refused_clearly_and_quickly(written, tmp_path):
    """Truncated, cut, lengthened, with bytes changed: every one is a ValueError that names the file."""
    rng, path, slowest = np.random.default_rng(0), tmp_path / "bad.pellucid", 0.0
    header = 8 + struct.unpack("<Q", written[:8])[0]
    before = peak_memory()
    for i in range(3000):
        data = bytearray(written)
        kind = i % 6
        if kind == 0:
            data = data[: rng.integers(0, len(data))]
        elif kind == 1:
            at = rng.integers(0, len(data))
            data[at] ^= 1 << rng.integers(8)
        elif kind == 2:
            data[rng.integers(8, header)] = rng.integers(256)
        elif kind == 3:
            data[:8] = struct.pack("<Q", int(rng.integers(0, 2**63)))
        elif kind == 4:
            a, b = sorted(rng.integers(0, len(data), 2))
            del data[a : b + 1]
        else:
            at = rng.integers(0, len(data))
            data[at:at] = rng.bytes(rng.integers(1, 50))
        if data == written:
            continue
        path.write_bytes(data)
        began = time.perf_counter()
        with pytest.raises(ValueError, match=r"bad\.pellucid"):
            pc.load(path)
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < 1
    assert peak_memory() - before < 50e6


def peak_memory():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forge(path, text, tensors):
    path.write_bytes(as_bytes(tensors, {"format": FORMAT, "body": text, "digest": digest(text, tensors)}))


def mutate(node, rng):
    """Change one place of a JSON tree."""
    spots = []

    def walk(value):
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            spots.append((value, key))
            walk(child)

    walk(node)
    holder, key = spots[rng.integers(len(spots))]
    weird = [None, -1, 1e308, 10**30, "", "../../etc/passwd", "Pipeline", [], {}, {"~": "object", "class": "Popen", "v": {}}, True,
             {"~": "expression", "v": "__import__('os')"}, {"~": "expression", "v": "Linear(10**12)"}, {"~": "dtype", "v": "<U999999999"},
             {"~": "words", "kind": "O", "shape": [10**12], "v": []}, {"~": "array", "v": "no such"}, {"~": "tuple", "v": 3},
             {"~": "object", "class": "Network", "v": {"__class__": "x"}}, "~",
             {"~": "float", "v": "1"}, {"~": "scalar", "v": []}]  # fmt: skip
    holder[key] = weird[rng.integers(len(weird))]


@pytest.mark.filterwarnings("ignore:.*was written with scikit-learn")
def test_thousands_of_forged_files_build_nothing_but_data(written, tmp_path):
    """With a right digest a file gets as far as the decoder: it answers with a model or a ValueError, quickly, in little memory."""
    from safetensors import safe_open

    source, path = tmp_path / "good.pellucid", tmp_path / "forged.pellucid"
    source.write_bytes(written)
    with safe_open(source, framework="np") as file:
        text, tensors = file.metadata()["body"], {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    rng, refused, slowest = np.random.default_rng(1), 0, 0.0
    before = peak_memory()
    for _ in range(2000):
        body = json.loads(text)
        for _ in range(rng.integers(1, 4)):
            mutate(body, rng)
        forge(path, json.dumps(body), tensors)
        began = time.perf_counter()
        try:
            pc.load(path)
        except ValueError as error:
            refused += "forged.pellucid" in str(error) or pytest.fail(f"unclear: {error}")
        slowest = max(slowest, time.perf_counter() - began)
    assert refused > 300
    assert slowest < 1
    assert peak_memory() - before < 50e6


def test_other_files_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        pc.load(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError, match="folder"):
        pc.load(tmp_path)
    save_file({"a": np.zeros(2)}, tmp_path / "a")
    with pytest.raises(ValueError, match="expected 'pellucid model 1', got 'another safetensors file'"):
        pc.load(tmp_path / "a")
    (tmp_path / "b").write_bytes(as_bytes({"a": np.zeros(2)}, {"format": "pellucid model 9"}))
    with pytest.raises(ValueError, match="got 'pellucid model 9'"):
        pc.load(tmp_path / "b")
    for depth in (500, 100000):
        forge(tmp_path / "c", '{"fingerprint": {}, "model": ' + '{"~": "tuple", "v": [' * depth + "]}" * depth + "}", {})
        with pytest.raises(ValueError, match=r"cannot be read|damaged"):
            pc.load(tmp_path / "c")


def test_json_that_is_none_is_refused_by_name(written, tmp_path):
    (tmp_path / "good").write_bytes(written)
    body, tensors = read(tmp_path / "good")
    text = json.dumps(body)
    for label, bad in {
        "NaN": text.replace('"notes": {}', '"notes": {"a": NaN}'),
        "digits": text.replace('"notes": {}', '"notes": {"a": ' + "9" * 10_000 + "}"),
        "holds no model": text.replace('"notes": {}', '"notes": [1]'),
        "no model": "[1]",
    }.items():
        assert bad != text
        forge(tmp_path / "bad.pellucid", bad, tensors)
        for reader in (pc.load, describe):
            with pytest.raises(ValueError, match=rf"bad\.pellucid.*{label}"):
                reader(tmp_path / "bad.pellucid")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    """A limit on the size of files stands for the disk; it is set in a process of its own."""
    path = tmp_path / "m.pellucid"
    pc.Network(pc.Linear(2), (3,)).save(path)
    before = path.read_bytes()
    script = f"""
import resource, pellucid as pc
big = pc.Network(pc.Linear(500), (300,))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    big.save({str(path)!r})
except OSError as error:
    print(type(error).__name__)
"""
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "OSError\n"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writers_at_once_and_links_never_show_half_a_file(tmp_path):
    model, path = pc.Network(pc.Linear(50), (40,)), tmp_path / "m.pellucid"
    (tmp_path / "other").write_text("keep")
    path.symlink_to(tmp_path / "other")
    model.save(path)
    assert (tmp_path / "other").read_text() == "keep"
    assert not path.is_symlink()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode  # what the umask allows, no less
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(save, model, path, notes={"pad": "x" * 1000 * i}) for i in range(60)]
        while not all(w.done() for w in writers):
            np.testing.assert_array_equal(pc.load(path)(X[:2].repeat(10, axis=1)), model(X[:2].repeat(10, axis=1)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pellucid", "other"]
