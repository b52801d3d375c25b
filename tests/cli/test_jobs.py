"""`calque init`, `train`, `finetune`, `evaluate`, `predict`, `export`, `info`, `doctor`, `show-augment`, `completion` as a user runs them."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calque
from calque.base.errors import CheckpointError
from calque.cli import main
from calque.train import Checkpoints
from calque.train.recipe import FIELDS, read_recipe

Image = pytest.importorskip("PIL.Image")
KINDS = ("blue", "green", "red")
RECIPE = """
[data]
path = "colours"
workers = 0
[images]
size = 16
[training]
epochs = 4
batch_size = 8
save_every = 2
[output]
folder = "run"
"""


def make_images(root: Path, count: int = 12, kinds: tuple[str, ...] = KINDS) -> None:
    """A folder for each class; a class is a colour, and a place of the light."""
    rng = np.random.default_rng(0)
    for kind in kinds:
        (root / kind).mkdir(parents=True)
        for k in range(count):
            pixels = rng.integers(0, 90, (20 + k % 5, 24, 3)).astype(np.uint8)
            pixels[..., {"red": 0, "green": 1, "blue": 2}[kind]] += 150
            Image.fromarray(pixels).save(root / kind / f"{k}.jpg")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with images, a recipe and a run of it."""
    folder = tmp_path_factory.mktemp("jobs")
    make_images(folder / "colours")
    (folder / "calque.toml").write_text(RECIPE)
    with contextlib.chdir(folder):
        assert main(["train", "calque.toml", "--quiet"]) == 0
    yield folder


