"""What the examples reach on real data, and the same networks trained by PyTorch: the figures of docs/results.md.

- ``python benchmarks/results.py --data FOLDER``: every task, three seeds, ours and PyTorch's, each in its own process
- ``python benchmarks/results.py --data FOLDER --tasks adult,housing --seeds 1``
- ``python benchmarks/results.py --write build/results.json``: write docs/results.md from what was measured
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from work import write_numbers

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "src"), str(ROOT / "benchmarks")]

# task: (title, score, bar, at least or at most, command)
TASKS = {
    "mnist-dense": ("MNIST, fully connected (N03)", "test accuracy", 0.982, ">=", "examples/mnist.py dense"),
    "mnist-convolutional": ("MNIST, convolutional", "test accuracy", 0.991, ">=", "examples/mnist.py convolutional"),
    "vowels": ("Japanese vowels", "test accuracy", 0.97, ">=", "examples/vowels.py"),
    "housing": ("California housing", "test R²", 0.78, ">=", "examples/housing.py"),
    "adult": ("Adult census income", "test accuracy", 0.85, ">=", "examples/adult.py"),
    "shakespeare": ("Next character of Shakespeare", "nats per character", 1.65, "<=", "examples/shakespeare.py"),
}


def ours(task: str, seed: int) -> dict[str, Any]:
    name, _, variant = task.partition("-")
    module = __import__(name)
    row = module.train(variant, seed) if variant else module.run(seed)
    return {"score": row[TASKS[task][1]], "seconds": row["seconds"], "parameters": row["parameters"], "with": f"pellucid, {row['engine']}"}


def theirs(task: str, seed: int) -> dict[str, Any]:
    import torch
    from torch import nn
    from torch_twin import train, translate

    import pellucid as pc

    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, _, variant = task.partition("-")
    example = __import__(name)
    rng, padded = np.random.default_rng(seed), None
    settings = {"adult": (0.01, 0.003), "housing": (0.05, 0.004), "vowels": (0.05, 0.005), "shakespeare": (0.01, 0.004)}
    decay, peak = settings.get(name, (0.0, 0.003))
    order: Any = rng.permutation
    shape: tuple[Any, ...]
    if name == "shakespeare":
        text, test, alphabet = example.load()
        net, shape = example.network(len(alphabet)), (None,)
        X, y = (pc.cut_streams(a, example.STREAMS, example.STEPS) for a in (text[:-1], text[1:]))
        X_test, y_test = (pc.cut_streams(a, 1, 1000) for a in (test[:-1], test[1:]))
        epochs, size, order = example.EPOCHS, example.STREAMS, np.arange
    else:
        X, y, X_test, y_test = example.load()
        epochs, size = example.EPOCHS, example.BATCH
        net, shape = (example.NETWORKS[variant]() if variant else example.NET), (None, 12) if name == "vowels" else X.shape[1:]
    module, _ = translate(net, shape)
    module.to(device)
    if name == "vowels":
        padded = [torch.tensor([len(x) for x in part]) for part in (X, X_test)]
        X, X_test = (nn.utils.rnn.pad_sequence([torch.tensor(x) for x in part], batch_first=True) for part in (X, X_test))
    if name == "mnist":  # channels first
        X, X_test = (np.moveaxis(a, -1, 1) for a in (X, X_test))
    kind = torch.int64 if name == "shakespeare" else torch.float32
    X, X_test = (torch.as_tensor(a).to(device, kind) for a in (X, X_test))
    real = name in ("adult", "housing")
    y, y_test = (torch.as_tensor(np.asarray(a)).to(device, torch.float32 if real else torch.int64) for a in (y, y_test))
    losses = {"adult": nn.BCEWithLogitsLoss(), "housing": nn.HuberLoss(delta=0.5)}
    cross = losses.get(name, nn.CrossEntropyLoss())

    def loss(out: Any, target: Any) -> Any:
        return cross(out[:, 0], target) if real else cross(out.reshape(-1, out.shape[-1]), target.reshape(-1))

    def batches(epoch: int) -> Any:
        rows = torch.as_tensor(order(len(X))).split(size)
        for r in rows:
            yield X[r], y[r], padded[0][r] if padded else None

    steps = math.ceil(len(X) / size)
    rates = pc.OneCycle(peak).rates(np.arange(epochs * steps) / steps, epochs, [])
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=decay)
    seconds = train(module, optimizer, loss, batches, epochs, steps, rates)
    module.eval()
    with torch.no_grad():
        for m in module.modules():
            if hasattr(m, "lengths"):
                m.lengths = padded[1] if padded else None
        out = torch.cat([module(part) for part in X_test.split(len(X_test) if padded else 1000)])
        if name == "housing":
            score = float(1 - ((out[:, 0] - y_test) ** 2).sum() / ((y_test - y_test.mean()) ** 2).sum())
        elif name == "shakespeare":
            score = float(loss(out, y_test))
        else:
            guess = (out[:, 0] > 0).long() if real else out.argmax(-1)
            score = float((guess == y_test.long()).float().mean())
    return {"score": score, "seconds": seconds, "parameters": sum(p.numel() for p in module.parameters()), "with": "PyTorch eager"}


def machine() -> str:
    """What the figures were measured on."""
    try:
        names = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout
        return f"one {names.strip()}"
    except (OSError, subprocess.CalledProcessError):
        return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def write_page(path: Path) -> None:
    """docs/results.md from the measured rows."""
    rows = json.loads(path.read_text())
    lines = [
        "# Results on real data",
        "",
        "Mean over seeds 0, 1, … with the range in brackets; scores on test data that were never trained on; seconds for the",
        "whole fit, compilation included. PyTorch trains the same network with the same optimizer, schedule, batch size and",
        "number of epochs. The data sets are not part of the project: name the folder they lie in with `--data`.",
        "",
        "| task | bar | score | seconds | with | parameters | seeds | machine | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task, (title, score, bar, sign, command) in TASKS.items():
        for row in (r for r in rows if r["task"] == task):
            values = row["scores"]
            spread = f"{statistics.mean(values):.4f} ({min(values):.4f} – {max(values):.4f})" if len(values) > 1 else f"{values[0]:.4f}"
            mark = {">=": "≥", "<=": "≤"}[sign]
            seconds, count = f"{statistics.mean(row['seconds']):.1f}", str(len(values))
            call = f"`python {command} --seeds {count} --data FOLDER`"
            cells = [title, f"{score} {mark} {bar}", spread, seconds, row["with"], f"{row['parameters']:,}", count, row["machine"], call]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "All rows at once: `python benchmarks/results.py --data FOLDER`.", ""]
    (ROOT / "docs" / "results.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("PELLUCID_DATA"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--who", default="ours,theirs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "results.json")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "WHO", "SEED"), help="measure one and print it as JSON")
    parser.add_argument("--write", type=Path, help="write docs/results.md from this file")
    args = parser.parse_args()
    if args.write:
        return write_page(args.write)
    if args.one:
        task, who, seed = args.one
        print("RESULT", json.dumps((ours if who == "ours" else theirs)(task, int(seed))))
        return None
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    for task in args.tasks.split(","):
        for who in args.who.split(","):
            found = []
            for seed in range(args.seeds):
                command = [sys.executable, __file__, "--one", task, who, str(seed)]
                run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PELLUCID_DATA": args.data or ""})
                answer = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
                if run.returncode or not answer:
                    print(f"{task} {who} seed {seed} failed:\n{run.stderr[-2000:]}", flush=True)
                    continue
                found.append(json.loads(answer[-1][7:]))
                print(task, who, seed, found[-1], flush=True)
            if found:
                row = {"task": task, "who": who, "machine": machine(), "with": found[0]["with"], "parameters": found[0]["parameters"]}
                row |= {"scores": [f["score"] for f in found], "seconds": [f["seconds"] for f in found]}
                rows = [r for r in rows if (r["task"], r["who"]) != (task, who)] + [row]
                write_numbers(rows, args.out)
    return None


if __name__ == "__main__":
    main()
