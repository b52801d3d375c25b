# `make train` and `make test` need only Python 3.11-3.13 and make: each makes its own environment in .venv.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Test processes: one per core, at most four (each runs its kernels on all cores and takes about 2 GB). PYTEST_ARGS="-n 0" runs in one.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); [ $$n -lt 4 ] && echo $$n || echo 4)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
TRAIN_ARGS ?=
BENCH_ARGS ?=
EXAMPLES_ARGS ?= --steps 5

.PHONY: help train test slow test-device clients examples lint types docs bench format clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 found on PATH; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, so that an unchanged project is not installed twice.
$(VENV)/.installed-%: pyproject.toml setup.py $(wildcard native/*.c native/*.h) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

train: $(VENV)/.installed-demo  ## train a small CNN on the handwritten digits (TRAIN_ARGS="--epochs 5")
	$(BIN)/calque train digits $(TRAIN_ARGS)

test: $(VENV)/.installed-dev  ## the fast test suite (PYTEST_ARGS="-k name")
	$(PYTEST) $(PYTEST_ARGS)

slow: $(VENV)/.installed-dev  ## the whole test suite
	$(PYTEST) --slow $(PYTEST_ARGS)

# On an accelerator install the JAX that knows it first (EXTRA=cuda or tpu); without one XLA's CPU device runs the same tests.
EXTRA ?= xla
test-device: $(VENV)/.installed-dev,$(EXTRA)  ## tests on the accelerator that is there (EXTRA=cuda), else on XLA's CPU device
	$(BIN)/python -m pytest -n 0 tests/device $(PYTEST_ARGS)

# Libraries written for PyTorch, without it: those that would bring it along are installed without what they depend on.
$(VENV)-clients/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,vision]' transformers einops psutil scikit-learn lightning-utilities requests einx sympy cloudpickle loguru \
		orjson h5py tabulate termcolor portalocker yacs gymnasium matplotlib pandas PyWavelets 'setuptools<80' opt_einsum packaging tqdm \
		configmypy zencfg datasets wandb mlflow-skinny \
		hyperpyyaml sentencepiece soundfile qpsolvers quadprog class-resolver pystow dataclasses-json click-default-group more-click docdata more_itertools attrs trampoline
	$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchmetrics accelerate timm peft diffusers lightning pytorch-lightning sentence-transformers \
		x-transformers torch-einops-utils ema-pytorch rotary-embedding-torch \
		kornia kornia_rs pytorch-metric-learning torchdiffeq torch-optimizer pytorch-ranger pytorch_optimizer torchsummary entmax pytorch-tabnet gpytorch linear_operator skorch \
		captum opacus e3nn opt_einsum_fx torch_ema vector-quantize-pytorch pytorch-msssim perceiver-pytorch normflows zuko torchsde torchcde geomloss geoopt pytorch-crf auraloss julius \
		torch-dct torchattacks monai torch_geometric botorch pyro-ppl snntorch nystrom-attention local-attention pytorch-tcn efficientnet_pytorch torchquad pytorch-warmup schedulefree \
		tensorly \
		torchinfo thop fvcore iopath torch-pruning backpack-for-pytorch unfoldNd einconv curvlinops-for-pytorch laplace-torch pytorch_wavelets nflows \
		spikingjelly norse nir nirtorch neuraloperator tensorly-torch tensordict pyvers torchrl pfrl linformer torchviz graphviz gym gym-notices asdfghjkl \
		positional-encodings performer-pytorch lion-pytorch torch-optimi torchbnn axial-positional-embedding reformer-pytorch product-key-memory rtdl \
		blitz-bayesian-pytorch flow_matching torchdyn higher torchjd pykeen torch_ppr torch_max_mem denoising-diffusion-pytorch vit-pytorch pytorch-minimize \
		xitorch nnaudio segmentation-models-pytorch speechbrain hyper-connections colt5-attention \
		torchfm egnn-pytorch g-mlp-pytorch lambda-networks soft-moe-pytorch mixture-of-experts st-moe-pytorch beartype siren-pytorch ptwt \
		deepctr-torch se3-transformer-pytorch h-transformer-1d conformer invariant-point-attention dadaptation prodigyopt came-pytorch kmeans-pytorch
	@touch $@

clients: $(VENV)-clients/.installed  ## libraries written for PyTorch (transformers, einops, ...) on Calque, against PyTorch's results
	$(VENV)-clients/bin/python -m pytest --slow -n 0 tests/clients tests/data/test_hugging_face.py tests/monitor/test_loggers.py $(PYTEST_ARGS)

examples: $(VENV)/.installed-demo,vision,mpi  ## the programs of examples/ through `calque run`, `calque launch` and a search (EXAMPLES_ARGS="--steps 50")
	@for program in $$(grep -l __main__ $$(grep -l "^import torch" examples/*.py)); do \
		echo "calque run $$program $(EXAMPLES_ARGS)"; $(BIN)/calque run $$program $(EXAMPLES_ARGS) || exit 1; done
	$(BIN)/calque launch -n 3 --restarts 3 --min 2 examples/elastic.py --kill 2@3,2@3
	$(BIN)/python examples/tune_digits.py --trials 2 --epochs 2

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev  ## ruff, with repairs
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed-dev  ## mypy, strict on the layers below the tensor
	$(BIN)/mypy

docs: $(VENV)/.installed-dev  ## run every example of the docstrings and of README.md
	$(BIN)/python -m tests.doc_examples

bench: $(VENV)/.installed-dev  ## steps, kernels and memory beside PyTorch and JAX where installed (BENCH_ARGS="--quick")
	$(BIN)/python bench/all.py $(BENCH_ARGS)

clean:  ## remove environments, caches and build outputs
	rm -rf $(VENV) $(VENV)-clients .venv-ci build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
