"""Image sets: the readers of files, the parts and splits, and what is refused."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from problems import MNIST, needs_mnist

from flower_fedcon.cli.command import main
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.problems import cifar10, digits, emnist, mnist, partition
from flower_fedcon.simulation import simulate

SIMS = Path(__file__).parents[2] / "sims"


def idx(array):
    """Return an array as an idx file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + (
        array.astype(np.uint8).tobytes()
    )  # fmt: skip


def write_mnist(folder, part, n, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, size=(n, 28, 28))
    labels = rng.integers(0, 10, size=n)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
    (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return images, labels


def write_cifar(folder, name, n, seed):
    records = np.random.default_rng(seed).integers(0, 256, size=(n, 3073)).astype(np.uint8)
    records[:, 0] %= 10
    records.tofile(folder / f"{name}.bin")
    return records


# --- MNIST ----------------------------------------------------------------------------------------


def test_a_folder_with_the_test_images_alone(tmp_path):
    images, labels = write_mnist(tmp_path, "t10k", 40)
    problem = mnist(data=str(tmp_path), clients=4, split="writer-like", bias=False)
    A = np.vstack([f.A for f in problem.objectives])
    np.testing.assert_array_equal(A, images.reshape(40, 784) / 255)
    np.testing.assert_array_equal(np.concatenate([f.y for f in problem.objectives]), labels)
    assert list(problem.metrics) == ["sparsity"]
    shuffled = mnist(data=str(tmp_path), clients=4)
    assert shuffled.x0.shape == (785, 10)
    B = np.vstack([f.A for f in shuffled.objectives])
    assert not np.array_equal(B[:, :784], A)
    np.testing.assert_array_equal(np.sort(B[:, :784], axis=0), np.sort(A, axis=0))
    assert (B[:, 784] == 1).all()


def test_the_training_images_and_held_out_ones(tmp_path):
    write_mnist(tmp_path, "t10k", 12, seed=1)
    write_mnist(tmp_path, "train", 40)
    problem = mnist(data=str(tmp_path))
    assert sum(f.num_examples for f in problem.objectives) == 40
    accuracy = problem.metrics["test_accuracy"](np.eye(785, 10))
    assert accuracy * 12 == pytest.approx(round(accuracy * 12))
    held = mnist(data=str(tmp_path), part="test", test_size=5, clients=2)
    assert [f.num_examples for f in held.objectives] == [4, 3]
    assert "test_accuracy" in held.metrics
    assert "test_accuracy" not in mnist(data=str(tmp_path), test_size=0).metrics


def test_a_partition_deals_the_images_out(tmp_path):
    """By the rules of `partition`, in Python and in a file."""
    write_mnist(tmp_path, "t10k", 40)
    _, labels = write_mnist(tmp_path, "t10k", 40)
    rule = {"by": "dirichlet", "clients": 3, "alpha": 0.5, "min_rows": 2}
    told = {"data": str(tmp_path), "split": "writer-like", "bias": False}
    problem = mnist(**told, partition=rule)
    for f, rows in zip(problem.objectives, partition(labels, rule).values(), strict=True):
        np.testing.assert_array_equal(f.y, labels[rows])
    tables = {
        "problem": {"name": "mnist", **told, "partition": rule},
        "algorithm": {"name": "FedAvg", "client_lr": 0.1, "local_steps": 1},
        "run": {"rounds": 1},
    }
    stated = Experiment(tables).problem()
    assert [f.num_examples for f in stated.objectives] == [
        f.num_examples for f in problem.objectives
    ]
    with pytest.raises(ConfigError, match="partition: no column 'writer' states the client"):
        mnist(**told, partition={"by": "natural", "column": "writer"})


@needs_mnist
def test_the_real_test_images():
    problem = mnist(data=str(MNIST), clients=8, l2=1e-2)
    assert [f.num_examples for f in problem.objectives] == [1250] * 8
    counts = np.bincount(np.concatenate([f.y for f in problem.objectives]))
    assert counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    whole = mnist(data=str(MNIST), clients=1, l2=1e-2, split="writer-like").objectives[0]
    assert whole.smoothness == pytest.approx(20.3, abs=0.05)
    assert whole.A[:, :784].mean() * 255 == pytest.approx(33.79, abs=0.01)


@pytest.mark.nightly  # ten seconds; DualFL's rounds are held by its own tests
@needs_mnist
def test_dualfl_on_the_real_images():
    """Relative energies of the first rounds, as dualfl_mnist.toml states them."""
    experiment = Experiment.load(SIMS / "dualfl_mnist.toml", [f"data={MNIST}"])
    history = simulate(experiment.strategy(), experiment.problem(), 2)
    energy = np.array(history["objective"][-2:]) / 0.51422612 - 1
    assert energy == pytest.approx([5.0e-3, 1.66e-3], rel=0.01)


def test_the_folder_reaches_the_problem_from_the_command_line(tmp_path, capsys):
    write_mnist(tmp_path, "t10k", 40)
    command = ["compare", str(SIMS / "digits_l1.toml"), "--rounds", "1"]
    command += ["--run-dir", str(tmp_path / "out"), "--set", f"data={tmp_path}"]
    assert main([*command, "--set", "test_size=5"]) == 2  # the digits have no such key
    assert "unknown key 'data'" in capsys.readouterr().err
    command += ["--set", "problem.name=mnist", "--set", "test_size=5", "--set", "reference=false"]
    assert main(command) == 0
    with np.load(tmp_path / "out" / "feddualavg" / "model.npz") as model:
        assert (785, 10) in [model[name].shape for name in model.files]


# --- files that cannot be used --------------------------------------------------------------------

IMAGES = idx(np.zeros((3, 28, 28)))
LABELS = idx(np.arange(3))


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (b"\x00\x00\x0d\x03" + IMAGES[4:], LABELS, "begins with 00000d03, .* with 00000803"),
        (LABELS, LABELS, "begins with 00000801"),
        (IMAGES[:-1], LABELS, "ends after 2351 of 2352 bytes: it is truncated"),
        (IMAGES[:9], LABELS, "ends after 5 of 12 bytes"),
        (b"", LABELS, "ends after 0 of 4 bytes"),
        (IMAGES + b"x", LABELS, "goes on after the 3 x 28 x 28 bytes"),
        (idx(np.zeros((3, 28, 27))), LABELS, "holds 3 x 28 x 27 bytes, expected n x 28 x 28"),
        (idx(np.zeros((0, 28, 28))), LABELS, "holds 0 x 28 x 28"),
        (IMAGES[:4] + b"\xff" * 4 + IMAGES[8:], LABELS, "ends after 2352 of 3367254359280 bytes"),
        (gzip.compress(IMAGES)[:-9], LABELS, "cannot be read"),
        (gzip.compress(IMAGES)[:10] + b"\xff" * 30, LABELS, "cannot be read"),
        (gzip.compress(IMAGES)[:-8] + bytes(8), LABELS, "cannot be read"),
        (gzip.compress(IMAGES[:-1]), LABELS, "ends after 2351 of 2352 bytes"),
        (IMAGES, idx(np.arange(4)), "holds 3 images and .* 4 labels"),
        (IMAGES, idx(np.array([1, 10, 2])), "labels-idx1-ubyte holds a class 10, expected 0 to 9"),
    ],
    ids=range(15),
)
def test_damaged_idx_files(tmp_path, images, labels, words):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(ConfigError, match=words):
        mnist(data=str(tmp_path), clients=1)


