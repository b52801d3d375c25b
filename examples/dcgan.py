"""A convolutional GAN: a generator learns to draw rings from noise by deceiving a discriminator that has seen real ones."""

import numpy as np
import torch
import torch.nn as nn
from common import is_reported, normal, options

SIDE = 16


class Generator(nn.Module):
    def __init__(self, latent=16, width=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(latent, width * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width * 2, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(width * 2, 1, 4, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).flatten()


def rings(rng, count):
    """(count, 1, SIDE, SIDE) pictures with values from -1 to 1."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    radius, place = rng.uniform(2.5, 6, (count, 1, 1)), rng.uniform(7, 8, (2, count, 1, 1))
    distance = np.hypot(x - place[0], y - place[1]) - radius
    return torch.from_numpy((2 * np.exp(-(distance**2)) - 1).astype(np.float32)).unsqueeze(1)


def draw_convolutions(module, rng):
    """Small normal weights in convolutions, scales around one in batch normalisation."""

    def draw(layer):
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            layer.weight.data.copy_(0.05 * normal(rng, *layer.weight.shape))
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.copy_(1 + 0.02 * normal(rng, *layer.weight.shape))
            nn.init.zeros_(layer.bias)

    return module.apply(draw)


def main():
    parser = options(__doc__, steps=100)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    generator = draw_convolutions(Generator(), rng)
    discriminator = draw_convolutions(Discriminator(), rng)
    criterion = nn.BCEWithLogitsLoss()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    real_label, fake_label = torch.ones(args.batch_size), torch.zeros(args.batch_size)

    for step in range(1, args.steps + 1):
        real = rings(rng, args.batch_size)
        fake = generator(normal(rng, args.batch_size, 16, 1, 1))

        discriminator.zero_grad()
        loss_real = criterion(discriminator(real), real_label)
        loss_real.backward()
        loss_fake = criterion(discriminator(fake.detach()), fake_label)
        loss_fake.backward()
        discriminator_optimizer.step()

        generator.zero_grad()
        loss_generator = criterion(discriminator(fake), real_label)
        loss_generator.backward()
        generator_optimizer.step()

        if is_reported(step, args.steps):
            loss_discriminator = loss_real + loss_fake
            print(f"step {step} discriminator {loss_discriminator.item():.4f} generator {loss_generator.item():.4f}")


if __name__ == "__main__":
    main()
