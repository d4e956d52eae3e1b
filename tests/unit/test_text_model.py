"""`selfplay model text` writes the language model inside a vision model; a vision model itself is refused."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, Qwen2AudioConfig

from bench.architectures import VISION, build
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.hub import config_of
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.warm_start import text_model
from selfplay_pipeline.warm_start.text_model import write_text_model

CLASSES = {
    "gemma3 with vision": "Gemma3ForCausalLM", "gemma4 with vision": "Gemma4ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM", "qwen3_vl": "Qwen3ForCausalLM",
    "mistral3": "MistralForCausalLM", "qwen3_5": "Qwen3_5ForCausalLM",
}  # fmt: skip


@pytest.mark.parametrize("kind", VISION)
def test_the_text_model_computes_what_the_vision_model_computes(tmp_path, kind):
    build(kind, tmp_path / "vision")
    write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    check_checkpoint(str(tmp_path / "text"))
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "vision").eval()
    text = AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    ids = torch.randint(3, 290, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(text(input_ids=ids).logits, whole(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    assert type(text).__name__ == CLASSES[kind]
    assert not hasattr(AutoConfig.from_pretrained(tmp_path / "text"), "vision_config")
    assert sum(one.numel() for one in text.parameters()) < sum(one.numel() for one in whole.parameters())


def test_tokenizer_template_and_dtype_stay(tmp_path):
    build("qwen3_vl", tmp_path / "vision")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "vision", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "vision")
    write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    first, second = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("vision", "text"))
    assert first.get_vocab() == second.get_vocab() and first.chat_template == second.chat_template
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype="auto").dtype == torch.bfloat16


def test_a_template_in_a_file_of_the_processor_is_taken(tmp_path):
    build("qwen2_5_vl", tmp_path / "vision")
    (tmp_path / "vision" / "chat_template.jinja").unlink()
    (tmp_path / "vision" / "chat_template.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    assert AutoTokenizer.from_pretrained(tmp_path / "text").chat_template == "{{ messages[0].content }}"


def test_the_ends_of_a_turn_are_those_of_the_whole_model(tmp_path):
    """Gemma 3 names them beside its text part, which has the default of its class."""
    build("gemma3 with vision", tmp_path / "vision")
    file = tmp_path / "vision" / "config.json"
    config = json.loads(file.read_text()) | {"eos_token_id": [2, 5]}
    del config["text_config"]["eos_token_id"]
    file.write_text(json.dumps(config))
    write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    assert AutoConfig.from_pretrained(tmp_path / "text").eos_token_id == [2, 5]


def test_a_vision_model_is_refused_with_the_command_that_helps(tmp_path):
    build("gemma3 with vision", tmp_path)
    for check in (config_of, check_checkpoint):
        with pytest.raises(UserError, match=rf"selfplay model text {tmp_path} --output FOLDER"):
            check(str(tmp_path))


def test_a_model_that_hears_is_refused(tmp_path):
    Qwen2AudioConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="a model that hears; give a text model"):
        config_of(str(tmp_path))


def test_a_text_model_needs_no_such_step(tmp_path):
    with pytest.raises(UserError, match="a text model needs no such step"):
        write_text_model(shipped("data/tiny_model"), tmp_path / "text")
    assert not (tmp_path / "text").exists()


def test_a_model_with_other_weights_is_not_written(tmp_path, monkeypatch):
    """Qwen2 has no norms of queries and keys."""
    build("qwen3_vl", tmp_path / "vision")
    monkeypatch.setitem(text_model.SAME_AS, "qwen3_vl_text", "qwen2")
    with pytest.raises(UserError, match=r"and Qwen2ForCausalLM have other weights \(model\.layers"):
        write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    assert not (tmp_path / "text").exists()


def test_a_model_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    build("qwen3_vl", tmp_path / "vision")
    found = text_model._text_config

    def other_positions(*given):
        config = found(*given)
        config.rope_parameters["rope_theta"] = 100.0
        return config

    monkeypatch.setattr(text_model, "_text_config", other_positions)
    with pytest.raises(UserError, match=r"its language model gives other logits \(by [0-9.]+%\)"):
        write_text_model(str(tmp_path / "vision"), tmp_path / "text")
    assert not (tmp_path / "text").exists()


def test_a_language_model_without_a_class_of_its_own_is_refused(tmp_path, monkeypatch):
    build("qwen3_vl", tmp_path / "vision")
    monkeypatch.delitem(text_model.SAME_AS, "qwen3_vl_text")
    with pytest.raises(UserError, match="transformers has no text model for qwen3_vl_text"):
        write_text_model(str(tmp_path / "vision"), tmp_path / "text")
