"""Where XLA puts what two halves of a mini-batch make (engines/jax_cut.py), read from what it writes about a program."""

import re
from pathlib import Path

VIEWS = {"bitcast", "get-tuple-element", "parameter", "tuple"}  # for which nothing is computed


def shared(folder):
    """The pairs of operations, one of each half, whose results lie in the same memory: one of them waits for the other."""
    (program,) = Path(folder).glob("*cpu_after_optimizations.txt")
    places = Path(f"{program.with_suffix('')}-buffer-assignment.txt").read_text()
    half, pairs, seen = halves(program.read_text()), set(), set()
    for allocation in re.split(r"\n(?=allocation )", places):
        found = [
            (half[name], name, int(offset), int(offset) + int(size))
            for name, size, offset in re.findall(r"value: <\d+ ([\w.\-]+)\S* @\d+> \(size=(\d+),offset=(\d+)\)", allocation)
            if name in half
        ]
        seen |= {name for _, name, *_ in found}
        pairs |= {
            (one, other)
            for first, one, begin, end in found
            for second, other, start, stop in found
            if (first, second) == (0, 1) and begin < stop and start < end
        }
    assert seen == half.keys()  # or XLA writes it down in another way now
    return pairs


def halves(text):
    """Of every operation that belongs to one half, those in its loops too: to which. They follow from two that do nothing."""
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
            parts = [computations[part] for part in inner] or [{name: (kind,)}]
            found |= {each: min(of[name]) for part in parts for each, (kind, *_) in part.items() if kind not in VIEWS}
    return found
