"""A convolutional network that reads handwritten digits: scikit-learn's 1,797 if it is installed, strokes drawn by NumPy if not."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from common import draw_weights, is_reported, options
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(torch.flatten(x, 1))


def load_images(rng):
    """(N, 1, 8, 8) images with values from 0 to 1, and their (N,) labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        labels = rng.integers(0, 10, 1797)
        templates = (rng.random((10, 8, 8)) > 0.6).astype(np.float32)
        images = np.clip(templates[labels] + 0.5 * rng.standard_normal((1797, 8, 8)), 0, 1)
    else:
        bunch = load_digits()
        images, labels = bunch.images / 16, bunch.target
    order = rng.permutation(len(images))
    return torch.from_numpy(images[order].astype(np.float32)).unsqueeze(1), torch.from_numpy(labels[order].astype(np.int64))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for images, labels in loader:
        scores = model(images)
        total += F.cross_entropy(scores, labels, reduction="sum").item()
        correct += (scores.argmax(dim=1) == labels).sum().item()
        count += len(labels)
    model.train()
    return total / count, correct / count


def batches(dataset, rng, size):
    """Batches for ever, in a new order each time round."""
    while True:
        yield from DataLoader(dataset, batch_size=size, sampler=rng.permutation(len(dataset)).tolist(), drop_last=True)


def main():
    parser = options(__doc__, steps=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)

    images, labels = load_images(rng)
    train, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    model = draw_weights(Net(), rng)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    source = batches(train, rng, args.batch_size)
    for step in range(1, args.steps + 1):
        inputs, targets = next(source)
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.5f} lr {scheduler.get_last_lr()[0]:.5f}")
    loss, accuracy = evaluate(model, DataLoader(test, batch_size=256))
    print(f"test loss {loss:.5f} accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
