"""Mistakes with parameter servers, and what they say, a line each; then how many actors are left."""

import ray

import calque
from calque.base.errors import CalqueError


def said(work, *given):
    """What an error says, on one line; it must be one of ours."""
    try:
        work(*given)
    except CalqueError as error:
        print(str(error).replace("\n", " "), flush=True)
    else:
        print("nothing", flush=True)


def create(**options):
    return calque.kvstore.create("dist_sync", **options)


said(lambda: create(num_workers=2))
ray.init(num_cpus=4, object_store_memory=200_000_000, include_dashboard=False, logging_level="error", log_to_driver=False)
said(lambda: create(rank=0))
kv = create(num_workers=2, timeout=5.0)
said(lambda: create(num_workers=2))
said(lambda: create(rank=2))
said(lambda: calque.kvstore.create("dist_async", rank=0))
kv.init("w", calque.zeros(2))
said(lambda: kv.push("w", calque.ones(2)))
worker = create(rank=0)
worker.init("w", calque.zeros(2))
said(lambda: worker.push("w", calque.ones(3)))
said(lambda: worker.push("w", calque.ones(2, dtype=calque.float64)))
said(lambda: worker.pull("v", calque.zeros(2)))
with create(num_workers=2, timeout=5.0, job="other") as other:
    other.init("w", calque.zeros(2))
    second = create(rank=1, job="other")
    second.init("w", calque.zeros(3))
    said(lambda: second.pull("w", calque.zeros(3)))
said(lambda: other.pull("w", calque.zeros(2)))
worker.push("w", calque.ones(2))
said(lambda: worker.pull("w", calque.zeros(2)))
kv.close()
kv.close()
print("left", len(ray.util.list_named_actors()))
ray.shutdown()