def test_a_small_gzip_file_of_a_large_array_is_not_unpacked(tmp_path):
    bomb = gzip.compress(IMAGES + bytes(50_000_000))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(bomb)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(LABELS)
    with pytest.raises(ConfigError, match="goes on after"):
        mnist(data=str(tmp_path), clients=1)


def test_missing_files(tmp_path):
    with pytest.raises(ConfigError, match="holds no t10k-images-idx3-ubyte or t10k-images"):
        mnist(data=str(tmp_path))
    with pytest.raises(ConfigError, match="holds no train-images-idx3-ubyte"):
        mnist(data=str(tmp_path), part="train")
    write_mnist(tmp_path, "t10k", 9)
    with pytest.raises(ConfigError, match=r"10 clients .* at least 10 training images"):
        mnist(data=str(tmp_path), clients=10)
    with pytest.raises(ConfigError, match="part must be one of 'train', 'test', got 'all'"):
        mnist(data=str(tmp_path), part="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not both"):
        mnist(data=str(tmp_path), l1=1.0, l1_radius=1.0)
    with pytest.raises(ConfigError, match=r"data_batch_1\.bin cannot be read: No such file"):
        cifar10(data=str(tmp_path))


# --- CIFAR-10 -------------------------------------------------------------------------------------


def test_cifar_binary_files(tmp_path):
    parts = [write_cifar(tmp_path, f"data_batch_{i}", 4, i) for i in range(1, 6)]
    write_cifar(tmp_path, "test_batch", 3, 0)
    problem = cifar10(data=str(tmp_path), clients=2, split="writer-like")
    records = np.concatenate(parts)
    assert problem.x0.shape == (3073, 10)
    A = np.vstack([f.A for f in problem.objectives])
    np.testing.assert_array_equal(A[:, :3072], records[:, 1:] / 255)
    np.testing.assert_array_equal(np.concatenate([f.y for f in problem.objectives]), records[:, 0])
    assert "test_accuracy" in problem.metrics
    alone = cifar10(data=str(tmp_path), part="test", clients=3)
    assert [f.num_examples for f in alone.objectives] == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 bytes, expected a multiple of 3073"),
        (bytes(3072), "has 3072 bytes, expected a multiple of 3073"),
        (bytes([10]) + bytes(3072), "holds a class 10, expected 0 to 9"),
    ],
)
def test_damaged_cifar_files(tmp_path, content, words):
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        cifar10(data=str(tmp_path), part="test", clients=1)


