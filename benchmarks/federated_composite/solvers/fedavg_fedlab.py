"""FedAvg of FedLab, on the penalised loss: PyTorch's steps along a subgradient."""

import numpy as np
import torch
from benchmark_utils.problem import told
from benchopt import BaseSolver
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.client.trainer import SerialClientTrainer
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import SerializationTool


class Solver(BaseSolver):
    """The handler, trainer and pipeline that FedLab's users derive from; l1 norms alone."""

    name = "FedAvg of FedLab"
    requirements = ["pip::fedlab"]
    parameters = {"local_steps": [5]}

    def skip(self, problem):
        """Leave out what a subgradient does not know."""
        if problem.structure != "l1":
            return True, "PyTorch's SGD has gradients alone"
        return False, None

    def set_objective(self, problem):
        """Make the clients' tensors."""
        self.problem = problem
        self.clients = [(torch.as_tensor(A), torch.as_tensor(y)) for A, y in problem.clients]

    def run(self, stop_val):
        """Play so many rounds."""
        start = _Linear(self.problem.shape)
        server = SyncServerHandler(start, stop_val, sample_ratio=1.0, logger=_Silent())
        trainer = _Trainer(_Linear(self.problem.shape), self.clients, self.problem)
        trainer.local_steps = self.local_steps
        _Pipeline(server, trainer).main()
        self.x, self.rounds = server.model_parameters.numpy().astype(np.float64), stop_val

    def get_result(self):
        """Return the model, and what it has cost: float64 each way."""
        return told(self.problem, self.x, self.rounds, self.local_steps)


class _Linear(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(*shape, dtype=torch.float64))


class _Trainer(SerialClientTrainer):
    """All clients in one process, each with all its rows in each step."""

    def __init__(self, model, clients, problem):
        super().__init__(model, len(clients), cuda=False)
        self.rows, self.problem, self.uploads = clients, problem, []

    @property
    def uplink_package(self):
        """Return what the clients upload, once."""
        found, self.uploads = self.uploads, []
        return found

    def local_process(self, payload, id_list):
        """Take every client's steps."""
        for j in id_list:
            SerializationTool.deserialize_model(self._model, payload[0])
            optimizer = torch.optim.SGD(self._model.parameters(), 1.0 / self.problem.smoothness)
            A, y = self.rows[j]
            for _ in range(self.local_steps):
                optimizer.zero_grad()
                scores = A @ self._model.x
                if self.problem.loss == "squared":
                    each = 0.5 * (scores - y) ** 2
                else:
                    each = torch.nn.functional.softplus(-y * scores)
                (each.mean() + self.problem.level * self._model.x.abs().sum()).backward()
                optimizer.step()
            self.uploads.append([self.model_parameters])


class _Pipeline(StandalonePipeline):
    def evaluate(self):
        """Measure nothing: benchopt does."""


class _Silent:
    def info(self, *said):
        """Say nothing."""
