# SPDX-License-Identifier: Apache-2.0
"""sft.py plain|sharded|resume DIRECTORY: a small causal model by Trainer. Started by test_trainers.py."""

import json
import sys

import torch
import transformers

case, directory = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
)  # fmt: skip
model = transformers.LlamaForCausalLM(config)
generator = torch.Generator().manual_seed(1)
data = []
for _ in range(24):
    row = torch.randint(97, (16,), generator=generator)
    data.append({"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)})
ranks = 1 if case == "plain" else 2
arguments = transformers.TrainingArguments(
    output_dir=directory,
    use_cpu=True,
    per_device_train_batch_size=4 // ranks,
    gradient_accumulation_steps=1,
    max_steps=6,
    learning_rate=1e-2,
    logging_steps=1,
    save_steps=3,
    report_to=[],
    disable_tqdm=True,
    max_grad_norm=0.5,
    seed=3,
    dataloader_num_workers=0,
)
if case == "plain":
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
else:
    from fsdp.trainer import Trainer

    trainer = Trainer(model=model, args=arguments, train_dataset=data, units=["LlamaDecoderLayer"])
trainer.train(resume_from_checkpoint=f"{directory}/checkpoint-3" if case == "resume" else None)
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
if case == "resume":
    losses = losses[3:]
else:
    trainer.save_model()
    if trainer.args.should_save:
        again = transformers.AutoModelForCausalLM.from_pretrained(directory)
        assert again.lm_head.weight.shape == model.lm_head.weight.shape
print("LOSSES", json.dumps(losses), flush=True)
