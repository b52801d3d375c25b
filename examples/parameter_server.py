"""A hierarchical parameter server on Ray: four workers on two machines, two servers. `pip install ray`, then python parameter_server.py

In each iteration a worker (1) reads its part of the data, (2) pulls the parameters, (3) computes the gradient and (4) pushes it; what workers of a
machine push is added up there, so that the network carries it once for each machine, and (5) the servers update the parameters. Here the machines
are groups of processes of one machine; with --cluster, on a node of a cluster of Ray (cluster/ray.yaml), they are where Ray places them.
"""

import argparse
import functools

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import calque
from calque import nn

WORKERS, BATCH, MACHINES = 4, 64, [[0, 1], [2, 3]]


def network():
    calque.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1)).double()


def examples(step):
    """A batch; every step has its own."""
    generator = calque.Generator().manual_seed(step)
    x = calque.randn(BATCH, 20, generator=generator, dtype=calque.float64)
    return x, x[:, :1] * x[:, 1:2] + x[:, 2:].sum(1, keepdim=True) * 0.1


def loss_of(net, x, y):
    return (net(x) - y).square().sum() / BATCH  # of the batch of all: the servers add up


@ray.remote(num_cpus=0.5)
def work(rank, steps):
    net = network()
    names = [name for name, _ in net.named_parameters()]
    weights = list(net.parameters())
    kv = calque.kvstore.create("dist_sync", rank=rank)
    kv.init(names, [w.detach() for w in weights])
    for step in range(steps):
        x, y = (part[rank::WORKERS] for part in examples(step))  # 1. read
        kv.pull(names, [w.detach() for w in weights])  # 2. pull
        net.zero_grad()
        loss_of(net, x, y).backward()  # 3. compute
        kv.push(names, [w.grad for w in weights])  # 4. push; 5. the servers update
    kv.close()
    return kv.traffic()[0]


def places(cluster):
    """By rank, where its worker has to run: those of a group on one node, the groups on different ones as far as there are nodes."""
    nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    groups = {rank: k for k, ranks in enumerate(MACHINES) for rank in ranks}
    return [{"scheduling_strategy": NodeAffinitySchedulingStrategy(nodes[groups[rank] % len(nodes)], soft=not cluster)} for rank in range(WORKERS)]


def alone(steps):
    """The same in one process."""
    net = network()
    optimizer = calque.optim.Adam(net.parameters(), lr=0.01)
    for step in range(steps):
        loss = loss_of(net, *examples(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net, loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cluster", action="store_true", help="take part in the cluster that runs here, and start none")
    options = parser.parse_args()
    steps = options.steps
    if options.cluster:
        ray.init("auto", logging_level="error")
    else:
        ray.init(num_cpus=4, object_store_memory=200_000_000, include_dashboard=False, logging_level="error")
    net = network()
    parameters = dict(net.named_parameters())
    with calque.kvstore.create("dist_sync", num_workers=WORKERS, servers=2, machines=MACHINES, split=1000) as kv:
        kv.init(list(parameters), [w.detach() for w in parameters.values()])
        kv.set_optimizer(functools.partial(calque.optim.Adam, lr=0.01))
        sent = sum(ray.get([work.options(**place).remote(rank, steps) for rank, place in enumerate(places(options.cluster))]))
        crossed = sum(kv.machine_traffic(machine)[0] for machine in range(len(MACHINES)))
        kv.pull(list(parameters), [w.detach() for w in parameters.values()])
    ray.shutdown()
    other, loss = alone(steps)
    same = all(calque.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(net.parameters(), other.parameters()))
    print(f"workers pushed {sent:,} bytes, of which the network 1/{round(sent / crossed)}; loss {loss:.4f}; same parameters as one process: {same}")


if __name__ == "__main__":
    main()