@pytest.fixture
def here(made: Path) -> Iterator[Path]:
    with contextlib.chdir(made):
        yield made


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints; on the standard error if it fails."""
    capsys.readouterr()
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return err if code else out


def test_from_a_folder_of_images_to_a_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / "photos", 16)
    (tmp_path / "photos" / "red" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / ".hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "48 images of 3 classes (blue 16, green 16, red 16)" in said(capsys, "init", "photos")
    text = said(capsys, "train", "calque.toml", "--epochs", "8")
    for fact in ("36 for training", "validation", "test samples: accuracy 100.0%", "run", "calque predict"):
        assert fact in text
    run = tmp_path / "runs" / "photos"
    rows = list(csv.DictReader(said(capsys, "predict", "runs/photos", "photos/red/1.jpg", "photos/blue").splitlines()))
    assert len(rows) == 17 and rows[0]["class"] == "red" and {row["class"] for row in rows[1:]} == {"blue"} and float(rows[0]["probability"]) > 0.4
    found = json.loads(said(capsys, "evaluate", "runs/photos", "--json"))
    assert found["accuracy"] == 1.0 and np.sum(found["confusion"]) == found["samples"]
    loaded = calque.load_exported(run / "model.calque")
    red = calque.zeros(2, 3, 32, 32)
    red[:, 0] = 0.8
    assert loaded(red).argmax(1).tolist() == [2, 2]
    assert "accuracy 100.0%" in said(capsys, "info", "runs/photos")


def test_every_line_of_a_recipe_that_is_written_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_images(tmp_path / 'odd "name"', 3)
    target = tmp_path / "a.toml"
    said(capsys, "init", str(tmp_path / 'odd "name"'), "--recipe", str(target))
    recipe = read_recipe(target)
    assert recipe.path(recipe["data"]["path"]) == tmp_path / 'odd "name"'
    for section, fields in FIELDS.items():
        for field in fields:
            assert field.only == "table" or f"\n{field.name} = " in target.read_text(), (section, field)
    assert "expected a name that is free" in said(capsys, "init", str(tmp_path / 'odd "name"'), "--recipe", str(target), code=2)


WRONG_RECIPES = [
    ("data = 3", r"expected [data] to be a section in"),
    ("[data]\npath = colours", 'texts stand in quotes, such as path = "photos"'),
    ("[data]\n", "expected data.path in"),
    ('[dta]\npath = "x"', "did you mean 'data'?"),
    ('[data]\npath = "colours"\n[training]\nlr = "a"', "expected training.lr to be a number at least 0"),
    ('[data]\npath = "colours"\n[training]\nepochs = 0', "expected training.epochs to be a whole number at least 1 and at most 1e+06"),
    ('[data]\npath = "colours"\n[training]\nepochs = true', "expected training.epochs to be a whole number"),
    ('[data]\npath = "colours"\n[training]\nlr = nan', "expected training.lr to be a number"),
    ('[data]\npath = "colours"\nlr = 0.1', "it belongs under [training]"),
    ('[data]\npath = "colours"\nvalidation = 1.0', "expected data.validation to be a share from 0 to below 1, or a path"),
    ('[data]\npath = "colours"\nvalidation = 0.0', "got none of 36 with data.validation = 0.0"),
    ('[data]\npath = "colours"\nvalidation = "nowhere"', "which is not there"),
    ('[data]\npath = "colors"', "did you mean"),
    ('[data]\npath = "colours/red"', "got 12 images without such folders"),
    ('[data]\npath = "colours"\n[model]\nname = "resnet19"', "did you mean 'resnet18'?"),
    ('[data]\npath = "colours"\n[model]\nname = "mlp"', "for images, got 'mlp'"),
    ('[data]\npath = "colours"\n[model]\nweights = "none.pt"', "there is no file"),
    ('[data]\npath = "colours"\n[model]\nfreeze_until = "layer9"', "layer9"),
    ('[data]\npath = "t.csv"', "expected a table, got"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_RECIPES)
def test_wrong_recipes(here: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (here / "wrong.toml").write_text(text)
    assert message in said(capsys, "train", "wrong.toml", "--out", "other", code=2)


def test_wrong_words(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bad").mkdir(exist_ok=True)
    (here / "bad" / "x.jpg").write_text("no image")
    for words, message in (
        (("train", "absent.toml"), "which is not there; there are calque.toml"),
        (("train", "colours"), "make a recipe for it with: calque init colours"),
        (("train", "calque.toml"), "--resume goes on with it, --restart begins anew"),
        (("train", "calque.toml", "--out", "fresh", "--resume"), "expected a run to go on with in"),
        (("train", "calque.toml", "--out", "fresh", "--epochs", "0"), "expected --epochs of at least 1"),
        (("finetune", "calque.toml"), "expected trained weights to begin with"),
        (("init", "colours"), "expected a name that is free"),
        (("init", "bad", "--recipe", "b.toml"), "got 1 images without such folders"),
        (("predict", "absent", "x.jpg"), "expected the folder of a run"),
        (("predict", "colours", "x.jpg"), "expected a trained model (model.calque and model.json)"),
        (("predict", "run", "x.jpg"), "which is not there"),
        (("predict", "run", "bad/x.jpg"), "got 1 file that is none: bad/x.jpg"),
        (("predict", "run", "colours", "--top", "0"), "expected --top of at least 1"),
        (("evaluate", "run", "bad"), "expected a folder of images for each"),
        (("export", "colours"), "expected the folder of a run"),
        (("show-augment", "calque.toml", "--rows", "0"), "expected --rows from 1 to 100"),
        (("show-augment", "calque.toml", "--out", "picture.xyz"), "expected a picture to write"),
        (("info", "absent"), "which is not there"),
        (("info", "colours/red/1.jpg"), "got the image"),
    ):
        assert message in said(capsys, *words, code=2), words


def test_damaged_images_are_named_before_anything_is_trained(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(here / "colours", here / "damaged")
    (here / "damaged" / "red" / "0.jpg").write_bytes(b"")
    (here / "damaged" / "blue" / "0.jpg").write_bytes(b"text")
    (here / "d.toml").write_text(RECIPE.replace('"colours"', '"damaged"'))
    text = said(capsys, "train", "d.toml", "--out", "d", code=2)
    assert "got 2 files that are none" in text and "damaged/red/0.jpg (empty)" in text and not (here / "d").exists()
    for name in ("red", "blue"):
        whole = (here / "colours" / name / "0.jpg").read_bytes()
        (here / "damaged" / name / "0.jpg").write_bytes(whole[: len(whole) - 150])  # what only decoding finds
    assert "0.jpg', got one that cannot be read" in said(capsys, "train", "d.toml", "--out", "d", "--restart", code=2)


def test_a_run_of_which_nothing_could_be_written_says_so(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full from the first epoch on: the message was about an argument of the method that saves."""
    save, full = calque.save, [True]

    def saved(state: Any, path: Any, **options: Any) -> None:
        if full[0] and "epoch000" not in str(path):
            raise CheckpointError(f"[save] cannot write {str(path)!r}: No space left on device")
        save(state, path, **options)

    monkeypatch.setattr(calque, "save", saved)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = said(capsys, "train", "calque.toml", "--quiet", "--out", "full", code=2)
    assert f"a checkpoint of an epoch in {here / 'full'}, got none that could be written; make room, then: --resume" in text
    full[0] = False
    said(capsys, "train", "calque.toml", "--quiet", "--out", "full", "--resume")
    assert (here / "full" / "model.calque").exists()


