"""Programs of examples/ run without PyTorch, and their page names all of them. tests/oracle/test_examples.py compares every one with PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples_runner import FOLDER, PROGRAMS, ROOT, differences, losses, printed

EXPECTED = {  # what PyTorch 2.13 computes with --steps 5
    "graph_attention": [1.42812, 1.36680, 1.30938, 1.25515, 1.20346],
    "super_resolution": [0.294465, 0.090450, 0.082681, 0.113685, 0.090402],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs_without_pytorch(name: str) -> None:
    assert losses(printed(name, "--steps", "5", by="calque")) == pytest.approx(EXPECTED[name], rel=1e-3)


def test_the_page_names_every_program() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)\.py`", page)) >= {file.stem for file in FOLDER.glob("*.py")}
    assert set(re.findall(r"calque run examples/(\w+)\.py", page)) == set(PROGRAMS)
    assert len(PROGRAMS) >= 11


@pytest.mark.mpi
def test_two_processes_train_on_a_folder_of_images_and_go_on_behind_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    whole = printed("imagenet", "--steps", "8", "--checkpoints", str(tmp_path), by="calque").splitlines()
    assert len(whole) == 10 and sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.pth.tar", "model_best.pth.tar"]
    first = printed("imagenet", "--steps", "4", "--checkpoints", str(tmp_path), by="calque").splitlines()
    rest = printed("imagenet", "--steps", "8", "--resume", str(tmp_path / "checkpoint.pth.tar"), by="calque").splitlines()
    assert not differences("\n".join(first + rest), "\n".join(whole), rel=1e-5, absolute=1e-5)


@pytest.mark.mpi
@pytest.mark.slow
def test_one_process_and_two_have_the_same_losses() -> None:
    found = {n: printed("imagenet", "--steps", "6", "--processes", n, by="calque") for n in ("1", "2")}
    assert not differences(found["1"], found["2"])


@pytest.mark.mpi
def test_a_gang_goes_on_when_a_process_dies_and_with_fewer_when_it_dies_again() -> None:
    words = ["launch", "-n", "3", "--restarts", "3", "--min", "2", "--no-prefix", str(FOLDER / "elastic.py"), "--kill", "2@3,2@3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "calque", *words], capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    *starts, end = done.stdout.splitlines()
    assert starts == [f"goes on at epoch 0, step 2, with {count} processes" for count in (3, 2)]
    assert "2 processes in the end, every sample once in each epoch: True" in end
    assert done.stderr.count("was killed by signal 9 (SIGKILL)") == 2


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "ray"])
def test_a_search_on_digits(runner: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    if runner == "ray":
        pytest.importorskip("ray.tune", exc_type=ImportError)
    words = [str(FOLDER / "tune_digits.py"), "--trials", "2", "--epochs", "2", "--runner", runner]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=500, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    best = re.search(r"best: \{.*\}, loss ([\d.]+), accuracy ([\d.]+)", done.stdout)
    assert best is not None and float(best[1]) < 2.4 and 0 <= float(best[2]) <= 1, done.stdout[-2000:]


def test_the_script_for_slurm_starts_a_program_once_for_each_task(tmp_path: Path) -> None:
    """`srun` and `scontrol` are played by small scripts: what the tasks get is what `init_process_group` reads."""
    (tmp_path / "scontrol").write_text('#!/bin/bash\n[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n')
    (tmp_path / "srun").write_text(
        "#!/bin/bash\n"
        'while [[ "$1" == --* ]]; do echo "$1"; shift; done\n'
        'for k in 0 1; do SLURM_PROCID=$k SLURM_LOCALID=$k SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 "$@"; done\n'
    )
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'OMP_NUM_THREADS')\n"
        "print(json.dumps([sys.argv[1:], *(os.environ[n] for n in names)]))\n"
    )
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "41234", "SLURM_CPUS_PER_TASK": "3", "PYTHON": sys.executable}
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["bash", str(FOLDER / "cluster" / "train.slurm"), str(tmp_path / "train.py"), "--epochs", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["--mpi=none", "--kill-on-bad-exit=1", "--label"]
    assert [json.loads(line) for line in lines[3:]] == [[["--epochs", "2"], str(k), str(k), "2", "2", "n1", "21234", "3"] for k in range(2)]
    nothing = subprocess.run(words[:2], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert nothing.returncode == 2 and "usage: sbatch" in nothing.stderr


def test_the_cluster_of_ray_is_one_that_ray_accepts() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    yaml, util = pytest.importorskip("yaml"), pytest.importorskip("ray.autoscaler._private.util", exc_type=ImportError)
    config = yaml.safe_load((FOLDER / "cluster" / "ray.yaml").read_text(encoding="utf-8"))
    schema = json.loads((Path(util.__file__).parents[1] / "ray-schema.json").read_text(encoding="utf-8"))
    pytest.importorskip("jsonschema").validate(config, schema)
    prepared = util.prepare_config(config)  # as `ray up` does
    util.validate_config(prepared)
    assert prepared["available_node_types"]["local.cluster.node"]["max_workers"] == len(config["provider"]["worker_ips"])


def test_differences_are_seen() -> None:
    assert not differences("step 1 loss 0.50001\n'a 7'", "step 1 loss 0.50002\n'a 7'")
    assert differences("step 1 loss 0.51\nb", "step 1 loss 0.5\nc") == ["'step 1 loss 0.51' instead of 'step 1 loss 0.5'", "'b' instead of 'c'"]
    assert differences("step 2 loss 0.5", "step 1 loss 0.5") and differences("step 1 loss nan", "step 1 loss 0.5")
    assert differences("step 1", "step 1\nstep 2") == ["1 lines instead of 2"]
