"""Super-resolution by sub-pixel convolution: the network works at the low resolution, and its last channels become the missing pixels."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.init as init
from common import draw_weights, is_reported, options

SIDE = 32


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 32, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(32, 32, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(32, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        init.constant_(self.conv3.bias, 0.5)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))


def waves(rng, count):
    """(count, 1, SIDE, SIDE) pictures with values from 0 to 1: three plane waves each, cut by an edge."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    picture = np.zeros((count, SIDE, SIDE))
    for _ in range(3):
        a, b, phase = rng.uniform(-20, 20, (3, count, 1, 1))
        picture += np.sin(a * x + b * y + phase)
    edge = x * rng.uniform(-1, 1, (count, 1, 1)) + y > rng.uniform(0, 1, (count, 1, 1))
    picture = 0.5 + picture / 6
    return torch.from_numpy(np.where(edge, picture, 1 - picture).astype(np.float32)).unsqueeze(1)


def main():
    parser = options(__doc__, steps=150)
    parser.add_argument("--upscale-factor", type=int, default=2)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    model = draw_weights(Net(args.upscale_factor), rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    for step in range(1, args.steps + 1):
        target = waves(rng, 8)
        small = nn.functional.avg_pool2d(target, args.upscale_factor)
        optimizer.zero_grad()
        loss = criterion(model(small), target)
        loss.backward()
        optimizer.step()
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.6f}")

    target = waves(rng, 16)
    small = nn.functional.avg_pool2d(target, args.upscale_factor)
    with torch.no_grad():
        ours = criterion(model(small), target).item()
        bilinear = criterion(nn.functional.interpolate(small, scale_factor=args.upscale_factor, mode="bilinear", align_corners=False), target).item()
    print(f"PSNR {10 * math.log10(1 / ours):.2f} dB bilinear {10 * math.log10(1 / bilinear):.2f} dB")


if __name__ == "__main__":
    main()
