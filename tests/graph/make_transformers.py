"""Exports small random configurations of PyPI's `transformers` models, with the results of Python's eager run.

Usage: python3 make_transformers.py FOLDER [NAME…]. Writes files like make_archives.py, and the results of the eager run to
FOLDER/expected like python_reference.py. No weights are downloaded. A model that torch.export rejects is reported as
`refused NAME: reason` and skipped.
"""
import os
import sys

os.environ["TRANSFORMERS_OFFLINE"] = "1"
import torch
import transformers as tf
from make_archives import make, save_tensors
from python_reference import results

V, W, H, L, F = 19, 8, 2, 2, 16  # vocabulary, width, heads, layers, width inside of a block
ids = lambda *size: torch.randint(3, V, size)
image = lambda: torch.randn(2, 3, 8, 8)
text = dict(vocab_size=V, hidden_size=W, num_hidden_layers=L, num_attention_heads=H, intermediate_size=F,
            max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2)
vision = dict(image_size=8, patch_size=4, hidden_size=W, num_hidden_layers=L, num_attention_heads=H, intermediate_size=F)


def causal(config):
    return tf.AutoModelForCausalLM.from_config(config), lambda: dict(input_ids=ids(2, 6), use_cache=False)


def encoder(kind, config, **more):
    return kind(config), lambda: dict(input_ids=ids(2, 6), **more)


def pixels(kind, config):
    return kind(config), lambda: dict(pixel_values=image())


