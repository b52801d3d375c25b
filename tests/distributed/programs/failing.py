"""One rank does something else in its second call; run by test_failures.py, which reads what every live rank says."""

import os
import signal
import sys
import time

import calque
import calque.distributed as dist

mode, folder = sys.argv[1:]
LAST_WORDS = {"vanish": lambda: os._exit(0), "code": lambda: os._exit(3), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}  # none
silent = mode in ("vanish", "code", "kill", "torn")  # must be noticed long before the timeout
dist.init_process_group("mpi", timeout=120 if silent else 3, flight_folder=folder)
rank = dist.get_rank()
t = calque.ones(3)
dist.all_reduce(t)
t.tolist()
if rank == 1:
    if mode == "raise":
        raise ValueError("boom")
    if mode == "exit":
        sys.exit(0)
    if mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode in LAST_WORDS:
        LAST_WORDS[mode]()
    if mode == "sleep":
        time.sleep(60)
    if mode == "order":
        dist.barrier()
    if mode == "shape":
        t = calque.ones(4)
    if mode == "dtype":
        t = t.double()
if mode == "middle":  # everybody has come, and then one stops while data moves
    t = calque.ones(3_000_000)
    pg = dist.group.WORLD
    usual = pg.all_reduce
    if rank == 1:
        pg.all_reduce = lambda *arguments: (os.kill(os.getpid(), signal.SIGSTOP), usual(*arguments))
if mode == "torn":  # the same, and it dies without a word
    t = calque.ones(3_000_000)
    if rank == 1:
        dist.group.WORLD.all_reduce = lambda *arguments: os._exit(0)
if mode == "inside":  # the same, and it ends by an error
    t = calque.ones(3_000_000)
    if rank == 1:
        dist.group.WORLD.broadcast = lambda *arguments: 1 // 0
    dist.broadcast(t, 1)
    t.tolist()
if mode == "silent":  # nobody reads what failed; the process must not end as if all were well
    dist.all_reduce(calque.ones(30_000 + rank))
    sys.exit(0)
if mode == "loaded":  # a checkpoint, on one rank alone
    model = calque.nn.Linear(3, 1)
    ours = dist.DistributedDataParallel(model)
    if rank == 1:
        ours.load_state_dict({"module.weight": calque.full((1, 3), 7.0), "module.bias": calque.zeros(1)})
    ours(t).sum().backward()
    model.weight.grad.tolist()
if mode == "message":
    if rank == 0:
        dist.recv(t, 1)
    sys.exit(0)
dist.all_reduce(t)
t.tolist()
