"""Programs of libraries that are written for PyTorch: `calque run tests/clients/programs.py NAME` prints what NAME computes, as JSON.

They know nothing of Calque. `python -m tests.clients.expected` runs them with PyTorch and keeps their results.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import torch


def fill(model: Any) -> Any:
    """Weights that do not depend on a random generator."""
    with torch.no_grad():
        for k, (name, p) in enumerate(model.named_parameters()):
            value = torch.sin(torch.arange(p.numel(), dtype=torch.float32) * 0.37 + k).view(p.shape) * 0.1
            p.copy_(value + 1 if p.ndim == 1 and name.endswith("weight") else value)
    return model


def tokens(*shape: int, most: int = 100) -> Any:
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count) * 37 % most).view(shape)


def image(*shape: int) -> Any:
    return torch.cos(torch.arange(torch.Size(shape).numel(), dtype=torch.float32) * 0.11).view(shape)


def steps(model: Any, inputs: dict[str, Any], count: int = 3) -> list[float]:
    """Losses of a few steps. (Of SGD: where a gradient is nothing but rounding, Adam makes a step of it.)"""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(count):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def greedy(model: Any, prompt: Any, **options: Any) -> list[Any]:
    with torch.no_grad():
        return model.generate(prompt, max_new_tokens=8, do_sample=False, **options).tolist()


SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    model = fill(BertForSequenceClassification(BertConfig(**SMALL, num_labels=3)))
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return steps(model, {"input_ids": tokens(2, 8), "attention_mask": mask, "labels": torch.tensor([0, 2])})


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = fill(GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=99)))
    losses = steps(model, {"input_ids": tokens(2, 10), "labels": tokens(2, 10)})
    return [losses, greedy(model, tokens(2, 4), pad_token_id=99), greedy(model, tokens(1, 4), pad_token_id=99, num_beams=3)]


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = fill(LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=99)))
    losses = steps(model, {"input_ids": tokens(2, 10), "labels": tokens(2, 10)})
    return [losses, greedy(model, tokens(2, 4), pad_token_id=99)]


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    model = fill(MixtralForCausalLM(MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64)))
    return steps(model, {"input_ids": tokens(2, 10), "labels": tokens(2, 10)})


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0)
    model = fill(T5ForConditionalGeneration(config))
    losses = steps(model, {"input_ids": tokens(2, 8), "labels": tokens(2, 6)})
    return [losses, greedy(model, tokens(2, 8))]


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    model = fill(ViTForImageClassification(ViTConfig(**config, image_size=32, patch_size=8, num_labels=3)))
    return steps(model, {"pixel_values": image(2, 3, 32, 32), "labels": torch.tensor([0, 2])})


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = fill(WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=20, max_target_positions=20, pad_token_id=1, bos_token_id=2, eos_token_id=3,
        decoder_start_token_id=4, suppress_tokens=[], begin_suppress_tokens=[],
    )))  # fmt: skip
    return steps(model, {"input_features": image(2, 8, 40), "labels": tokens(2, 6)})


def clip() -> Any:
    from transformers import CLIPConfig, CLIPModel

    text = {**SMALL, "max_position_embeddings": 16, "projection_dim": 16, "eos_token_id": 99, "bos_token_id": 0, "pad_token_id": 1}
    vision = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {"image_size": 32, "patch_size": 8, "projection_dim": 16}
    model = fill(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)))
    return steps(model, {"input_ids": tokens(2, 8), "pixel_values": image(2, 3, 32, 32), "return_loss": True})


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    model = fill(MambaForCausalLM(MambaConfig(vocab_size=100, hidden_size=16, state_size=4, num_hidden_layers=2, use_mambapy=False)))
    return steps(model, {"input_ids": tokens(2, 6), "labels": tokens(2, 6)})


def pretrained() -> Any:
    """A model that is saved to a folder and loaded from it."""
    from transformers import BertConfig, BertModel

    model = fill(BertModel(BertConfig(**SMALL))).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        first, second = (m(tokens(1, 6)).last_hidden_state for m in (model, again))
    same = all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
    return [same, bool(torch.allclose(first, second, atol=1e-5)), first.sum().item()]


def einops() -> Any:
    from einops import einsum, pack, rearrange, reduce, repeat, unpack
    from einops.layers.torch import Rearrange, Reduce

    x = image(2, 4, 6, 3).requires_grad_()
    layers = torch.nn.Sequential(Rearrange("b h w c -> b c h w"), torch.nn.Conv2d(3, 4, 1), Reduce("b c (h k) w -> b c h", "mean", k=2))
    y = reduce(rearrange(fill(layers)(x), "b c h -> b (h c)") ** 2, "b f -> b", "sum")
    packed, shapes = pack([x, repeat(y, "b -> b h w c", h=1, w=6, c=3)], "b * w c")
    total = sum(part.sum() for part in unpack(packed, shapes, "b * w c")) + einsum(x, x, "b h w c, b h w d -> c d").sum()
    total.backward()
    return [total.item(), x.grad.abs().sum().item()]


def safetensors() -> Any:
    from safetensors.torch import load_file, load_model, save_file, save_model

    model = fill(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)))
    with tempfile.TemporaryDirectory() as folder:
        save_file({"a": image(2, 3), "b": tokens(4), "c": image(3).bfloat16()}, f"{folder}/x.safetensors")
        found = load_file(f"{folder}/x.safetensors")
        save_model(model, f"{folder}/m.safetensors")
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
        load_model(other, f"{folder}/m.safetensors")
    same = all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))
    return [{key: [str(value.dtype), value.float().sum().item()] for key, value in sorted(found.items())}, same]


def torchmetrics() -> Any:
    import torchmetrics as tm

    target, guess = tokens(40, most=4), tokens(40, most=7) % 4
    scores = torch.softmax(image(40, 4), 1)
    metrics = tm.MetricCollection([
        tm.Accuracy(task="multiclass", num_classes=4), tm.F1Score(task="multiclass", num_classes=4, average="macro"),
        tm.ConfusionMatrix(task="multiclass", num_classes=4),
    ])  # fmt: skip
    metrics.update(guess[:20], target[:20])
    metrics.update(guess[20:], target[20:])
    found = {name: value.tolist() for name, value in metrics.compute().items()}
    found["auroc"] = tm.AUROC(task="multiclass", num_classes=4)(scores, target).item()
    found["mse"] = tm.MeanSquaredError()(image(10), image(10) * 2).item()
    found["r2"] = tm.R2Score()(image(10) * 1.1, image(10)).item()
    found["spearman"] = tm.SpearmanCorrCoef()(image(10), torch.sin(image(10) * 5)).item()
    return found


def accelerate() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = fill(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    data = torch.utils.data.TensorDataset(image(12, 3), image(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=3), schedule)
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return [losses, accelerator.num_processes, len(accelerator.get_state_dict(model))]


def _timm(name: str, size: int) -> list[float]:
    import timm

    model = fill(timm.create_model(name, num_classes=3, **({"img_size": size} if "vit" in name or "mixer" in name else {})))
    model.eval()  # no dropout, and batch norm with its own statistics: those of these images are nearly nothing, and only magnify rounding
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(image(2, 3, size, size)), torch.tensor([0, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def timm() -> Any:
    return {name: _timm(name, 32) for name in ("resnet10t", "convnext_atto", "vit_tiny_patch16_224", "mixer_s32_224", "regnetx_002", "ghostnet_050")}


def peft() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=99))
    model = fill(get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.0, fan_in_fan_out=True)))
    return [steps(model, {"input_ids": tokens(2, 10), "labels": tokens(2, 10)}), sum(p.numel() for p in model.parameters() if p.requires_grad)]


def diffusers() -> Any:
    from diffusers import DDPMScheduler, UNet2DModel

    model = fill(UNet2DModel(
        sample_size=16, layers_per_block=1, block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ))  # fmt: skip
    clean, noise, times = image(2, 3, 16, 16), image(2, 3, 16, 16).sin(), torch.tensor([10, 500])
    loss = (model(DDPMScheduler().add_noise(clean, noise, times), times).sample - noise).pow(2).mean()
    loss.backward()
    return loss.item()


def x_transformers() -> Any:
    from x_transformers import Decoder, TransformerWrapper

    model = fill(TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=Decoder(dim=32, depth=2, heads=4, attn_dim_head=8)))
    loss = torch.nn.functional.cross_entropy(model(tokens(2, 10)).transpose(1, 2), tokens(2, 10))
    loss.backward()
    return loss.item()


PROGRAMS = {
    function.__name__: function
    for function in (
        bert, gpt2, llama, mixtral, t5, vit, whisper, clip, mamba, pretrained, einops, safetensors, torchmetrics, accelerate, timm,
        peft, diffusers, x_transformers,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
