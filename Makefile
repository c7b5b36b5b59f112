# What a contributor types. Another environment than .venv: make test BIN=/its/bin
BIN = .venv/bin
CASES = 100000
EXTRAS = $(shell $(or $(PYTHON),python3) -c "import tomllib; \
	found = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; \
	print(','.join(sorted(found.keys() - {'dev', 'docs'})))")

.PHONY: help setup lint test quick flower versions durations nightly fuzz algorithm table docs

help:  ## show these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## make the environment .venv
	python3 -m venv .venv
	.venv/bin/pip install -e ".[dev]"

lint:  ## ruff, mypy and the words of docs/words.txt
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_words.py

test:  ## all tests but the nightly ones
	$(BIN)/pytest -n 2

quick:  ## the quickest tests of every room: half a minute
	$(BIN)/pytest -n 2 -m quick

flower:  ## what speaks Flower, on another version of it: make flower FLWR=1.41, or FLWR=nightly
	@test -n "$(FLWR)" || { echo "which one? make flower FLWR=1.41" >&2; exit 2; }
	python3 -m venv .venv-flwr
	.venv-flwr/bin/pip install --quiet -e ".[dev]" $(if $(filter nightly,$(FLWR)),,"flwr[simulation]==$(FLWR).*")
	$(if $(filter nightly,$(FLWR)),.venv-flwr/bin/pip install --quiet --pre --upgrade --force-reinstall --no-deps flwr-nightly)
	.venv-flwr/bin/pytest -n 2 tests/flower tests/tables/nodes tests/training

versions:  ## what people call, on other versions: make versions RESOLUTION=lowest-direct PYTHON=python3.11
	@test -n "$(RESOLUTION)" || { echo "which ones? make versions RESOLUTION=highest" >&2; exit 2; }
	$(or $(PYTHON),python3) -m venv .venv-versions
	.venv-versions/bin/pip install --quiet uv
	.venv-versions/bin/uv pip install --quiet --python .venv-versions/bin/python \
		--resolution $(RESOLUTION) -e ".[$(EXTRAS)]"
	.venv-versions/bin/uv pip freeze --quiet --python .venv-versions/bin/python \
		| grep == > .venv-versions/found.txt
	.venv-versions/bin/uv pip install --quiet --python .venv-versions/bin/python \
		-c .venv-versions/found.txt hypothesis lifelines pytest pytest-xdist statsmodels
	.venv-versions/bin/pytest -n 2 -m "not slow" tests/test_extras.py tests/algorithms tests/engines tests/training \
		tests/math tests/tables $(addprefix tests/lab/test_, $(addsuffix .py, cli figures fmri images watch))

durations:  ## measure anew which tests are fast, on a quiet machine
	$(BIN)/pytest -n 2 --measure
	$(BIN)/pytest -n 2 --measure -m "not slow"
	$(BIN)/pytest -n 2 --measure -m quick

nightly:  ## the long tests, and fuzzing with many cases: hours
	$(BIN)/pytest -n 2 -m nightly
	$(MAKE) fuzz BIN=$(BIN) CASES=20000

fuzz:  ## all that draws its cases: 100,000 hostile messages, damaged files of each kind, ...
	FEDCON_FUZZ=$(CASES) $(BIN)/pytest -n 2 -m fuzz

algorithm:  ## what holds one algorithm: make algorithm NAME=fedavg
	@test -n "$(NAME)" || { echo "which one? make algorithm NAME=fedavg" >&2; exit 2; }
	$(BIN)/pytest tests -k "$(NAME) or table or test_house" -m "not ray" --maxfail=3 --tb=short

table:  ## renew the README's table of algorithms
	$(BIN)/fedcon list --into README.md

docs:  ## build the site: open docs/_build/html/index.html
	$(BIN)/sphinx-build -j 2 -W --keep-going docs docs/_build/html
