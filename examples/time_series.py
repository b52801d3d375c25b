"""Two LSTM cells learn to go on with sine waves of different phases. LBFGS updates the weights, in double precision."""

import numpy as np
import torch
from common import options
from torch import nn, optim


class Sequence(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, waves, future=0):
        outputs = []
        h1, c1, h2, c2 = (torch.zeros(waves.size(0), self.hidden, dtype=waves.dtype) for _ in range(4))
        for value in waves.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        for _ in range(future):
            h1, c1 = self.lstm1(output, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            output = self.linear(h2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def main():
    parser = options(__doc__, steps=5)
    parser.add_argument("--length", type=int, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    start = rng.integers(-80, 80, (32, 1))
    waves = torch.from_numpy(np.sin((np.arange(args.length + 1) + start) / 5.0))
    inputs, targets, test_inputs, test_targets = waves[3:, :-1], waves[3:, 1:], waves[:3, :-1], waves[:3, 1:]

    model = Sequence().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-0.2, 0.2, tuple(parameter.shape))))
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(model.parameters(), lr=0.8, max_iter=8)
    for step in range(1, args.steps + 1):

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"step {step} loss {loss.item():.6f}")
        with torch.no_grad():
            predicted = model(test_inputs, future=10)
            print(f"  test loss {criterion(predicted[:, :-10], test_targets).item():.6f} next value {predicted[0, -10].item():.4f}")


if __name__ == "__main__":
    main()
