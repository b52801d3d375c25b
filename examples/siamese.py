"""A siamese network: one set of weights looks at two pictures and says whether they show the same symbol, also symbols it was not trained on."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from common import draw_weights, is_reported, options


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((3, 3)),
        )
        self.compare = nn.Sequential(nn.Linear(2 * 32 * 9, 64), nn.ReLU(), nn.Linear(64, 1))

    def embed(self, x):
        return self.features(x).view(x.size(0), -1)

    def forward(self, left, right):
        a, b = self.embed(left), self.embed(right)
        return self.compare(torch.cat((torch.abs(a - b), a * b), dim=1)).squeeze(1)


class Symbols(torch.utils.data.Dataset):
    """Pairs of noisy pictures of symbols. Half of the pairs show the same one."""

    def __init__(self, rng, symbols, length):
        first = rng.integers(0, len(symbols), length)
        same = rng.random(length) < 0.5
        second = np.where(same, first, (first + rng.integers(1, len(symbols), length)) % len(symbols))
        self.pairs = [self.shifted(rng, symbols[which]) for which in (first, second)]
        self.same = torch.from_numpy(same.astype(np.float32))

    @staticmethod
    def shifted(rng, pictures):
        moved = np.stack([np.roll(picture, rng.integers(-1, 2, 2), axis=(0, 1)) for picture in pictures])
        return torch.from_numpy((moved + 0.2 * rng.standard_normal(moved.shape)).astype(np.float32)).unsqueeze(1)

    def __len__(self):
        return len(self.same)

    def __getitem__(self, index):
        return self.pairs[0][index], self.pairs[1][index], self.same[index]


def main():
    args = options(__doc__, steps=150).parse_args()
    rng = np.random.default_rng(args.seed)
    symbols = np.kron(rng.random((30, 4, 4)) > 0.5, np.ones((3, 3)))
    train, test = Symbols(rng, symbols[:20], 32 * min(args.steps, 50)), Symbols(rng, symbols[20:], 256)
    model = draw_weights(SiameseNetwork(), rng)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.7)
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    while step < args.steps:
        for left, right, same in torch.utils.data.DataLoader(train, batch_size=32):
            step += 1
            optimizer.zero_grad()
            loss = criterion(model(left, right), same)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if is_reported(step, args.steps):
                print(f"step {step} loss {loss.item():.5f}")
            if step == args.steps:
                break

    model.eval()
    with torch.no_grad():
        scores = model(*test.pairs)
        loss = F.binary_cross_entropy_with_logits(scores, test.same).item()
        accuracy = ((scores > 0) == (test.same > 0.5)).float().mean().item()
    print(f"new symbols: loss {loss:.4f} accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
