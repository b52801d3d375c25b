"""What runs on the actors of a cluster of Ray: servers of parameters, as `calque.kvstore.create("dist_sync")` gives them."""

from calque.cluster.store import ClusterStore

__all__ = ["ClusterStore"]