MODELS = {
    "gpt2": lambda: causal(tf.GPT2Config(vocab_size=V, n_embd=W, n_layer=L, n_head=H, n_positions=16)),
    "llama": lambda: causal(tf.LlamaConfig(**text, num_key_value_heads=1)),
    "bert": lambda: encoder(tf.BertForMaskedLM, tf.BertConfig(**text)),
    "t5": lambda: (tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=V, d_model=W, d_kv=4, d_ff=F, num_layers=L, num_heads=H, decoder_start_token_id=0)),
                   lambda: dict(input_ids=ids(2, 6), decoder_input_ids=ids(2, 4), use_cache=False)),
    "vit": lambda: pixels(tf.ViTForImageClassification, tf.ViTConfig(**vision, num_labels=3)),
    "mistral": lambda: causal(tf.MistralConfig(**text, num_key_value_heads=1, sliding_window=4)),
    "qwen2": lambda: causal(tf.Qwen2Config(**text, num_key_value_heads=1)),
    "qwen3": lambda: causal(tf.Qwen3Config(**text, num_key_value_heads=1, head_dim=4)),
    "gemma": lambda: causal(tf.GemmaConfig(**text, num_key_value_heads=1, head_dim=4)),
    "gemma2": lambda: causal(tf.Gemma2Config(**text, num_key_value_heads=1, head_dim=4)),
    "phi": lambda: causal(tf.PhiConfig(**text)),
    "phi3": lambda: causal(tf.Phi3Config(**text, num_key_value_heads=1)),
    "gpt_neox": lambda: causal(tf.GPTNeoXConfig(**text)),
    "gptj": lambda: causal(tf.GPTJConfig(vocab_size=V, n_embd=W, n_layer=L, n_head=H, n_positions=16, rotary_dim=4)),
    "gpt_neo": lambda: causal(tf.GPTNeoConfig(vocab_size=V, hidden_size=W, num_layers=L, num_heads=H, intermediate_size=F, attention_types=[[["global", "local"], 1]], max_position_embeddings=16, window_size=4)),
    "opt": lambda: causal(tf.OPTConfig(vocab_size=V, hidden_size=W, num_hidden_layers=L, num_attention_heads=H, ffn_dim=F, max_position_embeddings=16, word_embed_proj_dim=W)),
    "bloom": lambda: causal(tf.BloomConfig(vocab_size=V, hidden_size=W, n_layer=L, n_head=H)),
    "falcon": lambda: causal(tf.FalconConfig(vocab_size=V, hidden_size=W, num_hidden_layers=L, num_attention_heads=H)),
    "stablelm": lambda: causal(tf.StableLmConfig(**text, num_key_value_heads=2)),
    "olmo": lambda: causal(tf.OlmoConfig(**text, num_key_value_heads=2)),
    "mpt": lambda: causal(tf.MptConfig(vocab_size=V, d_model=W, n_layers=L, n_heads=H, max_seq_len=16)),
    "mixtral": lambda: causal(tf.MixtralConfig(**text, num_key_value_heads=1, num_local_experts=2, num_experts_per_tok=1, experts_implementation="batched_mm")),
    "mamba": lambda: (tf.MambaForCausalLM(tf.MambaConfig(vocab_size=V, hidden_size=W, num_hidden_layers=L, state_size=4)), lambda: dict(input_ids=ids(2, 6), use_cache=False)),
    "roberta": lambda: encoder(tf.RobertaForMaskedLM, tf.RobertaConfig(**{**text, "max_position_embeddings": 24})),
    "distilbert": lambda: encoder(tf.DistilBertForMaskedLM, tf.DistilBertConfig(vocab_size=V, dim=W, hidden_dim=F, n_layers=L, n_heads=H, max_position_embeddings=16)),
    "albert": lambda: encoder(tf.AlbertForMaskedLM, tf.AlbertConfig(**text, embedding_size=4)),
    "electra": lambda: encoder(tf.ElectraForMaskedLM, tf.ElectraConfig(**text, embedding_size=4)),
    "deberta": lambda: encoder(tf.DebertaV2ForMaskedLM, tf.DebertaV2Config(**text)),
    "mpnet": lambda: encoder(tf.MPNetForMaskedLM, tf.MPNetConfig(**{**text, "max_position_embeddings": 24})),
    "bart": lambda: (tf.BartForConditionalGeneration(tf.BartConfig(vocab_size=V, d_model=W, encoder_layers=L, decoder_layers=L, encoder_attention_heads=H, decoder_attention_heads=H, encoder_ffn_dim=F, decoder_ffn_dim=F, max_position_embeddings=16)),
                     lambda: dict(input_ids=ids(2, 6), decoder_input_ids=ids(2, 4), use_cache=False)),
    "deit": lambda: pixels(tf.DeiTForImageClassification, tf.DeiTConfig(**vision, num_labels=3)),
    "dinov2": lambda: pixels(tf.Dinov2ForImageClassification, tf.Dinov2Config(image_size=8, patch_size=4, hidden_size=W, num_hidden_layers=L, num_attention_heads=H, num_labels=3)),
    "swin": lambda: pixels(tf.SwinForImageClassification, tf.SwinConfig(image_size=8, patch_size=2, embed_dim=4, depths=[1, 1], num_heads=[1, 2], window_size=2, num_labels=3)),
    "convnext": lambda: pixels(tf.ConvNextForImageClassification, tf.ConvNextConfig(num_stages=2, hidden_sizes=[4, 8], depths=[1, 1], image_size=8, patch_size=2, num_labels=3)),
    "resnet": lambda: pixels(tf.ResNetForImageClassification, tf.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3)),
    "beit": lambda: pixels(tf.BeitForImageClassification, tf.BeitConfig(**vision, num_labels=3)),
    "clip": lambda: (tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=4)),
                     lambda: dict(input_ids=ids(2, 6), pixel_values=image())),
    "whisper": lambda: (tf.WhisperForConditionalGeneration(tf.WhisperConfig(vocab_size=V, num_mel_bins=4, d_model=W, encoder_layers=L, decoder_layers=L, encoder_attention_heads=H, decoder_attention_heads=H, encoder_ffn_dim=F, decoder_ffn_dim=F, max_source_positions=8, max_target_positions=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)),
                        lambda: dict(input_features=torch.randn(2, 4, 16), decoder_input_ids=ids(2, 4), use_cache=False)),
    "wav2vec2": lambda: (tf.Wav2Vec2Model(tf.Wav2Vec2Config(**{k: v for k, v in text.items() if k != "max_position_embeddings"}, conv_dim=(4,), conv_kernel=(3,), conv_stride=(2,), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, apply_spec_augment=False)),
                         lambda: dict(input_values=torch.randn(2, 32))),
}

# These drop entire layers at random in training with an `if` on a tensor, which a graph cannot represent.
NOT_IN_TRAINING = {"opt", "bart", "whisper", "wav2vec2"}


def main():
    torch.set_num_threads(1)
    folder, wanted = sys.argv[1], sys.argv[2:] or MODELS
    os.makedirs(f"{folder}/expected", exist_ok=True)
    for name in wanted:
        try:
            torch.manual_seed(1)
            model, batch = MODELS[name]()
            if name == "t5":  # its fresh weights are too large for the tiny width
                with torch.no_grad():
                    for value in model.parameters():
                        value.mul_(0.2)
            runs = [((), batch())]
            tensors = make(folder, name, model.train(name not in NOT_IN_TRAINING), runs)
            save_tensors(f"{folder}/expected/{name}.safetensors", results(model, runs, tensors))
            print("made", name, flush=True)
        except Exception as error:  # torch.export's refusal is not ours to judge
            print(f"refused {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300], flush=True)


if __name__ == "__main__":
    main()
