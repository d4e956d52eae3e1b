"""The example in one file is short, needs torch and transformers alone, and trains on exactly the tokens it sampled."""

import ast
import random
import subprocess
import sys

import pytest
import torch
from nano_file import NANO, load_nano

SEED = 1


@pytest.fixture(scope="module")
def nano():
    return load_nano()


@pytest.fixture(scope="module")
def model(nano):
    return nano.new_model(SEED)


def test_it_is_one_file_of_at_most_250_lines_that_imports_torch_and_transformers_alone():
    source = NANO.read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("" if node.level else node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "transformers"}
    assert len(source.splitlines()) <= 250


def test_each_value_is_held_out_equally_often_and_no_held_out_thing_is_trained_on(nano):
    training, held_out = nano.all_states()
    assert not {state.thing for state in training} & {state.thing for state in held_out}
    assert (len(training), len(held_out)) == (144, 48)
    assert nano.silence(held_out) == nano.silence(training) == 0.25
    assert nano.silence(held_out[:3]) == 1.0  # one thing: its properties are known


@pytest.mark.parametrize("swapped", [False, True])
def test_a_row_has_what_its_seat_saw_heard_and_said(nano, model, swapped):
    _, states = nano.all_states()
    rows = nano.play(model, states, 2, swapped=swapped)
    assert len(rows) == 2 * 2 * len(states)
    askers, tellers = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    asked, told = ([row.response[0] for row in seat] for seat in (askers, tellers))
    for position, (asker, teller) in enumerate(zip(askers, tellers, strict=True)):
        group, episode = divmod(position, 2)
        source = position if not swapped else 2 * ((group + episode + 1) % len(states)) + episode
        assert (asker.group, asker.episode) == (teller.group, teller.episode) == (group, episode)
        assert asker.prompt == states[group].prompt(nano.ASKER)
        assert teller.prompt == [*states[group].prompt(nano.TELLER), asked[source]]
        assert asker.response[1] == told[source] and asker.mask == [1, 0, 1]
        assert len(teller.response) == 1 and teller.mask == [1]
        assert asker.reward == teller.reward == float(asker.response[2] == states[group].answer())
    assert {row.reward for row in rows} == {0.0, 1.0}


@pytest.mark.parametrize("greedy", [False, True])
def test_sampled_log_probs_are_those_of_one_pass_over_the_whole_row(nano, model, greedy):
    rows = nano.play(model, nano.all_states()[0], 2, greedy=greedy)
    ids, mask, sampled = nano.tensors(rows)
    said = mask.bool()
    assert said.sum() == 3 * len(rows) // 2
    torch.testing.assert_close(nano.token_log_probs(model, ids)[said], sampled[said], rtol=0, atol=1e-5)
    assert not sampled[~said].any()
    for row, tokens, own in zip(rows, ids.tolist(), said.tolist(), strict=True):
        words = [token for token, is_own in zip(tokens[1:], own, strict=True) if is_own]
        assert words == [token for token, is_own in zip(row.response, row.mask, strict=True) if is_own]


def test_an_update_changes_the_weights_and_makes_rewarded_tokens_likelier(nano):
    model, (training, _) = nano.new_model(SEED), nano.all_states()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    before = [weight.detach().clone() for weight in model.parameters()]
    rows = nano.play(model, training, 8)
    torch.manual_seed(SEED)
    for _ in range(2):
        nano.update(model, optimizer, random.Random(SEED).sample(training, 64))
    assert all(bool((weight != old).any()) for weight, old in zip(model.parameters(), before, strict=True))
    ids, mask, sampled = nano.tensors(rows)
    gain = ((nano.token_log_probs(model, ids).detach() - sampled) * mask).sum(1)
    advantage = nano.advantages(rows)
    assert gain[advantage > 0].mean() > gain[advantage < 0].mean()


@pytest.mark.long
def test_the_command_prints_the_curve_the_control_and_what_was_said():
    done = subprocess.run([sys.executable, NANO, "--updates", "2"], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["update", "0", "2"]
    assert lines[4].startswith("With words of other states swapped in: ") and lines[4].endswith("silence 0.250")
    assert len(lines[6:]) == 6 and all(" hears " in line for line in lines[6:])
