"""A pole on a cart, to be kept upright by pushing the cart left or right: the equations of motion, in steps of a fiftieth of a second."""

import math

import numpy as np

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


class CartPole:
    """State: place and speed of the cart, angle and angular speed of the pole. Each step in which the pole stands is worth 1."""

    def __init__(self, rng, limit=200):
        self.rng, self.limit = rng, limit

    def reset(self):
        self.state, self.steps = self.rng.uniform(-0.05, 0.05, 4), 0
        return self.state.astype(np.float32)

    def step(self, action):
        """Pushes right (1) or left (0). Returns the new state, the reward, whether the pole fell, and whether time is up."""
        _, speed, angle, turning = self.state
        sine, cosine, mass = math.sin(angle), math.cos(angle), CART + POLE
        push = ((FORCE if action else -FORCE) + POLE * HALF_LENGTH * turning**2 * sine) / mass
        angular = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass))
        linear = push - POLE * HALF_LENGTH * angular * cosine / mass
        self.state = self.state + SECONDS * np.array([speed, linear, turning, angular])
        self.steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return self.state.astype(np.float32), 1.0, bool(fell), self.steps >= self.limit
