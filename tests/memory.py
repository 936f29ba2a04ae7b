"""Where XLA puts what two halves of a mini-batch make (engines/jax_cut.py), read from what it writes about a program."""

import re
from pathlib import Path

VIEWS = {"bitcast", "get-tuple-element", "parameter", "tuple"}  # which nothing is computed for


def shared(folder):
    """The pairs of operations, one of each half, whose results lie in the same memory: one of them waits for the other."""
    (program,) = Path(folder).glob("*cpu_after_optimizations.txt")
    places = Path(f"{program.with_suffix('')}-buffer-assignment.txt").read_text()
    half = halves(program.read_text())
    pairs = set()
    for allocation in re.split(r"\n(?=allocation )", places):
        found = [
            (half[name], name, int(offset), int(offset) + int(size))
            for name, size, offset in re.findall(r"value: <\d+ ([\w.\-]+)\S* @\d+> \(size=(\d+),offset=(\d+)\)", allocation)
            if name in half
        ]
        pairs |= {
            (one, other)
            for first, one, begin, end in found
            for second, other, start, stop in found
            if (first, second) == (0, 1) and begin < stop and start < end
        }
    return pairs


def halves(text):
    """Of every operation that belongs to one half: to which. They follow from two of the operations that do nothing."""
    computations = {}
    for line in text.splitlines():
        if begins := re.match(r"(?:ENTRY )?%([\w.\-]+) \(", line):
            computations[begins[1]] = operations = {}
        elif found := re.match(r"  (ROOT )?%([\w.\-]+) = .*?\s([a-z][\w\-]*)\((.*)", line):
            root, name, kind, rest = found.groups()
            operands, _, called = rest.partition("), ")
            inner = re.findall(r"(?:body|condition)=%([\w.\-]+)", called)
            operations[name] = kind, re.findall(r"%([\w.\-]+)", operands), inner, bool(root)
    step = max(computations.values(), key=lambda operations: [kind for kind, *_ in operations.values()].count("sort"))
    read = {operand for _, operands, _, root in step.values() if not root for operand in operands}
    first, second = (name for name, (kind, *_) in step.items() if kind == "sort" and name in read)
    of = {}
    for name, (_, operands, *_) in step.items():
        of[name] = {first: {0}, second: {1}}.get(name) or set().union(*(of.get(operand, ()) for operand in operands))
    found = {}
    for name, (kind, _, inner, _) in step.items():
        if len(of[name]) == 1 and kind not in (*VIEWS, "sort"):
            (found[name],) = of[name]
            for part in inner:
                found |= {each: found[name] for each, (kind, *_) in computations[part].items() if kind not in VIEWS}
    return found
