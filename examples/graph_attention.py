"""A graph attention network that names the community of each node, from the names of a few and from who is linked with whom."""

import numpy as np
import torch
import torch.nn.functional as F
from common import draw_weights, is_reported, normal, options
from torch import nn

COMMUNITIES = 4


class GraphAttentionLayer(nn.Module):
    """(nodes, inputs) -> (nodes, heads * outputs), or the mean of the heads."""

    def __init__(self, inputs, outputs, heads, concat=True):
        super().__init__()
        self.heads, self.outputs, self.concat = heads, outputs, concat
        self.W = nn.Parameter(torch.empty(inputs, heads * outputs))
        self.a = nn.Parameter(torch.empty(heads, 2 * outputs, 1))
        self.leakyrelu = nn.LeakyReLU(0.2)

    def forward(self, x, adjacency):
        h = torch.mm(x, self.W).view(len(x), self.heads, self.outputs).permute(1, 0, 2)
        source = torch.matmul(h, self.a[:, : self.outputs])
        target = torch.matmul(h, self.a[:, self.outputs :])
        e = self.leakyrelu(source + target.mT)
        attention = torch.where(adjacency > 0, e, torch.full_like(e, -9e16)).softmax(dim=-1)
        out = torch.einsum("hij,hjf->hif", attention, h)
        return F.elu(out.permute(1, 0, 2).reshape(len(x), -1)) if self.concat else out.mean(dim=0)


class GAT(nn.Module):
    def __init__(self, inputs, hidden, classes, heads):
        super().__init__()
        self.gat1 = GraphAttentionLayer(inputs, hidden, heads)
        self.gat2 = GraphAttentionLayer(hidden * heads, classes, 1, concat=False)

    def forward(self, x, adjacency):
        return F.log_softmax(self.gat2(self.gat1(x, adjacency), adjacency), dim=1)


def make_graph(rng, nodes):
    """Nodes of a community are linked with one another more often than with others; features say a little."""
    labels = torch.from_numpy(rng.integers(0, COMMUNITIES, nodes))
    chance = torch.where(labels[:, None] == labels[None, :], 0.08, 0.01)
    adjacency = (torch.from_numpy(rng.random((nodes, nodes))) < chance).triu(diagonal=1).float()
    adjacency = adjacency + adjacency.T + torch.eye(nodes)
    features = 0.5 * F.one_hot(labels, 16).float() + 0.5 * normal(rng, nodes, 16)
    return features, adjacency, labels


def main():
    parser = options(__doc__, steps=100)
    parser.add_argument("--nodes", type=int, default=300)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    features, adjacency, labels = make_graph(rng, args.nodes)
    order = torch.from_numpy(rng.permutation(args.nodes))
    train, test = order[: args.nodes // 5], order[args.nodes // 5 :]
    model = draw_weights(GAT(16, 8, COMMUNITIES, heads=4), rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for step in range(1, args.steps + 1):
        model.train()
        output = model(features, adjacency)
        loss = F.nll_loss(output[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_reported(step, args.steps):
            with torch.no_grad():
                accuracy = (output[test].argmax(dim=1) == labels[test]).float().mean()
            print(f"step {step} loss {loss.item():.5f} accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    main()
