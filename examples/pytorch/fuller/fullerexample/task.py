"""fullerexample: model, data, training and testing."""

from functools import cache

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x):
        """Return what the block makes of its input."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet(nn.Module):
    """A small residual network for 8 x 8 images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.blocks = nn.Sequential(Block(8, 16, 1), Block(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        """Return the logits."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


@cache
def digits():
    """Return the UCI digits."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)


def load_data(context):
    """Load a node's data, of which nodes have unequal amounts: to train on, and to test on."""
    place, count = context.node_config["partition-id"], context.node_config["num-partitions"]
    rows = torch.arange(place, 1500, count)[: 200 + 100 * place]
    images, labels = digits()
    some = len(rows) // 5
    train, held_out = (TensorDataset(images[r], labels[r]) for r in (rows[some:], rows[:some]))
    batch_size = context.run_config["batch-size"]
    return DataLoader(train, batch_size, shuffle=True), DataLoader(held_out, batch_size)


def load_test_data():
    """Load the test set."""
    images, labels = digits()
    return DataLoader(TensorDataset(images[1500:], labels[1500:]), batch_size=128)


def augmented(images):
    """Shift images by up to a pixel, at random."""
    down, right = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(images, (down, right), dims=(2, 3))


def train_epochs(net, loader, epochs, lr, device):
    """Train the model; return the mean loss of each epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    net.train()
    losses = []
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                logits = net(augmented(images).to(device))
                loss = F.cross_entropy(logits, labels.to(device), label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        losses.append(total / len(loader))
    return losses


def test(net, loader, device, top_k):
    """Return the model's loss, and how often a label is among the first `top_k`."""
    net.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits, labels = net(images.to(device)), labels.to(device)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.topk(top_k).indices == labels[:, None]).any(1).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)
