"""Actor and critic on a pole on a cart: one network chooses the pushes and foretells how long the pole will stand. One update for each episode."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from cart_pole import CartPole
from common import draw_weights, is_reported, options
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 64)
        self.action_head = nn.Linear(64, 2)
        self.value_head = nn.Linear(64, 1)

    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


def play(environment, model, rng):
    """One episode. Returns the logarithms of the probabilities of what was done, the values foretold, the entropies and the rewards."""
    log_probabilities, values, entropies, rewards = [], [], [], []
    state = environment.reset()
    while True:
        probabilities, value = model(torch.from_numpy(state))
        distribution = Categorical(probabilities)
        action = torch.tensor(int(rng.random() < probabilities[1].item()))
        log_probabilities.append(distribution.log_prob(action))
        entropies.append(distribution.entropy())
        values.append(value)
        state, reward, fell, over = environment.step(action.item())
        rewards.append(reward)
        if fell or over:
            return log_probabilities, values, entropies, rewards


def main():
    parser = options(__doc__, steps=40)
    parser.add_argument("--gamma", type=float, default=0.99)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    environment = CartPole(rng)
    model = draw_weights(Policy(), rng)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    running = 10.0
    for step in range(1, args.steps + 1):
        log_probabilities, values, entropies, rewards = play(environment, model, rng)
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + args.gamma * total
            returns.insert(0, total)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + np.finfo(np.float32).eps.item())
        value = torch.cat(values)
        advantage = returns - value.detach()
        policy_loss = -(torch.stack(log_probabilities) * advantage).sum()
        value_loss = F.smooth_l1_loss(value, returns, reduction="sum")
        loss = policy_loss + value_loss - 0.01 * torch.stack(entropies).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.95 * running + 0.05 * len(rewards)
        if is_reported(step, args.steps):
            print(f"step {step} loss {loss.item():.4f} length {len(rewards)} average {running:.2f}")


if __name__ == "__main__":
    main()