# --- through flwr-datasets ------------------------------------------------------------------------


@pytest.mark.parametrize("builder", [mnist, cifar10, emnist])
def test_without_the_extra(builder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    words = r"pip install 'flower-fedcon\[datasets\]', or give a folder .* data"
    with pytest.raises(ConfigError, match=words):
        builder()


def write_femnist(folder):
    """Write a small dataset in the form of flwrlabs/femnist."""
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, size=(60, 28, 28)).astype(np.uint8)
    writers = rng.integers(0, 5, size=60)
    classes = np.where(np.arange(60) % 3 == 0, 30, np.arange(60) % 10)
    features = datasets.Features(
        image=datasets.Image(), writer_id=datasets.Value("string"),
        hsf_id=datasets.Value("int64"), character=datasets.Value("int64"),
    )  # fmt: skip
    columns = {
        "image": list(pixels), "writer_id": [f"f{w:04}" for w in writers],
        "hsf_id": [0] * 60, "character": classes.tolist(),
    }  # fmt: skip
    folder.mkdir()
    table = datasets.Dataset.from_dict(columns, features=features)
    table.to_parquet(folder / "train-00000-of-00001.parquet")
    return pixels, writers, classes


def test_writers_are_clients(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets", reason="needs the extra datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    pixels, writers, classes = write_femnist(tmp_path / "copy")
    problem = emnist(data=str(tmp_path / "copy"), clients=5, l1=1e-4)
    for j, f in enumerate(problem.objectives):
        rows = (writers == j) & (classes < 10)
        f = getattr(f, "objective", f)
        np.testing.assert_array_equal(f.A, pixels[rows].reshape(-1, 784) / 255)
        np.testing.assert_array_equal(f.y, classes[rows])
        assert problem.weights[j] == pytest.approx(rows.sum() / 40)
    rule = {"by": "natural", "column": "writer_id"}
    natural = emnist(data=str(tmp_path / "copy"), clients=5, partition=rule)
    for mine, theirs in zip(natural.objectives, problem.objectives, strict=True):
        np.testing.assert_array_equal(mine.y, getattr(theirs, "objective", theirs).y)
    with pytest.raises(ConfigError, match=r"partition: no column 'writer' .*writer_id"):
        emnist(data=str(tmp_path / "copy"), clients=5, partition={**rule, "column": "writer"})
    letters = emnist(data=str(tmp_path / "copy"), classes=62, clients=3, test_size=4)
    assert letters.x0.shape == (784, 62)
    assert "test_accuracy" in letters.metrics
    with pytest.raises(ConfigError, match="at most the 5 writers, got 6"):
        emnist(data=str(tmp_path / "copy"), clients=6)
    with pytest.raises(ConfigError, match=r"cannot load .*nowhere"):
        emnist(data=str(tmp_path / "nowhere"))


# --- the digits -----------------------------------------------------------------------------------


def test_digits_by_writer():
    """With 14 clients the blocks are almost the writers' series: a client's images look alike."""
    problem = digits(clients=14, split="writer-like", bias=False, test_size=0)
    A = np.vstack([f.A for f in problem.objectives])
    owner = np.repeat(np.arange(14), [f.num_examples for f in problem.objectives])
    distances = ((A**2).sum(1)[:, None] + (A**2).sum(1)) - 2 * A @ A.T
    np.fill_diagonal(distances, np.inf)
    assert (owner[distances.argmin(axis=1)] == owner).mean() > 0.45  # 0.07 by chance
    held = digits(clients=14, split="writer-like", bias=False, test_size=97)
    rows = np.vstack([f.A for f in held.objectives])
    found = [np.flatnonzero((row == A).all(axis=1))[0] for row in rows[::50]]
    assert found == sorted(found)
    assert len(rows) == 1700
