"""Models of videos, (N, 3, T, H, W). Names as in `torchvision.models.video`."""

from calque.vision.models.video.mvit import MViT, mvit_v1_b, mvit_v2_s
from calque.vision.models.video.resnet import VideoResNet, mc3_18, r2plus1d_18, r3d_18
from calque.vision.models.video.s3d import S3D, s3d
from calque.vision.models.video.swin_transformer import SwinTransformer3d, swin3d_b, swin3d_s, swin3d_t

__all__ = [
    "S3D", "MViT", "SwinTransformer3d", "VideoResNet", "mc3_18", "mvit_v1_b", "mvit_v2_s", "r2plus1d_18", "r3d_18", "s3d", "swin3d_b", "swin3d_s",
    "swin3d_t",
]  # fmt: skip
