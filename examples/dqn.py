"""Deep Q-learning of a pole on a cart: actions from a network, learnt from a memory of what happened, and a second network that follows slowly."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
from cart_pole import CartPole
from common import draw_weights, is_reported, options
from torch import nn, optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity, seed):
        self.memory, self.random = deque(maxlen=capacity), random.Random(seed)

    def push(self, *values):
        self.memory.append(Transition(*values))

    def sample(self, count):
        return self.random.sample(self.memory, count)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, observations, actions):
        super().__init__()
        self.layer1 = nn.Linear(observations, 64)
        self.layer2 = nn.Linear(64, 64)
        self.layer3 = nn.Linear(64, actions)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x)


def optimize(policy, target, optimizer, transitions, gamma):
    """One step of learning from a batch of transitions. Returns its loss."""
    batch = Transition(*zip(*transitions))
    going_on = torch.tensor([state is not None for state in batch.next_state], dtype=torch.bool)
    next_states = torch.cat([state for state in batch.next_state if state is not None])
    values = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_values = torch.zeros(len(transitions))
    with torch.no_grad():
        next_values[going_on] = target(next_states).max(1).values
    loss = nn.functional.smooth_l1_loss(values, (torch.cat(batch.reward) + gamma * next_values).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    return loss


def main():
    parser = options(__doc__, steps=600)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--tau", type=float, default=0.01, help="how fast the second network follows")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    environment = CartPole(rng)
    policy, target = draw_weights(DQN(4, 2), rng), DQN(4, 2)
    target.load_state_dict(policy.state_dict())
    optimizer = optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
    memory = ReplayMemory(10_000, args.seed)
    state, steps, lengths = torch.from_numpy(environment.reset()).unsqueeze(0), 0, []
    while steps < args.steps:
        if rng.random() < 0.05 + 0.85 * np.exp(-len(memory) / 200):
            action = torch.tensor([[int(rng.integers(2))]])
        else:
            with torch.no_grad():
                action = policy(state).max(1).indices.view(1, 1)
        observation, reward, fell, over = environment.step(action.item())
        next_state = None if fell else torch.from_numpy(observation).unsqueeze(0)
        memory.push(state, action, next_state, torch.tensor([reward]))
        state = next_state
        if fell or over:
            lengths.append(environment.steps)
            state = torch.from_numpy(environment.reset()).unsqueeze(0)
        if len(memory) < 64:
            continue
        loss = optimize(policy, target, optimizer, memory.sample(64), args.gamma)
        steps += 1
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), policy.parameters()):
                slow.mul_(1 - args.tau).add_(fast, alpha=args.tau)
        if is_reported(steps, args.steps):
            print(f"step {steps} loss {loss.item():.5f} episodes {len(lengths)} length {np.mean(lengths[-10:]):.1f}")


if __name__ == "__main__":
    main()
