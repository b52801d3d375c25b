"""`torch.distributed.run`, which is torchrun: `calque run -m torch.distributed.run --nproc_per_node 2 train.py` is
`calque launch -n 2 --no-prefix -m calque run train.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from calque.base.config import available_cores
from calque.distributed.launch import launch

__all__ = ["main"]

_WITHOUT_MEANING = (
    "--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--rdzv_conf", "--master_addr", "--master_port", "--monitor_interval", "--run_path",
)  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrun", description="Start a program in several processes of this machine.", allow_abbrev=False)
    parser.add_argument("--nproc_per_node", "--nproc-per-node", default="1", help="number of processes; cpu, gpu or auto: one for each core")
    parser.add_argument("--nnodes", default="1", help="1: other machines are joined by mpiexec")
    parser.add_argument("--node_rank", "--node-rank", type=int, default=0)
    parser.add_argument("--max_restarts", "--max-restarts", type=int, default=0, help="how often all are started anew when one has failed")
    parser.add_argument("--standalone", action="store_true", help="always so")
    for name in _WITHOUT_MEANING:
        parser.add_argument(name, name.replace("_", "-"), default=None, help="without meaning on one machine")
    parser.add_argument("-m", "--module", action="store_true", help="the program is the name of a module")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line `args` (default: that of this process) and exit with the code of its processes."""
    parser = _parser()
    options = parser.parse_args(args)
    if options.nnodes not in ("1", "1:1") or options.node_rank:
        parser.error(f"argument --nnodes: expected 1, got {options.nnodes}; start ranks on several machines with mpiexec -hosts a,b calque run ...")
    count = available_cores() if options.nproc_per_node in ("cpu", "gpu", "auto") else options.nproc_per_node
    if not str(count).isdecimal() or int(count) < 1:
        parser.error(f"argument --nproc_per_node: expected a number, cpu, gpu or auto, got {count}")
    program = [*(["-m"] if options.module else []), options.training_script, *options.training_script_args]
    sys.exit(launch([sys.executable, "-m", "calque", "run", *program], int(count), prefix=False, restarts=options.max_restarts))

