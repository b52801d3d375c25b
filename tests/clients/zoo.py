"""Ten models and more of each library: `calque run tests/clients/zoo.py NAME` prints what they compute, as JSON. They know nothing of Calque."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from programs import SMALL, fill, greedy, image, steps, tokens

F = torch.nn.functional


def _language(make: Callable[[Any], Any], labels: Any = None) -> Any:
    """Losses of a model with a causal or masked head."""
    return steps(make(None), {"input_ids": tokens(2, 8), "labels": tokens(2, 8) if labels is None else labels}, 2)


def transformers() -> Any:
    import transformers as tf

    def made(kind: str, head: str, **options: Any) -> Any:
        return fill(getattr(tf, f"{kind}{head}")(getattr(tf, f"{kind}Config")(**options)))

    decoder = {**SMALL, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 99, "pad_token_id": 1}
    found: dict[str, Any] = {}
    for kind, options in {
        "Qwen2": {"num_key_value_heads": 2},
        "Mistral": {"num_key_value_heads": 2, "sliding_window": 4},
        "Gemma": {"num_key_value_heads": 2, "head_dim": 8},
        "Phi": {},
        "GPTNeoX": {},
        "Olmo": {},
        "Qwen3": {"num_key_value_heads": 2, "head_dim": 8},
        "Falcon": {"num_kv_heads": 4, "new_decoder_architecture": True},
        "StableLm": {"num_key_value_heads": 4},
    }.items():
        model = made(kind, "ForCausalLM", **decoder, **options)
        found[kind] = [steps(model, {"input_ids": tokens(2, 8), "labels": tokens(2, 8)}, 2), greedy(model, tokens(1, 4), pad_token_id=1)]
    for kind, options in {
        "Roberta": {"max_position_embeddings": 66},
        "Electra": {"embedding_size": 32},
        "Albert": {"embedding_size": 16},
        "Ernie": {},
    }.items():
        found[kind] = _language(lambda _, kind=kind, options=options: made(kind, "ForMaskedLM", **{**decoder, "eos_token_id": 2, **options}))
    found["DistilBert"] = _language(lambda _: made("DistilBert", "ForMaskedLM", vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64))
    found["OPT"] = _language(
        lambda _: made(
            "OPT",
            "ForCausalLM",
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            word_embed_proj_dim=32,
            max_position_embeddings=64,
            pad_token_id=1,
            dropout=0.0,
        )
    )
    found["Bart"] = steps(
        made(
            "Bart",
            "ForConditionalGeneration",
            vocab_size=100,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            dropout=0.0,
        ),
        {"input_ids": tokens(2, 8), "labels": tokens(2, 6)},
        2,
    )
    found["Segformer"] = steps(
        made(
            "Segformer",
            "ForImageClassification",
            num_labels=3,
            hidden_sizes=[8, 16, 16, 16],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 2, 2],
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
        ),
        {"pixel_values": image(2, 3, 64, 64), "labels": torch.tensor([0, 2])},
        2,
    )
    found["Wav2Vec2"] = steps(
        made(
            "Wav2Vec2",
            "ForCTC",
            **{k: v for k, v in SMALL.items() if k != "vocab_size"},
            vocab_size=20,
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            pad_token_id=0,
            layerdrop=0.0,
            mask_time_prob=0.0,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            attention_dropout=0.0,
        ),
        {"input_values": image(2, 400), "labels": tokens(2, 4, most=18) + 1},
        2,
    )
    return found


def sampled() -> Any:
    """Sampling from a distribution that leaves no choice, beams with penalties, a cache of fixed size, and assisted generation."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = fill(GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=99))).eval()
    prompt, found = tokens(2, 4), {}
    with torch.no_grad():
        found["one choice"] = model.generate(prompt, max_new_tokens=8, do_sample=True, top_k=1, pad_token_id=99).tolist()
        found["sample"] = list(model.generate(prompt, max_new_tokens=8, do_sample=True, top_p=0.9, temperature=0.7, pad_token_id=99).shape)
        found["beams"] = greedy(model, prompt, num_beams=4, length_penalty=0.5, no_repeat_ngram_size=2, repetition_penalty=1.2, pad_token_id=99)
        found["static"] = greedy(model, prompt, cache_implementation="static", pad_token_id=99)
        found["scores"] = (
            model.generate(prompt, max_new_tokens=3, do_sample=False, output_scores=True, return_dict_in_generate=True, pad_token_id=99)
            .scores[0]
            .sum(-1)
            .tolist()
        )
    return found


