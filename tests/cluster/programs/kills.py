"""Four workers push ones while servers are killed: python kills.py KIND KILLS [MACHINES]. Prints how often was pushed, and what the servers hold."""

import functools
import random
import sys
import time

import ray

import calque

KIND, KILLS = sys.argv[1], int(sys.argv[2])
MACHINES = [[0, 1], [2, 3]] if sys.argv[3:] else None
KEYS, SHAPES = ["large", 7], [(40, 25), (3,)]


@ray.remote(num_cpus=0.25)
class Flag:
    def __init__(self):
        self.over = False

    def end(self):
        self.over = True

    def ended(self):
        return self.over


@ray.remote(num_cpus=0.25)
def work(rank, flag):
    kv = calque.kvstore.create(KIND, rank=rank)
    out = [calque.zeros(*shape) for shape in SHAPES]
    kv.init(KEYS, out)
    kv.pull(KEYS, out)
    chance, pushes, until = random.Random(rank), 0, flag.ended.remote()
    while True:
        kv.push(KEYS, [-calque.ones(*shape) for shape in SHAPES])
        pushes += 1
        if chance.random() < 0.3:
            kv.pull(KEYS, out)
        if ray.wait([until], timeout=0)[0]:
            if ray.get(until):
                break
            until = flag.ended.remote()
    kv.close()
    return pushes


def come_back(server):
    """Wait until a server that was killed answers."""
    while True:
        try:
            return ray.get(server.alive.remote())
        except ray.exceptions.ActorUnavailableError:
            time.sleep(0.05)


ray.init(num_cpus=4, object_store_memory=200_000_000, include_dashboard=False, logging_level="error")
with calque.kvstore.create(KIND, num_workers=4, split=100, snapshot=4, machines=MACHINES, timeout=120) as kv:
    kv.init(KEYS, [calque.zeros(*shape) for shape in SHAPES])
    kv.set_optimizer(functools.partial(calque.optim.SGD, lr=1.0))
    flag = Flag.remote()
    jobs = [work.remote(rank, flag) for rank in range(4)]
    servers = ray.get(kv._keeper.around.remote(None, ""))[1]
    for _ in range(KILLS):
        assert not ray.wait(jobs, timeout=random.uniform(0.1, 1.0))[0], ray.get(jobs)
        victim = random.choice(servers)
        ray.kill(victim, no_restart=False)
        if random.random() < 0.8:  # else the next one dies, or the same once more, before this one is back
            come_back(victim)
    ray.get(flag.end.remote())
    pushes = ray.get(jobs)
    out = [calque.zeros(*shape) for shape in SHAPES]
    kv.pull(KEYS, out)
ray.shutdown()
print("pushed", sum(pushes), "held", *sorted({v for o in out for v in o.flatten().tolist()}))
