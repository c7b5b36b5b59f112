"""TLS and SuperNode authentication, with certificates and keys made on the spot."""

from __future__ import annotations

import json

import pytest
from deployment import CONNECTION, Deployment
from problems import l1ls
from processes import FlowerProcess, free_ports, wait_until
from row_nodes import APP, model_of, node_configs, run_config
from security import Security

from flower_fedcon import Sample, simulate
from flower_fedcon.strategies import FedFW

ROUNDS = 3


@pytest.mark.nightly
@pytest.mark.deployment
def test_known_nodes_over_tls(tmp_path):
    security = Security(tmp_path / "keys", nodes=3, names={1: "lyon"})
    configs = node_configs(tmp_path, 2, keep=False)
    with Deployment(tmp_path / "flower", configs, security=security) as deployment:
        stranger = FlowerProcess(
            deployment.root,
            "stranger",
            [
                "flower-supernode",
                *security.node_options(2),  # a key that nobody registered
                *("--superlink", f"127.0.0.1:{deployment.port}", "--host", "127.0.0.1"),
                *("--port", str(free_ports(1)[0]), "--max-retries", "1"),
            ],
        )
        try:
            stranger.start()
            arguments = {"penalty": 0.1, "oracle": "constraint", "sample": 1}
            config = run_config(
                "FedFW", arguments, ROUNDS, tmp_path / "run", seed=5, authenticated=True
            )
            deployment.run(APP, config, timeout=150)
            assert wait_until(lambda: not stranger.alive(), 60), stranger.log_tail()
            assert "SuperNode ID" not in stranger.log()
        finally:
            stranger.kill()
        listed = json.loads(deployment.flwr("supernode", "list", CONNECTION, "--format", "json"))
        assert len(listed["nodes"]) == 2
    began, *_ = (tmp_path / "run" / "audit.jsonl").read_text().splitlines()
    assert list(json.loads(began)["clients"]) == ["0", "lyon"]  # as it says, or as registered
    problem = l1ls(2)
    strategy = FedFW(problem.constraint, penalty=0.1, participation=Sample(count=1))
    expected = simulate(strategy, problem, ROUNDS, seed=5).x
    assert model_of(tmp_path / "run").tobytes() == expected.tobytes()
