"""`pellucid theory …`: the constructions on the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pellucid
from pellucid import theory

__all__ = ["add_commands", "main"]


def add_commands(subparsers: Any) -> None:
    """Mount ``theory`` and its commands; each sets ``run``, a function of the arguments that returns an exit code."""
    parser = subparsers.add_parser("theory", help="what networks can represent, by construction")
    commands = parser.add_subparsers(dest="construction", metavar="construction", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], help: str, picture: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help, description=help)
        if picture:
            made.add_argument("--plot", metavar="FILE", help="write a picture to this file (.png, .pdf, .svg)")
        made.set_defaults(run=in_one_line(run), construction=name)
        return made

    made = command("boolean", boolean, "a truth table such as 0110 as one hidden layer of sign units", picture=False)
    made.add_argument("table", help="2ⁿ values 0 or 1, in the order 0…00, 0…01, 0…10, …")
    made = command("growth", growth, "units that Boolean functions of n inputs need")
    made.add_argument("most", type=int, nargs="?", default=7, help="the greatest n (7)")
    made = command("parity", parity, "the parity of d bits as XOR tree, AND/OR/NOT formula and DNF")
    made.add_argument("d", type=int, help="number of bits, 2 to 16")
    made = command("towers", towers, "a sum of sigmoid towers within epsilon of a function")
    made.add_argument("function", help="a formula such as 'sin(3*x)' or 'x*y' (x, y, z; + - * / **; abs cos exp log sin sqrt tan tanh)")
    made.add_argument("--epsilon", type=float, default=0.1, help="the greatest error allowed (0.1)")
    made.add_argument("--low", type=float, nargs="+", default=[0.0], help="where the box begins, one number per input (0)")
    made.add_argument("--high", type=float, nargs="+", default=[1.0], help="where it ends (1)")
    made = command("cost", cost, "units that a 1-Lipschitz function on [-1,1]^n needs")
    made.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 0.25])
    made = command("zigzag", zigzag, "k layers that fold the line into 2^k pieces")
    made.add_argument("k", type=int, help="number of layers")
    made.add_argument("--folds", type=int, default=2, help="units per layer (2)")
    made = command("depth", depth, "pieces of a deep network against one hidden layer of as many units")
    made.add_argument("most", type=int, nargs="?", default=8, help="the greatest number of layers (8)")
    made = command("regions", regions, "linear regions of a saved ReLU network with one or two inputs")
    made.add_argument("file", help="a model file written by network.save")
    made.add_argument("--box", type=float, nargs="+", default=[-1.0, 1.0, -1.0, 1.0], help="x low, x high, y low, y high (-1 1 -1 1)")
    command("information", information, "entropy, cross-entropy and expected value of the notes' example", picture=False)
    command("saturation", saturation, "gradients of squared error and cross-entropy on a saturated sigmoid")


def in_one_line(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """Turn a refusal into one line on standard error and exit code 2."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            run(args)
        except (ValueError, TypeError, OSError, ImportError) as error:
            print(f"pellucid theory {args.construction}: {' '.join(str(error).split())}", file=sys.stderr)
            return 2
        return 0

    return guarded


def draw(args: argparse.Namespace, picture: Callable[[], Any]) -> None:
    """Write the picture, if one was asked for."""
    if args.plot:
        picture().savefig(args.plot)
        print(f"picture: {args.plot}")


def boolean(args: argparse.Namespace) -> None:
    if set(args.table) - set("01"):
        raise ValueError(f"a truth table is written with 0 and 1, got {args.table!r}.")
    print(theory.boolean([int(c) for c in args.table]).certificate)


def growth(args: argparse.Namespace) -> None:
    table = theory.boolean_growth(args.most)
    print(table)
    draw(args, lambda: theory.plot_table(table, "n", list(table.rows[0])[2:], log=True))


def parity(args: argparse.Namespace) -> None:
    print("\n\n".join(str(theory.parity(args.d, form).certificate) for form in ("tree", "formula", "dnf")))
    draw(args, lambda: theory.plot_table(theory.parity_table(args.d), "d", ["tree", "formula", "DNF, depth 2"], log=True))


def towers(args: argparse.Namespace) -> None:
    network, certificate = theory.towers(args.function, args.low, args.high, args.epsilon)
    print(certificate)
    draw(args, lambda: theory.plot_towers(network, args.function, args.low, args.high, args.epsilon))


def cost(args: argparse.Namespace) -> None:
    table = theory.lipschitz_cost(args.epsilon)
    print(table)
    draw(args, lambda: theory.plot_table(table, "n", ["units", "bits, at least"], log=True))


def zigzag(args: argparse.Namespace) -> None:
    network, certificate = theory.zigzag(args.k, folds=args.folds)
    print(certificate)
    draw(args, lambda: theory.plot_pieces(network, 0.0, 2.0))


def depth(args: argparse.Namespace) -> None:
    table = theory.deep_against_shallow(args.most)
    print(table)
    draw(args, lambda: theory.plot_table(table, "units", ["deep: pieces", "one layer: pieces"], log=True))


def regions(args: argparse.Namespace) -> None:
    report_regions(load(args.file), args)


def report_regions(network: pellucid.Network, args: argparse.Namespace) -> None:
    if network.input_shape == (1,) and len(args.box) in (2, 4):
        low, high = args.box[:2]
        print(theory.pieces(network, low, high))
        draw(args, lambda: theory.plot_pieces(network, low, high))
    elif len(args.box) == 4:
        found = theory.regions(network, (args.box[:2], args.box[2:]))
        print(found)
        draw(args, lambda: theory.plot_regions(found))
    else:
        raise ValueError(f"--box takes x low, x high and, for two inputs, y low, y high; got {len(args.box)} numbers.")


def load(path: str) -> Any:
    open(path, "rb").close()  # a missing or unreadable file says so itself
    loader = getattr(pellucid, "load", None)
    if loader is None:
        raise ValueError("this version of pellucid cannot read model files.")
    try:
        loaded = loader(path)
    except Exception as error:  # whatever a damaged file makes the reader say
        raise ValueError(f"{path} is not a model file that can be read: {error}") from error
    if not isinstance(loaded, pellucid.Network):
        raise ValueError(f"{path} holds a {type(loaded).__name__}; a network is needed.")
    return loaded


def information(args: argparse.Namespace) -> None:
    print(theory.information())


def saturation(args: argparse.Namespace) -> None:
    table = theory.saturation()
    print(table)
    draw(args, lambda: theory.plot_table(table, "z", ["squared error", "cross-entropy"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``theory …`` alone."""
    parser = argparse.ArgumentParser(prog="pellucid")
    add_commands(parser.add_subparsers(required=True))
    args = parser.parse_args(arguments)
    return args.run(args)