def trainer() -> Any:
    """`Trainer`: batches in order, warm-up, weight decay, evaluation, saving and loading."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, default_data_collator

    model = fill(BertForSequenceClassification(BertConfig(**SMALL, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))
    data = [{"input_ids": tokens(8) + k, "labels": torch.tensor(k % 3)} for k in range(12)]

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            warmup_steps=2,
            weight_decay=0.01,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="epoch",
            dataloader_pin_memory=False,
            lr_scheduler_type="cosine",
        )
        made = InOrder(model=model, args=arguments, train_dataset=data, eval_dataset=data, data_collator=default_data_collator)
        made.train()
        evaluated = made.evaluate()["eval_loss"]
        again = BertForSequenceClassification.from_pretrained(sorted(Path(folder).glob("checkpoint-*"))[-1])
    same = all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
    return [[row["loss"] for row in made.state.log_history if "loss" in row], evaluated, same]


def lightning() -> Any:
    """A module with schedules, logging, validation, accumulation, a callback, a checkpoint and manual optimization."""
    import lightning as pl

    class Model(pl.LightningModule):
        def __init__(self, manual: bool = False) -> None:
            super().__init__()
            self.net, self.losses = fill(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))), []
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = F.mse_loss(self.net(x), y)
            self.log("loss", loss, on_epoch=True, prog_bar=True)
            self.losses.append(loss.item())
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", F.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}

    data = torch.utils.data.TensorDataset(image(16, 4), image(16, 1).sin())
    found = []
    for manual, options in ((False, {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0}), (True, {})):
        model = Model(manual)
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        with tempfile.TemporaryDirectory() as folder:
            saved = pl.pytorch.callbacks.ModelCheckpoint(folder, monitor="val")
            trainer = pl.Trainer(
                max_epochs=3,
                accelerator="cpu",
                logger=False,
                callbacks=[saved],
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder,
                **options,
            )
            trainer.fit(model, loader, loader)
            again = Model.load_from_checkpoint(saved.best_model_path, manual=manual)
        found.append([model.losses, trainer.callback_metrics["val"].item(), list(again.state_dict()), trainer.global_step])
    return found


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "ran", "on", "a", "mat", "red", "##s")


def sentence_transformers() -> Any:
    """Embeddings of sentences, their similarities, pooling in every way, and losses of its training."""
    import sentence_transformers as st
    from sentence_transformers import losses
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizer

    sentences = ["the cat sat on the mat", "a dog ran", "the red cats ran on"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_text("\n".join(WORDS))
        BertTokenizer(f"{folder}/vocab.txt").save_pretrained(folder)
        fill(BertModel(BertConfig(**{**SMALL, "vocab_size": len(WORDS)}, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))).save_pretrained(
            folder
        )
        word = Transformer(folder)
        found: dict[str, Any] = {}
        for mode in ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"):
            model = st.SentenceTransformer(modules=[word, Pooling(32, pooling_mode=mode), Normalize()], device="cpu")
            embedded = model.encode(sentences, convert_to_tensor=True)
            found[mode] = model.similarity(embedded, embedded).flatten().tolist()
        model = st.SentenceTransformer(modules=[word, Pooling(32)], device="cpu")
        first, second = (model.tokenize(part) for part in (sentences[:2], sentences[1:]))
        labels = torch.tensor([0.9, 0.1])
        for kind, target in (
            (losses.CosineSimilarityLoss, labels),
            (losses.MultipleNegativesRankingLoss, labels),
            (losses.ContrastiveLoss, labels.round().long()),
            (losses.CoSENTLoss, labels),
            (losses.OnlineContrastiveLoss, labels.round().long()),
        ):
            model.zero_grad()
            loss = kind(model)([dict(first), dict(second)], target)
            loss.backward()
            found[kind.__name__] = [loss.item(), sum(p.grad.abs().sum().item() for p in model.parameters() if p.grad is not None)]
        model.save(f"{folder}/saved")
        again = st.SentenceTransformer(f"{folder}/saved", device="cpu")
        found["saved"] = bool((again.encode(sentences) == model.encode(sentences)).all())
    return found


def peft_methods() -> Any:
    import peft
    from transformers import GPT2Config, GPT2LMHeadModel

    task = {"task_type": "CAUSAL_LM"}
    found = {}
    for name, config in {
        "LoRA": peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, **task),
        "DoRA": peft.LoraConfig(r=4, target_modules=["c_attn"], use_dora=True, fan_in_fan_out=True, **task),
        "rsLoRA": peft.LoraConfig(r=4, target_modules=["c_proj"], use_rslora=True, fan_in_fan_out=True, **task),
        "IA3": peft.IA3Config(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True, **task),
        "AdaLoRA": peft.AdaLoraConfig(target_modules=["c_attn"], total_step=10, fan_in_fan_out=True, **task),
        "Prefix": peft.PrefixTuningConfig(num_virtual_tokens=3, **task),
        "Prompt": peft.PromptTuningConfig(num_virtual_tokens=3, **task),
        "PTuning": peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=16, **task),
        "LNTuning": peft.LNTuningConfig(target_modules=["ln_1"], **task),
        "VeRA": peft.VeraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, **task),
    }.items():
        model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=99))
        model = fill(peft.get_peft_model(model, config))
        for key, buffer in model.named_buffers():
            if "vera" in key and buffer is not None:
                buffer.copy_(torch.cos(torch.arange(buffer.numel()) * 0.3).view(buffer.shape))
        found[name] = [
            steps(model, {"input_ids": tokens(2, 10), "labels": tokens(2, 10)}, 2),
            sum(p.numel() for p in model.parameters() if p.requires_grad),
        ]
    merged = fill(
        peft.get_peft_model(
            GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
            peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        )
    ).eval()
    with torch.no_grad():
        before = merged(tokens(1, 5)).logits
        after = merged.merge_and_unload()(tokens(1, 5)).logits
    found["merged"] = bool(torch.allclose(before, after, atol=1e-4))
    return found


def diffusers_parts() -> Any:
    import diffusers as d

    found: dict[str, Any] = {}
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1}
    unet = fill(
        d.UNet2DConditionModel(
            sample_size=16,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=16,
            attention_head_dim=4,
            norm_num_groups=8,
            **blocks,
        )
    )
    loss = unet(image(2, 4, 16, 16), torch.tensor([5, 700]), encoder_hidden_states=image(2, 7, 16)).sample.pow(2).mean()
    loss.backward()
    found["UNet2DConditionModel"] = loss.item()
    vae = fill(d.AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, **blocks))
    mean = vae.encode(image(1, 3, 16, 16)).latent_dist.mode()
    found["AutoencoderKL"] = [mean.abs().sum().item(), vae.decode(mean).sample.abs().sum().item()]
    vq = fill(
        d.VQModel(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, num_vq_embeddings=16, **blocks
        )
    )
    found["VQModel"] = vq(image(1, 3, 16, 16)).sample.abs().sum().item()
    dit = fill(
        d.DiTTransformer2DModel(
            num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, num_embeds_ada_norm=10, norm_num_groups=4
        )
    ).eval()
    found["DiT"] = dit(image(2, 4, 8, 8), timestep=torch.tensor([3, 40]), class_labels=torch.tensor([1, 2])).sample.abs().sum().item()
    for name in (
        "DDIM",
        "PNDM",
        "LMSDiscrete",
        "EulerDiscrete",
        "HeunDiscrete",
        "DPMSolverMultistep",
        "DPMSolverSinglestep",
        "DEISMultistep",
        "UniPCMultistep",
        "FlowMatchEulerDiscrete",
        "KDPM2Discrete",
    ):
        scheduler = getattr(d, f"{name}Scheduler")()
        scheduler.set_timesteps(6)
        x = image(1, 3, 4, 4)
        for t in scheduler.timesteps:
            scaled = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
            x = scheduler.step(torch.tanh(scaled) * 0.5, t, x).prev_sample
        found[name] = x.flatten()[:4].tolist()
    return found


def x_transformers_kinds() -> Any:
    import x_transformers as xt

    found = {}
    for name, options in {
        "plain": {},
        "rotary": {"rotary_pos_emb": True},
        "alibi": {"alibi_pos_bias": True},
        "relative": {"rel_pos_bias": True},
        "glu": {"ff_glu": True, "ff_swish": True},
        "rmsnorm": {"use_rmsnorm": True},
        "scalenorm": {"use_scalenorm": True},
        "sandwich": {"sandwich_coef": 1},
        "one key": {"attn_one_kv_head": True},
        "talking": {"attn_pre_talking_heads": True},
        "memory": {"attn_num_mem_kv": 4},
        "qk norm": {"attn_qk_norm": True},
        "gate": {"attn_gate_values": True},
        "residual": {"residual_attn": True},
        "macaron": {"macaron": True},
        "shift": {"shift_tokens": 1},
    }.items():
        layers = xt.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
        model = fill(xt.TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=layers))
        loss = F.cross_entropy(model(tokens(2, 10)).transpose(1, 2), tokens(2, 10))
        loss.backward()
        found[name] = [loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()]
    encoder = fill(
        xt.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=3, attn_layers=xt.Encoder(dim=32, depth=2, heads=4, attn_dim_head=8))
    )
    found["vision"] = encoder(image(2, 3, 32, 32)).flatten().tolist()
    both = fill(
        xt.XTransformer(
            dim=32,
            enc_num_tokens=100,
            enc_depth=1,
            enc_heads=4,
            enc_max_seq_len=16,
            dec_num_tokens=100,
            dec_depth=1,
            dec_heads=4,
            dec_max_seq_len=16,
        )
    )
    found["both"] = both(tokens(2, 8), tokens(2, 8)).item()
    wrapped = fill(
        xt.AutoregressiveWrapper(
            xt.TransformerWrapper(num_tokens=100, max_seq_len=32, attn_layers=xt.Decoder(dim=32, depth=1, heads=4, attn_dim_head=8))
        )
    )
    found["generated"] = wrapped.generate(tokens(1, 4), 6, temperature=0.0).tolist()
    return found


def torchmetrics_more() -> Any:
    import torchmetrics as tm
    from torchmetrics import functional as tf

    target, scores = tokens(40, most=4), torch.softmax(image(40, 4), 1)
    a, b, binary = image(40), image(40).sin() + 0.1, tokens(40, most=2)
    found: dict[str, Any] = {}
    for name in (
        "Precision",
        "Recall",
        "Specificity",
        "AveragePrecision",
        "CalibrationError",
        "CohenKappa",
        "HammingDistance",
        "JaccardIndex",
        "MatthewsCorrCoef",
    ):
        found[name] = getattr(tm, name)(task="multiclass", num_classes=4)(scores, target).item()
    for name in (
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "ExplainedVariance",
        "PearsonCorrCoef",
        "KendallRankCorrCoef",
        "LogCoshError",
        "ConcordanceCorrCoef",
    ):
        found[name] = getattr(tm, name)()(a, b).item()
    found["roc"] = [part.sum().item() for part in tf.roc(scores[:, 0], binary, task="binary")[:2]]
    found["curve"] = [part.sum().item() for part in tf.precision_recall_curve(scores[:, 0], binary, task="binary")[:2]]
    found["psnr"] = tf.image.peak_signal_noise_ratio(image(1, 3, 16, 16), image(1, 3, 16, 16) * 0.9, data_range=2.0).item()
    found["ssim"] = tf.image.structural_similarity_index_measure(image(1, 3, 16, 16), image(1, 3, 16, 16) * 0.9, data_range=2.0).item()
    found["ndcg"] = tf.retrieval.retrieval_normalized_dcg(scores[:, 0], binary).item()
    found["bleu"] = tf.text.bleu_score(["the cat sat on the mat today"], [["the cat sat on the mat"]]).item()
    found["kl"] = tf.kl_divergence(scores, scores.flip(0)).item()
    tracker = tm.MetricTracker(tm.MeanMetric(), maximize=True)
    for k in range(3):
        tracker.increment()
        tracker.update(a * k)
    found["tracker"] = tracker.compute_all().tolist()
    found["bootstrap"] = list(tm.wrappers.BootStrapper(tm.MeanSquaredError(), num_bootstraps=3)(a, b))
    return found


PROGRAMS = {
    function.__name__: function
    for function in (
        transformers,
        sampled,
        trainer,
        lightning,
        sentence_transformers,
        peft_methods,
        diffusers_parts,
        x_transformers_kinds,
        torchmetrics_more,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]]()))
