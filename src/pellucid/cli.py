"""The command line: train, predict, evaluate, inspect, check. Every mistake of the user is one line and exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from . import __version__

__all__ = ["main"]

EXAMPLES = """examples:
  pellucid train iris --out iris.pellucid
  pellucid train houses.csv --target price --epochs 200 --out houses.pellucid --plot houses.png
  pellucid train houses.csv --target price --network "Linear(64) >> ReLU() >> Dropout(0.2)"
  pellucid predict houses.pellucid new.csv > prices.csv
  pellucid evaluate houses.pellucid test.csv --json
  pellucid inspect houses.pellucid
  pellucid check "Linear(8) >> Tanh() >> Linear(3)" --input 4
"""
SMALLEST = 10  # rows
EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, LookupError, MemoryError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 a check failed, 2 something is wrong with what was asked, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        args = make_parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: note(message)
            code = args.run(args)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("pellucid: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a user's mistake, or ours: one line either way
        text = one_line(error if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}")
        print(f"pellucid: error: {text}", file=sys.stderr)
        if "--json" in arguments:
            with contextlib.suppress(OSError):
                print(json.dumps({"error": text}), flush=True)
        return 2


class Parser(argparse.ArgumentParser):
    """Tells a wrong option in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def note(message: object) -> None:
    print(f"pellucid: note: {one_line(message)}", file=sys.stderr)


def one_line(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 1000 else text[:999] + "…"


def as_json(value: Any) -> str:
    """JSON as every program reads it: what is not a finite number is null."""
    return json.dumps(finite(value))


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="pellucid", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"pellucid {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    def command(name: str, run: Any, help: str, example: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=help, epilog=f"example:\n  {example}", formatter_class=argparse.RawDescriptionHelpFormatter
        )
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print the result as JSON")
        return made

    train = command("train", run_train, "learn from a table", "pellucid train data.csv --target price --out model.pellucid")
    train.add_argument("data", help="a CSV or Parquet file, or a data set: iris, wine, breast_cancer, digits, diabetes")
    train.add_argument("--target", help="the column to predict (the last one)")
    train.add_argument("--task", choices=["classification", "regression"], help="told from the target if left out")
    train.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")
    train.add_argument("--network", default="Linear(64) >> ReLU()", help='the layers before the output, such as "Linear(64) >> ReLU()"')
    train.add_argument("--optimizer", default="Adam(0.003)", help='such as "Adam(0.01)" or sgd')
    train.add_argument("--epochs", type=int, default=100)
    train.add_argument("--batch-size", type=int, default=32)
    train.add_argument("--test", type=float, default=0.2, metavar="PART", help="part of the rows held out to measure (0.2)")
    train.add_argument("--patience", type=int, metavar="EPOCHS", help="stop early when a tenth of the rows, held out, gets no better")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--engine", choices=["auto", "numpy", "jax"], default="auto")
    train.add_argument("--out", metavar="FILE", help="write the model to this file")
    train.add_argument("--plot", metavar="FILE", help="write loss curves and results to this picture")
    train.add_argument("--quiet", action="store_true", help="no progress bar")

    predict = command("predict", run_predict, "predict rows of a table", "pellucid predict model.pellucid new.csv --out answers.csv")
    predict.add_argument("model", help="a model file")
    predict.add_argument("data", help="a table with the columns the model was trained on")
    predict.add_argument("--proba", action="store_true", help="the probability of every class too")
    predict.add_argument("--out", metavar="FILE", help="write CSV to this file instead of the terminal")

    evaluate = command("evaluate", run_evaluate, "measure a model", "pellucid evaluate model.pellucid test.csv")
    evaluate.add_argument("model", help="a model file")
    evaluate.add_argument("data", help="a table with the columns the model was trained on, and its target")
    evaluate.add_argument("--plot", metavar="FILE", help="write the results to this picture")

    inspect = command("inspect", run_inspect, "what is in a model file", "pellucid inspect model.pellucid")
    inspect.add_argument("model", help="a model file")

    check = command("check", run_check, "compare gradients with differences", 'pellucid check "Linear(8) >> Tanh()" --input 4')
    check.add_argument("network", help="an expression, or a model file")
    check.add_argument("--input", type=int, nargs="+", metavar="SIZE", help="the shape of one row")
    check.add_argument("--tolerance", type=float, default=1e-6)

    completion = command("completion", run_completion, "completion for your shell", 'eval "$(pellucid completion bash)"')
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    if find_spec("pellucid.theory") and find_spec("pellucid.theory.cli"):
        from .theory.cli import add_commands  # type: ignore[import-not-found, unused-ignore]

        add_commands(commands)
    return parser


