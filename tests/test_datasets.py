"""Loaders read what publishers write, and refuse what is damaged."""

import gzip

import numpy as np
import pytest

from pellucid.datasets import load_adult, load_california_housing, load_japanese_vowels, load_mnist, load_text, read_idx

from .tiny_data import write_tiny_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_data(tmp_path_factory.mktemp("data"))


def test_mnist_is_read_as_images_from_0_to_1(folder):
    X, y, X_test, y_test = load_mnist(folder / "mnist")
    assert X.shape == (60, 28, 28, 1)
    assert X_test.shape == (20, 28, 28, 1)
    assert (X.dtype, y.dtype) == (np.float32, np.int32)
    assert (X.min(), X.max()) == (0, 1)
    assert set(y_test) <= set(range(10))


def test_adult_is_read_with_its_columns_and_missing_words(folder):
    train, test = load_adult(folder / "adult")
    assert train.number_names == ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    assert train.numbers.shape == (40, 6)
    assert test.categories.shape == (16, 8)
    assert (train.categories == "?").any()
    assert set(train.target) == set(test.target) == {0, 1}


def test_housing_is_read_with_missing_numbers_as_nan(folder):
    table = load_california_housing(folder / "california-housing")
    assert table.numbers.shape == (50, 8)
    assert np.isnan(table.numbers[:, table.number_names.index("total_bedrooms")]).sum() == 1
    assert table.category_names == ["ocean_proximity"]
    assert table.target.min() > 1000


def test_vowels_are_read_as_sequences_of_different_length(folder):
    X, y, _, y_test = load_japanese_vowels(folder / "japanese-vowels")
    assert all(x.shape[1] == 12 and x.dtype == np.float32 for x in X)
    assert len({len(x) for x in X}) > 3
    assert set(y) == set(y_test) == set(range(9))


def test_a_text_is_read_as_codes(folder):
    text = load_text(folder / "tinyshakespeare" / "input.txt")
    assert list(text.alphabet) == sorted(set(text.alphabet))
    assert "".join(text.alphabet[c] for c in text.codes[:6]) == "To be,"


def test_a_folder_without_the_files_is_refused(tmp_path):
    for load in (load_mnist, load_adult, load_california_housing, load_japanese_vowels):
        with pytest.raises(FileNotFoundError, match="Name the folder"):
            load(tmp_path)


def test_damaged_idx_files_are_refused():
    good = b"\0\0\x08\x02" + (2).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes(range(6))
    assert read_idx(good).tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad in (b"", b"\0\0", good[:-1], good + b"x", b"\1" + good[1:], good[:6]):
        with pytest.raises(ValueError, match="IDX"):
            read_idx(bad)


def test_a_row_with_too_few_cells_is_named(tmp_path):
    (tmp_path / "housing.csv.gz").write_bytes(gzip.compress(b"a,median_house_value\n1,2\n3\n"))
    with pytest.raises(ValueError, match="row 2 has 1 cells, expected 2"):
        load_california_housing(tmp_path)