def test_links_among_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One to a folder above was followed forty times, and the images of all classes became those of one."""
    shutil.copytree(here / "colours", here / "linked")
    (here / "linked" / "red" / "all").symlink_to(here / "linked")
    (here / "linked" / "more").symlink_to(here / "linked" / "blue")
    counts = {name: len(list((here / "colours" / name).iterdir())) for name in ("red", "blue")}
    text = said(capsys, "info", str(here / "linked"))
    assert f"red {counts['red']}" in text and f"more {counts['blue']}" in text
    (here / "linked" / "red" / "gone.jpg").symlink_to("/nowhere.jpg")
    assert "red/gone.jpg (a link to nothing)" in said(capsys, "init", str(here / "linked"), "--recipe", str(here / "l.toml"), code=2)


def test_a_run_that_was_killed_goes_on_to_the_same_losses(here: Path) -> None:
    """With worker processes; killed behind its first checkpoint inside an epoch, and told another number of epochs before."""
    text = RECIPE.replace("workers = 0", "workers = 2").replace('"run"', '"killed"')
    (here / "killed.toml").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(Path(calque.__file__).parents[1])}
    command = [sys.executable, "-m", "calque", "train", "killed.toml", "--quiet", "--threads", "1"]
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (here / "killed" / "index.json").exists() and len(list((here / "killed").glob("*.calque"))) > 1:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    subprocess.run([*command, "--resume"], env=environment, check=True, timeout=300)
    assert (here / "killed" / "losses.jsonl").read_text() == (here / "run" / "losses.jsonl").read_text()
    assert (here / "killed" / "model.calque").exists()


def test_finetuning_begins_with_the_weights_of_another_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "finetune", "calque.toml", "--weights", "run", "--freeze-until", "features.2", "--epochs", "1", "--out", "tuned")
    assert "weights from" in text and "tensors before features.2 stay as they are" in text
    before, after = (calque.load(Checkpoints(here / name).best)["model_state_dict"] for name in ("run", "tuned"))
    same = {name for name in before if calque.equal(before[name], after[name])}
    assert {n for n in before if n.startswith(("features.0", "features.1"))} <= same and "head.3.weight" not in same


def test_mixed_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mixed.toml").write_text(RECIPE.replace("size = 16", "size = 16\nmixup = 0.4"))
    assert "accuracy" in said(capsys, "train", "mixed.toml", "--epochs", "1", "--out", "mixed")
    assert (here / "mixed" / "losses.jsonl").read_text().splitlines()[:2] != (here / "run" / "losses.jsonl").read_text().splitlines()[:2]


def test_what_was_learned_from_is_not_evaluated_unawares(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(here / "run", here / "moved")
    shutil.copytree(here / "colours", here / "more")
    text = (here / "moved" / "recipe.toml").read_text()
    (here / "moved" / "recipe.toml").write_text(text.replace(str(here / "colours"), str(here / "more")))
    assert "accuracy" in said(capsys, "evaluate", "moved")
    shutil.copy(here / "more" / "red" / "0.jpg", here / "more" / "red" / "another.jpg")
    assert "got other samples: some for the test may have been learned from" in said(capsys, "evaluate", "moved", code=2)
    assert "37 samples" in said(capsys, "evaluate", "moved", "more")
    (here / "moved" / "model.json").write_text('{"version": 1}')
    assert "expected what a run has written" in said(capsys, "evaluate", "moved", code=2)


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) * (1.0, 1000.0)
    with open("t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "name", "kind", "price"])
        writer.writerows([a, b, "x", "high" if a > 0 else "low", 200_000 + 50_000 * a + 20 * b] for a, b in x)
    assert "expected --target with the name" in said(capsys, "init", "t.csv", code=2)
    assert "expected --target to be one of a, b, name, kind, price" in said(capsys, "init", "t.csv", "--target", "knd", code=2)
    for target, fact in (("kind", "accuracy"), ("price", "explained share (R2) ")):
        said(capsys, "init", "t.csv", "--target", target, "--force")
        assert fact in said(capsys, "train", "calque.toml", "--epochs", "40", "--out", target)
    rows = list(csv.DictReader(said(capsys, "predict", "kind", "t.csv").splitlines()))
    assert np.mean([(row["class"] == "high") == (a > 0) for row, a in zip(rows, x[:, 0])]) > 0.95
    rows = list(csv.DictReader(said(capsys, "predict", "price", "t.csv").splitlines()))
    assert abs(float(rows[0]["price"]) - (200_000 + 50_000 * x[0, 0] + 20 * x[0, 1])) < 20_000
    assert "expected one table" in said(capsys, "predict", "price", "x.jpg", code=2)
    assert "5 columns" in said(capsys, "info", "t.csv") and "numbers" in said(capsys, "info", "price")
    assert "limit: computing" in said(capsys, "doctor", "calque.toml")


def test_other_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "show-augment", "calque.toml", "--rows", "2", "--columns", "3", "--out", "sheet.png")
    with Image.open("sheet.png") as sheet:
        assert sheet.size == (4 * 20 + 4, 2 * 34 + 4)
    for words, fact in (
        (("doctor", "calque.toml"), "limit: "),
        (("info", "run/model.calque"), "an exported program"),
        (("info", "calque.toml"), "a recipe of `calque train` for colours (images)"),
        (("info", "colours"), "36 images of 3 classes"),
        (("info", str(Checkpoints("run").best)), "a checkpoint: epoch"),
        (("export", "run"), "run/model.calque"),
    ):
        assert fact in said(capsys, *words), words
    assert not [name for name in os.listdir(".") if name.startswith(".doctor")]
    for shell in ("bash", "zsh", "fish"):
        assert "finetune" in said(capsys, "completion", shell)


def test_the_tab_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    (tmp_path / "c.sh").write_text(said(capsys, "completion", "bash"))
    (tmp_path / "calque.toml").write_text("")

    def completed(*words: str) -> list[str]:
        given = " ".join(f"'{word}'" for word in words)
        script = f'source ./c.sh; COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _calque; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

    assert completed("calque", "tra") == ["train"] and completed("calque", "train", "--re") == ["--resume", "--restart"]
    assert completed("calque", "train", "cal") == ["calque.toml"]


@pytest.mark.parametrize(("content", "said"), [
    (b"a,b,k\n1,2,u\n3,v\n", "got none: [TableDataset] expected 3 cells in line 3"), (b"a,a,k\n1,2,u\n", "expected each name of a column once"),
    (b"a,k\nx,u\ny,v\n", "expected a number in row 0"), (b"k\nu\n", "got none: there is no other column"),
    (b"a,k\xff\n1,2\n", "expected text of UTF-8"), (b"", "got an empty file"), (b"a;k\n1;u\n", "'k'; its columns seem to be separated by ';'"),
    (b'a,k\n1,"u\n2,v\n', "a quote that is never closed"), (b"a,k\n1,u\ninf,v\n", "expected finite numbers in row 1"),
    (b"a,k\n1,2.5\n2,\n", "expected a target in row 1"),
])  # fmt: skip
def test_why_a_table_has_no_columns_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str) -> None:
    (tmp_path / "table.csv").write_bytes(content)
    assert main(["init", str(tmp_path / "table.csv"), "--target", "k", "--recipe", str(tmp_path / "r.toml")]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "r.toml").exists()


def test_a_column_of_numbers_with_a_text_in_it_is_named_with_its_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text("a,b,c,k\n1,2,x,u\n2,o.5,y,v\n3,4,z,u\n")
    assert main(["init", str(tmp_path / "table.csv"), "--target", "k", "--recipe", str(tmp_path / "r.toml")]) == 0
    out, err = capsys.readouterr()
    assert err == "note: left out are columns of texts: b ('o.5' in row 1, counted from 0), c\n" and "3 rows, 1 column of numbers" in out
