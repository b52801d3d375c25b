"""`torch.distributions.multivariate_normal`: private functions that libraries of distributions import."""

from calque.distributions.multivariate_normal import batch_mahalanobis as _batch_mahalanobis
from calque.distributions.multivariate_normal import batch_mv as _batch_mv
from calque.distributions.multivariate_normal import precision_to_scale_tril as _precision_to_scale_tril

__all__ = ["_batch_mahalanobis", "_batch_mv", "_precision_to_scale_tril"]
