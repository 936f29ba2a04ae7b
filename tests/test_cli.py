"""The command line: from a table to a model file to predictions, and one clear line for every mistake."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import pellucid as pc
from pellucid.cli import main

pl = pytest.importorskip("polars")

FAST = ["--epochs", "5", "--engine", "numpy", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Houses whose price is 1000 a square metre, more in Kiel; gaps, words and a column of names."""
    folder, rng = tmp_path_factory.mktemp("cli"), np.random.default_rng(0)
    area, city = rng.uniform(40, 200, 200), rng.choice(["Ulm", "Bonn", "Kiel"], 200)
    frame = pd.DataFrame({"id": [f"h{i}" for i in range(200)], "area": area, "city": city})
    frame["price"] = (1000 * area + 50000 * (city == "Kiel")).round()
    frame["big"] = np.where(area > 120, "yes", "no")
    frame.loc[::17, "area"], frame.loc[::23, "city"] = np.nan, None
    frame.to_csv(folder / "houses.csv", index=False)
    frame.to_csv(folder / "houses.tsv", index=False, sep="\t")
    pl.read_csv(folder / "houses.csv").write_parquet(folder / "houses.parquet")
    options = ["--target", "price", "--drop", "big", "--out", str(folder / "h.pellucid"), "--epochs", "60", "--json"]
    assert main(["train", str(folder / "houses.csv"), *options]) == 0
    return folder


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_table_becomes_a_model_file_that_predicts(folder, capsys):
    code, out, _ = run(capsys, "evaluate", folder / "h.pellucid", folder / "houses.csv", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["r2"] > 0.8
    code, out, _ = run(capsys, "predict", folder / "h.pellucid", folder / "houses.tsv")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert len(rows) == 200
    frame = pd.read_csv(folder / "houses.csv")
    X = np.c_[frame[["area"]].to_numpy(object), frame["city"].astype(object).where(frame["city"].notna(), None)]
    np.testing.assert_array_equal([float(r["price"]) for r in rows], pc.load(folder / "h.pellucid").predict(X))
    run(capsys, "predict", folder / "h.pellucid", folder / "houses.csv", "--out", folder / "p.csv")
    assert (folder / "p.csv").read_text() == out
    assert run(capsys, "predict", folder / "h.pellucid", folder / "houses.parquet")[1] == out


def test_tasks_are_told_from_the_target(folder, capsys):
    for target, task in (("big", "classification"), ("price", "regression"), ("city", None)):
        code, out, err = run(capsys, "train", folder / "houses.csv", "--target", target, "--json", *FAST)
        if task is None:
            assert (code, "missing in 9 rows" in err) == (2, True)
        else:
            assert json.loads(out)["task"] == task
            assert "column 'id' has 200 different words in 200 rows: left out" in err


def test_named_data_sets_and_probabilities(folder, capsys):
    code, out, _ = run(capsys, "train", "iris", "--out", folder / "iris.pellucid", "--network", "Linear(8) | Tanh()", *FAST)
    assert code == 0
    assert "(Linear(8) | Tanh()) >> Linear(3)" in out
    assert "confusion matrix" in out
    assert "\x1b[" not in out  # no colours where nobody looks
    code, out, _ = run(capsys, "predict", folder / "iris.pellucid", "iris", "--proba", "--json")
    rows = json.loads(out)
    assert [list(r) for r in rows[:1]] == [["target", "p(setosa)", "p(versicolor)", "p(virginica)"]]
    assert sum(list(rows[0].values())[1:]) == pytest.approx(1, abs=1e-5)
    assert {r["target"] for r in rows} <= set(load_iris().target_names)


def test_inspect_and_check(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "h.pellucid", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["network"] == "Linear(64) >> ReLU() >> Linear(1)"
    assert facts["notes"]["columns"] == ["area", "city"]
    assert facts["notes"]["words"] == ["city"]
    assert "seed" in run(capsys, "inspect", folder / "h.pellucid")[1]
    code, out, _ = run(capsys, "check", folder / "h.pellucid")
    assert code == 0
    assert "all gradients agree" in out
    code, out, _ = run(capsys, "check", "Linear(3) >> Step(surrogate='identity')", "--input", 2, "--json")
    assert code == 1
    assert json.loads(out)["agree"] is False


def test_pictures_are_written(folder, capsys):
    assert run(capsys, "train", "wine", "--plot", folder / "wine.png", *FAST)[0] == 0
    assert run(capsys, "evaluate", folder / "h.pellucid", folder / "houses.csv", "--plot", folder / "h.svg")[0] == 0
    assert (folder / "wine.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "h.svg").read_text()


def test_every_mistake_is_one_line_and_exit_code_2(folder, capsys):
    (folder / "small.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
    (folder / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (folder / "twice.csv").write_text("a,a\n1,2\n")
    (folder / "empty.csv").write_text("")
    (folder / "one.csv").write_text("a,b\n" + "1,x\n" * 30)
    (folder / "many.csv").write_text("a,b\n" + "".join(f"1,w{i}\n" for i in range(30)))
    (folder / "bad.parquet").write_bytes(b"PAR1 no PAR1")
    (folder / "words.csv").write_text("area,city\nlarge,Ulm\n")
    (folder / "latin.csv").write_bytes("größe,b\n1,2\n".encode("latin-1"))
    (folder / "alone.csv").write_text("a\n" + "1\n2\n" * 20)
    (folder / "constant.csv").write_text("a,b\n" + "".join(f"{i},5.5\n" for i in range(30)))
    (folder / "dates.csv").write_text("a,b\n" + "".join(f"{i},2020-01-{i + 1:02}\n" for i in range(30)))
    (folder / "inf.csv").write_text("a,b\n" + "".join(f"{'inf' if i == 7 else i},{i / 2}\n" for i in range(30)))
    (folder / "long.csv").write_text("a" * 200_000 + ",b\n1,2\n")
    os.mkfifo(folder / "pipe")
    houses, model = folder / "houses.csv", folder / "h.pellucid"
    mistakes = [
        (("train", houses, "--target", "prise"), "no column 'prise'. Did you mean 'price'?"),
        (("train", folder / "none.csv"), "does not exist"),
        (("trian",), "invalid choice: 'trian'"),
        (("train", "iris", "--epochs", "many"), "invalid int value: 'many'"),
        (("train", folder / "latin.csv"), "UTF-8"),
        (("train", folder / "alone.csv"), "the target is its only column"),
        (("train", folder / "constant.csv"), "one value only (5.5)"),
        (("train", folder / "dates.csv"), "holds dates"),
        (("train", folder / "inf.csv"), "column 'a' holds an infinite number"),
        (("train", folder / "long.csv"), "field larger than"),
        (("train", "iris", "--out", folder), "is a folder"),
        (("train", "iris", "--plot", folder / "x.xyz"), "a picture's name ends in"),
        (("predict", folder / "pipe", houses), "no ordinary file"),
        (("check", "Linear(8)", "--input", "0"), "at least 1"),
        (("train", "irs"), "Did you mean 'iris'?"),
        (("train", folder), "is a folder"),
        (("train", folder / "small.csv"), "at least 10"),
        (("train", folder / "binary.csv"), "cannot be read"),
        (("train", folder / "ragged.csv"), "line 3: expected 2 values"),
        (("train", folder / "twice.csv"), "two columns are named 'a'"),
        (("train", folder / "empty.csv"), "no rows"),
        (("train", folder / "one.csv"), "nothing to tell apart"),
        (("train", folder / "many.csv"), "too few rows of each"),
        (("train", folder / "bad.parquet"), "Parquet"),
        (("train", houses, "--target", "city"), "missing in 9 rows"),
        (("train", houses, "--target", "big", "--task", "regression"), "holds words such as"),
        (("train", "iris", "--network", "__import__('os').system('true')"), "not understood"),
        (("train", "iris", "--network", "Lnear(8)"), "Did you mean 'Linear'?"),
        (("train", "iris", "--network", "Adam(0.1)"), "is no layer"),
        (("train", "iris", "--optimizer", "adamant"), "Did you mean 'adam'?"),
        (("train", "iris", "--epochs", "0"), "epochs must be at least 1"),
        (("train", "iris", "--test", "2"), "--test must be between 0 and 1"),
        (("train", "iris", "--drop", "petal"), "no column 'petal'"),
        (("train", "iris", "--out", folder / "no" / "x.pellucid"), "does not exist"),
        (("train", "diabetes", "--optimizer", "SGD(1e30)", *FAST), "not finite"),
        (("predict", houses, houses), "no model file"),
        (("predict", model, folder / "small.csv"), "no column 'area'"),
        (("predict", model, folder / "words.csv"), "must hold numbers, as in training"),
        (("predict", model, houses, "--proba"), "for classification"),
        (("evaluate", folder / "none.pellucid", houses), "does not exist"),
        (("inspect", houses), "no model file"),
        (("check", "Linear(8)"), "--input is needed"),
        (("check", "Reshape((3, 3))", "--input", "4"), "expected"),
    ]
    for arguments, words in mistakes:
        code, out, err = run(capsys, *arguments)
        last = err.strip().splitlines()[-1]
        assert (code, out) == (2, ""), arguments
        assert len(err.strip().splitlines()) == 1 or "note: " in err, arguments
        assert len(last) < 1100
        assert last.startswith("pellucid: error: "), arguments
        assert words in last, (arguments, last)
    assert json.loads(run(capsys, "train", "irs", "--json")[1])["error"].startswith("irs does not exist")


@pytest.mark.filterwarnings("ignore:R.* score is not well-defined")
def test_what_is_not_a_number_is_null_in_json(folder, capsys):
    (folder / "row.csv").write_text("area,city,price\n100,Ulm,100000\n")  # R² of one row is not defined
    code, out, _ = run(capsys, "evaluate", folder / "h.pellucid", folder / "row.csv", "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail)["metrics"]["r2"] is None


def test_a_frame_in_another_process_gives_the_bits_of_the_command_line(tmp_path):
    """Numbers, words, truth values and dates, with gaps; columns in another order, some too many; pandas, polars, dict and array."""
    rng, n = np.random.default_rng(0), 120
    frame = pd.DataFrame({"row": [f"r{i}" for i in range(n)], "code": rng.choice(["007", "12", "x"], n), "size": rng.normal(size=n)})
    frame["when"] = pd.date_range("2020-01-01", periods=n).strftime("%Y-%m-%d")
    frame["open"], frame["bits"] = rng.random(n) < 0.5, rng.integers(0, 9, n)
    frame["y"] = np.where(frame["size"] + frame["open"] > 0.5, "up", "down")
    frame.loc[::7, "size"], frame.loc[::5, "code"], frame.loc[3, "when"] = np.nan, None, None
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    numeric = tmp_path / "numeric.csv"  # words that all look like numbers are still words
    frame[frame.code != "x"].to_csv(numeric, index=False, sep=";", decimal=",")
    command = [sys.executable, "-m", "pellucid"]
    model = tmp_path / "m.pellucid"
    subprocess.run([*command, "train", tmp_path / "t.csv", "--out", model, *FAST], check=True, capture_output=True)
    for file in (tmp_path / "t.csv", numeric):
        told = subprocess.run([*command, "predict", model, file, "--proba"], check=True, capture_output=True, text=True).stdout
        told = [tuple(row.split(",")) for row in told.splitlines()[1:]]
        script = f"""
import numpy as np, pandas as pd, polars as pl, pellucid as pc
model = pc.load({str(model)!r})
assert list(model.feature_names_in_) == ["code", "size", "when", "open", "bits"]
text = pd.read_csv({str(file)!r}, sep=";", decimal=",", dtype={{"code": str}})
other = text[["y", "bits", "open", "when", "size", "row", "code"]]
dated = other.assign(when=pd.to_datetime(other["when"]))
frames = [other, dated, other.convert_dtypes(), pl.DataFrame({{c: text[c].astype(object).where(text[c].notna(), None).tolist()
          for c in other}})]
frames += [{{c: text[c].tolist() for c in other}}, text[model.feature_names_in_].to_numpy(object)]
for frame in frames:
    for label, p in zip(model.predict(frame), model.predict_proba(frame).tolist(), strict=True):
        print(label, *p, sep=",")
"""
        printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.splitlines()
        assert len(printed) == 6 * len(told)
        assert [tuple(line.split(",")) for line in printed] == told * 6
    model = pc.load(model)
    with pytest.raises(ValueError, match=r"X has no column 'size'\. Did you mean 'sise'\?"):
        model.predict(frame.rename(columns={"size": "sise"}))
    with pytest.raises(ValueError, match=r"the columns code, size, when, open, bits, or an array of shape \(rows, 5\).*\(120, 7\)"):
        model.predict(frame.to_numpy())
    with pytest.raises(ValueError, match="column 'size' must hold numbers, as in training, but holds words such as 'r0'"):
        model.predict(frame.assign(size=frame["row"]))


def test_an_interrupted_training_keeps_what_was_learned(folder):
    command = [sys.executable, "-m", "pellucid", "train", folder / "houses.csv", "--engine", "numpy", "--epochs", "1000000"]
    process = subprocess.Popen(
        [*command, "--out", folder / "part.pellucid", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert "left out" in process.stderr.readline()  # the last word before training
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert json.loads(out)["stopped"].startswith("interrupted")
    assert pc.load(folder / "part.pellucid").predict({"area": [100.0], "city": ["Ulm"], "price": [1e5]}).shape == (1,)


def test_help_has_examples_and_shells_complete(capsys, tmp_path):
    for arguments in (["--help"], ["train", "--help"]):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 0
        assert "pellucid train" in capsys.readouterr().out
    code, text, _ = run(capsys, "completion", "bash")
    assert code == 0
    asked = {"tr": "train", "train --tar": "--target", "train --engine j": "jax", "completion z": "zsh", "theory bo": "boolean"}
    for words, answer in asked.items():
        ask = f'{text}\nCOMP_WORDS=(pellucid {words}) COMP_CWORD={len(words.split())}; _pellucid; echo "${{COMPREPLY[@]}}"'
        assert subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path).stdout.strip() == answer
    assert "--target" not in run(capsys, "completion", "fish")[1]
    assert "-l target" in run(capsys, "completion", "fish")[1]
    assert "bashcompinit" in run(capsys, "completion", "zsh")[1]


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    command = f"{sys.executable} -m pellucid predict {folder / 'h.pellucid'} {folder / 'houses.csv'} | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.stdout == "price\n"
    assert "Traceback" not in done.stderr
