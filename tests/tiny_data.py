"""Tiny files in the formats of the real data sets, so that loaders and examples run anywhere."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content))


def write_tiny_data(folder: Path) -> Path:
    """Write all five data sets, a few rows each, under `folder`."""
    rng = np.random.default_rng(0)
    for name, n in (("train", 60), ("t10k", 20)):
        images = rng.integers(0, 256, (n, 28, 28))
        images[0, 0, :2] = 0, 255
        write(folder / f"mnist/{name}-images-idx3-ubyte.gz", idx(images))
        write(folder / f"mnist/{name}-labels-idx1-ubyte.gz", idx(np.arange(n) % 10))
    for name, n, head, dot in (("adult.data", 40, "", ""), ("adult.test", 16, "|1x3 Cross validator\n", ".")):
        rows = []
        for i in range(n):
            work, school = ["Private", "?"][i % 5 == 0], ["HS-grad", "Masters"][i % 2]
            sex, income = ["Male", "Female"][i % 3 == 0], ["<=50K", ">50K"][i % 4 == 0]
            person = [
                20 + i,
                work,
                1000 * i + 77,
                school,
                9,
                "Divorced",
                "Sales",
                "Husband",
                "White",
                sex,
                i * 100,
                0,
                40,
                "Cuba",
                income + dot,
            ]
            rows.append(", ".join(map(str, person)))
        write(folder / f"adult/{name}.gz", (head + "\n".join(rows) + "\n\n").encode())
    head = "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,median_income,"
    head += "median_house_value,ocean_proximity"
    rows = []
    for i in range(50):
        place, bedrooms = ["INLAND", "NEAR BAY"][i % 2], "" if i == 3 else 100 + i
        district = [-122 - i / 50, 37 + i / 50, i, 800 + i, bedrooms, 300 + i, 120 + i, 1 + i / 9, 50000 + 900 * i, place]
        rows.append(",".join(map(str, district)))
    write(folder / "california-housing/housing.csv.gz", "\n".join([head, *rows]).encode())
    for name in ("TRAIN", "TEST"):
        lines = ["# a comment", "@classLabel true 1 2 3 4 5 6 7 8 9", "@data"]
        for i in range(18):
            steps = rng.normal(size=(12, 7 + i % 6)).round(4)
            lines.append(":".join(",".join(map(str, row)) for row in steps.tolist()) + f":{i % 9 + 1}")
        write(folder / f"japanese-vowels/JapaneseVowels_{name}.ts.gz", "\n".join(lines).encode())
    write(folder / "tinyshakespeare/input.txt.gz", b"To be, or not to be, that is the question:\n" * 60)
    return folder
