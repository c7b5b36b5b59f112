"""A round's local pass in a PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from flower_fedcon.errors import ConfigError
from flower_fedcon.layout import as_named
from flower_fedcon.training.local_round import LocalTraining, LoopCorrection
from flower_fedcon.training.numpy_loop import NOT_LOADED
from flower_fedcon.validation import Array


class TorchTraining(LocalTraining):
    """The `method` that a train function gets; see `flower_fedcon.torch.train_step`."""

    how_to_step = "current_method().optimizer(model.parameters())"
    how_to_correct = (
        "current_method().begin(model, optimizer) before the loop, or "
        + LocalTraining.how_to_correct
    )

    def begin(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> TorchCorrection:
        """Correct the gradients of a loop (FedProx, Scaffold, FedDyn, FedAvg).

        Parameters
        ----------
        model : torch.nn.Module
            The model with the message's arrays loaded; also within `DistributedDataParallel`, or
            compiled.
        optimizer : torch.optim.Optimizer, optional
            Until the end of the round its `step()` corrects the gradients first, after clipping and
            a `GradScaler`. Without an optimizer, call `apply_gradients` of the result.

        Raises
        ------
        ConfigError
            If the model is a different one, the optimizer does not have all its parameters, or the
            method does not correct gradients.
        """
        self.added()
        return TorchCorrection(self, self._parameters(model), optimizer)

    def optimizer(self, params: Iterable[Tensor], lr: float | None = None) -> MethodOptimizer:
        """Return an object that takes the method's step instead of an optimizer.

        It is for FedMiD, FedDualAvg, FastFedDA and CompositeFL, which take their own steps, and for
        FedAvg and Scaffold with `client_lr`.

        Parameters
        ----------
        params : iterable of tensors
            `model.parameters()`, with the message's arrays loaded.
        lr : float, optional
            The strategy's `client_lr`; any other value is refused.

        Raises
        ------
        ConfigError
            If the parameters or `lr` differ from these, or the method does not have its own step.
        """
        self.check_optimizer(lr)
        every = list(params)
        if not all(isinstance(tensor, Tensor) for tensor in every):
            raise ConfigError(
                f"{self.name}: method.optimizer takes model.parameters(), in their order: it has "
                f"one step for the whole model, without groups that have their own rates or decays "
                f"(give regularizers to the strategy)"
            )
        tensors = [tensor for tensor in every if tensor.requires_grad]
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes != self.layout.shapes:
            if len(every) > len(tensors) and len(every) == len(self.layout.shapes):
                names = self.layout.names or tuple(map(str, range(len(every))))
                self._refuse_names(
                    [n for n, t in zip(names, every, strict=True) if not t.requires_grad], "frozen"
                )
            raise ConfigError(
                f"{self.name}: method.optimizer got parameters of shapes {shapes}, and the "
                f"server's model has {self.layout.shapes}: give it all of model.parameters()"
            )
        self._check_loaded(tensors)
        return MethodOptimizer(self, tensors)

    def _parameters(self, model: nn.Module) -> list[Tensor]:
        """Return the parameters of the server's layers.

        Raises
        ------
        ConfigError
            If the model has different ones.
        """
        names = self.layout.names or ()
        by_name = as_named(dict(model.named_parameters(remove_duplicate=False)), names)
        names = names or tuple(by_name)
        buffers = as_named(dict(model.named_buffers()), names)
        fixed = [name for name in names if name not in by_name or not by_name[name].requires_grad]
        missing = [name for name in fixed if name not in by_name and name not in buffers]
        if missing:
            self._refuse_names(missing, "missing")
        if fixed:
            kinds = {"frozen" if name in by_name else "buffers" for name in fixed}
            self._refuse_names(fixed, " or ".join(sorted(kinds, reverse=True)))
        more = [name for name, p in by_name.items() if p.requires_grad and name not in names]
        if more:
            raise ConfigError(
                f"{self.name}: this client trains {', '.join(map(repr, more))}, which the server's "
                "initial_arrays do not hold: build the same model on server and clients"
            )
        # Tied weights are listed under each of their names; they stay equal, with one gradient.
        tensors: list[Tensor] = [by_name[name] for name in names]
        shapes = tuple(tuple(t.shape) for t in tensors)
        if shapes != self.layout.shapes:
            raise ConfigError(
                f"{self.name}: this client's model has parameters of shapes {shapes}, the "
                f"server's {self.layout.shapes}"
            )
        self._check_loaded(tensors)
        return tensors

    def _refuse_names(self, names: Sequence[str], what: str) -> NoReturn:
        """Refuse layers of the server's model that this client's model does not train."""
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
    """A method's correction of the gradients in a PyTorch loop."""

    def __init__(
        self,
        training: TorchTraining,
        parameters: list[Tensor],
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._parameters, self._name = parameters, training.name
        self._left: list[tuple[Any, int]] = []  # the gradients after the last correction
        self._own: list[Tensor | None] = []  # the gradients before an optimizer's step
        self._hooks: list[Any] = []
        self._still = optimizer is not None  # whether each of its steps had a rate of 0
        self._climbed: set[int] = set()  # parameters of groups that maximize: they use -gradient
        super().__init__(training, lambda a, i: as_tensor(a, parameters[i]), as_array)
        if optimizer is not None:
            if not isinstance(optimizer, torch.optim.Optimizer):
                self._refuse(f"begin takes an optimizer of torch.optim, got {optimizer!r:.99}")
            moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if any(id(p) not in moved for p in parameters):
                self._refuse(
                    "the optimizer given to begin does not move all parameters of the model: with "
                    "several optimizers call correction = method.begin(model), and "
                    "correction.apply_gradients(model) before their steps"
                )
            climbing = [group for group in optimizer.param_groups if group.get("maximize")]
            self._climbed = {id(p) for group in climbing for p in group["params"]}
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))
            self.by_itself = True

    def close(self) -> None:
        """Release the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self.pulled &= not self._still

    def apply_gradients(self, model: nn.Module | None = None) -> None:
        """Add the method's terms to the gradients, between `backward()` and `optimizer.step()`.

        Call it once for each step, after clipping and, with a `GradScaler`, after
        `scaler.unscale_(optimizer)`. The model is that of `begin`.

        Raises
        ------
        ConfigError
            If the optimizer of `begin` corrects these gradients.
        """
        if self.by_itself:
            self._refuse(
                "the optimizer given to begin corrects the gradients in its step(): leave "
                "apply_gradients out"
            )
        each = zip(self._parameters, self._left, strict=False)
        if self._left and all(
            p.grad is not None and left() is p.grad and p.grad._version == version
            for p, (left, version) in each
        ):
            self._refuse(
                "apply_gradients was called twice after one backward(): call it once, also before "
                "the steps of several optimizers"
            )
        self._apply()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._left = [(TensorWeakRef(g), g._version) for g in gradients]

    def _apply(self) -> None:
        self._own = [p.grad for p in self._parameters] if self.by_itself else []
        gradients = self._turned([dense_gradient(p) for p in self._parameters])
        points = [p.detach() for p in self._parameters]
        corrected = self._turned(self.corrected(gradients, points))
        for p, gradient in zip(self._parameters, corrected, strict=True):
            p.grad = gradient

    def _turned(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients with those of groups that maximize negated."""
        each = zip(self._parameters, gradients, strict=True)
        return [-g if id(p) in self._climbed else g for p, g in each]

    def _before_step(
        self, optimizer: torch.optim.Optimizer, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Correct the gradients before an optimizer's step."""
        if getattr(optimizer, "grad_scale", None) is not None:  # from a GradScaler
            self._refuse(
                "the optimizer unscales the gradients within its step, after they are corrected: "
                "call scaler.unscale_(optimizer) before scaler.step(optimizer)"
            )
        infinite = getattr(optimizer, "found_inf", None)
        if infinite is not None and infinite.item():
            return None  # it takes no step
        self._still &= all(group.get("lr") == 0 for group in optimizer.param_groups)
        # In current PyTorch the arguments begin with the optimizer.
        arguments = [argument for argument in given if argument is not optimizer]
        closure = named.get("closure", arguments[0] if arguments else None)
        if closure is None:
            self._apply()
            return None
        asked = 0

        def corrected() -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                self._refuse(
                    f"{type(optimizer).__name__} needs several gradients and values in a step, "
                    f"which cannot be corrected: use a first-order optimizer"
                )
            loss = closure()
            self._apply()
            return loss

        given = tuple(corrected if argument is closure else argument for argument in given)
        return given, {k: corrected if value is closure else value for k, value in named.items()}

    def _after_step(self, *_: Any) -> None:
        """Restore the loop's gradients, for code that uses them after the step."""
        if self._own:
            for p, gradient in zip(self._parameters, self._own, strict=True):
                p.grad = gradient
        self._own = []

    def _refuse(self, reason: str) -> NoReturn:
        raise ConfigError(f"{self._name}: {reason}")


class MethodOptimizer(torch.optim.Optimizer):
    """The step of a method that is more than a gradient step; replaces an optimizer.

    The prox is computed on the CPU, on the model as one NumPy vector.
    """

    def __init__(self, training: TorchTraining, params: list[Tensor]) -> None:
        self._rate = training.rate
        super().__init__(params, {} if self._rate is None else {"lr": self._rate})
        self._training, self._params = training, params

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the method's step with the parameters' gradients.

        Raises
        ------
        ConfigError
            If a scheduler, or anything else, has changed the rate.
        """
        (group,) = self.param_groups
        if "initial_lr" in group or group.get("lr") != self._rate:
            raise ConfigError(
                f"{self._training.name}: a scheduler, or the train function, sets the rate of "
                f"method.optimizer, whose steps all have the length {self._rate!r}: leave the "
                f"scheduler out, or use a method that corrects your own optimizer's gradients"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            layers = self._training.advance([as_array(dense_gradient(p)) for p in self._params])
            for p, layer in zip(self._params, layers, strict=True):
                p.copy_(as_tensor(layer, p))
        return loss


def dense_gradient(p: Tensor) -> Tensor:
    """Return a parameter's dense gradient, also for a sparse layer; zeros without one."""
    if p.grad is None:
        return torch.zeros_like(p)
    return p.grad.to_dense() if p.grad.is_sparse else p.grad


def as_tensor(array: Array, like: Tensor) -> Tensor:
    """Return an array as a tensor with the type and device of another."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as an array; as float32 if NumPy does not have its type."""
    host = tensor.detach().cpu()
    if host.dtype in (torch.bfloat16, torch.float16):
        host = host.float()
    array: Array = host.numpy()
    return array
