"""A round's local pass in a PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from flower_fedcon.errors import ConfigError
from flower_fedcon.training.local_round import LocalTraining, LoopCorrection
from flower_fedcon.training.numpy_loop import NOT_LOADED
from flower_fedcon.validation import Array


class TorchTraining(LocalTraining):
    """What a train function gets as `method`; see `flower_fedcon.torch.train_step`."""

    def begin(self, model: nn.Module) -> TorchCorrection:
        """Return what corrects the gradients of a loop (FedProx, Scaffold, FedDyn, FedAvg).

        Parameters
        ----------
        model : torch.nn.Module
            With the message's arrays loaded.

        Raises
        ------
        ConfigError
            If it is another model, or the method is no correction of gradients.
        """
        self.added()
        return TorchCorrection(self, self._parameters(model))

    def optimizer(self, params: Iterable[Tensor], lr: float | None = None) -> MethodOptimizer:
        """Return the method's step, in place of an optimizer.

        For FedMiD, FedDualAvg, FastFedDA and CompositeFL, whose step is the method; FedAvg and
        Scaffold with `client_lr` have it too.

        Parameters
        ----------
        params : iterable of tensors
            `model.parameters()`, with the message's arrays loaded.
        lr : float, optional
            As the strategy's `client_lr`; another one is refused.

        Raises
        ------
        ConfigError
            If the parameters or `lr` are others, or the method has no step of its own.
        """
        self.check_optimizer(lr)
        every = list(params)
        tensors = [tensor for tensor in every if tensor.requires_grad]
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes != self.layout.shapes:
            if len(every) > len(tensors) and len(every) == len(self.layout.shapes):
                names = self.layout.names or tuple(map(str, range(len(every))))
                self._refuse_names(
                    [n for n, t in zip(names, every, strict=True) if not t.requires_grad], "frozen"
                )
            raise ConfigError(
                f"{self.name}: method.optimizer was given parameters of shapes {shapes}, the "
                f"server's model has {self.layout.shapes}: give it model.parameters(), all of them"
            )
        self._check_loaded(tensors)
        return MethodOptimizer(self, tensors)

    def _parameters(self, model: nn.Module) -> list[Tensor]:
        """Return the parameters that the server's layers stand for.

        Raises
        ------
        ConfigError
            If the model has others.
        """
        found = dict(model.named_parameters(remove_duplicate=False))
        names = self.layout.names or tuple(found)
        buffers = dict(model.named_buffers())
        fixed = [name for name in names if name not in found or not found[name].requires_grad]
        missing = [name for name in fixed if name not in found and name not in buffers]
        if missing:
            self._refuse_names(missing, "missing")
        if fixed:
            kinds = {"frozen" if name in found else "buffers" for name in fixed}
            self._refuse_names(fixed, " or ".join(sorted(kinds, reverse=True)))
        for name, parameter in found.items():
            if parameter.requires_grad and name not in names:
                raise ConfigError(
                    f"{self.name}: this client trains {name!r}, which is not in the server's "
                    "initial_arrays: build the same model on server and clients"
                )
        # Tied weights stand here under each of their names: with one gradient they stay the same.
        tensors: list[Tensor] = [found[name] for name in names]
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes != self.layout.shapes:
            raise ConfigError(
                f"{self.name}: this client's model has parameters of shapes {shapes}, the "
                f"server's {self.layout.shapes}"
            )
        self._check_loaded(tensors)
        return tensors

    def _refuse_names(self, names: Sequence[str], what: str) -> NoReturn:
        """Refuse layers of the server's model that this client's does not train."""
        remedy = "Build the same model on server and clients"
        if what != "missing":
            remedy = f"Declare them: start(buffers={[*names]!r})"
        listed = ", ".join(map(repr, names))
        raise ConfigError(f"{self.name}: {what} in this client's model: {listed}. {remedy}")

    def _check_loaded(self, tensors: Sequence[Tensor]) -> None:
        for tensor, layer in zip(tensors, self.start, strict=True):
            if not torch.equal(tensor.detach(), as_tensor(layer, tensor)):
                raise ConfigError(f"{self.name}: {NOT_LOADED}")


class TorchCorrection(LoopCorrection):
    """What a method adds to the gradients of a PyTorch loop."""

    def __init__(self, training: TorchTraining, parameters: list[Tensor]) -> None:
        self._parameters = parameters
        super().__init__(training, lambda a, i: as_tensor(a, parameters[i]), as_array)

    def apply_gradients(self, model: nn.Module | None = None) -> None:
        """Add the method's terms to the gradients, between `backward()` and `optimizer.step()`.

        Once for each step. With a `GradScaler`, after `scaler.unscale_(optimizer)`; clipping comes
        before. The model is the one that `begin` was given.
        """
        zero = torch.zeros_like
        gradients = [zero(p) if p.grad is None else p.grad for p in self._parameters]
        points = [p.detach() for p in self._parameters]
        for p, gradient in zip(self._parameters, self.corrected(gradients, points), strict=True):
            p.grad = gradient


class MethodOptimizer(torch.optim.Optimizer):
    """The step of a method that is more than a gradient step, in place of an optimizer's.

    A step's prox is taken on the CPU, on the model as one vector of NumPy.
    """

    def __init__(self, training: TorchTraining, params: list[Tensor]) -> None:
        super().__init__(params, {})
        self._training, self._params = training, params

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the method's step with the parameters' gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        with torch.no_grad():
            layers = self._training.advance([as_array(g) for g in gradients])
            for p, layer in zip(self._params, layers, strict=True):
                p.copy_(as_tensor(layer, p))
        return loss


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """Return an array as a tensor of the type and on the device of another."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as an array; one that NumPy has no type for as float32."""
    host = tensor.detach().cpu()
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.float()
    array: Array = host.numpy()
    return array
