"""A variational autoencoder of small pictures: one bright blob each, of which the place, the size and the angle are what there is to find."""

import numpy as np
import torch
from common import draw_weights, is_reported, normal, options
from torch import nn
from torch.nn import functional as F

SIDE = 16


class VAE(nn.Module):
    def __init__(self, hidden=128, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, SIDE * SIDE))

    def encode(self, x):
        h = self.encoder(x)
        return self.mean(h), self.log_variance(h)

    def forward(self, x, noise):
        mean, log_variance = self.encode(x)
        z = mean + noise * torch.exp(0.5 * log_variance)
        return self.decoder(z).view_as(x), mean, log_variance


def pictures(rng, count):
    """(count, 1, SIDE, SIDE) pictures with values from 0 to 1."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    place, angle = rng.uniform(4, SIDE - 4, (2, count, 1, 1)), rng.uniform(0, np.pi, (count, 1, 1))
    u = (x - place[0]) * np.cos(angle) + (y - place[1]) * np.sin(angle)
    v = (y - place[1]) * np.cos(angle) - (x - place[0]) * np.sin(angle)
    return torch.from_numpy(np.exp(-(u / 3) ** 2 - (v / 1.2) ** 2).astype(np.float32)).unsqueeze(1)


def objective(logits, x, mean, log_variance):
    """The two halves of the bound, per picture: how badly it is drawn again, and how far its code is from the prior."""
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return reconstruction / len(x), divergence / len(x)


def main():
    args = options(__doc__, steps=400).parse_args()
    rng = np.random.default_rng(args.seed)
    model = draw_weights(VAE(), rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = pictures(rng, 2048)
    for step in range(1, args.steps + 1):
        x = data[torch.from_numpy(rng.integers(0, len(data), 64))]
        logits, mean, log_variance = model(x, normal(rng, 64, 4))
        reconstruction, divergence = objective(logits, x, mean, log_variance)
        loss = reconstruction + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.4f} reconstruction {reconstruction.item():.4f} divergence {divergence.item():.4f}")

    model.eval()
    with torch.no_grad():
        drawn = torch.sigmoid(model.decoder(normal(rng, 64, 4)))
    print(f"64 pictures from the prior: brightness {drawn.mean().item():.4f} brightest {drawn.max().item():.4f}")


if __name__ == "__main__":
    main()
