r"""MCFedDA: CFedDA in stages, which starts with a large weight of psi and a large ball.

    min_w (1/N) sum_i f_i(w) + psi(w)

Round r = 1, ..., R_s of stage s = 1, 2, ...:
    CFedDA's (see there), with multiple_s psi and radius rho_s, from the last stage's w:
    w_0 := w, gradients and iterates forgotten, r := 1

The multiples do not increase and the last is 1, so that the last stage minimises with psi itself;
it continues until the run ends. In the paper's terms lambda_s = multiple_s lambda; its theory
halves lambda and rho from stage to stage, and the last stage takes most of the rounds. A large
weight keeps the first iterates sparse, and for sparse points the loss is well conditioned.

Symbols: stages = [(multiple, rho, R), ...]; mu, gamma, K and psi as in CFedDA.

State: none on the client; CFedDA's, and the stage, on the server.
Wire: 2 vectors and 2 numbers down (3 of each with a radius); 1 vector up.
Participation: any (the theory is for full).
Aggregation: any rule of `flower_fedcon.aggregation`; w then solves the problem with that rule of
the gradients instead of their mean, which is the same only without heterogeneity.
Lost state: nothing to lose.

Not for: problems without a known first radius: CFedDA needs none.

Source: Yajie Bao, Michael Crawshaw, Shan Luo, Mingrui Liu, "Fast Composite Optimization and
Statistical Recovery in Federated Learning", ICML 2022 (arXiv:2207.08204), Algorithm 3, Theorem 3.2;
reconstructed like FastFedDA, the halving from the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

from flower_fedcon.core.release import Release
from flower_fedcon.core.uploads import Uploads
from flower_fedcon.errors import ConfigError
from flower_fedcon.strategies.cfedda import CFedDA, CFedDAState
from flower_fedcon.strategies.families.dual_averaging import DampingOptions, DualAveraging
from flower_fedcon.validation import Array, count, positive
from flower_fedcon.wire.payloads import Payload


class Stage(NamedTuple):
    """One stage."""

    multiple: float  # of psi
    radius: float | None  # rho; None for no ball
    rounds: int  # R


class MCFedDAState(NamedTuple):
    """The server's state."""

    stage: int  # from 0
    inner: CFedDAState  # CFedDA's state in this stage


class MCFedDAConstants(NamedTuple):
    """Constants that follow from the setup."""

    stages: tuple[Stage, ...]
    methods: tuple[CFedDA, ...]  # one for each stage