# -------------------------------------------------------------------- train
def run_train(args: argparse.Namespace) -> int:
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import Pipeline

    from .files import save
    from .tables import preprocessing, read_table, task_of

    if not 0 < args.test < 1:
        raise ValueError(f"--test must be between 0 and 1, got {args.test}.")
    can_be_written(args.out)
    can_be_written(args.plot)
    can_be_drawn(args.plot)
    table = read_table(args.data)
    target = args.target or list(table.columns)[-1]
    y = known_target(table, target)
    if table.rows < SMALLEST:
        raise ValueError(f"{args.data} has {table.rows} rows; at least {SMALLEST} are needed to train and to measure.")
    task = args.task or task_of(y)
    if task == "regression" and y.dtype == object:
        raise ValueError(f"--task regression needs numbers, but column {target!r} holds words such as {y[0]!r}.")
    y = as_labels(y) if task == "classification" else y
    for name in args.drop:
        table[name]
    names = [name for name in table.columns if name != target and name not in args.drop]
    steps, remarks = preprocessing(table, names)
    for remark in remarks:
        note(remark)
    train, test = train_test_split(np.arange(len(y)), test_size=args.test, random_state=args.seed, stratify=strata(y, task))
    model = Pipeline([*steps, ("network", estimator(args, task))])
    model.fit(table.take(train), y[train])
    history = network_of(model).history
    result = {"task": task, "target": target, "rows": len(train), "held_out": len(test), "network": repr(network_of(model).net)}
    result |= {"epochs": len(history), "stopped": history.stopped, "engine": history.engine}
    result |= {"seconds": round(sum(history["seconds"]), 3), "metrics": measures(model, table.take(test), y[test], task)}
    if args.out:
        columns = steps[0][1]
        notes = {"task": task, "target": target, "columns": columns.names, "words": columns.words, "metrics": result["metrics"]}
        save(model, args.out, notes=finite(notes))
        result["file"] = args.out
    if args.plot:
        picture(args.plot, history, y[test], model.predict(table.take(test)), task)
        result["plot"] = args.plot
    report(args, f"trained on {args.data}", result)
    return 130 if history.stopped.startswith("interrupted") else 0


