# What a contributor types. Another environment than .venv: make test BIN=/its/bin
BIN = .venv/bin
QUICK = -m "not ray and not deployment"

.PHONY: help setup lint test quick fuzz algorithm table docs

help:  ## show these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## make the environment .venv
	python3 -m venv .venv
	.venv/bin/pip install -e ".[dev]"

lint:  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test:  ## all tests: about half an hour on two cores
	$(BIN)/pytest -n 2

quick:  ## the tests that do not start Flower: about ten minutes
	$(BIN)/pytest -n 2 $(QUICK)

fuzz:  ## up to 100,000 hostile messages of nodes and servers, and damaged files of each kind
	FEDCON_FUZZ=100000 $(BIN)/pytest tests/flower/test_fuzz_nodes.py \
		tests/flower/test_mutated_requests.py tests/test_fuzz_disk.py

algorithm:  ## what holds one algorithm: make algorithm NAME=fedavg
	@test -n "$(NAME)" || { echo "which one? make algorithm NAME=fedavg" >&2; exit 2; }
	$(BIN)/pytest tests -k "$(NAME) or table or test_house" $(QUICK) --maxfail=3 --tb=short

table:  ## renew the README's table of algorithms
	$(BIN)/fedcon list --into README.md

docs:  ## build the site: open docs/_build/html/index.html
	$(BIN)/sphinx-build -W --keep-going docs docs/_build/html
