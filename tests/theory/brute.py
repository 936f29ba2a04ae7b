"""Counting linear regions a second way: every pattern of units tried, in exact fractions. Slow and independent."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pellucid as pc


def affine(net, params, inputs, pattern):
    """The outputs and every z as exact affine maps [(coefficients, constant)] once it is fixed which units are on."""
    pattern, zs = iter(pattern), []

    def run(layer, p, rows):
        match layer:
            case pc.Chain():
                for child, q in zip(layer.children, p, strict=True):
                    rows = run(child, q, rows)
                return rows
            case pc.Concat():
                return [row for child, q in zip(layer.children, p, strict=True) for row in run(child, q, rows)]
            case pc.Sum():
                parts = [run(child, q, rows) for child, q in zip(layer.children, p, strict=True)]
                return [combine([(Fraction(1), row) for row in same], inputs) for same in zip(*parts, strict=True)]
            case pc.Linear():
                W, b = p["W"], p["b"]
                result = []
                for j in range(layer.units):
                    coefficients, constant = combine([(Fraction(float(W[i, j])), row) for i, row in enumerate(rows)], inputs)
                    result.append((coefficients, constant + Fraction(float(b[j]))))
                return result
            case pc.ReLU():
                zs.extend(rows)
                zero = ((Fraction(0),) * inputs, Fraction(0))
                return [row if next(pattern) else zero for row in rows]
            case pc.Identity():
                return rows
        raise AssertionError(layer)

    start = [(tuple(Fraction(int(i == j)) for j in range(inputs)), Fraction(0)) for i in range(inputs)]
    return run(net, params, start), zs


def combine(terms, inputs):
    coefficients = tuple(sum((a * row[0][k] for a, row in terms), Fraction(0)) for k in range(inputs))
    return coefficients, sum((a * row[1] for a, row in terms), Fraction(0))


def clip(polygon, coefficients, constant, keep):
    """The part of a convex polygon (in a line: two ends) where ±z ≥ 0, exactly."""
    sign = 1 if keep else -1
    value = [sign * (sum(c * v for c, v in zip(coefficients, point, strict=True)) + constant) for point in polygon]
    result = []
    closed = len(polygon[0]) > 1
    for i, point in enumerate(polygon):
        if value[i] >= 0:
            result.append(point)
        j = (i + 1) % len(polygon)
        if (closed or j) and value[i] * value[j] < 0:
            share = value[i] / (value[i] - value[j])
            result.append(tuple(a + share * (b - a) for a, b in zip(point, polygon[j], strict=True)))
    return result


def size(polygon):
    """Length of an interval or twice the area of a polygon."""
    if not polygon:
        return Fraction(0)
    if len(polygon[0]) == 1:
        return max(p[0] for p in polygon) - min(p[0] for p in polygon)
    return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True)))


def brute_regions(net, params, box, count):
    """All (cell, outputs) with a positive size, one for every pattern of `count` units; box is the starting interval or polygon."""
    found = []
    for pattern in itertools.product((False, True), repeat=count):
        outputs, zs = affine(net, params, len(box[0]), pattern)
        cell = box
        for on, (coefficients, constant) in zip(pattern, zs, strict=True):
            flat = not any(coefficients)
            if flat and on != (constant > 0):  # constant z: on exactly when positive
                cell = []
            if not flat and cell:
                cell = clip(cell, coefficients, constant, on)
            if not size(cell):
                cell = []
                break
        if cell:
            found.append((cell, outputs))
    return found


def brute_pieces(found):
    """Connected sets of cells with the same outputs."""
    label = list(range(len(found)))

    def root(i):
        while label[i] != i:
            i = label[i]
        return i

    for i, j in itertools.combinations(range(len(found)), 2):
        if found[i][1] == found[j][1] and touch(found[i][0], found[j][0]):
            label[root(i)] = root(j)
    return len({root(i) for i in range(len(found))})


def touch(a, b):
    """Whether two cells share a boundary: a point in a line, a stretch of positive length in the plane."""
    if len(a[0]) == 1:
        return max(min(a), min(b)) == min(max(a), max(b))
    for (p, q), (r, s) in itertools.product(edges(a), edges(b)):
        d = (q[0] - p[0], q[1] - p[1])
        if any(d[0] * (v[1] - p[1]) - d[1] * (v[0] - p[0]) for v in (r, s)):
            continue
        along = sorted(d[0] * (v[0] - p[0]) + d[1] * (v[1] - p[1]) for v in (r, s))
        if min(along[1], d[0] ** 2 + d[1] ** 2) > max(along[0], 0):
            return True
    return False


def edges(polygon):
    return [(p, q) for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True) if p != q]