def can_be_written(file: str | None) -> None:
    """Found out before the training, not after it."""
    if file is None:
        return
    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder of {file} does not exist.")
    if Path(file).is_dir():
        raise IsADirectoryError(f"{file or 'the empty name'} is a folder; name a file in it.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"the folder of {file} cannot be written to.")


def can_be_drawn(file: str | None) -> None:
    if file and not find_spec("matplotlib"):
        raise ImportError('--plot needs matplotlib: pip install "pellucid[plot]"')
    if file:
        from matplotlib.backend_bases import FigureCanvasBase

        kinds = FigureCanvasBase.get_supported_filetypes()
        if Path(file).suffix[1:].lower() not in kinds:
            raise ValueError(f"{file}: a picture's name ends in one of {', '.join(f'.{kind}' for kind in kinds)}.")


def known_target(table: Any, target: str) -> np.ndarray:
    y = table[target]
    if y.dtype.kind == "M":
        raise ValueError(f"the target {target!r} holds dates; a network predicts classes or numbers.")
    missing = np.flatnonzero([v is None for v in y] if y.dtype == object else np.isnan(y))
    if len(missing):
        raise ValueError(f"the target {target!r} is missing in {len(missing)} rows of {table.source}, first in row {missing[0] + 1}.")
    return y


def as_labels(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind in "Ob":
        return y if y.dtype == bool else y.astype(str)
    return y.astype(int) if (y == np.round(y)).all() else y.astype(str)


def strata(y: np.ndarray, task: str) -> np.ndarray | None:
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"the target has one value only ({classes.tolist()[0]!r}): there is nothing to tell apart.")
    if task == "regression":
        return None
    if len(classes) > len(y) // 2:
        raise ValueError(
            f"the target has {len(classes)} classes in {len(y)} rows: too few rows of each. Is it a regression? Add --task regression."
        )
    return y if counts.min() > 1 else None


def estimator(args: argparse.Namespace, task: str) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    from .estimators import NetworkClassifier, NetworkRegressor
    from .files import parse
    from .layers import Layer

    net = parse(args.network)
    if not isinstance(net, Layer):
        raise ValueError(f"--network: {args.network!r} is no layer.")
    options: dict[str, Any] = {
        "optimizer": args.optimizer if args.optimizer.isidentifier() else parse(args.optimizer),
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "early_stopping": args.patience or False,
        "engine": args.engine,
        "random_state": args.seed,
        "dtype": "float32",
        "progress": not (args.quiet or args.json),
    }
    if task == "classification":
        return NetworkClassifier(net, **options)
    return TransformedTargetRegressor(NetworkRegressor(net, **options), transformer=StandardScaler(), check_inverse=False)


def network_of(model: Any) -> Any:
    last = model.steps[-1][1]
    return getattr(last, "regressor_", last).network_


# -------------------------------------------------------------------- use
def opened(path: str) -> tuple[Any, dict[str, Any]]:
    """A model file that `train` wrote, and its notes."""
    from .files import describe, load

    notes = describe(path)["notes"]
    model = load(path)
    if "target" not in notes:
        raise ValueError(f"{path} was not written by `pellucid train`: it does not say which columns it needs. Use it from Python.")
    return model, notes


def run_predict(args: argparse.Namespace) -> int:
    from .tables import read_table

    can_be_written(args.out)
    model, notes = opened(args.model)
    table = read_table(args.data, notes["words"])
    columns: dict[str, list[Any]] = {notes["target"]: model.predict(table).tolist()}
    if args.proba:
        if notes["task"] != "classification":
            raise ValueError("--proba is for classification; this model predicts numbers.")
        classes = model.steps[-1][1].classes_
        columns |= {f"p({c})": p.tolist() for c, p in zip(classes, model.predict_proba(table).T, strict=True)}
    rows = list(zip(*columns.values(), strict=True))
    if args.json:
        print(as_json([dict(zip(columns, row, strict=True)) for row in rows]))
        return 0
    with open(args.out, "w", newline="") if args.out else contextlib.nullcontext(sys.stdout) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    return 0


def run_evaluate(args: argparse.Namespace) -> int:
    from .tables import read_table

    can_be_written(args.plot)
    can_be_drawn(args.plot)
    model, notes = opened(args.model)
    table = read_table(args.data, notes["words"])
    y = known_target(table, notes["target"])
    if notes["task"] == "classification":
        y = as_labels(y)
        known = model.steps[-1][1].classes_
        y = y.astype(known.dtype) if known.dtype.kind == "U" else y
        strange = sorted(set(y.tolist()) - set(known.tolist()), key=str)
        if strange:
            raise ValueError(f"{args.data}: the target has {strange[0]!r}, which the model does not know. It knows: {known.tolist()}.")
    result = {"rows": len(y), "metrics": measures(model, table, y, notes["task"])}
    if args.plot:
        picture(args.plot, None, y, model.predict(table), notes["task"])
        result["plot"] = args.plot
    report(args, f"{args.model} on {args.data}", result)
    return 0


def measures(model: Any, X: Any, y: np.ndarray, task: str) -> dict[str, Any]:
    """Metrics on rows that were not trained on."""
    from sklearn import metrics as m

    predicted = model.predict(X)
    if task == "regression":
        result = {
            "r2": m.r2_score(y, predicted),
            "rmse": m.root_mean_squared_error(y, predicted),
            "mae": m.mean_absolute_error(y, predicted),
        }
        return {name: float(value) for name, value in result.items()}
    classes = model.steps[-1][1].classes_
    guess = max(np.bincount(np.searchsorted(classes, y))) / len(y)
    return {
        "accuracy": float(m.accuracy_score(y, predicted)),
        "always the most frequent": float(guess),
        "balanced accuracy": float(np.mean([(predicted[y == c] == c).mean() for c in classes if (y == c).any()])),
        "f1": float(m.f1_score(y, predicted, average="macro", labels=classes, zero_division=0)),
        "log loss": float(m.log_loss(y, model.predict_proba(X), labels=classes)),
        "classes": classes.tolist(),
        "confusion": m.confusion_matrix(y, predicted, labels=classes).tolist(),
    }


def picture(path: str, history: Any, y: Any, predicted: Any, task: str) -> None:
    from matplotlib.figure import Figure

    from . import plots

    figure = Figure(figsize=(11 if history else 6, 5), layout="constrained")
    axes = figure.subplots(1, 2 if history else 1, squeeze=False)[0]
    if history:
        plots.loss_curves(history, axes[0])
    (plots.confusion_matrix if task == "classification" else plots.predicted_against_true)(y, predicted, axes[-1])
    figure.savefig(path, dpi=120)


# -------------------------------------------------------------------- look
def run_inspect(args: argparse.Namespace) -> int:
    from .files import describe

    facts = describe(args.model)
    if args.json:
        print(as_json(facts))
        return 0
    notes = facts.pop("notes")
    arrays = facts.pop("arrays")
    table(args.model, [(k, shown(v)) for k, v in facts.items()])
    if notes:
        table("notes", [(k, shown(v)) for k, v in notes.items()])
    table("arrays", list(arrays.items()))
    return 0


def run_check(args: argparse.Namespace) -> int:
    from .files import load, parse
    from .layers import Layer
    from .proof import check_layer

    if Path(args.network).exists():
        model = load(args.network)
        network = network_of(model) if hasattr(model, "steps") else getattr(model, "network_", model)
        net, shape = network.net, tuple(args.input or network.input_shape)
    else:
        net, shape = parse(args.network), tuple(args.input or ())
        if not isinstance(net, Layer):
            raise ValueError(f"{args.network!r} is no layer.")
        if not shape:
            raise ValueError("--input is needed: the shape of one row, such as --input 4, or --input 3 8 8 for images.")
    if min(shape) < 1:
        raise ValueError(f"--input: every size must be at least 1, got {min(shape)}.")
    result = check_layer(net, shape, tolerance=args.tolerance)
    if args.json:
        rows = [{"name": r.name, "checked": r.checked, "skipped": r.skipped, "error": r.error} for r in result.rows]
        print(as_json({"agree": bool(result), "tolerance": args.tolerance, "judges": result.judges, "rows": rows}))
    else:
        print(result)
    return 0 if result else 1


def report(args: argparse.Namespace, title: str, result: dict[str, Any]) -> None:
    """The result as JSON, or as tables."""
    if args.json:
        print(as_json(result))
        return
    metrics = result.pop("metrics")
    classes, confusion = metrics.pop("classes", None), metrics.pop("confusion", None)
    table(title, [(k.replace("_", " "), shown(v)) for k, v in result.items()])
    table("on rows held out" if "held_out" in result else "metrics", [(k, f"{v:.4f}") for k, v in metrics.items()])
    if confusion and len(classes) <= 20:
        rows = [(f"true {c}", *(str(n) for n in row)) for c, row in zip(classes, confusion, strict=True)]
        table("confusion matrix (columns: predicted)", rows, ["", *map(str, classes)])


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(shown, value[:12])) + (f" and {len(value) - 12} more" if len(value) > 12 else "")
    if isinstance(value, dict):
        return ", ".join(f"{k} {shown(v)}" for k, v in value.items() if not isinstance(v, list))
    return str(value)


def table(title: str, rows: list[Any], head: list[str] | None = None) -> None:
    """A table in colour on a terminal, plain in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Made
    from rich.text import Text

    console = Console()
    made = Made(box=box.SIMPLE if console.is_terminal else None, show_header=bool(head))
    for i, name in enumerate(head or ["", ""]):
        made.add_column(Text(name), style="cyan" if i == 0 else None, justify="right" if head and i else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    if not console.is_terminal:
        console.width = 10_000  # nobody's window: do not wrap
    with console.capture() as text:
        console.print(Text(title, style="bold"))
        console.print(made)
    print(text.get(), end="")


def run_completion(args: argparse.Namespace) -> int:
    from .completion import script

    parser = make_parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    words: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for name, sub in commands.items():
        words[name] = [word for a in sub._actions for word in a.option_strings or a.choices or ()]
        values |= {f"{name} {option}": a.choices for a in sub._actions if a.choices for option in a.option_strings}
    text = script(args.shell, words, values)
    print(as_json({"script": text}) if args.json else text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
