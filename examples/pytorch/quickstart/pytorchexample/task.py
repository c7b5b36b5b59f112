"""pytorchexample: model, data, training and testing."""

from functools import cache

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    """A small convolutional network for 8 x 8 images."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return the logits."""
        x = self.pool(F.relu(self.norm(self.conv1(x))))
        x = F.relu(self.conv2(x))
        x = x.view(-1, 16 * 2 * 2)
        return self.fc2(F.relu(self.fc1(x)))


digits = cache(load_digits)


class Digits(Dataset):
    """Rows of the UCI digits."""

    def __init__(self, rows):
        images, labels = digits(return_X_y=True)
        self.images = torch.tensor(images[rows] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels = torch.tensor(labels[rows])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"img": self.images[i], "label": self.labels[i]}


def load_data(partition_id: int, num_partitions: int, batch_size: int):
    """Load a partition: 80 % to train on, 20 % to test on."""
    rows = torch.arange(partition_id, 1500, num_partitions)
    split = int(0.8 * len(rows))
    order = torch.Generator().manual_seed(partition_id)
    trainloader = DataLoader(Digits(rows[:split]), batch_size, shuffle=True, generator=order)
    return trainloader, DataLoader(Digits(rows[split:]), batch_size)


def load_centralized_dataset():
    """Load the test set."""
    return DataLoader(Digits(torch.arange(1500, 1797)), batch_size=128)


def train(net, trainloader, epochs, lr, device):
    """Train the model on the training set."""
    net.to(device)  # move model to GPU if available
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for batch in trainloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Return the model's loss and accuracy."""
    net.to(device)
    net.eval()
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