class MCFedDA(DualAveraging[MCFedDAState]):
    """Multi-stage constrained federated dual averaging.

    Parameters
    ----------
    regularizer : Regularizer or ConstraintSet
        psi of the last stage, which is minimised; with a radius, as for `CFedDA`.
    damping : float or "auto", optional
        gamma > 0; by default 5 L K.
    stages : list of (multiple, radius, rounds), optional
        Multiples > 0 that do not increase and end in 1; a radius > 0, or None or infinity for no
        ball; rounds >= 1. By default 4, 2, 1 without balls, for 1/8, 1/8 and 3/4 of the run.

    Raises
    ------
    ConfigError
        If an argument is out of range, the regularizer has no norm ball for a radius, or the
        damping is left out and L is unknown.

    Examples
    --------
    >>> from flower_fedcon import FederatedProblem, simulate
    >>> from flower_fedcon.objectives import Quadratic
    >>> from flower_fedcon.regularizers import L1
    >>> clients = [Quadratic(np.eye(1), np.array([b])) for b in (1.0, 5.0)]
    >>> problem = FederatedProblem(clients, regularizer=L1(1.0))
    >>> stages = [(2.0, None, 100), (1.0, None, 300)]
    >>> strategy = MCFedDA(
    ...     problem.regularizer, strong_convexity=1.0, local_steps=1, stages=stages
    ... )
    >>> [simulate(strategy, problem, rounds).x.round(1).item() for rounds in (100, 400)]
    [1.0, 2.0]
    """

    name = "mcfedda"
    uplink = ("g",)
    needs_mean = needs_uniform = ""
    needs_fresh = "z is a point, and its steps are counted for one cohort"
    release = Release()
    needs_independent = "each stage begins anew, without the sums of earlier stages"

    constants: MCFedDAConstants

    def __init__(
        self,
        regularizer: Any,
        *,
        stages: Sequence[Sequence[float | None]] | None = None,
        **options: Unpack[DampingOptions],
    ) -> None:
        super().__init__(regularizer, **options)
        self.uses_num_rounds = stages is None
        self.stages = None if stages is None else as_stages(stages)
        for stage in self.stages or ():
            self._cfedda(stage)  # raises here rather than in round 1

    def _cfedda(self, stage: Stage) -> CFedDA:
        return CFedDA(
            self.regularizer.scaled(stage.multiple),
            strong_convexity=self.strong_convexity,
            damping=self.damping,
            local_steps=self.local_steps,
            radius=stage.radius,
        )

    def derive(self) -> MCFedDAConstants:
        """Set the stages."""
        stages = self.stages
        if stages is None:
            eighth = max(1, self.setup.num_rounds // 8)
            stages = as_stages([(4.0, None, eighth), (2.0, None, eighth), (1.0, None, 1)])
        methods = tuple(self._cfedda(stage).bind(self.setup) for stage in stages)
        return MCFedDAConstants(tuple(stages), methods)

    def initialize(self, x0: Array) -> MCFedDAState:
        """Start the first stage at x0."""
        return MCFedDAState(0, self.constants.methods[0].initialize(x0))

    def broadcast(self, state: MCFedDAState) -> Payload:
        """Return CFedDA's broadcast, and this stage's multiple and radius."""
        stage = self.constants.stages[state.stage]
        inner = self.constants.methods[state.stage].broadcast(state.inner)
        down = {**inner, "multiple": stage.multiple}
        return down if stage.radius is None else {**down, "radius": stage.radius}

    def aggregate(self, state: MCFedDAState, uploads: Uploads) -> MCFedDAState:
        """Do CFedDA's step, and start the next stage when it is due."""
        stages, methods = self.constants
        s = state.stage
        inner = methods[s].aggregate(state.inner, uploads)
        if inner.r > stages[s].rounds and s + 1 < len(stages):
            return MCFedDAState(s + 1, methods[s + 1].initialize(inner.w))
        return MCFedDAState(s, inner)

    def model(self, state: MCFedDAState) -> Array:
        """Return w."""
        return state.inner.w

    def outputs(self, state: MCFedDAState) -> dict[str, Array]:
        """Return the average of this stage's iterates."""
        return self.constants.methods[state.stage].outputs(state.inner)


def as_stages(stages: Any) -> list[Stage]:
    """Return checked stages."""
    if isinstance(stages, str) or not isinstance(stages, Sequence) or not len(stages):
        raise ConfigError(f"stages must be a list of (multiple, radius, rounds), got {stages!r}")
    checked: list[Stage] = []
    for number, stage in enumerate(stages, start=1):
        if isinstance(stage, str) or not isinstance(stage, Sequence) or len(stage) != 3:
            raise ConfigError(f"stages: {number} must be (multiple, radius, rounds), got {stage!r}")
        multiple, radius, rounds = stage
        free = radius is None or (isinstance(radius, float) and radius == math.inf)
        checked.append(
            Stage(
                positive(f"stages: multiple {number}", multiple),
                None if free else positive(f"stages: radius {number}", radius),
                count(f"stages: rounds {number}", rounds),
            )
        )
    multiples = [stage.multiple for stage in checked]
    if multiples != sorted(multiples, reverse=True) or multiples[-1] != 1:
        raise ConfigError(
            f"stages: the multiples of the regularizer must not increase and must end in 1, so "
            f"that the last stage minimises the objective itself, got {multiples}"
        )
    return checked
