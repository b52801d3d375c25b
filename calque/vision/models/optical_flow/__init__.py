"""Models of how pixels move from one image to the next. Names as in `torchvision.models.optical_flow`."""

from calque.vision.models.optical_flow.raft import RAFT, raft_large, raft_small

__all__ = ["RAFT", "raft_large", "raft_small"]
